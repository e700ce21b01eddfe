"""Elastic use: a worker with its planner, in this process, until the study is settled."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.study import Study

from optuna_deadline import choice
from optuna_deadline import terms as study_terms
from optuna_deadline.allocation.engine import open_table
from optuna_deadline.allocation.listener import Listener
from optuna_deadline.allocation.store import GRACE, TTL
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.budgets import Budget, BudgetLike, PriceLike, make_budget
from optuna_deadline.checkpoints import intact
from optuna_deadline.deadlines import DeadlineLike
from optuna_deadline.errors import DeadlineError
from optuna_deadline.planning.ends import find_winner
from optuna_deadline.planning.ledger import Ledger
from optuna_deadline.planning.planner import Planner
from optuna_deadline.planning.pool import PoolLeader
from optuna_deadline.planning.trials import OptunaTrials
from optuna_deadline.policies.dividers import make_divider
from optuna_deadline.pruners import DeadlinePruner
from optuna_deadline.terms import Terms
from optuna_deadline.ticker import Ticker
from optuna_deadline.workers.agent import Agent
from optuna_deadline.workers.devices import make_offer
from optuna_deadline.workers.errors import DATABASE_AWAY, explain
from optuna_deadline.workers.objective import Objective, source_of, stop_if_loading

if TYPE_CHECKING:
    from optuna_deadline.dashboard.publisher import Publisher

_logger = logging.getLogger("optuna_deadline")

_FAREWELL = 30.0  # seconds for the plan in hand, on the way out
_LAST_WORDS = 0.3  # seconds for the last state in optuna-dashboard, after the deadline
_AWAY = 0.2  # seconds until a database that was away is tried again
_JOIN = 20.0  # seconds for which a worker asks again to be let in

#: Where checkpoints go unless told otherwise.
CHECKPOINTS = Path("optuna_deadline_checkpoints")


@dataclass(frozen=True)
class Result:
    """What is in hand when a worker returns."""

    number: int | None  #: the best trial
    value: float | None
    step: int | None
    checkpoint: Path | None
    checkpoint_ok: bool  #: whether the file is the one that was written, byte for byte
    deadline: float  #: seconds since the epoch, by the database's clock
    ended: float  #: likewise
    settled: bool  #: False where the worker was asked to leave before the end
    spent: float | None = None  #: None where slots cost nothing

    @property
    def overshoot(self) -> float:
        """Seconds past the deadline; negative where the study ended before it."""
        return self.ended - self.deadline

    def how_to_load(self) -> str:
        """One line of Python that loads the best model's checkpoint."""
        if self.checkpoint is None:
            return "# no checkpoint was saved: see optuna_deadline.segment(trial).save"
        return f'checkpoint = torch.load("{self.checkpoint}", weights_only=True)'


