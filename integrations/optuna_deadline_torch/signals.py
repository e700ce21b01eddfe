"""SIGTERM as a flag that training looks at.

A handler must do no more. Lightning's runs a collective inside the signal handler: with the signal
on one of two ranks the collectives no longer match, and the ranks die without a checkpoint.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType


class TermFlag:
    """Remembers that SIGTERM came; never acts on it by itself."""

    def __init__(self) -> None:
        self.raised = False

    def install(self) -> None:
        """Take SIGTERM over; call after Lightning registered its handler, which it restores."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.raised = True
