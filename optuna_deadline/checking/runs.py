"""Trainings for a check: real ranks, forked as a worker forks them, told when to leave."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from multiprocessing import connection
from pathlib import Path
from types import TracebackType
from typing import Any

from optuna_deadline.checking.inside import CheckedSource, Order
from optuna_deadline.checking.rows import Gap
from optuna_deadline.directives import KEEP
from optuna_deadline.errors import DeadlineError
from optuna_deadline.rank.fork_server import Zygote
from optuna_deadline.rank.link import RawLink
from optuna_deadline.rank.objective import ObjectiveSource
from optuna_deadline.rank.process import RankSpec, Seat
from optuna_deadline.worker.devices import free_port

_FOREVER = 1e6  # seconds of trust: the end of the pipe ends a rank
_SIBLINGS = 3.0  # seconds that other ranks get once one has ended
_PARTING = 10.0  # seconds in which those that were left end, and as many once they are killed
_OVERSTAYED = 1000  # steps after the one at which it was to leave
_REFUSAL = "DeadlineError: "


class Stopped(Exception):
    """The check was asked to end."""


@dataclass(frozen=True)
class Leg:
    """One segment of a training."""

    slots: int
    leave_at: int  #: the step, counted over all segments


@dataclass
class Run:
    """What was seen of a training."""

    positions: list[float] = field(default_factory=list)  #: of each step, in reports
    seconds: float = 0.0  #: from the first step to the last
    values: dict[int, float] = field(default_factory=dict)  #: as reported, by their steps
    reported: list[tuple[int, int, int]] = field(default_factory=list)
    #: for each report: the steps before it, its own step, the slots
    left: list[int] = field(default_factory=list)  #: at which steps
    checkpoint: Path | None = None  #: the newest
    looked: bool = False  #: whether the objective has asked for its segment
    ended: bool = False  #: by itself
    limit: tuple[int, str] | None = None  #: the most slots that it says it can train on, and why
    refusal: str | None = None
    crash: str | None = None
    trace: str = ""
    digit: float = (
        0.0  #: the last one of what it computes with, relative, where that was looked at
    )

    @property
    def whole(self) -> bool:
        """Whether it came to where it was to leave, with a checkpoint."""
        trouble = self.refusal is not None or self.crash is not None
        return not (self.ended or trouble) and self.checkpoint is not None


@dataclass
class _Rank:
    link: RawLink
    end: tuple[str, Any] | None = None
    closed: bool = False


class Runs:
    """Trains one objective, with one set of parameters, as often as it is asked.

    Args:
        source: The objective.
        trial: Answers what the objective asks of its trial, the same each time.
        devices: Names of as many slots as a training may have.
        number: The trial's, from which the objective's random numbers are seeded.
        direction: Which way is better.
        patience: Seconds without a word after which ranks are taken for hung.
        stop: Looked at now and then; whether to end the check.
        heard: Called with the number of each step.
    """

    def __init__(
        self,
        source: ObjectiveSource,
        trial: Any,
        devices: Sequence[str],
        *,
        number: int = 0,
        direction: str = "minimize",
        patience: float,
        stop: Callable[[], bool] = lambda: False,
        heard: Callable[[int], None] = lambda step: None,
    ) -> None:
        self._trial = trial
        self._devices = tuple(devices)
        self._number, self._direction = number, direction
        self._patience = patience
        self._stop = stop
        self.heard = heard
        self._folder = Path(tempfile.mkdtemp(prefix="optuna-deadline-check-"))
        self._fence = 0
        self._exits: dict[Any, int] = {}
        self._pids: dict[Any, int] = {}
        threads = None if self._devices[0].startswith("gpu:") else 1
        facts = {one.name: getattr(source, one.name) for one in fields(source)}
        self._zygote = Zygote(CheckedSource(**facts), threads)

    def __enter__(self) -> Runs:
        """Load the objective.

        Raises:
            DeadlineError: It cannot be loaded.
        """
        try:
            while not self._zygote.warmed(1.0):
                self._look_whether_to_stop()
                if not self._zygote.alive:
                    raise DeadlineError("The process that loads the objective dies at it.")
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
        """End all ranks, and leave nothing behind."""
        if self._zygote.alive:
            self._zygote.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def train(self, *legs: Leg, variant: str | None = None) -> Run:
        """Train segment after segment, each going on from the checkpoint of the one before."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        run = Run()
        for leg in legs:
            order = Order(
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

    def gap(self, one: Run, other: Run) -> Gap:
        """How far the newest checkpoints of two trainings are apart."""
        assert one.checkpoint is not None and other.checkpoint is not None
        order = Order(compare=(str(one.checkpoint), str(other.checkpoint)))
        found: dict[str, Any] = {}
        self._segment(Run(), order, 1, self._folder, None, found)
        return Gap(found["parts"], tuple(found["unlike"]), found.get("grows", False))

    # ---- inside

    def _segment(
        self,
        run: Run,
        order: Order,
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
                meeting=("127.0.0.1", port),
                seat=Seat(index, slots, 0),
                fence=self._fence,
                folder=str(folder),
                store=None,
                resume=None if resume is None else str(resume),
                devices=self._devices[:slots],
                direction=self._direction,
                trusted_until=time.monotonic() + _FOREVER,
                grace=_FOREVER,
            )
            ranks.append(_Rank(self._zygote.fork((self._fence, index), spec)))
        listening = _Listening(run, order, slots, self._trial, self.heard, found)
        keys = [(self._fence, index) for index in range(slots)]
        patience = 0.0
        try:
            self._listen(ranks, listening)
            patience = _PARTING
        finally:
            for rank in ranks:
                rank.link.close()  # a rank that is left ends by it
            self._end(keys, patience)
        codes = [self._exits.get(key) for key in keys]
        listening.conclude([rank.end for rank in ranks], codes)

    def _end(self, keys: Sequence[Any], patience: float) -> None:
        """Wait until ranks have ended, with what they started; kill those that do not."""
        began = time.monotonic()
        killed: set[Any] = set()
        while self._zygote.alive and any(key not in self._exits for key in keys):
            late = time.monotonic() - began
            if late > patience + _PARTING:
                return
            if late >= patience:
                for key in (self._pids.keys() & set(keys)) - self._exits.keys() - killed:
                    killed.add(key)
                    with suppress(OSError):
                        os.kill(self._pids[key], signal.SIGKILL)
            if self._zygote.control.poll(0.1):
                self._hear_zygote()

    def _hear_zygote(self) -> None:
        with suppress(EOFError, OSError):
            kind, key, number = self._zygote.control.recv()
            (self._exits if kind == "exited" else self._pids)[key] = number

    def _listen(self, ranks: Sequence[_Rank], listening: _Listening) -> None:
        heard_at, ended_at = time.monotonic(), None
        while any(not rank.closed for rank in ranks):
            self._look_whether_to_stop()
            links = {rank.link: rank for rank in ranks if not rank.closed}
            for ready in connection.wait([*links, self._zygote.control], 0.5):
                if ready is self._zygote.control:
                    self._hear_zygote()
                    continue
                heard_at = time.monotonic()
                rank = links[ready]  # type: ignore[index]
                try:
                    listening.hear(rank, rank.link.recv())
                except (EOFError, OSError):
                    rank.closed = True
            now = time.monotonic()
            if not self._zygote.alive:
                listening.trouble("the process that forks ranks died")
            if now - heard_at > self._patience:
                listening.trouble(f"no word for {self._patience:g} s: it hangs")
            if any(rank.closed or rank.end for rank in ranks):
                ended_at = ended_at or now
                if now - ended_at > _SIBLINGS and not listening.in_peace(ranks):
                    return
            if listening.over:
                return

    def _look_whether_to_stop(self) -> None:
        if self._stop():
            raise Stopped


class _Listening:
    """Hears the ranks of one segment."""

    def __init__(
        self,
        run: Run,
        order: Order,
        slots: int,
        trial: Any,
        heard: Callable[[int], None],
        found: dict[str, Any] | None,
    ) -> None:
        self._run, self._order, self._slots = run, order, slots
        self._trial = trial
        self._heard = heard
        self._found = found
        self._began: float | None = None
        self._newest = 0.0
        self.over = False  # whether nothing more is of interest

    def hear(self, rank: _Rank, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        if kind == "ask":
            number, method, args, kwargs = rest
            with suppress(OSError):
                rank.link.send(("answer", number, *self._answer(method, args, kwargs)))
        elif kind == "end":
            rank.end = rest[0], rest[1]
        elif (take := getattr(self, f"_hear_{rest[0]}", None)) is not None:
            take(**rest[1])

    def trouble(self, words: str) -> None:
        """What the check itself has seen to go wrong."""
        self._run.crash, self.over = words, True

    def in_peace(self, ranks: Sequence[_Rank]) -> bool:
        """Whether all ranks that have ended did so as they should: others may be on their way."""
        return all(rank.end is not None and rank.end[0] != "error" for rank in ranks)

    def conclude(
        self, ends: Sequence[tuple[str, Any] | None], codes: Sequence[int | None]
    ) -> None:
        """What the ranks' last words and exit codes mean."""
        run = self._run
        run.seconds += self._newest - self._began if self._began is not None else 0.0
        if self._found is not None or run.refusal or run.crash or self.over:
            return
        errors = [end[1] for end in ends if end is not None and end[0] == "error"]
        if errors:  # a refusal is the cause where other ranks only miss the one that refused
            refused = [one for one in errors if one[0].startswith(_REFUSAL)]
            line, run.trace = (refused or errors)[0]
            if refused:
                run.refusal = line.removeprefix(_REFUSAL)
            else:
                run.crash = line
        elif any(end is None for end in ends):
            code = codes[ends.index(None)]
            why = "killed, often by a lack of memory" if code == -9 else f"exit code {code}"
            run.crash = f"a rank died ({why})"
        elif ends[0] is not None and ends[0][0] != "left":
            run.ended = True

    # ---- what ranks say

    def _answer(self, method: str, args: Sequence[Any], kwargs: Any) -> tuple[bool, Any]:
        if method == "order":
            return True, self._order
        if method == "directive":
            return True, KEEP
        try:
            found = getattr(self._trial, method)
            return True, found(*args, **kwargs) if callable(found) else found
        except Exception as error:  # the user's own mistake: it belongs into the objective
            return False, error

    def _hear_looked(self) -> None:
        self._run.looked = True

    def _hear_step(self, number: int, position: float) -> None:
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        self._newest = now
        self._run.positions.append(position)
        self._heard(number)
        if number > self._order.leave_at + _OVERSTAYED:
            self.trouble(f"it was to leave at step {self._order.leave_at}, and does not")

    def _hear_report(self, value: float, step: int, trained: float) -> None:
        if not self._run.looked:  # a plain objective, which may train for hours
            self.over = True
        self._run.values.setdefault(step, value)
        self._run.reported.append((len(self._run.positions), step, self._slots))

    def _hear_checkpoint(self, path: str, **facts: Any) -> None:
        self._run.checkpoint = Path(path)

    def _hear_unsaved(self, step: int, why: str) -> None:
        self.trouble(f"a checkpoint could not be written ({why})")

    def _hear_limit(self, slots: int, reason: str) -> None:
        if slots < self._slots:
            self._run.refusal, self.over = reason, True
        else:
            self._run.limit = slots, reason

    def _hear_digit(self, digit: float) -> None:
        self._run.digit = digit

    def _hear_compared(self, **facts: Any) -> None:
        assert self._found is not None
        self._found.update(facts)
