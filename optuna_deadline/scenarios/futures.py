"""A simulated world that begins where a study stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from optuna_deadline.allocation.memory.state import MemoryStudy
from optuna_deadline.allocation.memory.store import MemoryTable
from optuna_deadline.allocation.records import Desired
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.errors import DeadlineError
from optuna_deadline.planning.billing.ledger import Ledger, bill_of, types_of, wanted_of
from optuna_deadline.planning.billing.price_schedule import Tariff, tariff_of
from optuna_deadline.policies.api import Policy
from optuna_deadline.scenarios.initial_state import Present
from optuna_deadline.simulation.clock import Timeline
from optuna_deadline.simulation.cluster import Cluster
from optuna_deadline.simulation.environment import CountedTrials
from optuna_deadline.simulation.worker import SimulatedWorker
from optuna_deadline.simulation.workload import Workload
from optuna_deadline.simulation.world import World
from optuna_deadline.values.budgets import Budget

#: Of a worker at the plan until the deadline: longer studies cost no more, and large ones, whose
#: plans take longer, are looked at less often.
_MOST_LOOKS, _LEAST_LOOKS, _PLANNED_TRIALS = 400, 100, 200_000
_POLL, _READING = 1.0, 0.2


@dataclass(frozen=True)
class Change:
    """What would be different.

    Attributes:
        seconds: By which the deadline is later.
        slots: More of them, on a machine of their own; fewer are taken from the last machines.
        money: That may be spent besides.
    """

    seconds: float = 0.0
    slots: int = 0
    money: float = 0.0


def machines(present: Present, slots: int) -> dict[str, int]:
    """The slots of each machine, with so many more or fewer.

    Raises:
        DeadlineError: There are not so many to take away.
    """
    found = dict(present.machines)
    if slots > 0:
        return {**found, "more": slots}
    if -slots > sum(found.values()):
        raise DeadlineError(
            f"{present.history.name} has {sum(found.values())} slots, and {-slots} cannot be "
            "taken from them."
        )
    for worker in reversed(list(found)):
        taken = min(found[worker], -slots)
        found[worker] -= taken
        slots += taken
    return {worker: size for worker, size in found.items() if size}


def usual_looks(present: Present) -> int:
    """How often a worker looks at the plan until the deadline, where plans take no long time."""
    looks = _PLANNED_TRIALS // max(1, len(present.lines))
    return min(_MOST_LOOKS, max(_LEAST_LOOKS, looks))


def make_world(
    present: Present, rest: Workload, change: Change, policy: Policy, looks: int | None = None
) -> World:
    """A world with the study's trials, workers and money as they are but for a change.

    Trials that train go on without a start; begun units of the bill begin anew.

    Args:
        present: Where the study stands.
        rest: What its trials will come to.
        change: What would be different.
        policy: The study's.
        looks: Of a worker at the plan until the deadline; None for :func:`usual_looks`.
    """
    history = present.history
    left = present.now, history.deadline - history.started + change.seconds
    cluster = _cluster(present, left[1] - left[0], looks or usual_looks(present))
    timeline = Timeline(present.now)
    table = MemoryTable(now=timeline.now, deadline=left[1], ttl=cluster.ttl, grace=cluster.grace)
    trials = CountedTrials(opened=max(present.lines, default=-1) + 1)
    world = World(rest, cluster, left[1], 0, timeline, table, trials)
    offers = machines(present, change.slots)
    names = {worker: f"machine{place}" for place, worker in enumerate(offers)}
    types = types_of(history.money_events)
    world.host_types.update((names[w], types[w]) for w in offers if w in types)
    study = table.state.studies[table.study_id]
    _write_trials(present, world, study, {worker: f"{name}/0" for worker, name in names.items()})
    if history.budget is not None:
        _fund(present, world, study, history.budget, change.money)
    for worker, size in offers.items():
        SimulatedWorker(world, names[worker], 0, policy, slots=size).start()
    return world


def _cluster(present: Present, seconds: float, looks: int) -> Cluster:
    overhead = present.measured.overhead
    coarse = seconds / looks
    return Cluster(
        slots=max([1, *present.machines.values()]),
        startup=overhead.startup,
        stop=overhead.stop,
        poll=max(_POLL, coarse),
        reading=max(_READING, coarse / 2),
        speedup=present.measured.speedup,
    )


def _write_trials(
    present: Present, world: World, study: MemoryStudy, workers: Mapping[str, str]
) -> None:
    history = present.history
    began = history.started
    for line in history.trials:
        study.put(_standing(line, began, workers))
        if line.owner in workers:
            world.warm.add(line.number)
        _save(present, world, study, line)
    ended = [row if row.ended is not None else row._replace(ended=history.now)
             for row in history.segments]  # fmt: skip
    for row in sorted(ended, key=lambda row: row.ended or 0.0):
        study.end(row._replace(granted=row.granted - began, ended=(row.ended or 0.0) - began))
    for place, report in enumerate(history.reports, 1):
        step = report.step + present.shift
        study.steps.add((report.number, step))
        value = present.sign * report.value
        study.reports.append(
            report._replace(id=place, step=step, value=value, at=report.at - began)
        )


def _standing(line: Desired, began: float, workers: Mapping[str, str]) -> Desired:
    """A trial's row, with nobody on its slots: who was there takes them first of all."""
    state = "paused" if line.state == "running" else line.state
    held = None if line.held is None else line.held - began
    there = line.owner or line.worker
    line = replace(
        line, state=state, owner=None, since=line.since - began, held=held, value=None,
        told=not line.alive,
    )  # fmt: skip
    if line.alive and line.mode == "run":
        worker = workers.get(there or "")
        if worker is None:
            return replace(line, mode="pause", worker=None, slots=0)
        return replace(line, worker=worker)
    return line


def _save(present: Present, world: World, study: MemoryStudy, line: Desired) -> None:
    """Its training so far can be gone on with, and its best model is in hand."""
    curve, position = present.curves.get(line.number), present.position(line)
    if position <= 0:
        return
    path, state = world.disk.write(position), world.table.state
    best = None if curve is None else curve.best[-1]
    saved = Checkpoint(line.number, line.fence, int(position), best, path, 1, "simulated")
    state.checkpoint_ids += 1
    study.checkpoints[line.number] = [(state.checkpoint_ids, saved)]


def _fund(present: Present, world: World, study: MemoryStudy, budget: Budget, more: float) -> None:
    history = present.history
    bill = bill_of(history.money_events, tariff_of(budget, history.started), history.now)
    money = bill.money(history.now, {}, 0)
    rates = {k: rate.shifted(-history.started) for k, rate in bill.tariff.rates.items()}
    tariff = Tariff(budget.amount + more, rates)
    world.purse = Ledger(world.table, tariff, money.spent - money.ahead)
    if not any(event.kind == "pool" for event in history.events):
        return
    types, _ = wanted_of(history.money_events, tariff, history.now)
    slots, end = sum(types.values()), world.purse.lasts_until(present.now, types, world.deadline)
    study.pool_slots, study.funds_end = slots, end
    what = (("slots", slots), ("before", 0), ("until", end), ("types", types))
    table = world.table
    said = (table.pool, table.study_id, present.now, "pool", None, None, None, 1, None, what)
    table.state.events.append(said)
