"""Notes and columns of a study and its trials, as pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from optuna_deadline._numbers import format_count
from optuna_deadline.allocation.records import Event, SegmentRow, Slot
from optuna_deadline.history.forecast import Forecast
from optuna_deadline.history.records import History, TrialTimeline
from optuna_deadline.history.series import spent
from optuna_deadline.history.text import (
    format_time_of_day,
    format_value,
    request_sentence,
    until_deadline,
)
from optuna_deadline.values.deadlines import format_duration, format_instant
from optuna_deadline.visualization._allocation import usage

_DECISIONS = 8
_SEGMENTS = 12
_RUNNING = 32
_NO_BREAK = "\u00a0"
_STATES = {
    "running": "in training",
    "ready": "opened",
    "paused": "paused",
    "retired": "pruned",
    "complete": "complete",
    "failed": "failed",
}


def study_note(history: History, timelines: list[TrialTimeline], expected: Forecast) -> str:
    """The note of a study: time, money, the best value, running trials, recent decisions."""
    lines = [f"**Deadline** {format_instant(history.deadline)}, {_when(history)}."]
    lines.append(f"**Best** {_best(history, expected)}")
    if history.budget is not None:
        bill = spent(history, points=1)
        paid = bill[-1][1] if bill else 0.0
        left = max(0.0, history.budget.amount - paid)
        lines.append(
            f"**Money** {paid:.4g} of {history.budget} spent, {left:.4g} left at "
            f"{history.budget.rate}{_by_then(history, expected)}."
        )
    if not history.plain and any(life.segments for life in timelines):
        lines.append(f"**Slots** {usage(history)}.")
    states = Counter(life.state for life in timelines)
    counted = [f"{states[state]} {words}" for state, words in _STATES.items() if states[state]]
    lines.append(f"**Trials** {', '.join(counted) or 'none yet'}.")
    if wishes := _asked_for(history):
        lines.append(f"**Requests** {wishes}.")
    parts = ["  \n".join(lines), _running(history, timelines), _decisions(history)]
    return "\n\n".join(part for part in parts if part)


def _by_then(history: History, expected: Forecast) -> str:
    if expected.spent is None or history.settled is not None or history.time_left <= 0:
        return ""
    return f"; {expected.spent:.4g} by the end, with as many slots as now"


def _when(history: History) -> str:
    as_of = f"as of {format_time_of_day(history.now)}"
    if history.settled is None and history.time_left > 0:
        return f"in {format_duration(history.time_left)} {as_of}"
    if history.settled is None:
        return f"{until_deadline(history.time_left)} {as_of}; the study is ending"
    early = history.deadline - history.settled
    side = "before" if early >= 0 else "after"
    return f"the study has ended {format_duration(abs(early))} {side} it"


def _asked_for(history: History) -> str:
    """The requests of users that hold now: "trial 3 held; trial 7 pinned to 4; node2 drained"."""
    living = [planned for planned in history.trials if planned.alive]
    held = [f"trial {planned.number} held" for planned in living if planned.held is not None]
    pins = [
        f"trial {planned.number} pinned to {planned.pinned}"
        for planned in living
        if planned.pinned
    ]
    hosts = sorted({row.host for row in history.workers if row.drained is not None})
    return "; ".join([*held, *pins, *(f"{host} drained" for host in hosts)])


def _best(history: History, expected: Forecast) -> str:
    known = history.improvements
    if not known:
        return "no reports yet."
    words = f"{format_value(known[-1].value)} (trial {known[-1].number}, step {known[-1].step})"
    if not expected.fans or expected.low is None or expected.high is None:
        return f"{words}."
    low, high = sorted((expected.low, expected.high))
    band = f"{format_value(low)} to {format_value(high)}"
    return f"{words}; {format_value(expected.expected)} expected at the deadline ({band})."


def places(slots: tuple[int, ...], known: dict[int, Slot]) -> str:
    """The places of a gang's slots: "gpu:0, gpu:1 on node7"."""
    by_host: dict[str, list[str]] = defaultdict(list)
    for slot in slots:
        row = known.get(slot)
        by_host["?" if row is None else row.host].append(
            f"slot {slot}" if row is None else row.device
        )
    return "; ".join(f"{', '.join(names)} on {host}" for host, names in by_host.items())


