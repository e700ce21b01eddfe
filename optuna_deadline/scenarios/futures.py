"""Simulates one possible rest of a study from its present state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from optuna_deadline._numbers import format_count
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.allocation.records import PlannedTrial
from optuna_deadline.allocation.rules import none_if_nan
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.allocation.table.reads import TRIALS
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.errors import DeadlineError
from optuna_deadline.forecasting.futures import Future, draw_places
from optuna_deadline.history.series import integral, slots_in_use
from optuna_deadline.planning.best_model import find_winner
from optuna_deadline.planning.billing.ledger import BillingLedger, invoice_of, types_of, wanted_of
from optuna_deadline.planning.billing.price_schedule import Tariff, tariff_of
from optuna_deadline.policies.api import Policy
from optuna_deadline.scenarios.initial_state import InitialState
from optuna_deadline.simulation.clock import Timeline
from optuna_deadline.simulation.cluster import Cluster
from optuna_deadline.simulation.environment import CountedTrials, World
from optuna_deadline.simulation.worker import SimulatedWorker
from optuna_deadline.simulation.workload import Workload
from optuna_deadline.values.budgets import Budget
from optuna_deadline.values.scores import score

#: Polls of a worker until the deadline: longer studies cost no more, and large ones, whose plans
#: take longer, poll less often.
_MOST_LOOKS, _LEAST_LOOKS, _PLANNED_TRIALS = 400, 100, 200_000
_POLL, _READING = 1.0, 0.2


@dataclass(frozen=True)
class Change:
    """A change of the study.

    Attributes:
        seconds: By which the deadline is later.
        slots: Additional slots, on a host of their own; fewer are taken from the last hosts.
        money: Additional budget.
    """

    seconds: float = 0.0
    slots: int = 0
    money: float = 0.0


def machines(present: InitialState, slots: int) -> dict[str, int]:
    """The slots of each host after the change.

    Raises:
        DeadlineError: The study has fewer slots than are taken away.
    """
    found = dict(present.machines)
    if slots > 0:
        return {**found, "more": slots}
    if -slots > sum(found.values()):
        raise DeadlineError(
            f"{present.history.name} has {format_count(sum(found.values()), 'slot')}, so {-slots} "
            "cannot be taken."
        )
    for worker in reversed(list(found)):
        taken = min(found[worker], -slots)
        found[worker] -= taken
        slots += taken
    return {worker: size for worker, size in found.items() if size}


def usual_looks(present: InitialState) -> int:
    """The polls of a worker until the deadline, if plans are fast."""
    looks = _PLANNED_TRIALS // max(1, len(present.planned_rows))
    return min(_MOST_LOOKS, max(_LEAST_LOOKS, looks))


def make_world(
    present: InitialState, rest: Workload, change: Change, policy: Policy, looks: int | None = None
) -> World:
    """A world with the study's trials, workers and money, with a change.

    Running trials continue without a start; started billing units start again.

    Args:
        present: The study's present state.
        rest: The future of its trials.
        change: The change.
        policy: The study's.
        looks: Polls of a worker; None for :func:`usual_looks`.
    """
    history = present.history
    left = present.now, history.deadline - history.started + change.seconds
    cluster = _cluster(present, left[1] - left[0], looks or usual_looks(present))
    timeline = Timeline(present.now)
    table = MemoryTable(now=timeline.now, deadline=left[1], ttl=cluster.ttl, grace=cluster.grace)
    trials = CountedTrials(opened=max(present.planned_rows, default=-1) + 1)
    world = World(rest, cluster, left[1], 0, timeline, table, trials)
    offers = machines(present, change.slots)
    names = {worker: f"machine{place}" for place, worker in enumerate(offers)}
    types = types_of(history.money_events)
    world.host_types.update((names[w], types[w]) for w in offers if w in types)
    with table.writing() as tx:
        _write_trials(present, world, tx, {worker: f"{name}/0" for worker, name in names.items()})
    if history.budget is not None:
        _fund(present, world, history.budget, change.money)
    for worker, size in offers.items():
        SimulatedWorker(world, names[worker], 0, policy, slots=size).start()
    return world


def _cluster(present: InitialState, seconds: float, looks: int) -> Cluster:
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
    present: InitialState, world: World, tx: Transaction, workers: Mapping[str, str]
) -> None:
    history = present.history
    began = history.started
    for planned in history.trials:
        standing = _standing(planned, began, workers)
        tx.insert("trial", [TRIALS.stored(standing) | {"study_id": tx.study}])
        if planned.owner in workers:
            world.warm.add(planned.number)
        _save(present, world, tx, planned)
    ended = [row if row.ended is not None else row._replace(ended=history.now)
             for row in history.segments]  # fmt: skip
    for row in sorted(ended, key=lambda row: row.ended or 0.0):
        row = row._replace(granted=row.granted - began, ended=(row.ended or 0.0) - began)
        tx.insert("segment", [row._asdict() | {"study_id": tx.study, "worker": ""}])
    for report in history.reports:
        tx.insert("report", [{
            "study_id": tx.study, "number": report.number, "step": report.step + present.shift,
            "value": none_if_nan(score(report.value, history.direction)), "fence": 0,
            "slots": report.slots, "trained": report.trained, "at": report.at - began,
        }])  # fmt: skip


def _standing(planned: PlannedTrial, began: float, workers: Mapping[str, str]) -> PlannedTrial:
    """A trial's row without slots; a trial that had them gets them first."""
    state = "paused" if planned.state == "running" else planned.state
    held = None if planned.held is None else planned.held - began
    there = planned.owner or planned.worker
    planned = replace(
        planned, state=state, owner=None, since=planned.since - began, held=held, value=None,
        end_reported=not planned.alive,
    )  # fmt: skip
    if planned.alive and planned.mode == "run":
        worker = workers.get(there or "")
        if worker is None:
            return replace(planned, mode="pause", worker=None, slots=0)
        return replace(planned, worker=worker)
    return planned


