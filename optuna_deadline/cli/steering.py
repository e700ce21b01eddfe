"""``steer`` and ``drain``: move trials of a running study."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import Annotated

import typer

from optuna_deadline._numbers import format_count
from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.allocation.records import PlannedTrial, Worker
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.allocation.table.reads import pools
from optuna_deadline.cli.app import Storage, command
from optuna_deadline.cli.databases import check_made, load_study
from optuna_deadline.errors import DeadlineError, at_most
from optuna_deadline.history.reader import table_of
from optuna_deadline.planning.cross_host import groups_of
from optuna_deadline.policies.wrappers import divisor_reason, largest_divisor
from optuna_deadline.values.deadlines import format_duration

_NO_STUDY = 0  # drains a host without belonging to one of its studies
_SOON = 10.0  #: seconds before its deadline in which a study does not move to another host
_ENDS = {"complete": "is complete", "failed": "has failed", "retired": "was pruned"}

Trial = Annotated[int, typer.Argument(min=0, help="Number of the trial.")]
OfStudy = Annotated[str, typer.Option(help="Name of its study.")]


@command
def steer(
    trial: Trial,
    study: OfStudy,
    storage: Storage,
    pause: Annotated[
        bool, typer.Option("--pause", help="Save, release its slots and wait until it is resumed.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on once the plan has slots for it.")
    ] = False,
    resize: Annotated[
        str | None,
        typer.Option(help="Number of its slots, or auto: as many as the policy wants."),
    ] = None,
) -> None:
    """Pause, resume or resize a trial; the plan divides the other slots."""
    if pause + resume + (resize is not None) != 1:
        raise DeadlineError("Give one of --pause, --resume and --resize 4.")
    slots = None if resize is None else _slots(resize)
    table, planned = _find(study, storage, trial)
    if resize is not None:
        answer = _resize(table, planned, study, slots)
    elif pause:
        answer = _pause(table, planned, study)
    else:
        answer = _resume(table, planned, study)
    print(f"{answer}{_no_worker_note(table)}")


def _pause(table: AllocationTable, planned: PlannedTrial, study: str) -> str:
    _check_not_ended(table.hold(planned.number, True), study, planned.number)
    leaves = "" if planned.owner is None else ": it saves and leaves its slots at its next step"
    return f"Trial {planned.number} of {study} is held until it is resumed{leaves}."


def _resume(table: AllocationTable, planned: PlannedTrial, study: str) -> str:
    trial = f"Trial {planned.number} of {study}"
    if planned.held is None:
        return f"{trial} is not held: it gets slots when the plan assigns some."
    _check_not_ended(table.hold(planned.number, False), study, planned.number)
    return f"{trial} resumes once the plan has slots for it."


def _resize(table: AllocationTable, planned: PlannedTrial, study: str, slots: int | None) -> str:
    trial = planned.number
    if slots is not None:
        _check_room(table, study, slots)
        _check_batch(trial, slots, planned.batch)
        _check_limit(trial, slots, planned)
    _check_not_ended(table.pin(trial, slots), study, trial)
    if slots is None:
        return f"The policy decides the number of slots of trial {trial} of {study}."
    held = " once it is resumed" if planned.held is not None else ""
    return (
        f"Trial {trial} of {study} trains on {format_count(slots, 'slot')}{held}, or waits for "
        "them, until --resize auto."
    )


@command
def drain(
    host: Annotated[str, typer.Argument(help="Name of the host, as status and pool show it.")],
    storage: Storage,
    undo: Annotated[
        bool, typer.Option("--undo", help="Undo: workers that have not left yet stay.")
    ] = False,
) -> None:
    """Empty a host: its trials save and resume elsewhere, its workers exit."""
    check_made(storage)
    database = connect(storage)
    tables = [AllocationTable(database, name, _NO_STUDY) for name in pools(database)]
    live = [worker for table in tables for worker in table.workers()]
    going_on = {
        row.study_id
        for table in tables
        for row in table.tenants()
        if row.deadline > table.now() + _SOON
    }
    there = sum(table.drain(host, not undo) for table in tables)
    if there == 0:
        known = ", ".join(sorted({worker.host for worker in live})) or "none"
        raise DeadlineError(f"No live worker is on host {host!r} (hosts with one: {known}).")
    workers = format_count(there, "worker")
    if undo:
        print(f"{workers} on {host} stay; plans use their slots again.")
        return
    print(
        f"{workers} on {host} will leave, once their trials have saved."
        f"{_nowhere_to_go_note(host, live, going_on)}"
    )


def _find(study: str, storage: str, number: int) -> tuple[AllocationTable, PlannedTrial]:
    """Find an unfinished trial of a running study, and its table.

    Raises:
        DeadlineError: The trial does not exist, or it or its study has ended.
    """
    table, terms = table_of(load_study(study, storage))
    planned_rows = table.trials()
    planned = next((planned for planned in planned_rows if planned.number == number), None)
    if planned is None:
        known = (
            ", ".join(str(planned.number) for planned in planned_rows if planned.alive) or "none"
        )
        raise DeadlineError(f"Workers of {study} know no trial {number} (they know: {known}).")
    if not planned.alive:
        raise DeadlineError(
            f"Trial {number} of {study} {_ENDS[planned.state]}: it needs no slots."
        )
    over = table.now() - terms.deadline
    if over >= 0 or table.orders("").settled:
        ended = (
            f"The deadline of {study} was {format_duration(over)} ago"
            if over >= 0
            else f"{study} has ended"
        )
        raise DeadlineError(
            f"{ended}: give it more time first, with "
            f"'optuna-deadline set {shlex.quote(study)} --deadline 2h'."
        )
    return table, planned


def _check_not_ended(lives: bool, study: str, number: int) -> None:
    if not lives:
        raise DeadlineError(f"Trial {number} of {study} has ended just now.")


def _slots(gpus: str) -> int | None:
    if gpus == "auto":
        return None
    if not gpus.isdecimal() or int(gpus) < 1:
        raise DeadlineError(f"--resize takes a number of slots from 1, or auto, but got {gpus!r}.")
    return int(gpus)


def _check_room(table: AllocationTable, study: str, slots: int) -> None:
    """Refuse a gang that neither one worker nor several can run; without workers, accept it."""
    mine = [worker for worker in table.workers() if worker.study_id == table.study_id]
    names = {worker.id for worker in mine}
    offered = Counter(w for slot in table.slots() for w in slot.offered_by if w in names)
    alone, crossing = max(offered.values(), default=slots), groups_of(mine)
    if slots <= alone or crossing.spread(slots, offered):
        return
    others = (
        f"over several, which give as many each, the largest gang is {crossing.largest(offered)}."
        if crossing.groups
        else "a gang crosses workers only where these say --multi-node and share checkpoints."
    )
    raise DeadlineError(
        f"No worker of {study} has {format_count(slots, 'slot')}: the largest has {alone}, and "
        f"{others}"
    )


def _check_batch(number: int, slots: int, batch: int | None) -> None:
    """Refuse a gang that does not divide the batch of a trial that needs equal slices."""
    if batch is not None and batch % slots:
        raise DeadlineError(
            f"{divisor_reason(slots, batch)}, and trial {number} wants equal shards: give it"
            f" {largest_divisor(slots, batch)}, or another divisor of {batch}."
        )


def _check_limit(number: int, slots: int, planned: PlannedTrial) -> None:
    """Refuse a gang that a trial cannot train on."""
    if planned.slot_limit is not None and slots > planned.slot_limit:
        raise DeadlineError(
            f"Trial {number} trains on {at_most(planned.slot_limit)}, give it no more:"
            f" {planned.limit_reason}"
        )


def _no_worker_note(table: AllocationTable) -> str:
    """A note if no worker can carry out the request."""
    if any(worker.study_id == table.study_id for worker in table.workers()):
        return ""
    return " It is recorded; no worker is alive, and the next one obeys."


def _nowhere_to_go_note(host: str, live: list[Worker], going_on: set[int]) -> str:
    """A note if studies have no worker on another host to resume their trials on."""
    stay = {row.study_id for row in live if row.host != host and row.drained is None}
    go = {row.study_id for row in live if row.host == host and row.study_id in going_on}
    if go <= stay:
        return ""
    return " No other host has a worker for them: they wait until one comes."
