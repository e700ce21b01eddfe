"""The conformance suite for allocation stores, in the style of Optuna's own.

Subclass it and override one fixture::

    class TestMyStore(AllocationStoreTestCase):
        @pytest.fixture
        def world(self) -> AllocationWorld:
            return AllocationWorld(make_store)

``make_store`` opens a store on a fresh database (see
:class:`~optuna_deadline.testing.worlds.MakeStore`); time is passed in, and nothing sleeps. For
readable failures, call ``pytest.register_assert_rewrite("optuna_deadline.testing.allocation",
"optuna_deadline.testing.allocation_suites", "optuna_deadline.testing.worlds")`` before.
"""

from __future__ import annotations

import pytest

from optuna_deadline.testing.allocation_suites.admission import AdmissionSuite
from optuna_deadline.testing.allocation_suites.gangs import GangSuite
from optuna_deadline.testing.allocation_suites.leases import LeaseSuite
from optuna_deadline.testing.allocation_suites.lost_answers import LostAnswerSuite
from optuna_deadline.testing.allocation_suites.membership import MembershipSuite
from optuna_deadline.testing.allocation_suites.money import MoneySuite
from optuna_deadline.testing.allocation_suites.plans import PlanSuite
from optuna_deadline.testing.allocation_suites.reaping import ReapingSuite
from optuna_deadline.testing.allocation_suites.requests import RequestSuite
from optuna_deadline.testing.allocation_suites.sharing import SharingSuite
from optuna_deadline.testing.allocation_suites.writes import WriteSuite
from optuna_deadline.testing.worlds import AllocationWorld


class AllocationStoreTestCase(
    LeaseSuite,
    ReapingSuite,
    LostAnswerSuite,
    MembershipSuite,
    PlanSuite,
    SharingSuite,
    MoneySuite,
    WriteSuite,
    RequestSuite,
    AdmissionSuite,
    GangSuite,
):
    """What every :class:`~optuna_deadline.allocation.store.AllocationStore` must do."""

    @pytest.fixture
    def world(self) -> AllocationWorld:
        """A world on a fresh database."""
        raise NotImplementedError("Override the fixture `world` in the subclass.")
