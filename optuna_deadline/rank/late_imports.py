"""Modules that ranks import late, loaded once in the fork server.

Libraries load parts of themselves at their first use: the first optimizer of torch brings 800
modules. A rank is forked before that, so each segment would load them anew. A rank therefore
writes down what it has imported since its fork, and the fork server imports it for later ranks.

The fork server must stay free of threads and of open connections, which a fork would copy only in
part, and random numbers must not depend on what it has loaded. So a child process, the probe,
imports the modules first. A module that fails there, starts a thread, keeps a file open, draws a
random number, uses CUDA or takes too long is left out for good. Only modules of installed packages
are loaded: the user's own ones run in ranks only.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import signal
import sys
import sysconfig
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import numpy as np

_PROBE_SECONDS = 30.0
_MAX_BYTES = 1 << 20  # of one reading of a log
_TASKS, _FILES = Path("/proc/self/task"), Path("/proc/self/fd")
_INSTALLED = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_GOOD, _BAD = "+", "-"


class ImportLog:
    """Writes the modules that a rank has imported since its fork to a file of the fork server.

    Args:
        descriptor: The file; None to write nothing.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor
        self._known = set(sys.modules)

    def write(self) -> None:
        """Write the modules that are new since the last call."""
        if self._descriptor is None:
            return
        new = {name: one for name, one in list(sys.modules.items()) if name not in self._known}
        self._known.update(new)
        names = [name for name, module in new.items() if _is_installed(name, module)]
        if names:
            with suppress(OSError):  # a full disk
                os.write(self._descriptor, f"{json.dumps(names)}\n".encode())


class LateImports:
    """Imports in the fork server what its ranks have imported.

    Args:
        fork: Forks a child of the server that runs a function and exits; returns its process id.
    """

    def __init__(self, fork: Callable[[Callable[[], None]], int]) -> None:
        self._fork = fork
        self._logs: dict[int, _Lines] = {}  # by the process id of the rank
        self._wanted: dict[str, None] = {}  # in the order of their imports
        self._known: set[str] = set()
        self._proven: deque[str] = deque()
        self._probe: _Probe | None = None

    def open_log(self) -> int | None:
        """The descriptor of a new log for the next rank; None if no file can be created."""
        with suppress(OSError), tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
        return None  # the disk is full, for example: ranks import for themselves

    def watch(self, pid: int, descriptor: int | None) -> None:
        """Read a log while its rank runs."""
        if descriptor is not None:
            self._logs[pid] = _Lines(descriptor)

    def forget(self, pid: int) -> None:
        """Read the rest of the log of a rank that has ended."""
        if (log := self._logs.pop(pid, None)) is not None:
            self._take(log)
            log.close()

    def _take(self, log: _Lines) -> None:
        for line in log.read():
            self.want(json.loads(line))

    def want(self, names: Iterable[str]) -> None:
        """Import these modules, if the probe succeeds."""
        new = [name for name in names if name not in self._known]
        self._known.update(new)
        self._wanted.update(dict.fromkeys(new))

    @property
    def pending(self) -> bool:
        """Whether :meth:`import_next` has something to do."""
        return bool(self._proven)

    def look(self) -> None:
        """Read the logs, start a probe, or take its result."""
        for log in self._logs.values():
            self._take(log)
        if self._probe is not None and self._probe.ended():
            for name, good in self._probe.results():
                del self._wanted[name]
                if good:
                    self._proven.append(name)
            self._probe = None
        if self._probe is None and not self._proven:
            for name in [name for name in self._wanted if name in sys.modules]:
                del self._wanted[name]
            if self._wanted and (descriptor := self.open_log()) is not None:
                self._probe = _Probe(self._fork, tuple(self._wanted), descriptor)

    def import_next(self) -> None:
        """Import the next module that has passed the probe."""
        name = self._proven.popleft()
        if name in sys.modules:
            return
        gc.disable()
        show, warnings.showwarning = warnings.showwarning, _show_nothing  # a rank has shown it
        try:
            importlib.import_module(name)
        except BaseException:  # it passed the probe, so this is bad luck; ranks import it
            pass
        finally:
            if warnings.showwarning is _show_nothing:
                warnings.showwarning = show
            gc.freeze()  # stays shared between the ranks
            gc.enable()


class _Probe:
    """A child process that imports modules and writes down the result of each."""

    def __init__(
        self,
        fork: Callable[[Callable[[], None]], int],
        names: tuple[str, ...],
        descriptor: int,
    ) -> None:
        self._names, self._lines = names, _Lines(descriptor)
        self._until = time.monotonic() + _PROBE_SECONDS
        self._pid = fork(lambda: probe(names, descriptor))

    def ended(self) -> bool:
        """Whether the process has ended; it is killed when it takes too long."""
        if time.monotonic() > self._until:
            os.killpg(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            return True
        return os.waitpid(self._pid, os.WNOHANG) != (0, 0)

    def results(self) -> list[tuple[str, bool]]:
        """Each module that was tried, and whether it passed; the last one may not have ended."""
        marks = self._lines.read()
        self._lines.close()
        found = [(name, mark == _GOOD) for name, mark in zip(self._names, marks, strict=False)]
        if len(found) < len(self._names) and not (found and not found[-1][1]):
            found.append((self._names[len(found)], False))
        return found


def probe(names: Iterable[str], descriptor: int) -> None:
    """Import modules in order until one leaves more behind than itself.

    Args:
        names: The modules.
        descriptor: A file that gets a line for each: "+" if it passed, "-" otherwise.
    """
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    before = _left_behind()
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException:
            os.write(descriptor, f"{_BAD}\n".encode())
            return
        now = _left_behind()
        good = all(now[what] == was for what, was in before.items())
        os.write(descriptor, f"{_GOOD if good else _BAD}\n".encode())
        if not good:
            return


def _left_behind() -> dict[str, object]:
    """What an import must not change: threads, open files, random numbers, and the use of CUDA."""
    found: dict[str, object] = {
        "threads": len(os.listdir(_TASKS)) if _TASKS.exists() else threading.active_count(),
        "files": len(os.listdir(_FILES)) if _FILES.exists() else 0,
        "random": random.getstate(),
        "numpy": str(np.random.get_state(legacy=False)),
        "cuda": False,
    }
    if (torch := sys.modules.get("torch")) is not None:
        found |= {"torch": torch.get_rng_state().tolist(), "cuda": torch.cuda.is_initialized()}
    return found


def _is_installed(name: str, module: ModuleType | None) -> bool:
    """Whether a module belongs to an installed package and can be imported by its name."""
    spec = getattr(module, "__spec__", None)
    if spec is None or spec.name != name:
        return False
    origin = spec.origin
    return origin is not None and (origin == "built-in" or origin.startswith(_INSTALLED))


def _show_nothing(*args: object, **kwargs: object) -> None:
    """Replaces ``warnings.showwarning``."""


class _Lines:
    """The lines of a file that another process writes; its position is shared, so it stays."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._read = 0

    def read(self) -> list[str]:
        """The lines that are complete since the last call."""
        new = os.pread(self.descriptor, _MAX_BYTES, self._read)
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode().splitlines()

    def close(self) -> None:
        """Close this process's descriptor."""
        os.close(self.descriptor)
