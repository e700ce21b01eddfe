"""A process that has everything imported and forks ranks in milliseconds.

It starts as a new process, so neither the worker's threads nor a CUDA context of the user's
notebook can leak into a rank. It never trains and never uses CUDA itself.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe, connection, reduction
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from optuna_deadline.errors import DeadlineError
from optuna_deadline.rank.channel import Channel, channel_from, channel_pair
from optuna_deadline.rank.late_imports import ImportLog, LateImports
from optuna_deadline.rank.objective import Objective, ObjectiveSource
from optuna_deadline.rank.process import RankSpec, run_rank
from optuna_deadline.rank.processes import WORKER
from optuna_deadline.rank.warn_once import SharedTexts, warn_once

if TYPE_CHECKING:
    Control = Connection[Any, Any]
else:
    Control = Connection  # generic for the type checker only

_PARENT_DEATH_SIGNAL = 1  # of Linux's prctl
_DEATH_SIGNAL, _NO_SIGNAL = signal.SIGKILL, 0
#: For glibc. By default a new process returns the memory of each training step to the kernel and
#: gets it back page by page in the next step, which makes its first epoch up to a third slower.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": 32 << 20, "MALLOC_TRIM_THRESHOLD_": 512 << 20}
#: Seconds between two tries to fork what the system did not allow.
_RETRY_SECONDS = 0.5
_PROGRAM = "import sys; from optuna_deadline.rank.fork_server import main; main(int(sys.argv[1]))"


class ForkServer:
    """The worker's handle of its fork server.

    Args:
        source: The objective that every rank will run.
        threads: Threads per rank, set before any numerical library is loaded; None keeps them.
        worker: The id of the worker, for checks whether the worker has ended.
    """

    def __init__(self, source: ObjectiveSource, threads: int | None = 1, worker: str = "") -> None:
        self.worker = worker
        self._source, self._threads = source, threads
        self.control, theirs = Pipe()
        environment = {**os.environ, WORKER: worker}
        if threads is not None:
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
                environment[name] = str(threads)
        for name, size in _MALLOC.items():
            environment.setdefault(name, str(size))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            start_new_session=True,  # the worker handles Ctrl-C
        )
        theirs.close()
        with suppress(OSError):  # dead at once: found and replaced like any other
            self.control.send_bytes(pickle.dumps(source))
        self.ready = False

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def poll_ready(self, timeout: float | None = 0.0) -> bool:
        """Whether the objective is loaded.

        Raises:
            DeadlineError: It could not be loaded; the message says why.
        """
        if not self.ready and self.control.poll(timeout):
            try:
                kind, text = self.control.recv()
            except (EOFError, OSError):  # it died: the event loop starts another one
                self._process.wait()
                return False
            if kind == "failed":
                self.close()
                raise DeadlineError(text)
            self.ready = True
        return self.ready

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until the objective is loaded; on failure, end the process.

        Raises:
            DeadlineError: It cannot be loaded, or not within these seconds.
        """
        until = time.monotonic() + seconds
        try:
            while not self.poll_ready(min(1.0, max(0.0, until - time.monotonic()))):
                if not self.alive:
                    raise DeadlineError(
                        "The process that loads the objective dies while loading it."
                    )
                if time.monotonic() >= until:
                    raise DeadlineError(
                        "The objective did not load within the time until the deadline, and the "
                        "study has not started: find out why its import does not end, or "
                        "give a later "
                        "deadline."
                    )
        except BaseException:
            self.close()
            raise

    def fork(self, key: object, spec: RankSpec) -> Channel:
        """Fork a rank; its process id arrives later as ``("forked", key, pid)``."""
        ours, theirs = channel_pair()
        self.control.send(("fork", key, spec))
        reduction.send_handle(self.control, theirs.fileno(), self._process.pid)
        theirs.close()
        return ours

    def replacement(self) -> ForkServer:
        """A new process for the same objective and worker."""
        return ForkServer(self._source, self._threads, self.worker)

    def close(self) -> None:
        """End the process at once: it holds nothing, and ranks notice their closed pipes."""
        self.control.close()
        self._process.kill()
        self._process.wait()


