"""What becomes of a training that is left, and the tables of the guide that say it beforehand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from elastic_harness import LEFT, Plan, run_segment

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
EXACT, REFUSED, ONE_SLOT, DIFFERS = VERDICTS = "exact", "refused", "one slot", "differs"

ROUNDING = 1e-12  # of sums over two slots, in double precision

Moves = list[tuple[int, int | None]]
STILL: Moves = [(1, None)]
PAUSED: Moves = [(1, 4), (1, 9), (1, 13), (1, None)]
EACH_STEP: Moves = [*[(1, 0)] * 16, (1, None)]
MOVED: Moves = [(1, 4), (2, 9), (1, 13), (2, None)]


class Row(NamedTuple):
    """A line of a guide's table."""

    habit: str
    pause: str
    move: str
    advice: str


def table(page: str) -> Iterator[Row]:
    """The lines of a page's table of verdicts, without its headings."""
    for line in (GUIDE / page).read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == len(Row._fields) and cells[1] in VERDICTS:
            yield Row(re.sub(r"`|\[|\]\(.*?\)", "", cells[0]), *cells[1:])


@dataclass(frozen=True)
class Habit:
    """One change to the small training.

    Attributes:
        plan: The training.
        words: Of the sentence with which it is refused, kept on one slot, or said to differ.
        each: Whether it is paused after each step, and not after three of them.
        near: How far weights may differ where they do.
        shifts: Whether it trains on other batches where it differs.
        late: Whether that it differs is seen in a step only, and not before the first one.
    """

    plan: Plan
    words: str = ""
    each: bool = False
    near: float = torch.inf
    shifts: bool = False
    late: bool = False


@dataclass
class Run:
    """A training from its first segment to its end, or to its refusal."""

    batches: dict[tuple[int, int], Any] = field(default_factory=dict)
    reports: dict[int, float] = field(default_factory=dict)
    epochs: dict[int, dict[str, float]] = field(default_factory=dict)
    states: Any = None
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    refusal: str = ""  # on one slot
    limit: str = ""  # why it has one slot only
    kept: bool = False  # whether it would have had another one since then
    said: list[list[tuple[int, str]]] = field(default_factory=list)  # by segments that trained


def check(folder: Path, habit: Habit, row: Row) -> None:
    """Train undisturbed, paused and moved, and find what the guide says."""
    still = run(folder / "still", habit.plan, STILL)
    if still.refusal:
        assert habit.words and habit.words in still.refusal
        assert (row.pause, row.move) == (REFUSED, REFUSED)
        return
    paused = run(folder / "paused", habit.plan, EACH_STEP if habit.each else PAUSED)
    moved = run(folder / "moved", habit.plan, MOVED)
    found = verdict(still, paused), verdict(still, moved, ROUNDING)
    assert [one for one, _ in found] == [row.pause, row.move], found
    for told, left in ((row.pause, paused), (row.move, moved)):
        if told == DIFFERS:  # the second segment is the first that comes back, and has two slots
            early = [text for steps, text in left.said[1] if not steps or habit.late]
            assert habit.words and any(habit.words in text for text in early), left.said
        assert _gap(still.weights, left.weights) <= habit.near
        assert habit.shifts or still.batches == left.batches
    if moved.kept:
        assert habit.words and habit.words in moved.limit


def run(folder: Path, plan: Plan, moves: Moves) -> Run:
    """Train in segments of (ranks, step to leave at), as workers and a planner would have it."""
    folder.mkdir()
    found = Run()
    resume = None
    for fence, (wanted, leave_at) in enumerate([*moves, *STILL], start=1):
        ranks = 1 if found.limit else wanted
        found.kept |= bool(found.limit) and wanted > 1
        now = replace(
            plan, folder=str(folder), fence=fence, ranks=ranks, leave_at=leave_at, resume=resume
        )
        seen = run_segment(now)
        errors = [rank.get("error") or f"ended with {rank['exitcode']}" for rank in seen]
        codes = {rank["exitcode"] for rank in seen}
        published = seen[0].get("published", [])
        resume = published[-1]["path"] if published else resume
        if not codes <= {0, LEFT}:
            if ranks == 1:
                assert len(seen[0].get("steps", [])) <= 1, f"refused too late: {errors}"
                found.refusal = errors[0]
                return found
            found.limit = errors[0]
        limits = [reason for rank in seen for _, reason in rank.get("limits", [])]
        found.limit = limits[0] if limits else found.limit
        found.kept |= bool(found.limit) and ranks > 1
        if seen[0].get("steps"):
            found.said.append([(steps, text) for steps, text in seen[0]["said"]])
        if not found.limit or ranks == 1:  # else it goes on from the checkpoint before
            _collect(found, seen)
        if codes == {0}:
            found.states = [seen[0].get(one) for one in ("extras", "global_step", "lr")]
            found.weights = torch.load(folder / "final.pt")
            return found
    raise AssertionError("it never ends")


def _collect(found: Run, seen: list[dict[str, Any]]) -> None:
    for steps in zip(*(rank["steps"] for rank in seen), strict=True):
        first = steps[0]
        ids = sorted(i for step in steps if step["weight"] for i in step["ids"])
        found.batches[first["epoch"], first["batch"]] = first["step"], first["lr"], ids
    found.reports.update({step: value for step, value in seen[0]["reports"]})
    found.epochs.update({epoch: metrics for epoch, metrics in seen[0].get("epochs", [])})


def verdict(still: Run, left: Run, tolerance: float = 0.0) -> tuple[str, str]:
    """What became of a training that was left, and why it is not another verdict."""
    if left.refusal:
        return REFUSED, left.refusal
    # Lightning sums what it logs in single precision.
    loose = 0.0 if not tolerance else 1e-6
    if still.batches != left.batches:
        other = [
            place for place in still.batches if still.batches[place] != left.batches.get(place)
        ]
        return DIFFERS, f"batches {other}"
    for name, ours, theirs in (
        ("reports", still.reports, left.reports),
        ("epochs", _settled(still.epochs), _settled(left.epochs)),
        ("states", still.states, left.states),
    ):
        if (gap := _gap(ours, theirs)) > loose:
            return DIFFERS, f"{name} by {gap:.1e}: {ours}, {theirs}"
    if (gap := _gap(still.weights, left.weights)) > tolerance:
        return DIFFERS, f"weights by {gap:.1e}"
    return (ONE_SLOT, left.limit) if left.kept else (EXACT, f"{gap:.1e}")


def _settled(epochs: dict[int, dict[str, float]]) -> dict[int, dict[str, float]]:
    """Without what is of a rank's own slice."""
    return {
        epoch: {name: value for name, value in one.items() if not name.endswith("_step")}
        for epoch, one in epochs.items()
    }


def _gap(one: Any, other: Any) -> float:
    """The largest difference between numbers in equal places; infinite where places differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return _gap([*one.values()], [*other.values()]) if [*one] == [*other] else torch.inf
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            return torch.inf
        return max((_gap(*pair) for pair in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, torch.Tensor):
        return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
    if isinstance(one, (int, float)):
        return 0.0 if one == other or (one != one and other != other) else abs(one - other)
    return 0.0 if one == other else torch.inf