def run(
    study: Study,
    objective: Objective | str,
    *,
    cpus: int | None = None,
    gpus: str | int | None = None,
    deadline: DeadlineLike | None = None,
    policy: choice.PolicyLike | None = None,
    policy_parameters: Mapping[str, Any] | None = None,
    min_resource: int = 1,
    max_resource: int | None = None,
    reduction_factor: int = 4,
    extend: bool = False,
    budget: BudgetLike | None = None,
    price: PriceLike | None = None,
    pool: str | None = None,
    weight: float | None = None,
    divider: str = "even",
    checkpoints: str | Path | None = None,
    table: str | None = None,
    publish: bool | None = None,
) -> Result:
    """Tune until the deadline with trials that pause, resume and change their slots.

    Every process that calls this for the same study, on whatever host reaches the database, brings
    its slots and does its share.

    Args:
        study: An Optuna study on SQLite, PostgreSQL or in memory.
        objective: The objective, or its place as "train.py:objective".
        cpus: CPU slots to offer; each trains with one thread.
        gpus: GPUs to offer: "all", or numbers as in "0,1".
        deadline: A timedelta, an aware datetime, "2h30m" or ISO 8601; None takes the study's own
            terms, or those of its :class:`~optuna_deadline.DeadlinePruner`.
        policy: Who decides, "hypersched" by default: a name, a place as "policy.py:Mine", which
            workers in other processes can load too, or an object with ``plan`` or a function from
            snapshot to plan, which serve this process alone.
        policy_parameters: What that policy is told besides the three below.
        min_resource: The first rung, in report steps.
        max_resource: The step at which a trial is done; None takes what the objectives say.
        reduction_factor: Every rung keeps one in this many.
        extend: Move the study's deadline to this one.
        budget: What may be spent in all, as 20 or "20usd"; the study ends when it is used up. The
            policy then says how many of the slots on offer are used and paid for.
        price: Of a slot for an hour, as 0.9; or a :class:`~optuna_deadline.Price`, which says too
            how the bill is rounded.
        pool: Name of the pool of slots, the study's name by default. Studies that name the same
            pool share the slots of each host on which both have workers.
        weight: How many times as many slots the study may have as one of weight 1, from now on;
            None leaves it, 1 at first.
        divider: How the pool is divided while this worker leads it, "even" or "market"; give all
            its workers the same.
        checkpoints: Folder for checkpoints, "optuna_deadline_checkpoints" by default.
        table: A database for the table, where the study's storage is not SQL.
        publish: Keep figures, notes and columns in optuna-dashboard fresh; None does where that is
            installed.

    Returns:
        The best model in hand and where its checkpoint is.

    Raises:
        DeadlineError: Something asked for cannot be had; the message says what to do.
        StudyGone: The study was deleted meanwhile.
    """
    stop_if_loading()
    resources = {
        "min_resource": min_resource,
        "max_resource": max_resource,
        "reduction_factor": reduction_factor,
    }
    parameters = choice.merge(resources, policy_parameters)
    agreed = agree(
        study, deadline, policy, parameters,
        extend=extend, table=table, budget=make_budget(budget, price),
    )  # fmt: skip
    worker = ElasticWorker(
        study, objective, agreed, cpus=cpus, gpus=gpus, pool=pool, weight=weight, divider=divider,
        checkpoints=checkpoints, table=table, policy=policy, publish=publish,
    )  # fmt: skip
    return worker.run()


def agree(
    study: Study,
    deadline: DeadlineLike | None,
    policy: choice.PolicyLike | None,
    parameters: dict[str, Any],
    *,
    extend: bool = False,
    table: str | None = None,
    budget: Budget | None = None,
) -> Terms:
    """The study's terms: those asked for, its pruner's, or those that hold already."""
    engine = open_table(study, table)
    if deadline is not None:
        return study_terms.fix(
            engine, study, deadline,
            policy=policy, parameters=parameters, budget=budget, extend=extend,
        )  # fmt: skip
    if budget is not None:
        raise DeadlineError("A budget is fixed with the deadline: pass deadline='2h' too.")
    if isinstance(study.pruner, DeadlinePruner):
        return study.pruner.terms(study)
    found = study_terms.read(engine, study)
    if found is None:
        raise DeadlineError(
            f"The study {study.study_name!r} has no deadline yet: pass deadline='2h', or create "
            "it with DeadlinePruner(deadline='2h')."
        )
    return found


def check_weight(weight: float | None) -> float | None:
    """A study's weight in its pool, if it is one.

    Raises:
        DeadlineError: It is no positive number.
    """
    if weight is not None and not (isinstance(weight, (int, float)) and 0 < weight < math.inf):
        raise DeadlineError(f"weight must be a positive number such as 2, but got {weight!r}.")
    return weight


