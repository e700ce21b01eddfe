"""Small charts as SVG, so that a picture needs no plotting library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

#: line -> points of (x, y, low, high), the last two being the ends of the error bar
Panel = dict[str, list[tuple[float, float, float, float]]]

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 300, 220, 52, 30, 42
_COLUMNS = 3


def log_charts(panels: Mapping[str, Panel], *, x: str, y: str) -> str:
    """Line charts side by side, both axes logarithmic and common to all.

    Args:
        panels: A chart per title; a line of the same name has the same colour in all.
        x: What the horizontal axis shows.
        y: What the vertical axis shows.

    Returns:
        The SVG document.
    """
    points = [p for panel in panels.values() for line in panel.values() for p in line]
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    across = _decades([p[0] for p in points])
    up = _decades([bound for p in points for bound in p[1:]])
    rows = math.ceil(len(panels) / _COLUMNS)
    width = _WIDTH * min(len(panels), _COLUMNS)
    height = _HEIGHT * rows + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for index, (title, panel) in enumerate(panels.items()):
        left, top = index % _COLUMNS * _WIDTH, index // _COLUMNS * _HEIGHT
        parts.append(f'<g transform="translate({left} {top})">')
        parts += _axes(title, across, up, x, y)
        for name, line in panel.items():
            nth = names.index(name)
            parts.append(f'<g transform="translate({3 * nth - 5} 0)">')  # bars side by side
            parts += [*_line(line, across, up, _COLOURS[nth % len(_COLOURS)]), "</g>"]
        parts.append("</g>")
    for index, name in enumerate(names):
        left, colour = 12 + 170 * index, _COLOURS[index % len(_COLOURS)]
        parts.append(f'<circle cx="{left}" cy="{height - 12}" r="4" fill="{colour}"/>')
        parts.append(_text(left + 9, height - 8, name, "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _decades(values: Sequence[float]) -> tuple[int, int]:
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    return low, max(high, low + 1)


def _place(value: float, decades: tuple[int, int], begin: float, end: float) -> float:
    low, high = decades
    share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
    return round(begin + share * (end - begin), 1)


def _across(value: float, decades: tuple[int, int]) -> float:
    return _place(value, decades, _LEFT + 8, _WIDTH - 26)


def _up(value: float, decades: tuple[int, int]) -> float:
    return _place(value, decades, _HEIGHT - _BOTTOM, _TOP)


def _axes(title: str, across: tuple[int, int], up: tuple[int, int], x: str, y: str) -> list[str]:
    right, bottom = _WIDTH - 14, _HEIGHT - _BOTTOM
    middle = (_TOP + bottom) / 2
    parts = [
        _text((_LEFT + right) / 2, 18, title, "middle", "bold"),
        _text((_LEFT + right) / 2, bottom + 30, x, "middle"),
        f'<g transform="rotate(-90 12 {middle})">{_text(12, middle, y, "middle")}</g>',
    ]
    for power in range(up[0], up[1] + 1):
        at = _up(10.0**power, up)
        parts.append(f'<path d="M{_LEFT} {at}H{right}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 5, at + 4, f"{10.0**power:g}", "end"))
    for power in range(across[0], across[1] + 1):
        at = _across(10.0**power, across)
        parts.append(f'<path d="M{at} {_TOP}V{bottom}" stroke="#ddd"/>')
        parts.append(_text(at, bottom + 15, f"{10.0**power:,.10g}", "middle"))
    return parts


def _line(
    line: Sequence[tuple[float, float, float, float]],
    across: tuple[int, int],
    up: tuple[int, int],
    colour: str,
) -> list[str]:
    spots = [(_across(x, across), _up(y, up)) for x, y, _, _ in sorted(line)]
    path = " ".join(f"{x},{y}" for x, y in spots)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>']
    for (x, y), (_, _, low, high) in zip(spots, sorted(line), strict=True):
        bar = f"M{x} {_up(low, up)}V{_up(high, up)}"
        parts.append(f'<path d="{bar}" stroke="{colour}" stroke-opacity="0.5"/>')
        parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
    return parts


def _text(x: float, y: float, text: str, anchor: str, weight: str = "normal") -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>'
