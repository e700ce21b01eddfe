"""Check the guarantees of a run from the ranks' logs and the table's events; pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.chaos.usage import Use

Trial = tuple[str, int]  #: study and number
Segment = tuple[str, int, int]  #: study, number, fence
Seat = tuple[str, str | None]  #: a pool for its leader, or a pool and a study for its planner


@dataclass(frozen=True)
class Entry:
    """A line of the table's event log."""

    id: int
    kind: str
    pool: str
    study: str
    number: int | None = None
    slot: int | None = None
    fence: int | None = None
    term: int | None = None
    worker: str | None = None
    step: int | None = None  #: of a checkpoint
    lent: tuple[int, ...] = ()  #: slots that a registration lends to the study
    slots: int | None = None  #: of a gang that starts


@dataclass(frozen=True)
class Ending:
    """The state of a trial after the study has ended."""

    state: str | None  #: Optuna's state; None if the trial has vanished
    told: bool  #: whether the table has recorded that Optuna knows the end
    steps: Sequence[int]  #: the reported steps in the table


def overlaps(uses: Iterable[Use]) -> list[str]:
    """Slots that two segments use at once, and trials that two segments train at once."""
    found = []
    for what, key in (("slot", _slot), ("trial", _trial)):
        groups: dict[object, list[Use]] = defaultdict(list)
        for use in uses:
            groups[key(use)].append(use)
        for name, group in groups.items():
            group.sort(key=lambda use: use.first)
            longest = group[0]
            for use in group[1:]:
                if use.first <= longest.last and use.segment != longest.segment:
                    seconds = min(longest.last, use.last) - use.first
                    found.append(
                        f"{what} {name}: {use.segment} (process {use.pid}) began at "
                        f"{use.first:.3f} while {longest.segment} (process {longest.pid}) "
                        f"went on for {seconds:.3f} s"
                    )
                if use.last > longest.last:
                    longest = use
    return found


def illegal_events(entries: Iterable[Entry]) -> list[str]:
    """Violations of the table's rules.

    Each slot's log alternates acquire and release or reap, with fences that rise by one. The
    worker that acquired a slot releases it, and belongs to the study to which the slot is lent. A
    trial's segments rise by one, and a gang starts with all its slots. A pool has one leader and
    each of its studies one planner at a time: their terms rise by one, each line with a term has
    the current one, and a line that names its writer names the elected worker.
    """
    found = []
    slots: dict[int, list[Entry]] = defaultdict(list)
    segments: dict[Trial, list[int]] = defaultdict(list)
    entries = sorted(entries, key=lambda entry: entry.id)
    found += _out_of_term(entries) + _not_lent(entries) + _not_whole(entries)
    for entry in entries:
        if entry.kind in ("acquire", "release", "reap") and entry.slot is not None:
            slots[entry.slot].append(entry)
        if entry.kind in ("start", "resume"):
            assert entry.number is not None and entry.fence is not None
            segments[entry.study, entry.number].append(entry.fence)
    for log in slots.values():
        found += _illegal_changes(log)
    for trial, fences in segments.items():
        if sorted(fences) != list(range(1, len(fences) + 1)):
            found.append(f"the segments of {trial} are {fences}")
    return found


def _out_of_term(entries: Iterable[Entry]) -> list[str]:
    found = []
    terms: dict[Seat, int] = defaultdict(int)
    holders: dict[Seat, str | None] = {}
    for entry in entries:
        leads = entry.kind in ("lead", "lend")
        seat = (entry.pool, None if leads else entry.study)
        if entry.kind in ("elect", "lead"):
            if entry.term != terms[seat] + 1:
                found.append(f"{entry} after term {terms[seat]}")
            terms[seat] = max(terms[seat], entry.term or 0)
            holders[seat] = entry.worker
        elif entry.kind == "leave":
            for left in ((entry.pool, None), (entry.pool, entry.study)):
                if holders.get(left) == entry.worker:
                    holders[left] = None
        elif entry.term is not None:
            holder = holders.get(seat)
            # The start of a trial names no worker; a plan's line names the trial's worker.
            signed = entry.kind not in ("open", "plan")
            if entry.term != terms[seat] or holder is None or (signed and entry.worker != holder):
                found.append(f"{entry} in term {terms[seat]} of {holder}")
    return found


