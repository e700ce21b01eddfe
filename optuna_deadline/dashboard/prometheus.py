"""An exporter of studies for Prometheus, which reads the table at each scrape.

One exporter serves all workers of a database. Since the metrics come from the table, workers open
no port, and a worker's death loses no metric. It needs the extra ``metrics``.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.errors import DeadlineError, StudyGone
from optuna_deadline.history.reader import HistoryReader
from optuna_deadline.history.records import History
from optuna_deadline.history.series import costs
from optuna_deadline.study import agreement
from optuna_deadline.worker.database_errors import DATABASE_ERRORS

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from prometheus_client.core import Metric

_PREFIX = "optuna_deadline"
_MOVES = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_PLANS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_STATES = ("ready", "running", "paused", "complete", "retired", "failed")


class StudyCollector:
    """A collector for a registry of prometheus_client.

    Args:
        database: The table's database.
        names: The studies to export; if empty, those that run, and those that end while this
            process runs.
    """

    def __init__(self, database: Database, names: Sequence[str] = ()) -> None:
        self._database = database
        self._names = frozenset(names)
        self._lock = threading.Lock()
        self._readers: dict[int, HistoryReader] = {}

    def describe(self) -> list[Metric]:
        """Return nothing, so that registration does not read the table."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics of all studies."""
        from prometheus_client.core import GaugeMetricFamily

        away = False
        histories: list[History] = []
        try:
            with self._lock:
                histories = self._look()
        except DATABASE_ERRORS:
            away = True
        up = GaugeMetricFamily(f"{_PREFIX}_database_up", "Whether the database answered.")
        up.add_metric([], 0.0 if away else 1.0)
        yield up
        yield from families(histories)

    def _look(self) -> list[History]:
        for terms, settled in agreement.read_all(self._database):
            wanted = terms.name in self._names if self._names else not settled
            if wanted and terms.study_id not in self._readers:
                table = AllocationTable(self._database, terms.name, terms.study_id)
                table.follow_study()
                self._readers[terms.study_id] = HistoryReader(table, terms)
        return list(self._histories())

    def _histories(self) -> Iterator[History]:
        for study_id, reader in list(self._readers.items()):
            try:
                yield reader.read()
            except StudyGone:  # it was deleted; the others are exported
                del self._readers[study_id]


def families(histories: Sequence[History]) -> Iterator[Metric]:
    """The metrics of some studies."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = ["study"]
    left = GaugeMetricFamily(
        f"{_PREFIX}_seconds_to_deadline", "Negative after the deadline.", labels=labels
    )
    best = GaugeMetricFamily(f"{_PREFIX}_best_value", "The best report so far.", labels=labels)
    used = GaugeMetricFamily(f"{_PREFIX}_slots_in_use", "Slots that trials hold.", labels=labels)
    lent = GaugeMetricFamily(
        f"{_PREFIX}_slots", "Slots that live workers offer to the study.", labels=labels
    )
    workers = GaugeMetricFamily(f"{_PREFIX}_workers", "Live workers.", labels=labels)
    trials = GaugeMetricFamily(f"{_PREFIX}_trials", "Trials by state.", labels=["study", "state"])
    held = CounterMetricFamily(
        f"{_PREFIX}_slot_seconds", "Seconds times slots that trials held.", labels=labels
    )
    spent = GaugeMetricFamily(f"{_PREFIX}_spent", "Money spent.", labels=["study", "currency"])
    budget = GaugeMetricFamily(f"{_PREFIX}_budget", "The budget.", labels=["study", "currency"])
    for history in histories:
        name, mine, paid = [history.name], history.study_id, costs(history)
        left.add_metric(name, history.time_left)
        if history.improvements:
            best.add_metric(name, history.improvements[-1].value)
        used.add_metric(name, sum(slot.study_id == mine for slot in history.slots))
        offered = [slot for slot in history.slots if slot.offered_by]
        lent.add_metric(name, sum(slot.lent_to == mine for slot in offered))
        workers.add_metric(name, sum(row.study_id == mine for row in history.workers))
        states = Counter(planned.state for planned in history.trials)
        for state in _STATES:
            trials.add_metric([history.name, state], states[state])
        held.add_metric(name, 3600.0 * paid.slot_hours)
        if history.budget is not None and paid.spent is not None:
            whose = [history.name, history.budget.currency]
            spent.add_metric(whose, paid.spent)
            budget.add_metric(whose, history.budget.amount)
    yield from (left, best, used, lent, workers, trials, held, spent, budget)
    yield _histogram(
        "handover_seconds", "Seconds lost by slots to a start and the stop before it.",
        _MOVES, {history.name: _moves(history) for history in histories},
    )  # fmt: skip
    yield _histogram(
        "plan_seconds", "Seconds of reading and planning, for plans with a change.",
        _PLANS, {history.name: _plans(history) for history in histories},
    )  # fmt: skip


def _moves(history: History) -> list[float]:
    """The seconds that ended segments took to start and to stop."""
    return [
        row.startup + (row.stop or 0.0)
        for row in history.segments
        if row.ended is not None and row.startup is not None
    ]


def _plans(history: History) -> list[float]:
    return [
        float(str(event.detail["seconds"]))
        for event in history.events
        if event.kind == "plan" and "seconds" in event.detail
    ]


def _histogram(
    name: str, words: str, bounds: Sequence[float], found: dict[str, list[float]]
) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(f"{_PREFIX}_{name}", words, labels=["study"])
    for study, seconds in found.items():
        buckets = [
            ("+Inf" if math.isinf(bound) else f"{bound:g}", float(count))
            for bound, count in zip((*bounds, math.inf), _up_to(bounds, seconds), strict=True)
        ]
        family.add_metric([study], buckets, sum(seconds))
    return family


def _up_to(bounds: Sequence[float], values: Iterable[float]) -> list[int]:
    """The number of values at or below each bound, and the number of all values."""
    counts = [0] * (len(bounds) + 1)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    total, found = 0, []
    for count in counts:
        total += count
        found.append(total)
    return found


def metrics_app(collector: StudyCollector) -> WSGIApplication:
    """A WSGI application with the metrics at /metrics.

    Raises:
        DeadlineError: prometheus_client is not installed.
    """
    check_installed()
    from prometheus_client import CollectorRegistry, make_wsgi_app

    registry = CollectorRegistry()
    registry.register(collector)
    metrics = make_wsgi_app(registry)

    def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != "/metrics":
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"The metrics are at /metrics.\n"]
        return cast("Iterable[bytes]", metrics(environ, start))

    return app


def check_installed() -> None:
    """Check that prometheus_client is installed.

    Raises:
        DeadlineError: It is not; the message names the package to install.
    """
    if find_spec("prometheus_client") is None:
        raise DeadlineError(
            "This needs prometheus_client: pip install 'optuna-deadline[metrics]'."
        )
