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
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

_PROBE_SECONDS = 30.0
_TASKS, _FILES = Path("/proc/self/task"), Path("/proc/self/fd")
_INSTALLED = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


class ImportLog:
    """Writes the modules that a rank has imported since its fork to a file of the fork server."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._known = set(sys.modules)

    def write(self) -> None:
        """Write the modules that are new since the last call."""
        new = {name: one for name, one in list(sys.modules.items()) if name not in self._known}
        self._known.update(new)
        names = [name for name, module in new.items() if _is_installed(name, module)]
        if names:
            _write(self._descriptor, names)


class LateImports:
    """Imports in the fork server what its ranks have imported.

    Args:
        fork: Forks a child of the server that runs a function and exits; returns its process id.

    Attributes:
        descriptor: The file in which ranks write modules, and the probe the result of each.
    """

    def __init__(self, fork: Callable[[Callable[[], None]], int]) -> None:
        self._fork = fork
        self.descriptor = _new_file()
        self._read = 0  # bytes; the position of the file is the writers'
        self._known: set[str] = set()
        self._wanted: list[str] = []  # in the order of their imports
        self._probing: list[str] = []  # by the present probe, without those that it has tried
        self._proven: deque[str] = deque()
        self._probe: tuple[int, float] | None = None  # its process, and when it is killed

    @property
    def pending(self) -> bool:
        """Whether :meth:`import_next` has something to do."""
        return bool(self._proven)

    def want(self, names: Iterable[str], again: bool = False) -> None:
        """Import these modules if the probe succeeds; each is tried once, or again."""
        self._wanted += [name for name in names if again or name not in self._known]
        self._known.update(names)

    def look(self) -> None:
        """Read the file, and start or end a probe."""
        ended = self._probe is not None and _has_ended(*self._probe)
        refused = False  # a probe ends at the first module that does not pass
        for line in self._new_lines():
            if isinstance(line, list):
                self.want(line)
                continue
            [(name, good)] = line.items()
            self._probing.remove(name)
            refused = not good
            if good:
                self._proven.append(name)
        if ended:
            self._probe = None
            # It died or hung in the next module, which is left out like one that is refused.
            self.want(self._probing if refused else self._probing[1:], again=True)
        if self._probe is None and not self._proven:
            self._probing = [name for name in self._wanted if name not in sys.modules]
            self._wanted = []
            if names := tuple(self._probing):
                pid = self._fork(lambda: probe(names, self.descriptor))
                self._probe = pid, time.monotonic() + _PROBE_SECONDS

    def _new_lines(self) -> Iterator[Any]:
        new = os.pread(self.descriptor, os.fstat(self.descriptor).st_size, self._read)
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        yield from map(json.loads, whole.splitlines())

    def import_next(self) -> None:
        """Import the next module that has passed the probe."""
        gc.disable()
        show, warnings.showwarning = warnings.showwarning, _show_nothing  # a rank has shown it
        try:
            importlib.import_module(self._proven.popleft())
        except BaseException:  # it passed the probe, so this is bad luck; ranks import it
            pass
        finally:
            if warnings.showwarning is _show_nothing:
                warnings.showwarning = show
            gc.freeze()  # stays shared between the ranks
            gc.enable()


def _new_file() -> int:
    """A file without a name. All processes share its position, so they append to it."""
    with suppress(OSError), tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
    return os.open(os.devnull, os.O_RDWR)  # a full disk: ranks import for themselves


def probe(names: Iterable[str], descriptor: int) -> None:
    """Import modules in order until one fails or leaves more behind than itself.

    Args:
        names: The modules.
        descriptor: A file that gets each name with whether it passed.
    """
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    before = _left_behind()
    for name in names:
        good = False
        with suppress(BaseException):
            importlib.import_module(name)
            now = _left_behind()
            good = all(now[what] == was for what, was in before.items())
        _write(descriptor, {name: good})
        if not good:
            return


def _has_ended(pid: int, until: float) -> bool:
    """Whether a probe has ended; it is killed when it takes too long."""
    if time.monotonic() > until:
        os.killpg(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[0] == pid
    return os.waitpid(pid, os.WNOHANG)[0] == pid


def _write(descriptor: int, line: object) -> None:
    with suppress(OSError):
        os.write(descriptor, f"{json.dumps(line)}\n".encode())


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
    if spec is None or spec.name != name or spec.origin is None:
        return False
    return bool(spec.origin == "built-in" or spec.origin.startswith(_INSTALLED))


def _show_nothing(*args: object, **kwargs: object) -> None:
    """Replaces ``warnings.showwarning``."""