def _save(present: InitialState, world: World, tx: Transaction, planned: PlannedTrial) -> None:
    """Save its training so far, and its best model."""
    curve, position = present.curves.get(planned.number), present.position(planned)
    if position <= 0:
        return
    best = None if curve is None else curve.best[-1]
    path = world.disk.write(position)
    saved = Checkpoint(planned.number, planned.fence, int(position), best, path, 1, "simulated")
    row = saved._asdict() | {"path": str(path), "study_id": tx.study, "at": tx.now}
    tx.insert("checkpoint", [row])


def _fund(present: InitialState, world: World, budget: Budget, more: float) -> None:
    history = present.history
    bill = invoice_of(history.money_events, tariff_of(budget, history.started), history.now)
    money = bill.money(history.now, {}, 0)
    rates = {k: rate.shifted(-history.started) for k, rate in bill.tariff.rates.items()}
    tariff = Tariff(budget.amount + more, rates)
    world.budget_account = BillingLedger(world.table, tariff, money.spent - money.ahead)
    if not any(event.kind == "pool" for event in history.events):
        return
    types, _ = wanted_of(history.money_events, tariff, history.now)
    slots, end = (
        sum(types.values()),
        world.budget_account.lasts_until(present.now, types, world.deadline),
    )
    with world.table.writing() as tx:
        tx.run(
            "UPDATE @study SET pool_slots = :slots, funds_end = :end WHERE study_id = :study",
            slots=slots, end=end,
        )  # fmt: skip
        tx.event("pool", term=1, slots=slots, before=0, until=end, types=types)


#: New configurations of a draw; a policy that opens more gets them again.
NEWCOMERS = 256


@dataclass(frozen=True)
class Rest(Workload):
    """The trials of a study by number, and after them those that it may open."""

    first: int = 0  #: the number of the first trial that is not open yet

    def configuration(self, number: int) -> int:
        """The configuration of a trial; after the last new one the first new one again."""
        if number < self.first:
            return number
        return self.first + (number - self.first) % (len(self.curves) - self.first)


class Draws:
    """Possible rests of a study by number; the same number is the same rest.

    Args:
        present: The study's present state.
        seed: Other seeds draw others.
    """

    def __init__(self, present: InitialState, seed: int = 0) -> None:
        self._present = present
        self._seed = seed
        self._future = lru_cache(maxsize=None)(self._look_ahead)

    def draw(self, number: int) -> Rest:
        """One rest: each trial continues at a place of its band, each new one is like an old one.

        A new trial's curve is that of another trial of the study, each with the same chance: its
        reports so far, and then a place of its own.
        """
        present = self._present
        rng = np.random.default_rng([self._seed, number])
        planned_rows = present.planned_rows
        first = max([*planned_rows, *present.curves], default=-1) + 1
        places = draw_places(rng, first + NEWCOMERS)
        like = rng.choice(np.array(present.sources), first + NEWCOMERS).tolist()
        curves: list[tuple[float, ...]] = []
        seconds: list[float] = []
        to_reports: list[tuple[float, ...]] = []
        for trial in range(first + NEWCOMERS):
            planned = planned_rows.get(trial)
            if trial < first and (planned is None or not planned.alive):
                curves.append((0.0,))  # it has ended and is not trained again
                seconds.append(present.usual_seconds)
                to_reports.append((present.usual_seconds,))
                continue
            source = trial if trial in present.curves else like[trial]
            curves.append(self._future(source).draw(places[trial]))
            seconds.append(present.step_seconds(trial if trial < first else source))
            to_reports.append(present.report_seconds(source, new=trial != source))
        return Rest(
            present.history.name, tuple(curves), tuple(seconds), every=present.every, first=first,
            report_seconds=tuple(to_reports) if present.measured.schedule else (),
        )  # fmt: skip

    def _look_ahead(self, number: int) -> Future:
        present = self._present
        return Future.of(present.curves[number], present.reports(number), present.model)


@dataclass(frozen=True)
class End:
    """The end of one simulated rest of a study.

    Attributes:
        score: Of the best model, larger is better.
        slot_seconds: Slot-seconds held by its trials, since the study began.
        spent: Money since the study began; None if slots are free.
        opened: Trials that were opened from now on.
    """

    score: float
    slot_seconds: float
    spent: float | None
    opened: int


def run(
    present: InitialState,
    rest: Workload,
    change: Change,
    make: Callable[[], Policy],
    looks: int | None = None,
) -> End:
    """Simulate one rest of a study under its policy, from now to its end.

    Args:
        present: The study's present state.
        rest: The future of its trials.
        change: The change.
        make: Creates the policy, once per run.
        looks: Polls of a worker until the end; by default as many as usual.
    """
    history = present.history
    before = integral(slots_in_use(history.slot_intervals), history.started, history.now)
    world = make_world(present, rest, change, make(), looks)
    while (
        world.working_hosts and world.timeline.now() <= world.latest and world.timeline.advance()
    ):
        pass
    world.write_all_progress()
    winner = find_winner(world.table, "maximize", world.disk.has_checkpoint)
    best = score(history.improvements[-1].value, history.direction)
    bill, opened = world.slot_time, world.trials.opened - max(present.planned_rows, default=-1) - 1
    spent, now = None, world.timeline.now()
    if world.budget_account is not None:
        world.budget_account.read(now)
        spent = world.budget_account.money(now, {}, 0).spent
    return End(
        score=best if winner is None else max(best, winner.value),
        slot_seconds=before + bill.training + bill.overhead,
        spent=spent,
        opened=opened,
    )
