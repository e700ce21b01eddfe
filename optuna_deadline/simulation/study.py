"""Simulates one study in virtual time and reads its figures from the table."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from optuna_deadline.allocation.records import Event
from optuna_deadline.errors import DeadlineError
from optuna_deadline.planning.best_model import find_winner
from optuna_deadline.policies.api import Policy
from optuna_deadline.simulation.cluster import Cluster, Funding, Provider
from optuna_deadline.simulation.environment import ConfigurationSampler, World
from optuna_deadline.simulation.worker import SimulatedWorker
from optuna_deadline.simulation.workload import Workload
from optuna_deadline.study import policy_choice
from optuna_deadline.values.deadlines import DeadlineLike, parse_duration

#: Events for the figures.
_READ = ("start", "resume", "acquire", "release", "reap", "settle")


@dataclass(frozen=True)
class Outcome:
    """Figures of one study. Times are in seconds from its start."""

    workload: str
    capacity: int
    deadline: float
    ended: float  #: when the study was settled
    best: tuple[tuple[float, float], ...]  #: (since when, best value so far)
    value: float | None  #: the best value at the end
    regret: float  #: of that value, relative to the best configuration at full training
    choice_regret: float  #: of the chosen configuration at full training
    trials: int
    reports: int
    pauses: int
    resumes: int
    resizes: int
    failures: int
    training: float  #: slot-seconds of training
    redone: float  #: slot-seconds of training that was repeated after a failure
    overhead: float  #: slot-seconds of starting, saving and leaving
    stranded: float  #: slot-seconds that dead workers held until they were reaped
    idle: float  #: slot-seconds that were free
    paid: float  #: all slot-seconds: of the cluster, or those that were bought
    spent: float | None = None  #: money; None if slots are free
    budget: float | None = None

    @property
    def overspent(self) -> float:
        """Money spent beyond the budget; 0 if it held."""
        if self.spent is None or self.budget is None:
            return 0.0
        return max(0.0, self.spent - self.budget)

    @property
    def overshoot(self) -> float:
        """Seconds past the deadline; negative if the study ended before it."""
        return self.ended - self.deadline

    @property
    def utilisation(self) -> float:
        """The share of all slot-seconds spent on training."""
        return self.training / max(self.paid, 1e-9)

    def best_at(self, instant: float) -> float | None:
        """The best value at an instant."""
        return next((value for since, value in reversed(self.best) if since <= instant), None)


def measure(world: World) -> Outcome:
    """Read the figures of a study that has ended."""
    table, workload, bill = world.table, world.workload, world.slot_time
    log = events(world, _READ)
    ended = next(event.at for event in log if event.kind == "settle")
    kinds = Counter(event.kind for event in log)
    outcomes = Counter(segment.outcome for segment in table.segments())
    best: list[tuple[float, float]] = []
    reports = table.reports()
    for row in reports:
        if row.value > (best[-1][1] if best else -math.inf):
            best.append((row.at, row.value))
    winner = find_winner(table, "maximize", world.disk.has_checkpoint)
    chosen = -math.inf
    if winner is not None:
        chosen = workload.peak(world.configuration(winner.number))
    held = _held(log, ended)
    capacity, provider = len(table.slots()), world.provider
    paid = capacity * ended if provider is None else provider.slot_seconds
    return Outcome(
        workload=workload.name,
        capacity=capacity,
        deadline=world.deadline,
        ended=ended,
        best=tuple(best),
        value=winner.value if winner else None,
        regret=workload.best - (winner.value if winner else -math.inf),
        choice_regret=workload.best - chosen,
        trials=kinds["start"],
        reports=len(reports),
        pauses=outcomes["pause"],
        resumes=max(0, kinds["resume"] - outcomes["resize"]),
        resizes=outcomes["resize"],
        failures=outcomes["died"] + outcomes["lost"],
        training=bill.training,
        redone=bill.redone,
        overhead=bill.overhead,
        stranded=held - bill.training - bill.overhead,
        idle=paid - held,
        paid=paid,
        spent=provider.spent if provider else None,
        budget=provider.budget if provider else None,
    )


def events(world: World, kinds: Sequence[str] | None = None) -> list[Event]:
    """The events of a study, of some kinds or all."""
    found: list[Event] = []
    while page := world.table.events(found[-1].id if found else 0, kinds):
        found.extend(page)
    return found


def _held(log: list[Event], ended: float) -> float:
    """Slot-seconds that were held, from the event log alone."""
    since: dict[int, float] = {}
    total = 0.0
    for event in log:
        if event.slot is None:
            continue
        if event.kind == "acquire":
            since[event.slot] = event.at
        elif event.kind in ("release", "reap"):
            total += event.at - since.pop(event.slot)
    return total + sum(ended - instant for instant in since.values())


class Simulation:
    """A study on simulated workers; everything else is production code.

    Args:
        policy: The policy.
        workload: The configurations and their curves.
        cluster: The hosts.
        deadline: In seconds from the start.
        seed: The seed of the faults; the other arguments determine everything else.
        funding: A budget: the hosts are then nodes that are bought and returned as the policy
            decides, and a head without slots plans.
        search: Chooses the configurations; by default they come in their order.
    """

    def __init__(
        self,
        policy: Policy,
        workload: Workload,
        cluster: Cluster | None = None,
        *,
        deadline: float,
        seed: int = 0,
        funding: Funding | None = None,
        search: ConfigurationSampler | None = None,
    ) -> None:
        if not 0 < deadline < math.inf:
            raise ValueError(f"deadline must be a positive number of seconds, but got {deadline}.")
        self.world = World.make(workload, cluster or Cluster(), deadline, seed)
        self.world.search = search
        self._policy = policy
        self._begun = False
        if funding is not None:
            node = self.world.cluster.slots
            provider = Provider(self.world.timeline, funding, node, self._start)
            self.world.provider = self.world.budget_account = provider

    def _start(self, host: str) -> None:
        SimulatedWorker(self.world, host, 0, self._policy).start()

    def run(self) -> Outcome:
        """Run to the end of the study.

        Raises:
            RuntimeError: The study does not end, which is a defect of this package.
        """
        self.run_until(math.inf)
        return measure(self.world)

    def run_until(self, instant: float) -> None:
        """Run until an instant or the study's end and write the table.

        Raises:
            RuntimeError: See :meth:`run`.
        """
        world = self.world
        if not self._begun:
            self._begin()
        while world.working_hosts and world.timeline.now() < instant:
            if not world.timeline.advance() or world.timeline.now() > world.latest:
                raise RuntimeError(f"The study of {world.workload.name} does not end.")
        world.write_all_progress()

    def _begin(self) -> None:
        self._begun = True
        if self.world.provider is not None:
            SimulatedWorker(self.world, "head", 0, self._policy, slots=0).start()
            return
        for host in range(self.world.cluster.hosts):
            self._start(f"host{host}")


def simulate(
    policy: policy_choice.PolicyLike,
    workload: Workload,
    cluster: Cluster | None = None,
    *,
    deadline: DeadlineLike,
    seed: int = 0,
    funding: Funding | None = None,
    search: ConfigurationSampler | None = None,
) -> Outcome:
    """Run one study; see :class:`Simulation` for the arguments.

    The policy may be a name, and the deadline a duration, as for :func:`optuna_deadline.run`, or
    "4x": the time of four whole trainings on one slot.

    Raises:
        DeadlineError: The policy does not exist, or the deadline is invalid.
    """
    seconds, relative = read_deadline(deadline)
    return Simulation(
        policy_choice.make(policy, {}),
        workload,
        cluster,
        deadline=seconds * workload.full_seconds if relative else seconds,
        seed=seed,
        funding=funding,
        search=search,
    ).run()


def read_deadline(deadline: DeadlineLike) -> tuple[float, bool]:
    """Parse a deadline: seconds and False, or whole trainings and True.

    Raises:
        DeadlineError: It is neither, or it leaves no time.
    """
    text = deadline.strip() if isinstance(deadline, str) else ""
    if found := re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)x", text):
        if float(found[1]) > 0:
            return float(found[1]), True
        raise DeadlineError("The deadline 0x leaves no time; give 1x or more.")
    return parse_duration(deadline, "deadline"), False
