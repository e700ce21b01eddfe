"""What the parts of the table share: where they work, and how a transition begins."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.clock import SteadyDeadline
from optuna_deadline.allocation.database.schema import POOL_LENGTH, check_length
from optuna_deadline.allocation.database.transaction import Scope, Transaction
from optuna_deadline.allocation.records import ALIVE

TTL = 30.0  #: seconds that a lease lasts without renewal
GRACE = 15.0  #: seconds after its end before it may be reaped

# Conditions of several statements.
IS_ALIVE = f"state IN ({', '.join(repr(state) for state in ALIVE)})"
OF_TRIAL = "study_id = :study AND number = :number"
OF_SEGMENT = f"{OF_TRIAL} AND fence = :fence"
OWNED = f"{OF_SEGMENT} AND owner = :me"


class Base:
    """A pool and a study in a database.

    Args:
        database: The database.
        pool: The pool's name; studies that name the same pool share its slots.
        study_id: The study's id in the table.
        ttl: Seconds that a lease lasts without renewal; the pool's first worker sets it.
        grace: Seconds after a lease's end before it may be reaped; likewise.
        now: The time in seconds, if a test or a simulation sets it; else the database's.

    Attributes:
        database: The database.
        ttl: As above; the pool's value once it exists.
        grace: Likewise.
    """

    def __init__(
        self,
        database: Database,
        pool: str,
        study_id: int,
        *,
        ttl: float = TTL,
        grace: float = GRACE,
        now: Callable[[], float] | None = None,
    ) -> None:
        check_length("pool", pool, POOL_LENGTH)
        self.database = database
        self.ttl, self.grace = ttl, grace
        self._scope = Scope(pool, study_id, now)
        self._steady = SteadyDeadline(database.clock)

    @property
    def pool(self) -> str:
        """The pool's name."""
        return self._scope.pool

    @property
    def study_id(self) -> int:
        """The study's id in the table."""
        return self._scope.study_id

    def now(self) -> float:
        """The database's time; leases and deadlines are compared with this clock only."""
        return self.database.now() if self._scope.given is None else self._scope.given()

    def _tx(self, name: str = "", queue: int | None = None) -> AbstractContextManager[Transaction]:
        """A transaction; ``NAME.commit`` and ``NAME.committed`` are its crash points."""
        return self.database.begin(self._scope, name, queue)

    def _alone(self, name: str = "") -> AbstractContextManager[Transaction]:
        """Queries, or one change, of which each is its own transaction."""
        return self.database.each_alone(self._scope, name)
