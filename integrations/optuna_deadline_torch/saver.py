"""Checkpoints written beside training: copied at a step, written while training continues.

At most one is being written, so the memory for one copy of the state is enough, however slow the
disk is. Rows come in the order of steps, because each checkpoint waits for the one before.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from optuna_deadline.segments import Segment

_log = logging.getLogger(__name__)


class CheckpointSaver:
    """Saves the checkpoints of one rank.

    Args:
        segment: The rank's segment, which publishes written files.
        verify: Raises if a file that was just written cannot be read; called for the first one.
    """

    def __init__(
        self, segment: Segment, verify: Callable[[Path], Any] = lambda path: None
    ) -> None:
        self._segment = segment
        self._prove: Callable[[Path], Any] | None = verify
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._memory = HostMemory()
        self._said = False

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(
        self, state: Mapping[str, Any], name: str, *, step: int, value: float | None, wait: bool
    ) -> None:
        """Write a checkpoint after the previous one.

        Args:
            state: Its content; training may change it as soon as this returns.
            name: Of the file.
            step: The last reported step it contains.
            value: The report of these very weights, if there is one.
            wait: Whether to return only when it is published or has failed.
        """
        self.wait()
        kept = state if wait else self._memory.copy(state)

        def write() -> None:
            try:
                self._segment.save(
                    lambda path: self._fill(path, kept), step=step, value=value, name=name
                )
            except BaseException as error:
                self._error = error

        if wait:
            write()
            self.wait()
        else:
            # A daemon: a trial that stops at its deadline must not wait for a slow disk.
            thread = threading.Thread(target=write, name="saver", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system starts no more threads
                return write()
            self._thread = thread

    def wait(self) -> None:
        """Wait for the current checkpoint; raises like :meth:`check`."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise the error of a written state; errors of the disk are only logged."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _fill(self, path: Path, state: Mapping[str, Any]) -> None:
        write_state(state, path)
        if self._prove is not None:  # better now than when the trial resumes
            self._prove(path)
            self._prove = None

    def warn_if_slow(self, seconds: float) -> None:
        """Log once that a checkpoint is due while the previous one is still being written."""
        if not self._said:
            _log.warning(
                "Writing a checkpoint takes longer than the %g s between two of them:"
                " they follow each other without a pause. Raise save_every, or use a faster disk.",
                seconds,
            )
        self._said = True


class HostMemory:
    """Host memory for one copy of a state, reused for the next.

    Memory that is used for the first time takes several times as long to write.
    """

    def __init__(self) -> None:
        self._room: list[torch.Tensor] = []

    def copy(self, state: Any) -> Any:
        """A copy that training does not change; it replaces the one before.

        Tensors that are one object (tied weights) stay one, and are copied once.
        """
        free: dict[Any, list[torch.Tensor]] = {}
        for room in self._room:
            free.setdefault(_kind(room), []).append(room)
        known: dict[Any, torch.Tensor] = {}
        twin = copied(state, partial(_kept, known=known, free=free))
        self._room = list(known.values())
        return twin


def copied(one: Any, tensor: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of a state that shares nothing with it; ``tensor`` copies a tensor."""
    if isinstance(one, torch.Tensor):
        return tensor(one)
    if isinstance(one, dict):
        twin = copy.copy(one)  # of its own kind, with its attributes, such as versions
        for key, value in one.items():
            twin[key] = copied(value, tensor)
        return twin
    if type(one) in (list, tuple):
        return type(one)(copied(item, tensor) for item in one)
    return copy.deepcopy(one)


def _kind(one: torch.Tensor) -> Any:
    return one.dtype, one.shape


def _kept(
    one: torch.Tensor, *, known: dict[Any, torch.Tensor], free: dict[Any, list[torch.Tensor]]
) -> torch.Tensor:
    if one.layout is not torch.strided or one.is_quantized:
        return one.detach().clone().to("cpu")
    key = one.device, one.data_ptr(), one.stride(), *_kind(one)
    if key not in known:
        room = free.get(_kind(one))
        # Pinned memory makes copies from a GPU at least twice as fast.
        known[key] = (
            room.pop()
            if room
            else torch.empty(one.shape, dtype=one.dtype, device="cpu", pin_memory=one.is_cuda)
        )
        known[key].copy_(one.detach())
    return known[key]


def write_state(state: Mapping[str, Any], path: Path) -> None:
    """``torch.save`` with the operating system's own errors.

    Raises:
        OSError: The disk is full, or cannot be written to.
    """
    try:
        torch.save(state, path)
    except RuntimeError:
        # The archive's writer does not report the cause. Through a file of Python's, which is
        # slower, the cause is known.
        try:
            with open(path, "wb") as file:
                torch.save(state, file)
        except RuntimeError as error:
            raise _disks(error) or error from None


def _disks(error: BaseException) -> OSError | None:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    return cause
