"""ElasticWorker: a worker with its planner in this process, until the study has ended."""

from __future__ import annotations

import copy
import logging
import math
import os
import signal
import time
import uuid
from contextlib import ExitStack, suppress
from dataclasses import replace

from optuna.pruners import NopPruner
from optuna.storages import InMemoryStorage
from optuna.study import Study

from optuna_deadline._optuna import storage_of
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.notify import NotificationListener
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import GRACE, TTL, AllocationTable
from optuna_deadline.checkpoints.storage import (
    library_name,
    place_of,
    root_of,
)
from optuna_deadline.elastic.arguments import keeps_all_checkpoints
from optuna_deadline.elastic.background import (
    dashboard_publisher,
    listening_for_notifications,
    planner_starter,
    planner_thread,
    watching_preemption,
)
from optuna_deadline.elastic.heartbeat import heartbeat_file
from optuna_deadline.elastic.lifecycle import join, leaving_on_signals, when_answering
from optuna_deadline.elastic.result import Result, study_result
from optuna_deadline.errors import DeadlineError
from optuna_deadline.forecasting.throughput import (
    PRIOR_EXPONENT,
    PRIOR_EXPONENT_OF_CPUS,
    Overhead,
    learn_overhead,
)
from optuna_deadline.history.shortfalls import shortfalls_by_joining
from optuna_deadline.options import WorkerOptions
from optuna_deadline.planning.best_model import CheckpointAvailability
from optuna_deadline.planning.billing.ledger import BillingLedger
from optuna_deadline.planning.billing.price_schedule import tariff_of
from optuna_deadline.planning.leftovers import delete_needless
from optuna_deadline.planning.planner import Planner
from optuna_deadline.planning.pool_leader import PoolLeader, read_pool
from optuna_deadline.planning.trials import OptunaTrials
from optuna_deadline.policies.registry import make_divider
from optuna_deadline.pruners import find_deadline_pruner
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.rank.objective import Objective, ObjectiveSource, source_of
from optuna_deadline.rank.rendezvous import ADDRESS_VARIABLE, own_address
from optuna_deadline.samplers import DeadlineSampler
from optuna_deadline.study import agreement, policy_choice
from optuna_deadline.study.terms import Terms
from optuna_deadline.values.budgets import HOST_TYPE
from optuna_deadline.worker.agent import END_IS_LATE, Agent
from optuna_deadline.worker.database_errors import DATABASE_ERRORS, leave_outages_to_workers
from optuna_deadline.worker.devices import Offer, host_name, make_offer, threads_of
from optuna_deadline.worker.reconciler import WorkerSettings
from optuna_deadline.worker.registration import describe_machine
from optuna_deadline.worker.time_limit import TIME_LIMIT_REACHED, WorkerTimeLimit, monotonic_end

_logger = logging.getLogger("optuna_deadline")

_PUBLISH_SECONDS = 30.0  # seconds at the end for a plan in progress
_LEAVE_SECONDS = 5.0  # the same for a worker that was asked to stop: its database may be locked
_DELETE_SECONDS = 30.0  # seconds to delete what an ended study needs no longer
_SETTLE_SECONDS = 0.3  # seconds for the last state in optuna-dashboard, after the deadline


