"""FreezeThaw: the course laid towards the deadline, and who goes on."""

from __future__ import annotations

import pytest

from optuna_deadline.policies import Policy
from optuna_deadline.policies.freeze_thaw import FreezeThaw
from optuna_deadline.testing.policies import PolicyTestCase


class TestConformance(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return FreezeThaw()
