"""Notices of preemption: how they are read, and how much time they leave.

A command or a URL is polled. Clouds answer for a spot machine at a link-local address. A notice
becomes the worker's time limit.
"""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from optuna_deadline.errors import DeadlineError
from optuna_deadline.values.deadlines import format_duration, parse_deadline
from optuna_deadline.worker.time_limit import WorkerTimeLimit

_logger = logging.getLogger("optuna_deadline")

#: Seconds between two polls, and the timeout of each.
POLL_SECONDS, _ANSWER_SECONDS = 2.0, 1.5
_NOT_RUNNABLE_CODES = (126, 127)  # a shell's exit codes for a command that cannot be run
_open = build_opener(ProxyHandler({})).open  # a machine's own metadata is behind no proxy
_GOOGLE = {"Metadata-Flavor": "Google"}  # Google Cloud requires it


class PreemptionWatcher:
    """Watches for a preemption of this host.

    Args:
        source: A command that succeeds once notice is given, or a URL that answers then. The
            output may be a duration, an instant, or JSON with a ``time``.
        until: The worker's time limit, which a notice brings forward.
        wake: Called after a notice.
        clock: Seconds since the epoch.

    """

    def __init__(
        self,
        source: str,
        until: WorkerTimeLimit,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source = source
        self._until = until
        self._wake = wake
        self._clock = clock
        self._noticed = False
        self._polled = False
        self._fails = False

    def poll(self) -> float:
        """Poll once; returns the seconds until the next poll.

        Raises:
            DeadlineError: The command cannot be run at the first poll. Later it may be missing
                for a moment, because it is updated or the host is out of processes.
        """
        try:
            notice = None if self._noticed else read_notice(self._source)
        except DeadlineError as error:
            if not self._polled:
                raise
            if not self._fails:
                _logger.warning("%s It is tried again each %.0f s.", error, POLL_SECONDS)
            self._fails = True
            return POLL_SECONDS
        if self._fails:
            _logger.warning("--preemption-notice can be run again.")
        self._polled, self._fails = True, False
        if notice is not None:
            self._noticed = True
            left = seconds_left(notice, self._clock())
            _logger.warning(
                "This host is preempted %s: its trials save and leave in time.",
                f"in {format_duration(left)}" if left else "now",
            )
            self._until.bring_forward(time.monotonic() + left)
            self._wake()
        return POLL_SECONDS


def read_notice(source: str) -> str | None:
    """The notice of a command or a URL; None as long as there is none.

    Raises:
        DeadlineError: The command cannot be run.
    """
    if source.startswith(("http://", "https://")):
        return _ask_url(source)
    try:
        answer = subprocess.run(
            shlex.split(source),
            capture_output=True,
            text=True,
            timeout=10 * _ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    except (OSError, ValueError) as error:
        raise _cannot(source, error) from None
    if answer.returncode in _NOT_RUNNABLE_CODES:
        raise _cannot(source, answer.stderr.strip() or "no such command")
    return answer.stdout.strip() if answer.returncode == 0 else None


def _cannot(source: str, why: object) -> DeadlineError:
    return DeadlineError(
        f"--preemption-notice {source!r} cannot be run ({why}): name a command that succeeds once "
        "this host is taken back, or a URL."
    )


def _ask_url(url: str) -> str | None:
    with suppress(OSError, ValueError):
        try:
            notice = _get(url, _GOOGLE)
        except HTTPError as refused:
            if refused.code != 401:
                return None
            notice = _get(url, {"X-aws-ec2-metadata-token": _token(url)})
        return None if notice.upper() == "FALSE" else notice
    return None


def _get(url: str, headers: dict[str, str], method: str = "GET") -> str:
    with _open(Request(url, headers=headers, method=method), timeout=_ANSWER_SECONDS) as answer:
        return str(answer.read(10_000).decode(errors="replace")).strip()


def _token(url: str) -> str:
    """EC2 answers only requests with a token."""
    parts = urlsplit(url)
    wanted = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    return _get(f"{parts.scheme}://{parts.netloc}/latest/api/token", wanted, "PUT")


def seconds_left(notice: str, now: float) -> float:
    """The time that a notice leaves; 0 if it names none."""
    with suppress(ValueError, OverflowError, RecursionError):
        found = json.loads(notice)
        if isinstance(found, (int, float)) and not isinstance(found, bool):
            return max(0.0, float(found))
        if isinstance(found, dict):
            notice = str(found.get("time", ""))
    with suppress(DeadlineError):
        return max(0.0, parse_deadline(notice).instant(now) - now)
    return 0.0
