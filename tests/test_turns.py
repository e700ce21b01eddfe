"""Under xdist real workers of one file take turns: whole studies at once starve each other."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_a_slow_test_is_in_the_group_of_its_file(request: pytest.FixtureRequest) -> None:
    if hasattr(request.config, "workerinput"):
        assert request.node.nodeid.endswith("@test_turns")