class ElasticWorker:
    """An agent and a planner for one study in this process; see :func:`run` for the arguments."""

    def __init__(
        self,
        study: Study,
        objective: Objective | str,
        terms: Terms,
        *,
        cpus: int | None = None,
        gpus: str | int | None = None,
        pool: str | None = None,
        weight: float | None = None,
        divider: str = "even",
        checkpoints: str | Path | None = None,
        table: str | None = None,
        policy: choice.PolicyLike | None = None,
        ttl: float = TTL,
        grace: float = GRACE,
        listen: bool = True,
        publish: bool | None = None,
    ) -> None:
        self.terms = terms
        engine = open_table(study, table)
        self.table = AllocationTable(
            engine, pool or study.study_name, terms.study_id, ttl=ttl, grace=grace
        )
        self._engine = engine
        self._listen = listen and Listener.works_on(engine)
        self._study = study
        self._publish = publish
        self._ledger = None if terms.budget is None else Ledger(self.table, terms.budget)
        self._source = source_of(objective)
        self._offer = make_offer(gpus, cpus)
        self._weight = check_weight(weight)
        self._divider = make_divider(divider)
        self._policy = choice.make(_same_policy(study, terms, policy), terms.parameters)
        self._folder = Path(checkpoints or CHECKPOINTS).resolve() / study.study_name

    def run(self) -> Result:
        """Work until the study is settled, or a signal asks to leave."""
        if self.table.orders("").settled:
            return self.result()
        poll = min(1.0, max(0.2, (self.terms.deadline - self.terms.started) / 300))
        agent = Agent(
            self._study,
            self.table,
            self._source,
            self._offer,
            self._folder,
            poll=poll,
            weight=self._weight,
            replan=lambda: thread.wake(),
        )
        planner = Planner(
            OptunaTrials(self._study),
            self.table,
            self._policy,
            direction=self.terms.direction,
            started=self.terms.started,
            me=agent.id,
            purse=self._ledger,
        )
        leader = PoolLeader(self.table, self._divider, agent.id)
        ticks = (leader.tick, planner.tick)
        thread = Ticker("planner", _pass(ticks, max(0.5, poll), agent.wake))
        publisher = self._publisher(planner)
        try:
            _join(agent)
            thread.start()
            if publisher is not None:
                publisher.start()
            with self._listening(agent, thread), _leaving_on_signals(agent):
                agent.run(check=thread.check)
        finally:
            thread.end(_FAREWELL)
            agent.close()
            if publisher is not None:
                publisher.stop()
        if publisher is not None:
            publisher.finish(max(_LAST_WORDS, self.terms.deadline - self.table.now()))
        return self.result()

    def _publisher(self, planner: Planner) -> Publisher | None:
        """What keeps optuna-dashboard fresh, where it shows this study and that is wanted."""
        if not _to_publish(self._publish):
            return None
        from optuna_deadline.dashboard.publisher import make_publisher

        return make_publisher(
            self._engine, self._study, self.table, self.terms, lambda: planner.rules
        )

    def result(self) -> Result:
        """The best model in hand now."""
        now = self.table.now()
        orders = self.table.orders("")
        winner = find_winner(self.table, self.terms.direction)
        saved = winner.checkpoint if winner else None
        return Result(
            number=winner.number if winner else None,
            value=winner.value if winner else None,
            step=winner.step if winner else None,
            checkpoint=saved.path if saved else None,
            checkpoint_ok=saved is not None and intact(saved),
            deadline=orders.deadline,
            ended=now,
            settled=orders.settled,
            spent=self._ledger.money(now, 0).spent if self._ledger else None,
        )

    @contextmanager
    def _listening(self, agent: Agent, thread: Ticker) -> Iterator[None]:
        """Look at once when PostgreSQL says that something changed; polling goes on anyway."""
        if not self._listen:
            yield
            return

        def look() -> None:
            agent.wake()
            thread.wake()

        listener = Listener(self._engine, self.table.pool, agent.id, look)
        listener.start()
        try:
            yield
        finally:
            listener.end()


def _to_publish(publish: bool | None) -> bool:
    """Whether to publish: as asked, else where optuna-dashboard is installed."""
    return find_spec("optuna_dashboard") is not None if publish is None else publish


def _same_policy(study: Study, terms: Terms, given: choice.PolicyLike | None) -> choice.PolicyLike:
    """The study's policy: the object that was given here if it is that one, else by its name."""
    if given is None and isinstance(study.pruner, DeadlinePruner):
        given = study.pruner.policy
    if given is not None and choice.name_of(given) == terms.policy:
        return given
    return terms.policy


def _join(agent: Agent) -> None:
    """Join the pool, through a database that restarts or cuts the first transaction off."""
    until = time.monotonic() + _JOIN
    while True:
        try:
            return agent.register()
        except DATABASE_AWAY as error:
            if time.monotonic() > until:
                raise
            _logger.warning("Joining the pool once more: %s.", explain(error))
            time.sleep(_AWAY)


def _pass(
    ticks: Sequence[Callable[[], bool]], interval: float, changed: Callable[[], None]
) -> Callable[[], float]:
    """One pass of planning: what was changed is looked at now, a database that is away soon."""

    def work() -> float:
        try:
            if any([tick() for tick in ticks]):
                changed()
        except DATABASE_AWAY:
            return _AWAY  # the worker says so, once
        return interval

    return work


@contextmanager
def _leaving_on_signals(agent: Agent) -> Iterator[None]:
    """Ctrl-C and SIGTERM checkpoint and release; a second Ctrl-C does not wait."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []

    def leave(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        _logger.warning("Saving and leaving; start the same command again to go on.")
        agent.leave("asked to leave")

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
