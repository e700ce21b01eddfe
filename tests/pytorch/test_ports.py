"""Ranks of many segments meet at ports of their own."""

from __future__ import annotations

from collections import deque
from datetime import timedelta

import pytest
import torch.distributed as dist

from optuna_deadline.worker.devices import free_port

SEGMENTS, AT_ONCE = 40, 8


@pytest.mark.slow
def test_ports_never_collide_across_many_segments() -> None:
    """Eight gangs at once, 40 in all: as rank 0 does it, each meets at the port it was given."""
    alive: deque[dist.TCPStore] = deque(maxlen=AT_ONCE)
    for number in range(SEGMENTS):
        port = free_port()
        assert port not in {store.port for store in alive}
        meeting = dist.TCPStore(
            "127.0.0.1", port, 1, is_master=True, timeout=timedelta(seconds=10), use_libuv=True
        )
        meeting.set("segment", str(number))
        alive.append(meeting)
    for number, meeting in zip(range(SEGMENTS - AT_ONCE, SEGMENTS), alive, strict=True):
        assert meeting.get("segment") == str(number).encode(), "nobody else met there"
