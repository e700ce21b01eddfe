"""The members of a pool and the slots that they offer.

A study without a live worker pays for nothing, and the end of its money is open. Its next planner
sizes the pool again with the rest of the money.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from optuna_deadline.allocation.admission import check_admission, choose_devices
from optuna_deadline.allocation.database.access import REGISTRATION
from optuna_deadline.allocation.database.text import listed
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.allocation.records import MachineInfo, Slot, Worker
from optuna_deadline.allocation.rules import host_type_detail
from optuna_deadline.allocation.table.reads import WORKERS, Reads
from optuna_deadline.errors import DeadlineError


class Members(Reads):
    """Workers join a pool and leave it."""

    def make_pool(self) -> tuple[float, float]:
        """Create the pool unless it exists; returns the seconds of its leases and its grace."""
        with self._tx(queue=REGISTRATION) as tx:
            self._ensure_pool(tx)
        return self.ttl, self.grace

    def _ensure_pool(self, tx: Transaction) -> None:
        """Create the pool unless it exists, and adopt its times.

        The first worker sets both, because a reaper must know what every holder assumes.
        """
        found = tx.row("SELECT ttl, grace FROM @pool WHERE name = :pool")
        if found is not None:
            self.ttl, self.grace = float(found[0]), float(found[1])
            return
        tx.run(
            "INSERT INTO @pool (name, epoch, ttl, grace) VALUES (:pool, 0, :ttl, :grace)",
            ttl=self.ttl, grace=self.grace,
        )  # fmt: skip
        tx.run("INSERT INTO @leader (pool, term, expires) VALUES (:pool, 0, 0.0)")

    def register(
        self,
        worker_id: str,
        host: str,
        pid: int,
        devices: Sequence[str],
        cpus: int,
        weight: float | None = None,
        machine_info: MachineInfo | None = None,
    ) -> list[Slot]:
        """Join the pool with devices by name and a number of CPU shares.

        A slot belongs to its host. Live workers of several studies of the pool may offer it, one
        per study; CPU shares are numbered accordingly. A slot that no other live worker offers is
        lent to this study, with its holder unchanged; the pool's leader may lend it on. A repeated
        call by the same worker, after a lost answer or a long silence, keeps the slots that no
        rival has taken, and keeps the worker drained.

        Args:
            worker_id: The worker.
            host: Its host.
            pid: Its process id.
            devices: Devices by name.
            cpus: CPU shares.
            weight: The study's weight in the pool from now on; None leaves it, 1 at first.
            machine_info: Its host and software.

        Raises:
            DeadlineError: Another live worker of this study or of another pool offers a device,
                the database serves one host only and another host uses it, or a rule of
                :mod:`optuna_deadline.allocation.admission` forbids it.
        """
        info = machine_info or MachineInfo()
        with self._tx("register", queue=REGISTRATION) as tx:
            self._ensure_pool(tx)
            newcomer = Worker(
                worker_id, self.pool, self.study_id, host, pid, "live", tx.now + self.ttl,
                machine=info.machine, store=info.store, versions=info.versions,
                address=info.address, boot=info.boot,
            )  # fmt: skip
            known = dict(tx.rows("SELECT device, id FROM @slot WHERE host = :host", host=host))
            offers = self._offerers(tx, known.values())
            alike = self._namesakes(tx, host, info.uuids)
            concerned = {name for row in alike for name in row.offered_by}.union(*offers.values())
            live = self._judges(tx, host, concerned)
            check_admission(newcomer, info.uuids, live.values(), alike)
            self._stop_idle_payments(tx, [self.study_id])  # if all of its workers died
            offered = {
                name: [live[w] for w in offers[slot_id] if w in live]
                for name, slot_id in known.items()
            }
            mine = {name for name, slot_id in known.items() if worker_id in offers[slot_id]}
            names = choose_devices(offered, mine, devices, cpus, newcomer)
            self._write_worker(tx, newcomer)
            self._join(tx, weight)
            lent = []
            for name in names:
                rivals = [row for row in offered.get(name, ()) if row.id != worker_id]
                known[name] = self._offer(tx, newcomer, name, known.get(name), not rivals)
                lent += [] if rivals else [known[name]]
                if name in info.uuids:
                    tx.run(
                        "UPDATE @slot SET uuid = :uuid WHERE id = :id",
                        id=known[name], uuid=info.uuids[name],
                    )  # fmt: skip
            tx.event(
                "register", worker=worker_id, host=host, devices=names, lent=lent,
                **host_type_detail(info),
            )  # fmt: skip
            return self._slots(tx, [known[name] for name in names])

    def _judges(self, tx: Transaction, host: str, concerned: Collection[str]) -> dict[str, Worker]:
        """The live workers by which a newcomer is judged: SQLite's are on its host."""
        if not self.database.one_host:
            where = "w.host = :host OR w.study_id = :study OR w.id IN names(:names)"
            live = self._living(tx, where, host=host, names=listed(concerned))
            return {row.id: row for row in live}
        live = self._living(tx, "true")
        other = next((row.host for row in live if row.host != host), None)
        if other is not None:
            raise DeadlineError(
                f"SQLite serves one host only, and workers of {other!r} use this file; use "
                "PostgreSQL to train on several hosts."
            )
        return {row.id: row for row in live}

    def _write_worker(self, tx: Transaction, new: Worker) -> None:
        """Write the worker's row anew; it stays drained."""
        drained = tx.value("SELECT drained FROM @worker WHERE id = :me", me=new.id)
        tx.run("DELETE FROM @worker WHERE id = :me", me=new.id)
        row = WORKERS.stored(replace(new, drained=drained))
        tx.insert("worker", [row | {"registered": tx.now}])

    @staticmethod
    def _join(tx: Transaction, weight: float | None) -> None:
        """Add the study to the pool; a given weight replaces the one before."""
        tx.run(
            "INSERT INTO @tenant (pool, study_id, weight, joined, term, expires, live, done, "
            "span, restart, served, entitled, spent, counted) VALUES (:pool, :study, 1.0, :now, "
            "0, 0.0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, :now) ON CONFLICT DO NOTHING"
        )
        if weight is not None:
            tx.run(
                "UPDATE @tenant SET weight = :weight WHERE pool = :pool AND study_id = :study",
                weight=weight,
            )

    @staticmethod
    def _offer(
        tx: Transaction, newcomer: Worker, name: str, slot_id: int | None, taken_over: bool
    ) -> int:
        """Offer a device; returns its slot.

        A dead rival loses its offer, even if it wakes, as does a worker of a study that has ended.
        """
        if slot_id is None:
            slot_id = tx.value(
                "INSERT INTO @slot (host, device, pool, fence, lent_to) VALUES (:host, :device, "
                ":pool, 0, :study) RETURNING id",
                host=newcomer.host, device=name,
            )  # fmt: skip
        elif taken_over:
            tx.run("UPDATE @slot SET pool = :pool, lent_to = :study WHERE id = :id", id=slot_id)
        tx.run(
            "DELETE FROM @offer WHERE slot_id = :id AND worker IN (SELECT w.id FROM @worker w "
            "WHERE w.pool <> :pool OR w.study_id = :study OR (w.state <> 'live' AND w.study_id IN "
            "(SELECT study_id FROM @study WHERE settled IS NOT NULL)))",
            id=slot_id,
        )
        tx.run(
            "INSERT INTO @offer (worker, slot_id) VALUES (:me, :id)", me=newcomer.id, id=slot_id
        )
        assert slot_id is not None
        return slot_id

    def leave(self, worker_id: str) -> None:
        """Leave the pool: its elected roles end at once, and the leases of its slots expire.

        It offers nothing any more, except held slots until they are reaped.

        With the last live worker, a study stops paying: its pool has no slots, and the end of its
        money is open until its next plan. The same holds if a worker joins, or is reaped by
        :meth:`reap`, and no other one is alive: then since the end of the last lease, as the event
        says.
        """
        with self._tx() as tx:
            tx.run("UPDATE @worker SET state = 'left', lease = :now WHERE id = :me", me=worker_id)
            tx.run(
                "DELETE FROM @offer WHERE worker = :me AND slot_id NOT IN "
                "(SELECT id FROM @slot WHERE holder = :me)",
                me=worker_id,
            )
            self._end_roles(tx, [worker_id])
            tx.event("leave", worker=worker_id)
            self._stop_idle_payments(tx, [self.study_id])

    def set_in_use(self, worker_id: str, slot_id: int, in_use: bool, reason: str) -> None:
        """Offer one of a worker's slots again, or offer it no more: trials fail on it.

        Args:
            worker_id: The worker; nothing is offered if it is not live.
            slot_id: The slot.
            in_use: Whether it is offered.
            reason: Why, for the event.
        """
        slot = {"me": worker_id, "id": slot_id}
        with self._tx(queue=REGISTRATION) as tx:
            tx.run("DELETE FROM @offer WHERE worker = :me AND slot_id = :id", **slot)
            if in_use:
                tx.run(
                    "INSERT INTO @offer (worker, slot_id) SELECT id, :id FROM @worker WHERE "
                    "id = :me AND state = 'live'", **slot,
                )  # fmt: skip
            [(host, device)] = tx.rows("SELECT host, device FROM @slot WHERE id = :id", **slot)
            tx.event(
                "device", worker=worker_id, slot=slot_id, host=host, device=device, in_use=in_use,
                reason=reason,
            )  # fmt: skip
            tx.notify()

    def drain(self, host: str, drained: bool) -> int:
        """Drain the live workers on a host at a user's request, or undo it.

        This concerns the workers of every study of the pool. They offer no slots, are granted
        none, and release theirs through the plan. Workers that register later are not drained.

        Returns:
            The number of live workers of the pool on the host, drained before or not.
        """
        # In the queue, because a worker that registers again writes a new row of its own.
        with self._tx(queue=REGISTRATION) as tx:
            there = self._living(tx, "w.pool = :pool AND w.host = :host", host=host)
            changed = tx.rows(
                "UPDATE @worker SET drained = CASE WHEN :drained THEN :now ELSE NULL END WHERE "
                "id IN names(:names) AND (drained IS NULL) = :drained RETURNING id, study_id",
                names=listed([row.id for row in there]), drained=drained,
            )  # fmt: skip
            for name, study_id in sorted(changed):
                tx.event("drain", worker=name, study_id=study_id, host=host, drained=drained)
            if changed:
                tx.notify()
            return len(there)

    @staticmethod
    def _end_roles(tx: Transaction, names: Collection[str]) -> None:
        """End the elected roles of workers."""
        for table, role in (("leader", "holder"), ("tenant", "planner")):
            tx.run(
                f"UPDATE @{table} SET {role} = NULL, expires = :now WHERE {role} IN names(:names)",
                names=listed(names),
            )

    def _stop_idle_payments(self, tx: Transaction, study_ids: Iterable[int]) -> None:
        """Stop the payments of those of the studies that pay for slots and have no live worker.

        The event has the time since when: no lease of their workers ended later.
        """
        paying = (
            "SELECT 1 FROM @study WHERE study_id = :id AND settled IS NULL AND "
            "funds_end IS NOT NULL"
        )
        for study_id in sorted(set(study_ids)):
            if tx.row(paying, id=study_id) is None:
                continue  # the usual case: a worker that need not write the row does not lock it
            # Locked before the workers are read: the last two may leave at once.
            if tx.row(f"{paying} FOR NO KEY UPDATE", id=study_id) is None:
                continue
            if self._living(tx, "w.study_id = :id", id=study_id):
                continue
            last = tx.value("SELECT max(lease) FROM @worker WHERE study_id = :id", id=study_id)
            tx.run(
                "UPDATE @study SET pool_slots = 0, funds_end = NULL WHERE study_id = :id",
                id=study_id,
            )
            tx.event(
                "rest", study_id=study_id, since=tx.now if last is None else min(tx.now, last)
            )

    def _wake_planner(self, tx: Transaction) -> None:
        """Notify the study's planner when this commits."""
        if tx.postgresql:
            tx.notify([tx.value(
                "SELECT planner FROM @tenant WHERE pool = :pool AND study_id = :study"
            )])  # fmt: skip
