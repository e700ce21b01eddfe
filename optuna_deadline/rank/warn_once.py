"""Shows a warning that each segment would repeat once per worker.

Each segment is a new process, which does not know what others have shown. All of them are forked
from one process, so they share a table in memory.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import struct
import warnings
from typing import Any, TextIO

_ENTRIES, _BYTES = 4096, 8  # of a hash; once the table is full, texts count as new
#: Libraries that log the same advice in each new process.
_LOGGERS = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning")


class SharedTexts:
    """Texts that one of several processes has shown; created before they are forked.

    Two processes that add the same text at the same instant may both show it.
    """

    def __init__(self) -> None:
        self._table = mmap.mmap(-1, _ENTRIES * _BYTES)

    def add(self, text: str) -> bool:
        """Whether the text is new."""
        digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=_BYTES).digest()
        start = struct.unpack("<Q", digest)[0] % _ENTRIES
        for place in range(start, start + _ENTRIES):
            at = place % _ENTRIES * _BYTES
            known = self._table[at : at + _BYTES]
            if known == digest:
                return False
            if known == bytes(_BYTES):
                self._table[at : at + _BYTES] = digest
                return True
        return True


class NewRecords(logging.Filter):
    """Passes warnings that no other process has shown, and all records below a warning."""

    def __init__(self, shown: SharedTexts) -> None:
        super().__init__()
        self._shown = shown

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is shown."""
        return record.levelno < logging.WARNING or self._shown.add(record.getMessage())


def warn_once(shown: SharedTexts) -> None:
    """Show each warning of this process that no other one has shown."""
    show = warnings.showwarning

    def show_new(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> Any:
        if shown.add(f"{filename}:{lineno}: {category.__name__}: {message}"):
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = show_new
    for name in _LOGGERS:
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(NewRecords(shown))
