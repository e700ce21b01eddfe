"""The conformance suite for allocation stores, which each kind of store runs.

A subclass overrides one fixture, ``world``, with a world whose function opens a store on a fresh
database. Time is passed in, and no test sleeps.
"""

from __future__ import annotations

import pytest
from allocation.suite.gangs import GangSuite, MoneySuite
from allocation.suite.leases import LeaseSuite, ReapingSuite
from allocation.suite.plans import PlanSuite, RequestSuite
from allocation.suite.pool import AdmissionSuite, MembershipSuite, SharingSuite
from allocation.suite.segments import LostAnswerSuite, WriteSuite
from allocation.suite.world import AllocationWorld


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
    """The tests that every :class:`~optuna_deadline.allocation.table.AllocationTable` passes."""

    @pytest.fixture
    def world(self) -> AllocationWorld:
        """A world on a fresh database."""
        raise NotImplementedError("Override the fixture `world` in the subclass.")
