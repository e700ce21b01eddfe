"""Pools of slots that studies share, for ``optuna-deadline status --pool``."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from optuna_deadline._numbers import format_count
from optuna_deadline._printable import printable
from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.allocation.records import Slot, Tenant, Worker
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.allocation.table.reads import pools
from optuna_deadline.cli.app import print_json
from optuna_deadline.cli.databases import check_made, load_study
from optuna_deadline.history.reader import table_of
from optuna_deadline.history.shortfalls import shortfalls
from optuna_deadline.live.console import SafeConsole
from optuna_deadline.planning.pool_leader import read_pool
from optuna_deadline.policies.registry import DEFAULT_SHARING, make_divider
from optuna_deadline.values.deadlines import format_duration

_NO_STUDY = 0  # reads a pool without belonging to one of its studies


def show_pools(storage: str, study: str | None, as_json: bool) -> None:
    """Show the studies, weights, shares, slots and workers of pools.

    Args:
        storage: The database.
        study: The study whose pool is shown; None for all pools.
        as_json: Whether to print JSON.
    """
    check_made(storage)
    database = connect(storage)
    chosen = pools(database) if study is None else [table_of(load_study(study, storage))[0].pool]
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
    there = f"{format_count(len(offered), 'slot')}, {held} in use"
    heading = f"pool {name}: {there}, {format_count(len(workers), 'worker')}"
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
