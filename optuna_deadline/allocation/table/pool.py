"""The elected roles, and the pool's slots and accounts.

A planner and a pool's leader are elected by a lease with a term, which every write of theirs
checks. Lending sets the wanted state: a held slot stays held until its holder releases it.
"""

from __future__ import annotations

from collections.abc import Mapping

from optuna_deadline.allocation.database.text import listed
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.allocation.records import Account, StudyClaim
from optuna_deadline.allocation.rules import election_outcome
from optuna_deadline.allocation.table.members import Members
from optuna_deadline.errors import LeaseLost


class ElectedRoles(Members):
    """Elections, and the transitions of a pool's leader."""

    def elect_leader(self, worker_id: str, divider: str | None = None) -> int | None:
        """Become or stay the pool's leader for ttl seconds; returns the term.

        Terms are as in :meth:`elect_planner`, but per pool: its leader divides the slots.

        Args:
            worker_id: The worker.
            divider: The name of its divider.
        """
        with self._tx() as tx:
            return self._elect(
                tx, worker_id, "leader", "holder", "pool = :pool", "lead",
                "divider = :divider, ", divider=divider,
            )  # fmt: skip

    def elect_planner(self, worker_id: str) -> int | None:
        """Become or stay the study's planner for ttl seconds; returns the term.

        Terms only rise. The same planner after a gap has a new term, since another may have
        planned in between. None while another one is elected, and for a worker that has left.
        """
        mine = "pool = :pool AND study_id = :study"
        with self._tx() as tx:
            return self._elect(tx, worker_id, "tenant", "planner", mine, "elect")

    def _elect(
        self,
        tx: Transaction,
        me: str,
        table: str,
        role: str,
        where: str,
        event: str,
        more: str = "",
        **values: object,
    ) -> int | None:
        row = tx.row(f"SELECT {role}, term, expires FROM @{table} WHERE {where}")
        if row is None:
            return None
        before, term, expires = row
        won = election_outcome(before, term, expires, me, tx.now, self.ttl)
        if won is None:
            return None
        new = won != term
        if new and (self._has_left(tx, me) or (role == "planner" and self._moved(tx, me))):
            return None
        elected = tx.run(
            f"UPDATE @{table} SET {more}{role} = :me, term = :won, expires = :until "
            # Else another was elected.
            f"WHERE {where} AND term = :term AND {role} IS NOT DISTINCT FROM :before",
            me=me, won=won, until=tx.now + self.ttl, term=term, before=before,
            **values,
        )  # fmt: skip
        if elected and new:
            tx.event(event, worker=me, term=won)
        return won if elected else None

    @staticmethod
    def _has_left(tx: Transaction, me: str) -> bool:
        """Whether a worker has left: its thread may run for election once more after that.

        Its row is locked until the election is over, so that it leaves before or after it and
        hands over what was won. It is locked before the elected row, as in leaving, so that both
        lock in one order; a pending renewal is waited for as well.
        """
        return bool(
            tx.value("SELECT state FROM @worker WHERE id = :me FOR SHARE", me=me) == "left"
        )

    def _moved(self, tx: Transaction, me: str) -> bool:
        """Whether the study moved to another pool while a worker was silent."""
        where = (
            "w.study_id = :study AND w.pool <> :pool AND "
            "w.registered > (SELECT registered FROM @worker WHERE id = :me)"
        )
        return bool(self._living(tx, where, me=me))

    def _guard_planner(self, tx: Transaction, worker_id: str, term: int) -> None:
        """Lock the planner's row for this term.

        Raises:
            LeaseLost: Another term has begun.
        """
        if tx.row(
            "SELECT 1 FROM @tenant WHERE pool = :pool AND study_id = :study AND planner = :me "
            "AND term = :term FOR SHARE",
            me=worker_id, term=term,
        ) is None:  # fmt: skip
            raise LeaseLost(f"Term {term} of study {self.study_id} in pool {self.pool!r} is over.")

    def _guard_leader(self, tx: Transaction, worker_id: str, term: int) -> None:
        """Lock the leader's row for this term.

        Raises:
            LeaseLost: Another term has begun.
        """
        if tx.row(
            "SELECT 1 FROM @leader WHERE pool = :pool AND holder = :me AND term = :term FOR SHARE",
            me=worker_id, term=term,
        ) is None:  # fmt: skip
            raise LeaseLost(f"Term {term} of pool {self.pool!r} is over.")

    def lend(
        self,
        worker_id: str,
        term: int,
        lent: Mapping[int, int],
        accounts: Mapping[int, Account],
    ) -> None:
        """Lend slots to studies, and update the accounts of unsettled studies.

        No holder changes: a slot held by another study is acquired once that has released it.

        Args:
            worker_id: The leader.
            term: Its term.
            lent: The study of each slot that changes.
            accounts: What each study has had since the last update; nothing for others.

        Raises:
            LeaseLost: Another term has begun.
        """
        with self._tx("lend") as tx:
            self._guard_leader(tx, worker_id, term)
            # Accounts first: a waiter for a trial may hold its study's row, a waiter for a slot a
            # trial.
            open_ = tx.rows(
                "SELECT study_id FROM @tenant WHERE pool = :pool AND study_id IN (SELECT study_id "
                "FROM @study WHERE settled IS NULL) ORDER BY study_id FOR UPDATE"
            )
            tx.run(
                "UPDATE @tenant SET served = served + (:now - counted) * v.slots, entitled = "
                "entitled + (:now - counted) * v.rate, spent = spent + (:now - counted) * "
                "v.spending, counted = :now FROM (SELECT CAST(value ->> 0 AS INTEGER) AS id, "
                "CAST(value ->> 1 AS DOUBLE PRECISION) AS slots, "
                "CAST(value ->> 2 AS DOUBLE PRECISION) AS rate, "
                "CAST(value ->> 3 AS DOUBLE PRECISION) AS spending FROM rows(:rows)) v "
                "WHERE pool = :pool AND study_id = v.id",
                rows=listed([(id_, *accounts.get(id_, Account())) for (id_,) in open_]),
            )
            if lent:
                self._lend(tx, worker_id, term, lent)

    @staticmethod
    def _lend(tx: Transaction, me: str, term: int, lent: Mapping[int, int]) -> None:
        ids = listed(lent)
        tx.rows(  # in one order, as everywhere
            "SELECT id FROM @slot WHERE id IN each(:ids) ORDER BY id FOR UPDATE", ids=ids
        )
        tx.run(
            "UPDATE @slot SET lent_to = v.study FROM (SELECT CAST(value ->> 0 AS INTEGER) AS slot,"
            " CAST(value ->> 1 AS INTEGER) AS study FROM rows(:rows)) v WHERE id = v.slot",
            rows=listed(lent.items()),
        )
        for slot_id in sorted(lent):
            tx.event("lend", slot=slot_id, term=term, worker=me, study_id=lent[slot_id])
        if tx.postgresql:
            tx.notify([name for (name,) in tx.rows(
                "SELECT planner FROM @tenant WHERE pool = :pool UNION SELECT o.worker FROM @offer "
                "o JOIN @worker w ON w.id = o.worker JOIN @slot s ON s.id = o.slot_id WHERE "
                "s.id IN each(:ids) AND w.study_id = s.lent_to AND w.state = 'live'",
                ids=ids,
            )])  # fmt: skip

    def set_claim(self, worker_id: str, term: int, claim: StudyClaim) -> None:
        """Set the study's claim, as its planner.

        Raises:
            LeaseLost: Another term has begun.
        """
        with self._tx() as tx:
            self._guard_planner(tx, worker_id, term)
            tx.run(
                "UPDATE @tenant SET live = :live, most = :most, done = :done, remaining = "
                ":remaining, work = :work, span = :span, restart = :restart "
                "WHERE pool = :pool AND study_id = :study",
                **vars(claim),
            )