class ElasticWorker:
    """An agent and a planner for one study in this process.

    Args:
        study: The study.
        objective: The objective.
        terms: The study's terms.
        options: What the worker offers. Its slots are those of ``offer``, if that is given.
        offer: The slots, if the caller has chosen them; else the CPU slots may exceed the cores.
        policy: The policy, if it is an object of this process.
        ttl: Duration of a lease in seconds, if this worker is the pool's first.
        grace: Seconds from a lease's end until it may be reaped, if this worker is the first.
        listen: Whether to listen for PostgreSQL's notifications.
        ceiling: The number of slots that the study could get, if more than are offered now.
        fork_server: A fork server that has loaded the objective; see :func:`preload`.
    """

    def __init__(
        self,
        study: Study,
        objective: Objective | ObjectiveSource | str,
        terms: Terms,
        options: WorkerOptions,
        *,
        offer: Offer | None = None,
        policy: policy_choice.PolicyLike | None = None,
        ttl: float = TTL,
        grace: float = GRACE,
        listen: bool = True,
        ceiling: int = 0,
        fork_server: ForkServer | None = None,
    ) -> None:
        self.options = options
        self.terms = terms
        database = open_table(study, options.storage)
        self.table = AllocationTable(
            database, options.pool or study.study_name, terms.study_id, ttl=ttl, grace=grace
        )
        self._database = database
        self._listen = listen and NotificationListener.works_on(database)
        self.study = _planned(study)
        self._ledger = None
        self._host_type = options.host_type or os.environ.get(HOST_TYPE) or None
        if terms.budget is not None:
            self._ledger = BillingLedger(self.table, tariff_of(terms.budget, terms.started))
            self._ledger.read(self.table.now())
            terms.budget.check_type(self._host_type, self._ledger.tariff.rates)
        self._offer = offer or make_offer(
            options.gpus, options.cpus, options.gpu_ids, oversubscribe=True
        )
        self._ceiling = ceiling
        self._address = _address(database) if options.multi_node else None
        until = options.max_time
        self._time_limit = math.inf if until is None else monotonic_end(until)
        self._fork_server = fork_server
        self._agent: Agent | None = None
        self._leaving: str | None = None
        if policy is None or policy_choice.name_of(policy) != terms.policy:
            policy = terms.policy
        self._policy = policy_choice.make(policy, terms.parameters)
        place = place_of(options.checkpoints)
        self._folder = root_of(place, study.study_name, agreement.key(database, study))
        self._resumable = not isinstance(storage_of(study), InMemoryStorage)
        self._asked: list[int] = []
        self._availability = CheckpointAvailability(self.table, host_name())
        self._source = replace(source_of(objective), library=library_name(self._folder))

    def run(self) -> Result:
        """Train until the study has ended, or a signal stops the worker.

        Raises:
            DeadlineError: The objective cannot be loaded, or its import does not end.
            StudyGone: The study was deleted.
        """
        leave_outages_to_workers()
        settled, overhead = when_answering(
            lambda: (self.table.orders("").settled, self._overhead()), self.options.slot_timeout
        )
        if settled:
            if self._fork_server is not None:
                self._fork_server.close()
            name, here = self.study.study_name, host_name()
            delete_needless(self.table, self._folder, name, here, _DELETE_SECONDS)
            return when_answering(self.result)
        until = WorkerTimeLimit(self._time_limit, overhead)
        until.check()
        poll = min(1.0, max(0.2, (self.terms.deadline - self.terms.started) / 300))
        settings = WorkerSettings(
            offer=self._offer,
            folder=self._folder,
            machine_info=describe_machine(
                self._offer, self._folder, self._address, self._host_type
            ),
            poll=poll,
            weight=self.options.weight,
            hang_timeout=self.options.hang_timeout,
            keep_warm=self.options.keep_warm,
        )
        server = self._fork_server or ForkServer(
            self._source, threads_of(self._offer), str(uuid.uuid4())
        )
        agent = Agent(self.study, self.table, server, settings, until)
        self._agent = agent
        if self._leaving is not None:
            agent.leave(self._leaving)
        interval = max(0.5, poll)
        planner = Planner(
            OptunaTrials(self.study),
            self.table,
            self._policy,
            direction=self.terms.direction,
            worker_id=agent.id,
            is_intact=self._availability,
            budget_account=self._ledger,
            max_pool_slots=self._ceiling,
            max_slots=self.terms.max_slots,
            exponent=PRIOR_EXPONENT if self._offer.gpus else PRIOR_EXPONENT_OF_CPUS,
            interval=interval,
            keep_all=keeps_all_checkpoints(self.study),
        )
        leader = PoolLeader(self.table, self.options.sharing, agent.id, interval=interval)
        ticks = (leader.tick, planner.tick)

        def planned(began: float) -> None:
            if planner.is_elected:
                agent.plan_made(began, planner.looks)

        thread = planner_thread(ticks, interval, agent.wake, planned, lambda: planner.closes_at)
        agent.replan_by(thread.wake)
        publisher = dashboard_publisher(
            self._database,
            self.study,
            self.table,
            self.terms,
            planner,
            wanted=self.options.dashboard,
        )
        with ExitStack() as leaving:
            if publisher is not None:
                leaving.callback(publisher.stop)
            leaving.callback(agent.close)
            leaving.callback(
                lambda: thread.stop(0.0 if agent.left_without_database else _patience(agent))
            )
            check_notice = leaving.enter_context(
                watching_preemption(self.options.preemption_notice, until, agent)
            )
            join(agent, self.table, self.options.slot_timeout)
            self._warn_of_shortfalls()
            begin = planner_starter(thread, agent)
            if publisher is not None:
                publisher.start()
            with (
                listening_for_notifications(
                    self._database, self.table.pool, agent, thread, wanted=self._listen
                ),
                leaving_on_signals(agent, resumable=self._resumable) as self._asked,
                heartbeat_file() as beat,
            ):

                def check() -> None:
                    begin()
                    thread.check()
                    agent.give_up_on_end(thread.busy_seconds)
                    check_notice()
                    beat()

                agent.run(check=check)
        if publisher is not None:
            left = min(self.terms.deadline - self.table.now(), until.ends_at - time.monotonic())
            publisher.finish(min(max(_SETTLE_SECONDS, left), _patience(agent)))
        result = when_answering(self.result)
        if result.settled and result.trial_number is None and not agent.ready:
            raise DeadlineError(
                "The study ended without a value, and the objective was not loaded here by then:"
                " find out why its import does not end, or give a later deadline."
            )
        return result

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C stopped this worker."""
        return signal.SIGINT in self._asked

    @property
    def reached_time_limit(self) -> bool:
        """Whether :meth:`run` returned because this worker's time was over, not the study's."""
        return self._agent is not None and self._agent.leaving in (TIME_LIMIT_REACHED, END_IS_LATE)

    def _overhead(self) -> Overhead:
        """The seconds that starts and stops have taken in the study so far."""
        rows = [] if self._time_limit == math.inf else self.table.segments()
        return learn_overhead(
            [row.startup for row in rows if row.startup is not None],
            [row.stop for row in rows if row.stop is not None],
        )

    def _warn_of_shortfalls(self) -> None:
        """Warn if this study's arrival in the pool makes another study miss its deadline."""
        with suppress(*DATABASE_ERRORS):
            divider = make_divider(self.table.divider() or self.options.sharing)
            for sentence in shortfalls_by_joining(
                read_pool(self.table).snapshot, self.table.study_id, divider
            ):
                _logger.warning("%s shares this pool. %s", self.terms.name, sentence)

    def leave(self, why: str) -> None:
        """Let :meth:`run` save the trials, release the slots and return; from any thread."""
        self._leaving = why
        if self._agent is not None:
            self._agent.leave(why)

    def result(self) -> Result:
        """The best model now."""
        return study_result(
            self.study, self.table, self.terms.direction, self._availability, self._ledger
        )


def _patience(agent: Agent) -> float:
    return _PUBLISH_SECONDS if agent.leaving is None else _LEAVE_SECONDS


def _address(database: Database) -> str:
    """The address at which other hosts reach this one.

    Raises:
        DeadlineError: The address is unknown.
    """
    found = own_address(database.url.host)
    if found is None:
        raise DeadlineError(
            "Gangs across hosts need an address at which the other hosts reach this one, and none "
            f"is known but its own loopback: name it with {ADDRESS_VARIABLE}."
        )
    return found


def _planned(study: Study) -> Study:
    """The study with a DeadlineSampler, and a pruner that never prunes: the plan ends trials."""
    planned = copy.copy(study)
    if find_deadline_pruner(study.pruner) is not None:
        planned.pruner = NopPruner()
    if not isinstance(study.sampler, DeadlineSampler):
        planned.sampler = DeadlineSampler(study.sampler)
    return planned
