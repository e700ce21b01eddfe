"""Draw a chart as plotly's JSON; only figure objects need plotly itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optuna_deadline.visualization._chart import Area, Bars, Chart, ChartPart, Line, Points

if TYPE_CHECKING:
    import plotly.graph_objects as go

_SYMBOLS = {"circle": "circle", "star": "star", "x": "x", "diamond": "diamond"}
_SYMBOLS["open"] = "circle-open"
_WIDE = 68  # characters that fit above a figure in half a window
_SMALL = '<span style="font-size:12px">'


def is_available() -> bool:
    """Whether plotly is installed."""
    from importlib.util import find_spec

    return find_spec("plotly") is not None


def check_available() -> None:
    """Check that plotly is installed.

    Raises:
        ImportError: It is not; the message names the package to install.
    """
    if not is_available():
        raise ImportError(
            "The figures need plotly: pip install 'optuna-deadline[dashboard]', or use "
            "optuna_deadline.visualization.matplotlib."
        )


def figure_of(chart: Chart) -> go.Figure:
    """The chart as a plotly figure."""
    import plotly.graph_objects as go

    return go.Figure(spec_of(chart))


def spec_of(chart: Chart) -> dict[str, Any]:
    """The chart as the JSON of a plotly figure."""
    data: list[dict[str, Any]] = []
    for part in chart.parts:
        data += _traces(part)
    x_axis: dict[str, Any] = {"title": {"text": chart.x_title}, "zeroline": False}
    y_axis: dict[str, Any] = {"title": {"text": chart.y_title}, "zeroline": False}
    y_axis["automargin"] = True
    if chart.x_range is not None:
        x_axis["range"] = list(chart.x_range)
    for axis, ticks in ((x_axis, chart.x_ticks), (y_axis, chart.y_ticks)):
        if ticks:
            axis |= {"tickvals": [at for at, _ in ticks], "ticktext": [text for _, text in ticks]}
    if chart.from_zero:
        y_axis["rangemode"] = "tozero"
    lines = _lines(chart.summary)
    verdict = "<br>".join(f"{_SMALL}{_escaped(line)}</span>" for line in lines)
    layout = {
        "title": {
            "text": f"{chart.title}<br>{verdict}",
            "y": 0.97,
            "yanchor": "top",
            "x": 0.02,
            "xanchor": "left",
            "font": {"size": 16},
        },
        "xaxis": x_axis,
        "yaxis": y_axis,
        "barmode": "overlay",
        "hovermode": "closest",
        "showlegend": True,
        "legend": {"orientation": "h", "yanchor": "top", "y": -0.25, "x": 0, "font": {"size": 11}},
        "margin": {"l": 50, "r": 20, "t": 66 + 17 * len(lines), "b": 40},
        "shapes": [
            {
                "type": "line",
                "xref": "x",
                "yref": "paper",
                "x0": mark.x,
                "x1": mark.x,
                "y0": 0,
                "y1": 1,
                "line": {
                    "color": mark.colour,
                    "width": 1.5,
                    "dash": "dot" if mark.dotted else "dash",
                },
            }
            for mark in chart.marks
        ],
        "annotations": [
            _annotation(chart, place) for place, mark in enumerate(chart.marks) if mark.words
        ],
    }
    return {"data": data, "layout": layout}


def _lines(verdict: str) -> list[str]:
    """Break a sentence between its clauses into lines that fit."""
    lines: list[str] = []
    for clause in verdict.split("; "):
        if lines and len(lines[-1]) + len(clause) + 2 <= _WIDE:
            lines[-1] = f"{lines[-1]}; {clause}"
        else:
            lines.append(clause)
    return lines


def _annotation(chart: Chart, place: int) -> dict[str, Any]:
    """A label above a line, on the side with enough space."""
    mark = chart.marks[place]
    low, high = chart.x_range or (mark.x, mark.x)
    right = mark.x > low + 0.7 * (high - low)
    return {
        "x": mark.x,
        "y": 1.0,
        "xref": "x",
        "yref": "paper",
        "text": mark.words,
        "showarrow": False,
        "xanchor": "right" if right else "left",
        "yanchor": "bottom",
        "font": {"size": 11, "color": mark.colour},
    }


def _traces(part: ChartPart) -> list[dict[str, Any]]:
    if isinstance(part, Bars):
        return [_bars(part)]
    if isinstance(part, Line):
        return [_line(part)]
    if isinstance(part, Points):
        return [_points(part)]
    return _area(part)


def _bars(part: Bars) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": part.name,
        "x": [bar.length for bar in part.bars],
        "base": [bar.start for bar in part.bars],
        "y": [bar.row for bar in part.bars],
        "width": part.height,
        "hovertext": [_escaped(bar.text) for bar in part.bars],
        "hoverinfo": "text",
        "marker": {"color": part.colour, "line": {"width": 0}},
    }


def _line(part: Line) -> dict[str, Any]:
    line: dict[str, Any] = {"color": part.colour, "width": part.width}
    if part.dash:
        line["dash"] = "dash"
    if part.steps:
        line["shape"] = "hv"
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if part.markers else "lines",
        "name": part.name,
        "x": list(part.x),
        "y": list(part.y),
        "line": line,
        "opacity": part.opacity,
        "showlegend": part.legend,
    }
    if part.markers:
        trace["marker"] = {"size": 4}
    if part.group:
        trace["legendgroup"] = part.group
    if part.texts:
        template = _escaped(part.template).replace("{}", "%{text}") + "<extra></extra>"
        trace |= {"text": [_escaped(text) for text in part.texts], "hovertemplate": template}
    return trace


def _points(part: Points) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "name": part.name,
        "x": list(part.x),
        "y": list(part.y),
        "marker": {"color": part.colour, "symbol": _SYMBOLS[part.symbol], "size": part.size},
    }
    if part.texts:
        trace |= {"hovertext": [_escaped(text) for text in part.texts], "hoverinfo": "text"}
    return trace


def _area(part: Area) -> list[dict[str, Any]]:
    """The traces of a band: an invisible lower edge, and an upper edge filled down to it."""
    red, green, blue = (int(part.colour[place : place + 2], 16) for place in (1, 3, 5))
    line: dict[str, Any] = {"width": 0, "color": part.colour}
    if part.steps:
        line["shape"] = "hv"
    edge: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "x": list(part.x),
        "line": line,
        "hoverinfo": "skip",
        "legendgroup": part.group or part.name,
    }
    low = {**edge, "y": list(part.low), "showlegend": False}
    high = {
        **edge,
        "name": part.name,
        "y": list(part.high),
        "showlegend": part.legend,
        "fill": "tonexty",
        "fillcolor": f"rgba({red},{green},{blue},{part.opacity:g})",
    }
    return [low, high]


def _escaped(text: str) -> str:
    """Escape tags, which plotly would interpret."""
    safe = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return safe.replace("\n", "<br>")
