"""What a PostgreSQL server of our own takes of this machine."""

from __future__ import annotations

from contextlib import suppress

import psutil

from optuna_deadline.testing.postgres import EmbeddedPostgres


def server_seconds(server: EmbeddedPostgres) -> float:
    """CPU of the server's processes; connections last as long as what is measured."""
    total = 0.0
    assert server.pid is not None
    postmaster = psutil.Process(server.pid)
    for process in (postmaster, *postmaster.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
