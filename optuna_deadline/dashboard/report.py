"""A study as one HTML page that needs no other file: what was found, and how it was found."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timezone
from html import escape
from importlib.resources import files

from optuna_deadline.history.outcome import StudyOutcome, TrialOutcome
from optuna_deadline.values.deadlines import format_duration
from optuna_deadline.values.scores import score

_WIDTH, _HEIGHT, _LEFT, _BELOW = 640, 240, 64, 28  # of the chart, in pixels
_TICKS = 4
_ROWS = 500  # trials of the table, the best ones


def report_page(outcome: StudyOutcome) -> str:
    """The page of a study."""
    title = escape(outcome.study)
    style = (files("optuna_deadline.dashboard") / "static" / "report.css").read_text()
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">',
            f"<title>{title} · optuna-deadline</title>",
            f"<style>{style}</style></head>",
            f"<body><h1>{title}</h1>",
            f"<p>{escape(_when(outcome))}</p>",
            *_best(outcome),
            "<h2>Best value against time</h2>",
            chart(outcome),
            "<h2>Trials</h2>",
            *_trials(outcome),
            "</body></html>",
        ]
    )


def chart(outcome: StudyOutcome) -> str:
    """The best value against time, as an SVG image: each value holds until the next."""
    whole = max(outcome.deadline - outcome.started, 1e-9)
    points = outcome.improvements
    values = [value for _, value in points] or [0.0]
    low, high = min(values), max(values)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)

    def x(seconds: float) -> float:
        part = min(max(seconds / whole, 0.0), 1.0)
        return round(_LEFT + part * (_WIDTH - _LEFT - 8), 1)

    def y(value: float) -> float:
        part = (value - low) / (high - low)
        return round(_HEIGHT - _BELOW - part * (_HEIGHT - _BELOW - 12), 1)

    path = ""
    for place, (seconds, value) in enumerate(points):
        path += f"H{x(seconds)}V{y(value)}" if place else f"M{x(seconds)},{y(value)}"
    path += f"H{x(outcome.ended - outcome.started)}" if points else ""
    ticks = [low + (high - low) * part / _TICKS for part in range(_TICKS + 1)]
    instants = [whole * part / _TICKS for part in range(_TICKS + 1)]
    best = f"{values[-1]:.6g}" if points else "nothing was reported"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            f'role="img" aria-label="Best value against time: {best} at the end">',
            "<style>path{fill:none;stroke:#0072B2;stroke-width:2}line{stroke:#8a8a8a55}"
            "text{font:12px system-ui,sans-serif;fill:#555}"
            "@media(prefers-color-scheme:dark){text{fill:#bbb}path{stroke:#56B4E9}}</style>",
            *(
                f'<line x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y(tick)}" y2="{y(tick)}"/>'
                f'<text x="{_LEFT - 6}" y="{y(tick) + 4}" text-anchor="end">{tick:.4g}</text>'
                for tick in ticks
            ),
            *(
                f'<text x="{x(instant)}" y="{_HEIGHT - 8}" text-anchor="{anchor}">'
                f"{escape(format_duration(instant))}</text>"
                for instant, anchor in zip(
                    instants, ["start", *["middle"] * (_TICKS - 1), "end"], strict=True
                )
            ),
            f'<path d="{path}"/>' if path else "",
            "</svg>",
        ]
    )


def _when(outcome: StudyOutcome) -> str:
    def as_text(instant: float) -> str:
        return datetime.fromtimestamp(instant, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")

    states = ", ".join(f"{count} {state}" for state, count in outcome.states.items()) or "none"
    end = "It has ended" if outcome.over else "It is running"
    return (
        f"{end}: from {as_text(outcome.started)} to {as_text(outcome.deadline)} "
        f"({format_duration(outcome.deadline - outcome.started)}). "
        f"Policy {outcome.policy}, {outcome.direction}. Trials: {states}."
    )


def _best(outcome: StudyOutcome) -> list[str]:
    best = outcome.best
    if best is None:
        return ["<p>No trial has reported a value.</p>"]
    step = "" if best.step is None else f", step {best.step}"
    rows = [
        ("best value", f"{best.value:.6g} (trial {best.number}{step})"),
        *((name, _text(value)) for name, value in best.params.items()),
    ]
    parts = ["<h2>Best model</h2>", "<dl>"]
    parts += [f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows]
    parts.append("</dl>")
    if outcome.command is None or outcome.loading is None:
        parts.append("<p>No checkpoint was saved: only the parameters are left.</p>")
    else:
        parts.append("<p>Verify it and copy it, then load it:</p>")
        parts.append(f"<pre>{escape(outcome.command)}\n{escape(outcome.loading)}</pre>")
    return parts


def _trials(outcome: StudyOutcome) -> Iterable[str]:
    ranked = sorted(outcome.trials, key=lambda trial: _rank(trial, outcome.direction))
    names = list(dict.fromkeys(name for trial in ranked for name in trial.params))
    heads = ["trial", "state", "best value", "at step", *names]
    yield '<div class="scroll"><table><thead><tr>'
    yield "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr></thead><tbody>"
    for trial in ranked[:_ROWS]:
        value = "" if trial.value is None else f"{trial.value:.6g}"
        cells = [trial.number, trial.state, value, "" if trial.step is None else trial.step]
        cells += [_text(trial.params[name]) if name in trial.params else "" for name in names]
        yield "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"
    yield "</tbody></table></div>"
    if len(ranked) > _ROWS:
        yield f"<p>and {len(ranked) - _ROWS} more</p>"


def _rank(trial: TrialOutcome, direction: str) -> tuple[bool, float, int]:
    known = trial.value is not None
    return not known, -score(trial.value or 0.0, direction), trial.number


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
