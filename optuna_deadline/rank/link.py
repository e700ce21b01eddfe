"""A rank's pipe to its worker: requests, messages, and incoming directives."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from typing import Any, Literal, NoReturn

from optuna_deadline.directives import KEEP, Directive, Kind
from optuna_deadline.rank.channel import Channel
from optuna_deadline.rank.messages import as_data, packed

#: Exit code of a rank whose lease expired, which is not the trial's fault.
LEASE_EXPIRED_EXIT_CODE = 75

#: Messages that a leader on another host may not send.
_OF_THIS_HOST = frozenset({"trust", "pass on", "wake"})

_END_ACKNOWLEDGE_SECONDS = 2.0  # seconds for the end message to reach another host

_WARM_POLL_SECONDS = 0.1  # seconds between two checks for a signal
_RETRY_SECONDS = 0.5  # seconds between two tries to start a thread
_HEARTBEAT_SECONDS = 5.0  # seconds between two messages of a warm rank


class Link:
    """The rank's end. A thread reads; a closed pipe ends the rank, so no orphan continues.

    So does the end of trust: the watchdog may be dead or frozen together with the worker, or may
    never have got this rank's id. A rank that is also frozen, and wakes when another process has
    its slots, must not run at all: some time after the end of trust, the kernel's timer kills it.
    Objectives therefore have no SIGALRM of their own.

    Args:
        raw: The pipe.
        trusted_until: On :func:`time.monotonic`; the worker moves it as it renews its leases.
        grace: Seconds after it in which no other trial gets the slots.
        leader: Whether the worker at the other end of the pipe leads the trial. A remote leader
            is reached once :meth:`connect_leader` was called.
    """

    def __init__(
        self,
        raw: Channel,
        trusted_until: float,
        grace: float,
        leader: Literal["here", "remote"] = "here",
    ) -> None:
        if time.monotonic() >= trusted_until:
            os._exit(LEASE_EXPIRED_EXIT_CODE)  # forked too late: another trial may have the slots
        self._grace = grace
        self._extend_trust(trusted_until)
        self.newest: Directive = KEEP
        self.next_look = 0  #: no report of an earlier step decides about the trial
        self._planned_step = -1  # the last report that a plan has seen
        self._news = threading.Condition()
        self._of_this_host = raw
        self._raw = raw  # to the leader of the trial
        self._end_acknowledged = threading.Event()
        self._lock = threading.Lock()
        self._leader_is_remote = leader == "remote"
        self._connected = leader == "here"  # to the leader
        self._to_pass_on: tuple[str, dict[str, Any]] | None = None
        self._ids = itertools.count()
        self._answers: dict[int, queue.Queue[tuple[bool, Any]]] = {}
        self._next_grants: queue.Queue[tuple[int, tuple[str, ...]]] = queue.Queue()
        self._start_reader(raw)

    def connect_leader(self, leader_link: Channel) -> None:
        """Connect to the leader on another host; this host's worker keeps the slots."""
        with self._lock:
            self._raw, self._connected = leader_link, True
        self._start_reader(leader_link)
        if self._to_pass_on is not None:
            what, facts = self._to_pass_on
            self.notify(what, **facts)

    def _start_reader(self, raw: Channel) -> None:
        while True:
            reader = threading.Thread(
                target=self._read, args=(raw,), name="optuna-deadline-link", daemon=True
            )
            try:
                return reader.start()
            except RuntimeError:  # the system starts no more threads; the worker ends the wait
                time.sleep(_RETRY_SECONDS)

    def request(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Let the worker call a method, and wait for the result or its error."""
        args, kwargs = as_data(args, method), as_data(kwargs, method)
        number = next(self._ids)
        content = packed(("ask", number, method, args, kwargs), method)
        answer: queue.Queue[tuple[bool, Any]] = queue.Queue(1)
        self._answers[number] = answer
        self._send(content)
        good, value = answer.get()
        del self._answers[number]
        if not good:
            raise value
        return value

    def notify(self, what: str, **facts: Any) -> None:
        """Send a message without an answer."""
        self._send(packed(("tell", what, facts), what))

    def send_end(self, kind: str, payload: Any) -> None:
        """Send how the objective ended."""
        self._send(packed(("end", kind, payload), "the end message"))
        # closing a connection with unread messages loses those
        if self._leader_is_remote:
            self._end_acknowledged.wait(_END_ACKNOWLEDGE_SECONDS)

    def wait_for_plan(self, step: int, until: float) -> None:
        """Wait until a plan has seen the report of a step, or asks the trial to leave.

        Args:
            step: The step of the report.
            until: When to give up, on :func:`time.monotonic`.
        """
        with self._news:
            self._news.wait_for(
                lambda: self.newest.leave or self._planned_step >= step,
                max(0.0, until - time.monotonic()),
            )

    def next_segment(self, asked_to_go: Callable[[], bool]) -> tuple[int, tuple[str, ...]]:
        """Wait, warm, for the next segment; returns its fence and its devices."""
        said = time.monotonic()
        while True:
            with suppress(queue.Empty):
                return self._next_grants.get(timeout=_WARM_POLL_SECONDS)
            if time.monotonic() - said > _HEARTBEAT_SECONDS:
                said = time.monotonic()
                self.notify("waiting")
            if asked_to_go():
                self.send_end("left", Kind.PAUSE.value)
                _kill_process_group()

    def _pass_on(self, what: str, facts: dict[str, Any]) -> None:
        """Send it to the leader, now or once it is connected."""
        with self._lock:
            if not self._connected:
                self._to_pass_on = what, facts
                return
        self.notify(what, **facts)

    def _extend_trust(self, until: float) -> None:
        self._trusted_until = until
        left = until + self._grace - time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, max(left, 0.001))

    def _send(self, content: bytes) -> None:
        with self._lock:
            try:
                self._raw.send_bytes(content)
            except OSError:
                _kill_process_group()  # as the reader, which may see it later

    def _read(self, raw: Channel) -> None:
        while True:
            left = self._trusted_until - time.monotonic()
            try:
                if not raw.poll(max(0.0, left)):
                    if left <= 0:
                        os._exit(LEASE_EXPIRED_EXIT_CODE)
                    continue
                kind, *rest = raw.recv()
            except (EOFError, OSError, AuthenticationError, ValueError):
                _kill_process_group()  # the worker is gone: its slots belong to others
            if kind in _OF_THIS_HOST and raw is not self._of_this_host:
                _kill_process_group()  # the leader is an intruder
            elif kind == "directive":
                with self._news:
                    self.newest = rest[0]
                    self._news.notify_all()
            elif kind == "planned":
                with self._news:
                    self._planned_step, self.next_look = rest
                    self._news.notify_all()
            elif kind == "trust":
                self._extend_trust(rest[0])
            elif kind == "bye":
                self._end_acknowledged.set()
            elif kind == "pass on":  # a message of this host's worker to the leader
                self._pass_on(*rest)
            elif kind == "wake":
                self.newest = KEEP
                self._next_grants.put((rest[0], rest[1]))
            else:
                number, good, value = rest
                self._answers[number].put((good, value))


def _kill_process_group() -> NoReturn:
    """Kill this rank and its child processes: loaders' processes would never end."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