def _not_lent(entries: Iterable[Entry]) -> list[str]:
    found = []
    lent: dict[int, str] = {}
    for entry in entries:
        if entry.kind == "register":
            lent.update(dict.fromkeys(entry.lent, entry.study))
        elif entry.slot is not None and entry.kind == "lend":
            lent[entry.slot] = entry.study
        elif entry.slot is not None and entry.kind == "acquire":
            borrower = lent.get(entry.slot)
            if borrower != entry.study:
                found.append(f"{entry}: the slot was lent to {borrower}")
    return found


def _not_whole(entries: Iterable[Entry]) -> list[str]:
    """Gangs that did not start, or started with other slots than they acquired."""
    found = []
    acquired: dict[Trial, int] = defaultdict(int)
    for entry in entries:
        if entry.number is None:
            continue
        trial = entry.study, entry.number
        if entry.kind == "acquire":
            acquired[trial] += 1
        elif entry.kind in ("start", "resume"):
            had = acquired.pop(trial, 0)
            if entry.slots is not None and had != entry.slots:
                found.append(f"{entry} after {had} slots were acquired for it")
    return found


def _illegal_changes(log: list[Entry]) -> list[str]:
    found = []
    holder: str | None = None
    log.sort(key=lambda entry: (entry.fence or 0, entry.id))
    for fence, entry in enumerate(log, start=1):
        taken = entry.kind == "acquire"
        if entry.fence != fence:
            found.append(f"{entry}: its fence should be {fence}")
        if taken == (holder is not None) or (not taken and entry.worker != holder):
            found.append(f"{entry}: the holder was {holder}")
        holder = entry.worker if taken else None
    return found


def without_grant(uses: Iterable[Use], entries: Iterable[Entry]) -> list[str]:
    """Uses of a slot by a segment that the table never granted."""
    granted = {
        (entry.study, entry.number, entry.fence)
        for entry in entries
        if entry.kind in ("start", "resume")
    }
    return [f"{use.segment} was never granted" for use in uses if use.segment not in granted]


def lost_trials(endings: Mapping[Trial, Ending], seen: Collection[Trial]) -> list[str]:
    """Trials that vanished or have not ended, and reported steps that are missing.

    Args:
        endings: The trials that the table or Optuna has.
        seen: The trials that a rank trained.
    """
    found = [f"{trial} was trained and is unknown" for trial in seen if trial not in endings]
    for trial, ending in endings.items():
        if ending.state not in ("COMPLETE", "PRUNED"):
            found.append(f"{trial} ended as {ending.state}")
        if not ending.told:
            found.append(f"{trial} has an end that Optuna was not told")
        if list(ending.steps) != list(range(len(ending.steps))):
            found.append(f"{trial} has reported the steps {list(ending.steps)}")
    return found


def lost_steps(
    uses: Collection[Use],
    reported: Mapping[Segment, Sequence[int]],
    unsaved: Sequence[tuple[float, float]] = (),
) -> dict[Segment, int]:
    """For each resumed segment, the steps it repeated although the table had their reports.

    A report is written before the checkpoint that follows it. So the newest report in the table is
    at most a checkpoint's interval ahead of the newest checkpoint. Steps that ranks trained while
    the database was unreachable, and that were not written, do not count.

    Args:
        uses: The use of slots.
        reported: The steps in the table.
        unsaved: When no checkpoint could be written. Steps of trials that trained then may be
            repeated.
    """
    found = {}
    newest: dict[Trial, dict[int, int]] = defaultdict(dict)
    for (study, number, fence), steps in reported.items():
        if steps:
            newest[study, number][fence] = max(steps)
    excused = {
        _trial(use)
        for use in uses
        if any(use.first <= end and begin <= use.last for begin, end in unsaved)
    }
    for use in uses:
        trial, fence = _trial(use), use.fence
        before = [step for f, step in newest[trial].items() if f < fence]
        if before and trial not in excused:
            found[use.segment] = max(0, max(before) - use.resumed_at + 1)
    return found


def _slot(use: Use) -> object:
    return use.device


def _trial(use: Use) -> Trial:
    return (use.study, use.number)
