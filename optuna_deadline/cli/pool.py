"""``optuna-deadline pool show``: whose slots are whose."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from optuna_deadline.allocation.engine import autocommit, connect
from optuna_deadline.allocation.reads import pools
from optuna_deadline.allocation.records import Slot, Tenant, Worker
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.cli.app import Storage, app, command_of
from optuna_deadline.cli.studies import check_url
from optuna_deadline.cli.view import clock
from optuna_deadline.errors import DeadlineError

_pool = typer.Typer(help="Pools of slots that studies share.", no_args_is_help=True)
app.add_typer(_pool, name="pool")
_NOBODY = 0  # a pool is read without being of one of its studies


@command_of(_pool)
def show(
    storage: Storage,
    pool: Annotated[str | None, typer.Option(help="One pool; all by default.")] = None,
) -> None:
    """Show studies, weights, shares, slots and workers of the pools in a database."""
    check_url(storage)
    engine = connect(storage)
    with autocommit(engine) as connection:
        names = pools(connection)
    if pool is not None and pool not in names:
        known = ", ".join(names) or "none yet"
        raise DeadlineError(f"There is no pool {pool!r} (there are: {known}).")
    console = Console()
    for name in names if pool is None else [pool]:
        table = AllocationTable(engine, name, _NOBODY)
        console.print(render(name, table.now(), table.tenants(), table.slots(), table.workers()))


def render(
    name: str,
    now: float,
    tenants: list[Tenant],
    slots: list[Slot],
    workers: list[Worker],
) -> RenderableType:
    """A pool as something that rich prints: its studies, then its slots."""
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
            row.name,
            f"{row.weight:g}",
            str(lent[row.study_id]),
            str(held[row.study_id]),
            "-" if row.claim is None else str(row.claim.most),
            f"{row.served:.0f}",
            f"{row.entitled:.0f}",
            clock(row.deadline - now) if row.deadline > now else "over",
            str(present[row.study_id]),
        )
    table.caption = "had and fair: slot-seconds since the study joined"
    return table


def _slots(tenants: list[Tenant], slots: list[Slot], workers: list[Worker]) -> Table:
    names = {row.study_id: row.name for row in tenants}
    pids = {worker.id: str(worker.pid) for worker in workers}
    table = _grid("host", "slot", "lent to", "used by", "trial", "offered by")
    for row in slots:
        table.add_row(
            row.host,
            row.device,
            _name(names, row.lent_to),
            _name(names, row.study_id),
            "-" if row.number is None else str(row.number),
            ", ".join(pids.get(worker, "?") for worker in row.offered_by) or "nobody",
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
