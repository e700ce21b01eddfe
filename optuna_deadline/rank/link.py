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

from optuna_deadline.directives import KEEP, Directive
from optuna_deadline.rank.channel import Channel
from optuna_deadline.rank.encoding import as_data, packed
from optuna_deadline.rank.messages import (
    Answered,
    Directed,
    DirectiveQuestion,
    End,
    EndHeard,
    Left,
    Message,
    OfThisHost,
    PassOn,
    Planned,
    Question,
    Resumed,
    Trusted,
    Waits,
)

#: Exit code of a rank whose lease expired, which is not the trial's fault.
LEASE_EXPIRED_EXIT_CODE = 75

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
        self._to_pass_on: Message | None = None
        self._ids = itertools.count()
        self._answers: dict[int, queue.Queue[Answered]] = {}
        self._next_grants: queue.Queue[Resumed] = queue.Queue()
        self._start_reader(raw)

    def connect_leader(self, leader_link: Channel) -> None:
        """Connect to the leader on another host; this host's worker keeps the slots."""
        with self._lock:
            self._raw, self._connected = leader_link, True
        self._start_reader(leader_link)
        if self._to_pass_on is not None:
            self.send(self._to_pass_on)

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
        return self._ask(Question(next(self._ids), method, args, kwargs), method)

    def agreed_directive(self, call: int) -> Directive:
        """The directive that every rank of the gang gets for its n-th call."""
        agreed: Directive = self._ask(DirectiveQuestion(next(self._ids), call))
        return agreed

    def _ask(self, question: Question | DirectiveQuestion, what: str = "") -> Any:
        content = packed(question, what)
        answers: queue.Queue[Answered] = queue.Queue(1)
        self._answers[question.number] = answers
        self._send(content)
        answer = answers.get()
        del self._answers[question.number]
        if not answer.good:
            raise answer.value
        return answer.value

    def send(self, message: Message) -> None:
        """Send a message without an answer."""
        self._send(packed(message))

    def send_end(self, end: End) -> None:
        """Send how the objective ended."""
        self.send(end)
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

    def next_segment(self, asked_to_go: Callable[[], bool]) -> Resumed:
        """Wait, warm, for the next segment."""
        sent = time.monotonic()
        while True:
            with suppress(queue.Empty):
                return self._next_grants.get(timeout=_WARM_POLL_SECONDS)
            if time.monotonic() - sent > _HEARTBEAT_SECONDS:
                sent = time.monotonic()
                self.send(Waits())
            if asked_to_go():
                self.send_end(Left())
                _kill_process_group()

    def _pass_on(self, message: Message) -> None:
        """Send it to the leader, now or once it is connected."""
        with self._lock:
            if not self._connected:
                self._to_pass_on = message
                return
        self.send(message)

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
                message = raw.recv()
            except (EOFError, OSError, AuthenticationError, ValueError):
                _kill_process_group()  # the worker is gone: its slots belong to others
            if isinstance(message, OfThisHost) and raw is not self._of_this_host:
                _kill_process_group()  # the leader is an intruder
            match message:
                case Directed(directive):
                    with self._news:
                        self.newest = directive
                        self._news.notify_all()
                case Planned(step, next_look):
                    with self._news:
                        self._planned_step, self.next_look = step, next_look
                        self._news.notify_all()
                case Answered(number):
                    self._answers[number].put(message)
                case EndHeard():
                    self._end_acknowledged.set()
                case Trusted(until):
                    self._extend_trust(until)
                case Resumed():
                    self.newest = KEEP
                    self._next_grants.put(message)
                case PassOn(passed):
                    self._pass_on(passed)
                case _:
                    _kill_process_group()  # no message of a worker


def _kill_process_group() -> NoReturn:
    """Kill this rank and its child processes: loaders' processes would never end."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