def _running(history: History, timelines: list[TrialTimeline]) -> str:
    known = {slot.id: slot for slot in history.slots}
    running = [life for life in timelines if life.slots]
    rows = [
        f"| {life.number} | {life.slots} | {_cell(places(spell.slots, known))} "
        f"| {format_time_of_day(spell.start)} | {_cell(spell.reason)} |"
        for life in running[:_RUNNING]
        for spell in life.segments[-1:]
    ]
    if not rows:
        return ""
    more = len(running) - _RUNNING
    rest = [f"\nand {format_count(more, 'more trial')}"] if more > 0 else []
    head = ["| trial | slots | where | since | why |", "|---:|---:|---|---|---|"]
    return "\n".join([*head, *rows, *rest])


def _decisions(history: History) -> str:
    sentences = [words for event in history.events[-2000:] if (words := decision(event))]
    if not sentences:
        return ""
    return "\n".join(
        ["**Last decisions**", "", *(f"- {words}" for words in sentences[-_DECISIONS:])]
    )


def decision(event: Event) -> str:
    """A planner's decision with its time of day; empty for other events."""
    if event.kind == "plan":
        words = f"trial {event.number} {event.detail.get('reason', '')}"
    elif event.kind == "gate":
        words = "new trials can start" if event.detail.get("open") else "no new trials start"
    elif event.kind == "pool":
        words = (
            f"the study pays for {format_count(int(str(event.detail.get('slots', 0))), 'slot')}"
        )
    elif event.kind == "rest":
        words = "no worker is left; the study pays for no slots"
    elif event.kind == "settle":
        words = "the study has ended"
    elif not (words := request_sentence(event, f"trial {event.number}")):
        return ""
    return f"{format_time_of_day(event.at)} {words}"


def trial_note(history: History, life: TrialTimeline) -> str:
    """The note of a trial: its state and the reason, and its segments."""
    known = {slot.id: slot for slot in history.slots}
    since = life.ended
    if since is None and life.state == "paused" and life.waits:
        since = life.waits[-1].start
    elif since is None and life.segments:
        since = life.segments[-1].start
    when = "" if since is None else f" since {format_time_of_day(since)}"
    lines = [f"**{_STATES.get(life.state, life.state)}**{when}: {life.reason}", ""]
    if life.segments:
        lines += ["| from | slots | for | why | ended |", "|---|---|---:|---|---|"]
    for spell in life.segments[-_SEGMENTS:]:
        length = (
            ""
            if spell.end is None
            else format_duration(spell.end - spell.start).replace(" ", "\u00a0")
        )
        why = spell.plan_end_reason if spell.plan_end_reason != spell.end_reason else ""
        ended = f"{spell.end_reason}: {why}" if why else spell.end_reason
        cells = (
            format_time_of_day(spell.start),
            f"{len(spell.slots)}: {places(spell.slots, known)}",
            length.replace(" ", _NO_BREAK),
            spell.reason,
            ended,
        )
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    more = len(life.segments) - _SEGMENTS
    if more > 0:
        lines += ["", f"{format_count(more, 'earlier segment')} left out"]
    return "\n".join(lines)


def columns(history: History, life: TrialTimeline, segments: list[SegmentRow]) -> dict[str, Any]:
    """The attributes of a trial by which the dashboard's table can be sorted."""
    lost = sum((row.startup or 0.0) + (row.stop or 0.0) for row in segments)
    return {
        "deadline:state": life.state,
        "deadline:slots": life.slots,
        "deadline:segments": len(life.segments),
        "deadline:slot_seconds": round(life.slot_seconds(history.end), 1),
        "deadline:overhead_seconds": round(lost, 1),
    }


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
