"""A worker's place in its pool, as its renewals tell it."""

from __future__ import annotations

from typing import cast

import optuna
import pytest
from tables import table_of

from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.records import MachineInfo
from optuna_deadline.errors import StudyGone
from optuna_deadline.study import agreement
from optuna_deadline.worker.devices import Offer
from optuna_deadline.worker.lease_clock import LeaseClock
from optuna_deadline.worker.registration import PoolMembership


class Believing:
    """A worker's trust, of which only the beginning is asked for."""

    def record_renewal(self, sent: float) -> None:
        """Leases tick from now on."""


def test_a_worker_of_a_deleted_study_does_not_work_for_one_created_again(
    study: optuna.Study,
) -> None:
    """On SQLite that has the same number, so the worker's lines are found in the table."""
    agreement.fix(open_table(study), study, "1h")
    table = table_of(study)
    joining = PoolMembership(
        table, "me", Offer((), 2), MachineInfo(), cast(LeaseClock, Believing()), None
    )
    joining.register()
    joining.check_offers(table.renew("me", []).offers)
    optuna.delete_study(study_name=study.study_name, storage=study._storage)
    again = optuna.create_study(study_name=study.study_name, storage=study._storage)
    agreement.fix(open_table(again), again, "1h")
    with pytest.raises(StudyGone, match="was deleted while the worker ran"):
        joining.check_offers(table.renew("me", []).offers)
    assert table_of(again).workers() == []
