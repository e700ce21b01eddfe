"""What a run must keep: one row per promise, from what ranks, tables, files and logs say."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.chaos import checker
from benchmarks.chaos.checker import Ending, Entry, Segment, Trial
from benchmarks.chaos.objective import EVERY
from benchmarks.chaos.usage import Use
from benchmarks.soak.rota import Term

#: Seconds for which a rank may train after the deadline where nothing is frozen.
LATE = 5.0
#: A quarter of the run may be slower than the first by this factor.
SLOWER = 1.5
#: Fewer trials do not show whether a run slows down.
JUDGED = 1000


@dataclass(frozen=True)
class Row:
    """One promise, what was measured, and whether it was kept."""

    promise: str
    measured: str
    kept: bool
    found: Sequence[str] = ()  #: what broke it


def none(promise: str, found: Sequence[str], of: object = "") -> Row:
    """A promise that nothing may break."""
    return Row(promise, f"{len(found)}{of and f' of {of}'}", not found, found)


def of_training(
    uses: Collection[Use],
    entries: Sequence[Entry],
    endings: Mapping[Trial, Ending],
    reported: Mapping[Segment, Sequence[int]],
    unsaved: Sequence[tuple[float, float]],
) -> list[Row]:
    """The promises on slots, trials and reports."""
    overlaps = checker.overlaps(uses)
    redone = checker.lost_steps(uses, reported, unsaved)
    lost = checker.lost_trials(endings, {(use.study, use.number) for use in uses})
    steps = sum(map(len, reported.values()))
    return [
        none("a slot has one user at a time", [o for o in overlaps if o.startswith("slot")],
             f"{len(uses)} uses"),
        none("a trial trains once at a time", [o for o in overlaps if o.startswith("trial")]),
        none("no rank trains without a grant", checker.without_grant(uses, entries)),
        none("each change of the table is legal", checker.illegal_events(entries),
             f"{len(entries)} events"),
        none("each trial ends, and no report is lost", lost,
             f"{len(endings)} trials, {steps} reports"),
        Row("a resume repeats at most the steps since the last checkpoint",
            f"{max(redone.values(), default=0)} of {EVERY} steps",
            max(redone.values(), default=0) <= EVERY,
            [f"{segment}: {n}" for segment, n in redone.items() if n > EVERY]),
    ]  # fmt: skip


def of_deadlines(terms: Sequence[Term], uses: Collection[Use], frozen: float) -> list[Row]:
    """The promises on time.

    Args:
        terms: The studies.
        uses: The use of slots.
        frozen: The longest time for which a fault freezes processes.
    """
    deadlines = {term.name: term.deadline for term in terms}
    late = {use.segment: use.last - deadlines[use.study] for use in uses}
    most = max(late.values(), default=0.0)
    ends = {t.name: t.ended - t.deadline for t in terms if t.ended is not None}
    last = f"; the last {max(ends.values()):.1f} s after its deadline" if ends else ""
    open_ = [term.name for term in terms if term.name not in ends]
    return [
        Row(f"no rank trains past the deadline, but for {frozen:.0f} s in which it is frozen",
            f"{most:.1f} s", most <= LATE + frozen,
            [f"{segment}: {s:.1f} s" for segment, s in late.items() if s > LATE + frozen]),
        Row("each study ends", f"{len(ends)} of {len(terms)}{last}", not open_, open_),
        none("each worker ends with its study", [t.name for t in terms if t.stuck],
             f"{len(terms)} studies"),
    ]  # fmt: skip


def of_logs(logs: Mapping[str, str]) -> list[Row]:
    """The promises on what workers say."""
    traces, doubled, lines = [], [], 0
    for name, text in logs.items():
        for process in re.split(r"(?m)^== ", text):
            lines += process.count("\n")
            traces += [f"{name}: {found}" for found in re.findall(r"Traceback.*", process)]
            messages = re.findall(r"The database does not (?:answer|serve this worker) \(|"
                              r"The database answers again", process)  # fmt: skip
            pairs = pairwise(messages)
            doubled += [f"{name}: {a}" for a, b in pairs if a == b and "again" not in a]
    return [
        none("no log has a traceback", traces, f"{lines} lines"),
        none("an outage is said once, and once when it is over", doubled),
    ]


def of_pace(uses: Collection[Use]) -> Row:
    """Whether later quarters of the run are as fast as the first, as far as its trials are."""
    ends: dict[Trial, float] = {}
    for use in uses:
        key = use.study, use.number
        ends[key] = max(use.last, ends.get(key, use.last))
    began, last = min(use.first for use in uses), max(ends.values())
    quarter = (last - began) / 4
    counts = [0, 0, 0, 0]
    for end in ends.values():
        counts[min(3, int((end - began) / quarter))] += 1
    return Row(
        "the run does not slow down", f"trials by quarter {counts}, in {last - began:.0f} s",
        len(ends) < JUDGED or counts[0] <= SLOWER * min(counts[1:]),
    )  # fmt: skip


def of_files(checkpoints: Path, kept: Mapping[str, Path | None], saved: set[str]) -> list[Row]:
    """Whether each study keeps the file of its best model, and no other.

    Args:
        checkpoints: The folder of all studies.
        kept: The intact file of each study's best model; None if there is none.
        saved: The studies in which a checkpoint was saved.
    """
    files = {path.resolve() for path in checkpoints.rglob("*.ckpt")}
    lost = [study for study in saved if kept[study] is None]
    left = files - {path.resolve() for path in kept.values() if path is not None}
    return [
        none("each study keeps its best model, intact", lost, f"{len(saved)} studies"),
        none("no other checkpoint is left after clean", [str(path) for path in sorted(left)]),
    ]
