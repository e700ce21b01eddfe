"""The slots of each trial over time, and the reasons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from optuna.study import Study

from optuna_deadline._numbers import format_count
from optuna_deadline.history.reader import read_history
from optuna_deadline.history.records import History, SegmentInterval, TrialTimeline
from optuna_deadline.history.series import available_slots, integral, slots_in_use
from optuna_deadline.history.text import (
    format_percent,
    until_deadline,
)
from optuna_deadline.values.deadlines import format_duration
from optuna_deadline.visualization import _plotly
from optuna_deadline.visualization._chart import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
    Axis,
    Bar,
    Bars,
    Chart,
    ChartPart,
    Points,
    Symbol,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LABELS = 24  # rows with names
_BY_SIZE = (SKY, BLUE, ORANGE, VERMILLION, PURPLE, YELLOW, "#000000")
_ENDS: dict[str, tuple[str, str, Symbol]] = {
    "complete": ("complete", GREEN, "star"),
    "retired": ("retired (pruned)", "#444444", "x"),
    "failed": ("failed", VERMILLION, "diamond"),
}


def plot_allocation(
    study: Study, n_recent_trials: int | None = None, *, storage: str | None = None
) -> go.Figure:
    """Plot the slots of each trial over time, with pauses, resizes and their reasons.

    Each row is a trial. A bar is a segment, coloured by its number of slots; a thin grey bar is a
    pause. The pointer shows the reasons.

    Args:
        study: A study with a deadline, running or ended.
        n_recent_trials: Show only this many trials, those that trained last; None shows all.
        storage: The database of the allocation table, if the study's storage is not SQL.

    Returns:
        A :class:`plotly.graph_objects.Figure`.

    Raises:
        DeadlineError: The study has no deadline.
        ImportError: Plotly is not installed.
        ValueError: ``n_recent_trials`` is not positive.
    """
    check_number(n_recent_trials)
    _plotly.check_available()
    return _plotly.figure_of(chart_allocation(read_history(study, storage), n_recent_trials))


def check_number(n_recent_trials: int | None) -> None:
    """Check that a number of trials is positive, as Optuna does.

    Raises:
        ValueError: It is not positive.
    """
    if n_recent_trials is not None and n_recent_trials <= 0:
        raise ValueError("n_recent_trials must be a positive integer or None.")


def chart_allocation(
    history: History, n_recent_trials: int | None = None, n_recent_spells: int | None = None
) -> Chart:
    """The chart of :func:`plot_allocation`.

    Args:
        history: The study's history.
        n_recent_trials: As in :func:`plot_allocation`.
        n_recent_spells: Show only this many of the newest segments, to limit the figure's size.
    """
    everything = history.timelines
    shown = _trained_last(history, everything, n_recent_trials)
    rows = {life.number: float(place) for place, life in enumerate(shown)}
    spells = sorted((s for life in shown for s in life.segments), key=lambda s: s.start)
    since: float | None = None
    if n_recent_spells is not None and len(spells) > n_recent_spells:
        spells = spells[-n_recent_spells:]
        since = spells[0].start
    axis = Axis(history, since=since)
    parts: list[ChartPart] = [
        *_pauses(history, shown, rows, axis, since),
        *_segments(history, spells, rows, axis),
        *_ends(shown, rows, axis, since),
    ]
    every = -(-len(shown) // _LABELS) or 1
    return Chart(
        title="Allocation",
        summary=_summary(history, everything, len(shown), since is not None),
        x_title=axis.title,
        y_title="Trial",
        parts=tuple(parts),
        marks=axis.marks,
        x_range=axis.range,
        y_ticks=tuple(
            (float(place), str(life.number))
            for place, life in enumerate(shown)
            if place % every == 0
        ),
    )


def _trained_last(
    history: History, everything: Sequence[TrialTimeline], most: int | None
) -> Sequence[TrialTimeline]:
    """The trials that hold slots and those that held some last, in the order of their numbers."""

    def last(life: TrialTimeline) -> tuple[float, int]:
        left = life.segments[-1].until(history.end) if life.segments else life.opened
        return left, life.number

    chosen = sorted(everything, key=last)[-most:] if most is not None else everything
    return sorted(chosen, key=lambda life: life.number)


def _summary(history: History, everything: Sequence[TrialTimeline], shown: int, cut: bool) -> str:
    if not any(life.segments for life in everything):
        left = until_deadline(history.time_left, history.settled is not None)
        return f"no trial has had a slot yet; {left}"
    words = [usage(history), until_deadline(history.time_left, history.settled is not None)]
    if shown < len(everything):
        words.append(f"{shown} of {len(everything)} trials, the most recent ones")
    if cut:
        words.append("only the newest segments")
    return "; ".join(words)


def usage(history: History) -> str:
    """The share of its slots that the study has used."""
    hand, used = available_slots(history), slots_in_use(history.slot_intervals)
    begin = hand[0][0] if hand else history.started
    had, held = integral(hand, begin, history.end), integral(used, begin, history.end)
    most = int(max((level for _, level in hand), default=0))
    if history.settled is None:
        busy, there = int(used[-1][1]) if used else 0, int(hand[-1][1]) if hand else 0
        now = f"{busy} of {format_count(there, 'slot')} busy now, "
    else:
        now = f"{format_count(most, 'slot')} at most, "
    return f"{now}{format_percent(min(held, had), had)} of their time used"


def _size_name(low: int, high: int) -> str:
    return format_count(low, "slot") if low == high else f"{low} to {high} slots"


def _sizes(found: set[int]) -> list[tuple[int, int]]:
    """The sizes of gangs; if there are too many for colours, ranges between powers of two."""
    if len(found) <= len(_BY_SIZE):
        return [(size, size) for size in sorted(found)]
    ranges = [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, max(33, *found))]
    return [(low, high) for low, high in ranges if any(low <= size <= high for size in found)]


def _segments(
    history: History, spells: Sequence[SegmentInterval], rows: Mapping[int, float], axis: Axis
) -> list[Bars]:
    devices = {slot.id: (slot.host, slot.device) for slot in history.slots}
    sizes = _sizes({len(spell.slots) for spell in spells if spell.slots})
    parts = []
    for (low, high), colour in zip(sizes, _BY_SIZE, strict=False):
        bars = tuple(
            Bar(
                rows[spell.number],
                axis(spell.start),
                max(axis.length(spell.until(history.end) - spell.start), 0.001),
                _text(history, spell, devices),
            )
            for spell in spells
            if low <= len(spell.slots) <= high
        )
        parts.append(Bars(_size_name(low, high), colour, bars))
    return parts


def _text(history: History, spell: SegmentInterval, devices: dict[int, tuple[str, str]]) -> str:
    places: dict[str, list[str]] = defaultdict(list)
    for slot in spell.slots:
        host, device = devices.get(slot, ("?", f"slot {slot}"))
        places[host].append(device)
    where = "; ".join(f"{', '.join(names)} on {host}" for host, names in places.items())
    length = spell.until(history.end) - spell.start
    lines = [
        f"trial {spell.number}: {format_count(len(spell.slots), 'slot')} for "
        f"{format_duration(length)}",
        where,
        f"began: {spell.reason}",
    ]
    if spell.end is not None:
        reason = spell.plan_end_reason
        more = f", {reason}" if reason and reason not in (spell.reason, spell.end_reason) else ""
        lines.append(f"ended: {spell.end_reason}{more}")
    return "\n".join(line for line in lines if line)


def _pauses(
    history: History,
    shown: Sequence[TrialTimeline],
    rows: Mapping[int, float],
    axis: Axis,
    since: float | None,
) -> list[Bars]:
    bars = tuple(
        Bar(
            rows[life.number],
            axis(max(wait.start, since or wait.start)),
            axis.length(end - max(wait.start, since or wait.start)),
            f"trial {life.number} paused for {format_duration(end - wait.start)}\n{wait.reason}",
        )
        for life in shown
        for wait in life.waits
        if (end := history.end if wait.end is None else wait.end) > (since or wait.start)
    )
    return [Bars("paused", GREY, bars, height=0.15)] if bars else []


def _ends(
    shown: Sequence[TrialTimeline], rows: Mapping[int, float], axis: Axis, since: float | None
) -> list[Points]:
    parts = []
    for state, (name, colour, symbol) in _ENDS.items():
        ended = [
            life
            for life in shown
            if life.state == state and life.ended is not None and life.ended >= (since or 0.0)
        ]
        if ended:
            parts.append(
                Points(
                    name,
                    colour,
                    tuple(axis(life.ended or 0.0) for life in ended),
                    tuple(rows[life.number] for life in ended),
                    symbol,
                    tuple(f"trial {life.number} {name}: {life.reason}" for life in ended),
                    size=13.0 if state == "complete" else 7.0,
                )
            )
    return parts
