"""The study of Hermes' main result: some good configurations among many, until one is found.

It has forty configurations of a hundred epochs on four slots. A curve is
``top * (1 - exp(-(k / scale) ** 0.7))`` with noise. Good configurations have higher tops. In the
main family they also converge faster, as Hermes expects, and so do some bad ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.rivals import make_policy
from optuna_deadline.policies import Plan, Policy, Retire, Snapshot
from optuna_deadline.simulation import Cluster, Workload, simulate

CONFIGURATIONS, SLOTS, EPOCHS, EPOCH_SECONDS = 40, 4, 100, 100.0
TARGET = 0.9
FAMILIES = ("quick", "alike", "slow", "heights")


def population(family: str, good: int, seed: int) -> Workload:
    """Configurations in random order, of which ``good`` reach the target.

    Args:
        family: The convergence of good configurations. *quick*: fast. *alike*: as fast as bad
            ones. *slow*: slower, so that curves cross. *heights*: fast, and every curve starts at
            a different height.
        good: The number of good configurations.
        seed: The seed of the workload.
    """
    rng = np.random.default_rng([seed, good, *family.encode()])
    is_good = (rng.permutation(CONFIGURATIONS) < good)[:, None]
    shape = (CONFIGURATIONS, 1)
    top = np.where(is_good, rng.uniform(0.93, 0.96, shape), rng.uniform(0.5, 0.85, shape))
    slow = 30.0 * np.exp(rng.normal(0.0, 0.5, shape))
    if family == "slow":
        scale = np.where(is_good, rng.uniform(10.0, 16.0, shape), 0.2 * slow)
    elif family == "alike":
        scale = rng.uniform(10.0, 16.0, shape)
    else:
        scale = np.where(is_good, rng.uniform(10.0, 16.0, shape), slow)
    begin = rng.uniform(-0.5, 0.3, shape) if family == "heights" else np.zeros(shape)
    epochs = np.arange(1.0, EPOCHS + 1)
    curves = begin + (top - begin) * (1.0 - np.exp(-((epochs / scale) ** 0.7)))
    curves = curves + rng.normal(0.0, 0.005, curves.shape)
    seconds = EPOCH_SECONDS * np.exp(rng.normal(0.0, 0.1, CONFIGURATIONS))
    return Workload(family, tuple(tuple(row) for row in curves.tolist()), tuple(seconds.tolist()))


@dataclass(frozen=True)
class UntilReached:
    """A policy around another that ends the study when a trial has reached the target."""

    policy: Policy

    def plan(self, snapshot: Snapshot) -> Plan:
        """The other policy's plan, or the end."""
        if max((trial.last_score for trial in snapshot.trials), default=0.0) < TARGET:
            return self.policy.plan(snapshot)
        alive = [trial.number for trial in snapshot.trials if trial.alive]
        return Plan({number: Retire("the target is reached") for number in alive}, gate_open=False)


@dataclass(frozen=True)
class Case:
    """One study.

    Attributes:
        switch: The cost of a switch in epochs; the start takes five sixths of it.
    """

    policy: str
    family: str
    good: int
    switch: float
    seed: int
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """The time until the target was reached, and the share of the slots' time lost until then.

    Attributes:
        epochs: Epochs until the target was reached.
        overhead: The share lost to starts and stops.
        turns: The part of it due to preemption: all except one start for each trial, which every
            policy needs.
    """

    epochs: float
    overhead: float
    turns: float


def run(case: Case) -> Found:
    """Simulate until the target is reached, for at most 1.5 times the time to train all trials."""
    workload = population(case.family, case.good, case.seed)
    parameters = {"max_resource": EPOCHS, "n_trials": CONFIGURATIONS, **case.parameters}
    policy = UntilReached(make_policy(case.policy, parameters))
    seconds = case.switch * EPOCH_SECONDS
    cluster = Cluster(
        slots=SLOTS,
        startup=5 / 6 * seconds,
        stop=seconds / 6,
        poll=EPOCH_SECONDS,  # reports are seen at once nevertheless
        ttl=10 * EPOCH_SECONDS,
    )
    waves = CONFIGURATIONS / SLOTS
    deadline = 1.5 * waves * (EPOCHS + case.switch) * EPOCH_SECONDS
    outcome = simulate(policy, workload, cluster, deadline=deadline, seed=case.seed)
    reached = next((since for since, value in outcome.best if value >= TARGET), outcome.ended)
    spent = outcome.training + outcome.overhead
    turns = outcome.overhead - outcome.trials * cluster.startup
    return Found(reached / EPOCH_SECONDS, outcome.overhead / spent, max(0.0, turns) / spent)
