"""Until when a worker may trust its leases, on its own monotonic clock.

``trusted_until = before sending the renewal + ttl - margin``: a slow answer can only shorten it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from optuna_deadline.allocation.records import Renewal
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.errors import DatabaseGone
from optuna_deadline.worker.database_errors import advice_for, describe_database_error
from optuna_deadline.worker.outage import Outage
from optuna_deadline.worker.watchdog import Watchdog

_logger = logging.getLogger("optuna_deadline")

#: Seconds for which a worker without further work waits for an unreachable database.
DATABASE_GONE_SECONDS = 30.0
#: The same for a stopped worker that holds nothing: it has nothing to write.
IDLE_GONE_SECONDS = 5.0
#: Seconds without an answer or an error after which the database counts as silent. A renewal
#: comes every fifth second while a sampler works.
_SILENT_SECONDS = 10.0


class LeaseClock:
    """Renews the leases and sends the end of trust to the watchdog.

    Args:
        table: The allocation table.
        worker_id: The worker.
        watchdog: Kills the ranks at the end of trust.
    """

    def __init__(self, table: AllocationTable, worker_id: str, watchdog: Watchdog) -> None:
        self._table = table
        self._worker_id = worker_id
        self._watchdog = watchdog
        self._renewed_at = 0.0
        self._outage = Outage()
        self._last_error = ""
        self._answered_at = time.monotonic()
        self.trusted_until = 0.0

    def record_renewal(self, sent: float) -> None:
        """Trust the leases that were requested at ``sent``."""
        margin = min(5.0, self._table.ttl / 6)
        self._renewed_at = sent
        self.trusted_until = sent + self._table.ttl - margin
        self._watchdog.trust(self.trusted_until)

    @property
    def renewal_due(self) -> bool:
        """Whether a renewal is due."""
        return time.monotonic() - self._renewed_at > self._table.ttl / 6

    def renew(self, held: Collection[tuple[int, int]]) -> Renewal:
        """Renew the leases; returns the slots that this worker still holds."""
        sent = time.monotonic()
        renewal = self._table.renew(self._worker_id, held)
        self.record_renewal(sent)
        self.record_progress()
        return renewal

    def expiring_soon(self, stop_seconds: float) -> bool:
        """Whether ranks should save and leave now, because no renewal succeeded for too long.

        The cause does not matter: the database refuses, or never answers.
        """
        patience = min(2 * stop_seconds + 1.0, self._table.ttl / 3)
        return time.monotonic() >= self.trusted_until - patience

    def database_gone(
        self, since: float, patience: float = DATABASE_GONE_SECONDS
    ) -> DatabaseGone | None:
        """The error that ends a worker that waits for nothing but its database.

        Args:
            since: When its work ended: at its deadline, or when it was asked to leave.
            patience: Seconds to wait for an answer.
        """
        silent = time.monotonic() - self._answered_at
        if silent < patience or time.monotonic() - since < patience:
            return None
        return DatabaseGone(
            f"The database has not answered for {silent:.0f} s{self._last_error}, and this worker "
            "has to leave: what it holds is free once its leases have run out. See to the "
            "database, and start the same command again to go on."
        )

    @property
    def is_answering(self) -> bool:
        """Whether the database has answered just now."""
        silent = time.monotonic() - self._answered_at
        return self._outage.since is None and silent < _SILENT_SECONDS

    def discount(self, seconds: float) -> None:
        """Count these seconds as no silence: this process was stopped and asked nothing."""
        self._answered_at += seconds
        self._outage.discount(seconds)

    def record_database_error(self, error: BaseException) -> None:
        """The database did not answer: log it once, and the same cause once a minute at most."""
        cause, advice = describe_database_error(error), advice_for(error)
        self._last_error = f" ({cause})"
        if self._outage.begins(cause):
            self._warn(
                "does not serve this worker" if advice else "does not answer", cause, advice
            )

    def note_silence(self) -> None:
        """Log a database that gives neither an answer nor an error, as a frozen server does."""
        silent = time.monotonic() - self._answered_at
        if silent >= _SILENT_SECONDS and self._outage.begins("silence", silent):
            self._warn("does not answer", f"silent for {silent:.0f} s", None)

    def _warn(self, what: str, cause: str, advice: str | None) -> None:
        _logger.warning(
            "The database %s (%s)%s; training continues for at most %.0f s.",
            what,
            cause,
            f": {advice}" if advice else "",
            max(0.0, self.trusted_until - time.monotonic()),
        )

    def record_progress(self) -> None:
        """A part of a pass has succeeded: no silence, but no end of an outage either."""
        if self._outage.since is None:
            self._answered_at = time.monotonic()

    def record_database_answer(self) -> None:
        """The database has answered all of a pass."""
        self._answered_at, self._last_error = time.monotonic(), ""
        if (seconds := self._outage.ends()) is not None:
            _logger.warning("The database answers again after %.1f s.", seconds)
