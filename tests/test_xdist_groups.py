"""Real workers take turns under xdist: whole studies at once would starve each other."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_a_slow_test_is_in_a_group(request: pytest.FixtureRequest) -> None:
    if hasattr(request.config, "workerinput"):
        assert request.node.nodeid.endswith("@workers")
