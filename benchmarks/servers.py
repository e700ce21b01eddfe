"""The CPU time of a temporary PostgreSQL server."""

from __future__ import annotations

from contextlib import suppress

import psutil

from benchmarks.support.postgres import EmbeddedPostgres


def server_seconds(server: EmbeddedPostgres) -> float:
    """CPU seconds of the server's processes, while its connections stay open."""
    total = 0.0
    assert server.pid is not None
    postmaster = psutil.Process(server.pid)
    for process in (postmaster, *postmaster.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
