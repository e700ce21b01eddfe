"""What is shown beside a worker does not keep it."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from optuna_deadline.live.top import polling_views
from optuna_deadline.live.watcher import StudyWatcher


class Hung:
    """Looks at a database that does not answer."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()

    def view(self) -> Any:
        self.asked.set()
        self.answers.wait(60)


def test_a_worker_that_leaves_a_database_that_is_away_does_not_wait_to_be_shown() -> None:
    watcher = Hung()
    began = time.monotonic()
    with (
        pytest.raises(RuntimeError),
        polling_views(cast(StudyWatcher, watcher), 0.01, lambda looks: [*looks].clear()),
    ):
        assert watcher.asked.wait(30)
        raise RuntimeError
    assert time.monotonic() - began < 9, "it waits ten seconds where nothing is wrong"
    watcher.answers.set()
