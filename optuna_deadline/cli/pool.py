"""``optuna-deadline pool create`` and ``show``: slots that several studies share."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from optuna_deadline._printable import printable
from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.allocation.records import Slot, Tenant, Worker
from optuna_deadline.allocation.table import GRACE, TTL, AllocationTable
from optuna_deadline.allocation.table.reads import pools
from optuna_deadline.cli.app import Json, Storage, app, command_of, print_json
from optuna_deadline.cli.databases import check_made, make_storage
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.text import shortfalls
from optuna_deadline.live.console import SafeConsole
from optuna_deadline.planning.pool_leader import read_pool
from optuna_deadline.policies.registry import DEFAULT_SHARING, make_divider
from optuna_deadline.values.deadlines import format_duration, parse_duration

_pool = typer.Typer(help="Pools of slots that studies share.", no_args_is_help=True)
app.add_typer(_pool, name="pool")
_NO_STUDY = 0  # reads a pool without belonging to one of its studies
_LEAST = 2.0  # seconds: a worker renews six times in a lease


@command_of(_pool)
def create(
    pool: Annotated[str, typer.Argument(help="Name of the pool.")],
    storage: Storage,
    ttl: Annotated[str, typer.Option(help="Life of a lease without renewal.")] = f"{TTL:.0f}s",
    grace: Annotated[
        str, typer.Option(help="Time after that until a dead worker's slots are freed.")
    ] = f"{GRACE:.0f}s",
) -> None:
    """Create a pool before its first worker; the same command again changes nothing."""
    if not pool.strip():
        raise DeadlineError("A pool needs a name, as in 'optuna-deadline pool create lab'.")
    asked = _seconds("--ttl", ttl), _seconds("--grace", grace)
    make_storage(storage)  # first, since our tables refer to Optuna's
    table = AllocationTable(connect(storage), pool, _NO_STUDY, ttl=asked[0], grace=asked[1])
    law = table.make_pool()
    said = f"leases of {format_duration(law[0])} and a grace of {format_duration(law[1])}"
    if law != asked:
        raise DeadlineError(f"There is a pool {pool!r} already, with {said}; choose another name.")
    print(f"pool {pool}: {said}.")
    print(f"Next: optuna-deadline worker FILE.py:OBJECTIVE --pool {pool} --study STUDY ...")


def _seconds(option: str, text: str) -> float:
    seconds = parse_duration(text, option)
    if seconds < _LEAST:
        raise DeadlineError(
            f"{option} takes a duration from {_LEAST:.0f}s, as in 30s, but got {text!r}."
        )
    return seconds


@command_of(_pool)
def show(
    storage: Storage,
    pool: Annotated[str | None, typer.Option(help="One pool; all by default.")] = None,
    as_json: Json = False,
) -> None:
    """Show the studies, weights, shares, slots and workers of the pools in a database."""
    check_made(storage)
    database = connect(storage)
    names = pools(database)
    if pool is not None and pool not in names:
        known = ", ".join(names) or "none yet"
        raise DeadlineError(f"There is no pool {pool!r} (there are: {printable(known)}).")
    chosen = names if pool is None else [pool]
    tables = [AllocationTable(database, name, _NO_STUDY) for name in chosen]
    if as_json:
        print_json([_values(table) for table in tables])
        return
    if not tables:
        print("There is no pool yet: the first worker of a study creates one.")
    console = SafeConsole()
    for table in tables:
        read = table.now(), table.tenants(), table.slots(), table.workers()
        console.print(render(printable(table.pool), *read))
        for sentence in _shortfalls(table):
            console.print(Text(printable(sentence), style="yellow"))


def _values(table: AllocationTable) -> dict[str, object]:
    return {
        "name": table.pool,
        "now": table.now(),
        "studies": [asdict(row) for row in table.tenants()],
        "slots": [asdict(row) for row in table.slots()],
        "workers": [asdict(row) for row in table.workers()],
        "shortfalls": _shortfalls(table),
    }


def _shortfalls(table: AllocationTable) -> list[str]:
    divider = make_divider(table.divider() or DEFAULT_SHARING)
    return shortfalls(read_pool(table).snapshot, divider)


def render(
    name: str,
    now: float,
    tenants: list[Tenant],
    slots: list[Slot],
    workers: list[Worker],
) -> RenderableType:
    """A pool as a rich renderable: its studies, then its slots."""
    tenants = [replace(row, name=printable(row.name)) for row in tenants]
    slots = [replace(row, host=printable(row.host), device=printable(row.device)) for row in slots]
    workers = [replace(row, host=printable(row.host)) for row in workers]
    offered = [slot for slot in slots if slot.offered_by]
    held = sum(slot.holder is not None for slot in slots)
    heading = f"pool {name}: {len(offered)} slots, {held} in use, {len(workers)} workers"
    parts: list[RenderableType] = [Text(heading, style="bold")]
    if tenants:
        parts.append(_studies(now, tenants, offered, workers))
    if slots:
        parts.append(_slots(tenants, slots, workers))
    return Group(*parts)


def _studies(now: float, tenants: list[Tenant], slots: list[Slot], workers: list[Worker]) -> Table:
    lent, held = Counter(s.lent_to for s in slots), Counter(s.study_id for s in slots)
    present = Counter(worker.study_id for worker in workers)
    columns = ("study", "weight", "slots", "in use", "could use", "had", "fair", "left", "workers")
    table = _grid(*columns)
    for row in tenants:
        table.add_row(
            Text(row.name),
            f"{row.weight:g}",
            str(lent[row.study_id]),
            str(held[row.study_id]),
            "-" if row.claim is None else str(row.claim.most),
            f"{row.served:.0f}",
            f"{row.entitled:.0f}",
            format_duration(row.deadline - now) if row.deadline > now else "over",
            str(present[row.study_id]),
        )
    table.caption = "had and fair: slot-seconds since the study joined"
    return table


def _slots(tenants: list[Tenant], slots: list[Slot], workers: list[Worker]) -> Table:
    names = {row.study_id: row.name for row in tenants}
    pids = {worker.id: str(worker.pid) for worker in workers}
    drained = {worker.host for worker in workers if worker.drained is not None}
    table = _grid("host", "slot", "lent to", "used by", "trial", "offered by")
    for row in slots:
        table.add_row(
            Text(f"{row.host}, drained" if row.host in drained else row.host),
            Text(row.device),
            Text(_name(names, row.lent_to)),
            Text(_name(names, row.study_id)),
            "-" if row.number is None else str(row.number),
            ", ".join(pids.get(worker, "?") for worker in row.offered_by) or "no worker",
        )
    return table


def _name(names: dict[int, str], study_id: int | None) -> str:
    if study_id is None:
        return "-"
    return names.get(study_id, "a study that has ended")


def _grid(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black")
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index == 0)
    return table
