"""The conformance suite for allocation stores, in the style of Optuna's suites.

Subclass it and override one fixture::

    class TestMyStore(AllocationStoreTestCase):
        @pytest.fixture
        def world(self) -> AllocationWorld:
            return AllocationWorld(make_store)

``make_store`` opens a store on a fresh database (see
:class:`~optuna_deadline.testing.allocation.world.MakeStore`); time is passed in, and nothing
sleeps. For readable failures, call
``pytest.register_assert_rewrite("optuna_deadline.testing.allocation")`` before.
"""

from __future__ import annotations

import pytest

from optuna_deadline.testing.allocation.gangs import GangSuite, MoneySuite
from optuna_deadline.testing.allocation.leases import LeaseSuite, ReapingSuite
from optuna_deadline.testing.allocation.plans import PlanSuite, RequestSuite
from optuna_deadline.testing.allocation.pool import AdmissionSuite, MembershipSuite, SharingSuite
from optuna_deadline.testing.allocation.segments import LostAnswerSuite, WriteSuite
from optuna_deadline.testing.allocation.world import AllocationWorld


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
    """The tests that every :class:`~optuna_deadline.allocation.store.AllocationStore` passes."""

    @pytest.fixture
    def world(self) -> AllocationWorld:
        """A world on a fresh database."""
        raise NotImplementedError("Override the fixture `world` in the subclass.")
