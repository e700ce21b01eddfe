"""How long a worker may trust its leases, by its own monotonic clock.

``trusted_until = before sending the renewal + ttl - margin``: a slow answer can only shorten it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from optuna_deadline.allocation.records import Renewal
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.errors import DatabaseGone
from optuna_deadline.worker.database_errors import describe_database_error
from optuna_deadline.worker.watchdog import Watchdog

_logger = logging.getLogger("optuna_deadline")

#: Seconds for which a worker whose work is over waits for a database that is away.
DATABASE_GONE_SECONDS = 30.0
#: The same for one that holds nothing and was asked to leave: it has nothing to write.
IDLE_GONE_SECONDS = 5.0


class LeaseClock:
    """Renews the leases and tells the watchdog how far they are believed.

    Args:
        table: The allocation table.
        worker_id: The worker.
        watchdog: Kills the ranks at the end of trust.
    """

    def __init__(self, table: AllocationStore, worker_id: str, watchdog: Watchdog) -> None:
        self._table = table
        self._worker_id = worker_id
        self._watchdog = watchdog
        self._renewed_at = 0.0
        self._away_since: float | None = None
        self._last_error = ""
        self._answered_at = time.monotonic()
        self.trusted_until = 0.0

    def record_renewal(self, sent: float) -> None:
        """Believe in leases that were asked for at ``sent``."""
        margin = min(5.0, self._table.ttl / 6)
        self._renewed_at = sent
        self.trusted_until = sent + self._table.ttl - margin
        self._watchdog.trust(self.trusted_until)

    @property
    def renewal_due(self) -> bool:
        """Whether it is time to renew."""
        return time.monotonic() - self._renewed_at > self._table.ttl / 6

    def renew(self, held: Collection[tuple[int, int]]) -> Renewal:
        """Renew; the answer says which slots are still ours."""
        sent = time.monotonic()
        renewal = self._table.renew(self._worker_id, held)
        self.record_renewal(sent)
        return renewal

    def expiring_soon(self, stop_seconds: float) -> bool:
        """Whether ranks should save and leave now: nothing was renewed for too long.

        Whatever the cause: a database that refuses, or one that never answers.
        """
        patience = min(2 * stop_seconds + 1.0, self._table.ttl / 3)
        return time.monotonic() >= self.trusted_until - patience

    def database_gone(
        self, since: float, patience: float = DATABASE_GONE_SECONDS
    ) -> DatabaseGone | None:
        """What ends a worker that has nothing to wait for but its database.

        Args:
            since: When its work was over: its deadline, or when it was asked to leave.
            patience: Seconds for which it waits for an answer.
        """
        silent = time.monotonic() - self._answered_at
        if silent < patience or time.monotonic() - since < patience:
            return None
        return DatabaseGone(
            f"The database has not answered for {silent:.0f} s{self._last_error}, and this worker "
            "has to leave: what it holds is free once its leases have run out. See to the "
            "database, and start the same command again to go on."
        )

    def record_database_error(self, error: BaseException) -> None:
        """The database did not answer: say so once."""
        self._last_error = f" ({describe_database_error(error)})"
        if self._away_since is None:
            self._away_since = time.monotonic()
            _logger.warning(
                "The database does not answer (%s); training continues for at most %.0f s.",
                describe_database_error(error),
                max(0.0, self.trusted_until - time.monotonic()),
            )

    def record_database_answer(self) -> None:
        """The database answered."""
        self._answered_at, self._last_error = time.monotonic(), ""
        if self._away_since is not None:
            seconds = time.monotonic() - self._away_since
            _logger.warning("The database answers again after %.1f s.", seconds)
            self._away_since = None