def main(descriptor: int) -> None:
    """The process: load the objective, then fork ranks until the worker is gone."""
    control: Control = Connection(descriptor)
    os.set_inheritable(descriptor, False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _set_parent_death_signal(_DEATH_SIGNAL)
    gc.disable()  # collecting garbage among the imports takes a quarter of the time
    try:
        source: ObjectiveSource = pickle.loads(control.recv_bytes())
        if control.poll():  # there is no request before the process is ready: the worker is gone
            return
        if source.folder:
            os.chdir(source.folder)
        objective = source.load()
    except DeadlineError as error:
        _send(control, "failed", str(error))
        return
    except BaseException:
        trace = traceback.format_exc(limit=-5)
        _send(control, "failed", f"Loading the objective failed:\n{trace}")
        return
    _set_parent_death_signal(_NO_SIGNAL)
    if threading.active_count() > 1:
        print(
            "optuna-deadline: importing the objective started threads, which do not exist "
            "in its ranks; start them inside the objective.",
            file=sys.stderr,
        )
    gc.collect()
    gc.freeze()  # what is loaded by now stays shared between the ranks
    gc.enable()
    _send(control, "ready", "")
    with suppress(BrokenPipeError):  # the worker is gone; the ranks notice it themselves
        _serve(control, objective)


def _set_parent_death_signal(signal_number: int) -> None:
    """During an import, which may never end, only this signal reports the worker's end.

    On Linux. Later, the end of the pipe reports it, which does not depend on the parent.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal_number)


def _send(control: Control, kind: str, text: str) -> None:
    with suppress(BrokenPipeError):  # the worker did not wait
        control.send((kind, text))


def _serve(control: Control, objective: Objective) -> None:
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def fork(run: Callable[[], object]) -> int:
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.setpgid(0, 0)
            os.close(woken)
            os.close(wake)
            control.close()
            try:
                run()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        with suppress(OSError):
            os.setpgid(pid, pid)  # the child does the same: the first call wins
        return pid

    def fork_probe(run: Callable[[], None]) -> int:
        def die_with_the_server() -> None:
            _set_parent_death_signal(_DEATH_SIGNAL)
            run()

        return fork(die_with_the_server)

    children: dict[int, object] = {}
    waiting: deque[tuple[object, int, RankSpec]] = deque()  # for the system to allow a process
    shown = SharedTexts()
    late = LateImports(fork_probe)
    while True:
        pause = _RETRY_SECONDS if waiting else 0.0 if late.pending else 1.0
        ready = connection.wait([control, woken], pause)
        if control in ready:
            try:
                _, key, spec = control.recv()
                handle = reduction.recv_handle(control)
            except (EOFError, OSError):
                return  # the worker is gone; the ranks notice it themselves

            waiting.append((key, handle, spec))
        elif late.pending and not waiting:
            with suppress(OSError):  # as below
                late.import_next()
        while waiting:
            key, handle, spec = waiting[0]

            def run(handle: int = handle, spec: RankSpec = spec) -> None:
                warn_once(shown)
                run_rank(channel_from(handle), spec, objective, ImportLog(late.descriptor))

            try:
                pid = fork(run)
            except OSError:  # the user's limit of processes, or too little memory
                for key, _, _ in waiting:
                    control.send(("waits", key, 0))
                break
            waiting.popleft()
            os.close(handle)
            children[pid] = key
            control.send(("forked", key, pid))
        with suppress(BlockingIOError):
            os.read(woken, 4096)
        for pid in list(children):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # its child processes, too
            _, status = os.waitpid(pid, 0)
            control.send(("exited", children.pop(pid), os.waitstatus_to_exitcode(status)))
        late.look()
