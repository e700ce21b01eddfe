"""Trainings for a check, on real ranks that are forked as a worker forks them."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from multiprocessing import connection
from pathlib import Path
from types import TracebackType
from typing import Any

from optuna_deadline.checking.inside import (
    CheckedSource,
    CheckInstruction,
    Compared,
    DigitMeasured,
    Looked,
    StepTaken,
)
from optuna_deadline.checking.rows import Gap
from optuna_deadline.directives import KEEP
from optuna_deadline.errors import DeadlineError
from optuna_deadline.rank.channel import Channel
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.rank.messages import (
    Answered,
    DirectiveQuestion,
    End,
    LastStep,
    Left,
    Limited,
    Message,
    NotSaved,
    Pruned,
    Question,
    Raised,
    Reported,
    Returned,
    Saved,
)
from optuna_deadline.rank.objective import ObjectiveSource
from optuna_deadline.rank.process import LocalRank, RankSpec
from optuna_deadline.worker.devices import free_port

_FOREVER = 1e6  # seconds of trust; a rank also ends with its pipe
_SIBLINGS = 3.0  # seconds for the other ranks once one has ended
_PARTING = 10.0  # seconds for remaining ranks to end, and again after they are killed
_OVERSTAYED = 1000  # steps after the one at which it should leave
_REFUSAL = "DeadlineError: "


class Stopped(Exception):
    """The check was stopped."""


@dataclass(frozen=True)
class Leg:
    """One segment of a training."""

    slots: int
    leave_at: int  #: the step, counted over all segments


@dataclass
class TrainingRun:
    """The observations of a training."""

    positions: list[float] = field(default_factory=list)  #: of each step, in reports
    seconds: float = 0.0  #: from the first step to the last
    values: dict[int, float] = field(default_factory=dict)  #: as reported, by their steps
    reported: list[tuple[int, int, int]] = field(default_factory=list)
    #: for each report: the steps before it, its own step, the slots
    fits: list[int] = field(default_factory=list)  #: the steps before each fit after the first
    horizon: int | None = None  #: the last report of its newest fit
    left: list[int] = field(default_factory=list)  #: at which steps
    checkpoint: Path | None = None  #: the newest
    looked: bool = False  #: whether the objective has used its segment
    ended: bool = False  #: by itself
    limit: tuple[int, str] | None = None  #: the most slots that it says it can train on, and why
    refusal: str | None = None
    crash: str | None = None
    trace: str = ""
    digit: float = 0.0  #: the last digit of its computation, relative, if measured

    @property
    def whole(self) -> bool:
        """Whether it reached the step to leave at, with a checkpoint."""
        trouble = self.refusal is not None or self.crash is not None
        return not (self.ended or trouble) and self.checkpoint is not None


@dataclass
class _Rank:
    link: Channel
    end: End | None = None
    closed: bool = False


class TrainingRuns:
    """Trains one objective with one set of parameters, repeatedly.

    Args:
        source: The objective.
        trial: Answers the objective's calls to its trial, the same each time.
        devices: Names of as many slots as a training may have.
        number: The trial's number, which seeds the objective.
        direction: Which direction is better.
        hang_timeout: Seconds without a message after which ranks count as hung.
        stop: Called repeatedly; whether to stop the check.
        on_step: Called with the number of each step.
    """

    def __init__(
        self,
        source: ObjectiveSource,
        trial: Any,
        devices: Sequence[str],
        *,
        number: int = 0,
        direction: str = "minimize",
        hang_timeout: float,
        stop: Callable[[], bool] = lambda: False,
        on_step: Callable[[int], None] = lambda step: None,
    ) -> None:
        self._trial = trial
        self._devices = tuple(devices)
        self._number, self._direction = number, direction
        self._hang_timeout = hang_timeout
        self._stop = stop
        self.on_step = on_step
        self._folder = Path(tempfile.mkdtemp(prefix="optuna-deadline-check-"))
        self._fence = 0
        self._exits: dict[Any, int] = {}
        self._pids: dict[Any, int] = {}
        threads = None if self._devices[0].startswith("gpu:") else 1
        facts = {one.name: getattr(source, one.name) for one in fields(source)}
        self._fork_server = ForkServer(CheckedSource(**facts), threads)

    def __enter__(self) -> TrainingRuns:
        """Load the objective.

        Raises:
            DeadlineError: It cannot be loaded.
        """
        try:
            while not self._fork_server.poll_ready(1.0):
                self._raise_if_stopped()
                if not self._fork_server.alive:
                    raise DeadlineError(
                        "The process that loads the objective dies while loading it."
                    )
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all ranks, and delete all files."""
        if self._fork_server.alive:
            self._fork_server.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def train(self, *legs: Leg, variant: tuple[str, int] | None = None) -> TrainingRun:
        """Train the segments, each from the checkpoint of the one before."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        run = TrainingRun()
        for leg in legs:
            order = CheckInstruction(
                leg.leave_at,
                done=len(run.positions),
                variant=variant,
                log=str(folder / "output"),
            )
            resume, run.checkpoint = run.checkpoint, None
            self._segment(run, order, leg.slots, folder, resume)
            if not run.whole:
                break
            run.left.append(len(run.positions))
        return run

    def gap(self, one: TrainingRun, other: TrainingRun) -> Gap:
        """The distance of the newest checkpoints of two trainings."""
        assert one.checkpoint is not None and other.checkpoint is not None
        order = CheckInstruction(compare=(str(one.checkpoint), str(other.checkpoint)))
        found: dict[str, Any] = {}
        self._segment(TrainingRun(), order, 1, self._folder, None, found)
        return Gap(found["parts"], tuple(found["unlike"]), found.get("grows", False))

    # ---- internal

    def _segment(
        self,
        run: TrainingRun,
        order: CheckInstruction,
        slots: int,
        folder: Path,
        resume: Path | None,
        found: dict[str, Any] | None = None,
    ) -> None:
        self._fence += 1
        port = free_port()
        ranks = []
        for index in range(slots):
            spec = RankSpec(
                number=self._number,
                rank=index,
                world_size=slots,
                rendezvous=("127.0.0.1", port),
                local=LocalRank(index, slots, 0),
                fence=self._fence,
                folder=str(folder),
                store=None,
                resume=None if resume is None else str(resume),
                devices=self._devices[:slots],
                direction=self._direction,
                trusted_until=time.monotonic() + _FOREVER,
                grace=_FOREVER,
            )
            ranks.append(_Rank(self._fork_server.fork((self._fence, index), spec)))
        listening = _SegmentMonitor(run, order, slots, self._trial, self.on_step, found)
        keys = [(self._fence, index) for index in range(slots)]
        patience = 0.0
        try:
            self._poll_pipes(ranks, listening)
            patience = _PARTING
        finally:
            for rank in ranks:
                rank.link.close()  # the rank ends when its pipe closes
            self._end(keys, patience)
        codes = [self._exits.get(key) for key in keys]
        listening.conclude([rank.end for rank in ranks], codes)

    def _end(self, keys: Sequence[Any], patience: float) -> None:
        """Wait until ranks and their child processes have ended; kill those that do not."""
        began = time.monotonic()
        killed: set[Any] = set()
        while self._fork_server.alive and any(key not in self._exits for key in keys):
            late = time.monotonic() - began
            if late > patience + _PARTING:
                return
            if late >= patience:
                for key in (self._pids.keys() & set(keys)) - self._exits.keys() - killed:
                    killed.add(key)
                    with suppress(OSError):
                        os.kill(self._pids[key], signal.SIGKILL)
            if self._fork_server.control.poll(0.1):
                self._read_fork_server()

    def _read_fork_server(self) -> None:
        with suppress(EOFError, OSError):
            kind, key, number = self._fork_server.control.recv()
            (self._exits if kind == "exited" else self._pids)[key] = number

    def _poll_pipes(self, ranks: Sequence[_Rank], listening: _SegmentMonitor) -> None:
        heard_at, ended_at = time.monotonic(), None
        while any(not rank.closed for rank in ranks):
            self._raise_if_stopped()
            links: dict[Any, _Rank] = {rank.link: rank for rank in ranks if not rank.closed}
            for ready in connection.wait([*links, self._fork_server.control], 0.5):
                if ready is self._fork_server.control:
                    self._read_fork_server()
                    continue
                heard_at = time.monotonic()
                rank = links[ready]
                try:
                    while rank.link.poll():
                        listening.receive(rank, rank.link.recv())
                except (EOFError, OSError):
                    rank.closed = True
            now = time.monotonic()
            if not self._fork_server.alive:
                listening.trouble("the process that forks ranks died")
            if now - heard_at > self._hang_timeout:
                listening.trouble(f"no word for {self._hang_timeout:g} s: it hangs")
            if any(rank.closed or rank.end for rank in ranks):
                ended_at = ended_at or now
                if now - ended_at > _SIBLINGS and not listening.ended_cleanly(ranks):
                    return
            if listening.over:
                return

    def _raise_if_stopped(self) -> None:
        if self._stop():
            raise Stopped


class _SegmentMonitor:
    """Receives the messages of the ranks of one segment."""

    def __init__(
        self,
        run: TrainingRun,
        order: CheckInstruction,
        slots: int,
        trial: Any,
        on_step: Callable[[int], None],
        found: dict[str, Any] | None,
    ) -> None:
        self._run, self._order, self._slots = run, order, slots
        self._trial = trial
        self._on_step = on_step
        self._found = found
        self._began: float | None = None
        self._newest = 0.0
        self.over = False  # whether further messages are ignored

    def receive(self, rank: _Rank, message: Message) -> None:
        run = self._run
        match message:
            case Question():
                good, value = self._answer(message)
                with suppress(OSError):
                    rank.link.send(Answered(message.number, good, value))
            case DirectiveQuestion(number):
                with suppress(OSError):
                    rank.link.send(Answered(number, True, KEEP))
            case StepTaken(number, position):
                self._on_step_taken(number, position)
            case Reported(value, step):
                if not run.looked:  # a plain objective, which may train for hours
                    self.over = True
                run.values.setdefault(step, value)
                run.reported.append((len(run.positions), step, self._slots))
            case LastStep(step):
                if run.horizon is not None and run.values and max(run.values) >= run.horizon:
                    run.fits.append(len(run.positions))
                run.horizon = step
            case Saved(path):
                run.checkpoint = Path(path)
            case NotSaved(_, why):
                self.trouble(f"a checkpoint could not be written ({why})")
            case Limited(slots, reason) if slots < self._slots:
                run.refusal, self.over = reason, True
            case Limited(slots, reason):
                run.limit = slots, reason
            case Looked():
                run.looked = True
            case DigitMeasured(digit):
                run.digit = digit
            case Compared(found):
                assert self._found is not None
                self._found.update(found)
            case Returned() | Left() | Pruned() | Raised():
                rank.end = message

    def trouble(self, words: str) -> None:
        """What the check itself has observed to go wrong."""
        self._run.crash, self.over = words, True

    def ended_cleanly(self, ranks: Sequence[_Rank]) -> bool:
        """Whether all ended ranks ended normally; others may still be running."""
        return all(rank.end is not None and not isinstance(rank.end, Raised) for rank in ranks)

    def conclude(self, ends: Sequence[End | None], codes: Sequence[int | None]) -> None:
        """The meaning of the ranks' end messages and exit codes."""
        run = self._run
        run.seconds += self._newest - self._began if self._began is not None else 0.0
        if self._found is not None or run.refusal or run.crash or self.over:
            return
        errors = [end for end in ends if isinstance(end, Raised)]
        if errors:  # a refusal is the cause if other ranks only miss the one that refused
            refused = [one for one in errors if one.line.startswith(_REFUSAL)]
            cause = (refused or errors)[0]
            run.trace = cause.trace
            if refused:
                run.refusal = cause.line.removeprefix(_REFUSAL)
            else:
                run.crash = cause.line
        elif any(end is None for end in ends):
            code = codes[ends.index(None)]
            why = "killed, often by a lack of memory" if code == -9 else f"exit code {code}"
            run.crash = f"a rank died ({why})"
        elif not isinstance(ends[0], Left):
            run.ended = True

    # ---- messages of ranks

    def _answer(self, asked: Question) -> tuple[bool, Any]:
        if asked.method == "order":
            return True, asdict(self._order)
        try:
            found = getattr(self._trial, asked.method)
            return True, found(*asked.args, **asked.kwargs) if callable(found) else found
        except Exception as error:  # a mistake in the objective, so the error is raised there
            return False, error

    def _on_step_taken(self, number: int, position: float) -> None:
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        self._newest = now
        self._run.positions.append(position)
        self._on_step(number)
        if number > self._order.leave_at + _OVERSTAYED:
            self.trouble(f"it was to leave at step {self._order.leave_at}, and does not")
