"""What becomes of a trial whose segment has ended: a pure function of how its ranks ended."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace

from optuna_deadline._printable import Lines
from optuna_deadline.allocation.records import Grant
from optuna_deadline.directives import KEEP, Directive, Kind
from optuna_deadline.errors import DeadlineError
from optuna_deadline.rank.link import LEASE_EXPIRED_EXIT_CODE
from optuna_deadline.rank.messages import End, Left, Pruned, Raised, Returned
from optuna_deadline.worker.rules import MAX_DEATHS, deaths_after

#: Messages of CUDA, ROCm and torch about a device, whatever runs on it.
DEVICE_ERRORS = (
    "device lost", "GPU is lost", "fallen off the bus", "unspecified launch failure",
    "uncorrectable ECC error", "uncorrectable NVLink error", "hardware stack error",
    "CUDA unknown error", "CUDA error: unknown error", "no CUDA-capable device",
    "busy or unavailable", "invalid device ordinal", "driver initialization failed",
    "system not yet initialized", "No CUDA GPUs are available", "No HIP GPUs are available",
    "Found no NVIDIA driver",
)  # fmt: skip
#: The same if nothing was trained yet: later, the trial may be the reason.
START_ERRORS = (
    "CUDA out of memory", "HIP out of memory", "CUDA error: out of memory", "NCCL error",
    "ncclSystemError", "ncclInternalError", "ncclUnhandledCudaError", "ncclInvalidUsage",
)  # fmt: skip
#: Messages of Python, CUDA and torch for missing memory, which may be free at the next try:
#: these count as deaths and not as errors of the objective.
OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError", "can't allocate memory", "out of memory")
#: The same for the user's limit of processes and threads.
_AT_LIMIT = ("can't start new thread", "[Errno 11] Resource temporarily unavailable")
_AS_DEATHS = (
    (OUT_OF_MEMORY, "out of memory"),
    ((*DEVICE_ERRORS, *START_ERRORS), "its device failed"),
    (_AT_LIMIT, "no more processes or threads"),
)

_UNUSED = (
    "Some parameters have no part in the loss: leave them out of the model, or in Lightning pass"
    ' trainer_options(strategy="ddp_find_unused_parameters_true").'
)
#: Messages of torch and Lightning for training that does not work on several slots.
_ONE_SLOT_ONLY = {
    "Expected more than 1 value per channel when training": (
        "BatchNorm needs two samples or more on each slot, and its share of a batch is one: pass"
        " drop_last=True to the training loader, or a batch size that leaves a larger last batch."
    ),
    "SyncBatchNorm layers only work with GPU modules": (
        "SyncBatchNorm works on GPUs only: leave sync_batchnorm=True out where slots are CPUs."
    ),
    "Expected to have finished reduction in the prior iteration": _UNUSED,
    "parameters that were not used in producing the loss": _UNUSED,
}
_OWN_ERROR_PREFIX = f"{DeadlineError.__name__}: "

#: Signals of a process that crashes.
_CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL)
#: Messages of gloo and NCCL for a missing rank.
_PEER_GONE = ("by peer", "Broken pipe", "Connection closed", "remote process exited")


@dataclass(frozen=True)
class SegmentOutcome:
    """The outcome of a released segment for its trial."""

    state: str  #: the trial's next state
    end_reason: str  #: why the segment ended: pause, resize, deadline, shutdown, died, ...
    value: float | None = None
    failures: int = 0
    log_message: str = ""  #: for the log, if something went wrong
    slot_limit: tuple[int, str] | None = None  #: the most slots for its next segments, and why


@dataclass(frozen=True)
class Died:
    """A rank of this host ended without a message."""

    exit_code: int | None


@dataclass(frozen=True)
class CutOff:
    """A rank of another host ended without a message, or the connection to it broke."""


@dataclass(frozen=True)
class Absent:
    """A rank of another host never connected."""


@dataclass(frozen=True)
class RankEnding:
    """How one rank ended."""

    index: int
    end: End | None = None  #: its end message
    ended_at: float = math.inf  #: when that arrived
    exit_code: int | None = None
    remote: bool = False  #: on another host
    connected: bool = True

    @property
    def lost_its_peer(self) -> bool:
        """Whether its error is that another rank was gone."""
        return isinstance(self.end, Raised) and any(sign in self.end.line for sign in _PEER_GONE)


@dataclass(frozen=True)
class WentWarm:
    """A segment whose process needs its slot no more, and waits for the next one."""

    stop_seconds: float | None  #: from the directive until then


@dataclass(frozen=True)
class SegmentEnding:
    """How a segment ended: all that its outcome depends on."""

    grant: Grant
    failures: int
    ranks: tuple[RankEnding, ...]
    directive: Directive = KEEP
    slot_limit: tuple[int, str] | None = None
    stepped: bool = False
    saved: bool = False
    silent_for: float | None = None  #: seconds, if its ranks were killed for their silence
    lost: bool = False
    answered_error: bool = False  #: whether a call of one of its ranks raised in the worker
    held_seconds: float = 0.0  #: since the grant
    stop_seconds: float | None = None  #: from the directive to the last rank's exit

    @property
    def end(self) -> End | Died | CutOff | Absent:
        """The end of the segment: the first rank's end message, unless a rank died or failed."""
        dead = [rank for rank in self.ranks if rank.end is None]
        if any(rank.remote and not rank.connected for rank in dead):
            return Absent()
        if any(rank.remote for rank in dead):  # our ranks die if they end without a message
            return CutOff()
        if dead:
            return Died(dead[0].exit_code)
        first = self._cause or min(self.ranks, key=lambda rank: rank.index)
        assert first.end is not None
        return first.end

    @property
    def _cause(self) -> RankEnding | None:
        """The rank whose error ended the others: its message may arrive after theirs."""
        failed = [rank for rank in self.ranks if isinstance(rank.end, Raised)]
        return min(failed, key=lambda rank: (rank.lost_its_peer, rank.ended_at), default=None)

    @property
    def error_line(self) -> str:
        """The error that ended it, in one line; empty if there was none."""
        cause = self._cause
        return cause.end.line if cause is not None and isinstance(cause.end, Raised) else ""

    @property
    def failed_place(self) -> int | None:
        """The place of the failed rank's slot in the grant; None if it is unknown, or remote."""
        cause = self._cause
        if cause is None:
            return 0 if self.grant.size == 1 else None
        here = not cause.remote and cause.index < len(self.grant.slots)
        return cause.index if here else None


def decide_outcome(
    ending: SegmentEnding, largest_proven_size: Callable[[], int] = lambda: 0
) -> SegmentOutcome:
    """Decide the outcome of a trial whose ranks have all exited.

    Training that is refused on several slots, or that crashes on more slots than it has ever
    trained on, does not fail the trial: it resumes from its checkpoint on fewer slots.

    Args:
        ending: How its segment ended.
        largest_proven_size: Finds the most slots on which the trial has trained steps before.
    """
    verdict = _outcome_of(ending)
    failed = verdict.state == "failed"
    if ending.grant.size == 1 or not (failed or verdict.end_reason == "died"):
        return verdict
    if (refusal := _refusal(ending)) is not None:
        return _limited_outcome(1, refusal)
    crashed = failed or ending.silent_for is not None or _crashed(ending)
    if not crashed or ending.stepped or isinstance(ending.end, Returned):
        return verdict
    before = largest_proven_size()
    if before >= ending.grant.size:
        return verdict
    what = verdict.log_message.partition("\n")[0].partition("; it ")[0].rstrip(".")
    limited = _limited_outcome(max(1, before), f"On {ending.grant.size} slots {what}.")
    return replace(limited, log_message=verdict.log_message)


def _limited_outcome(slots: int, reason: str) -> SegmentOutcome:
    return SegmentOutcome("paused", "limit", slot_limit=(slots, " ".join(reason.split())))


def _refusal(ending: SegmentEnding) -> str | None:
    """Why a rank refused to train on several slots, in one sentence."""
    for rank in ending.ranks:
        if not isinstance(rank.end, Raised):
            continue
        line = rank.end.line
        if line.startswith(_OWN_ERROR_PREFIX):
            return line.removeprefix(_OWN_ERROR_PREFIX)
        for sign, sentence in _ONE_SLOT_ONLY.items():
            if sign in line:
                return sentence
    return None


def _crashed(ending: SegmentEnding) -> bool:
    """Whether a rank crashed by itself, not for missing memory or by a kill."""
    codes = {rank.exit_code for rank in ending.ranks if rank.end is None}
    return not codes.isdisjoint(_CRASHES)


def _outcome_of(ending: SegmentEnding) -> SegmentOutcome:
    sent, failures = ending.directive, ending.failures
    leaving = "deadline" if sent.deadline else sent.kind.value
    match ending.end:
        case Returned(value):
            return _outcome_of_value(value)
        case Left() if ending.slot_limit is not None and not sent.leave:
            return SegmentOutcome("paused", "limit", failures=failures)
        case Left():
            return SegmentOutcome("retired" if leaving == "stop" else "paused", leaving)
        case Pruned() if sent.deadline:
            # A trial out of time is not bad: it may still hold the best model.
            return SegmentOutcome("paused", leaving)
        case Pruned():
            return SegmentOutcome("retired", "pruned")
        case Raised(line, trace):
            return _outcome_of_error(ending, line, trace)
        case _ if sent.leave:  # killed because it did not leave in time
            state = "retired" if sent.kind is Kind.STOP and not sent.deadline else "paused"
            return SegmentOutcome(state, leaving, failures=failures)
        case Absent():
            words = "a rank on another host did not come; can the hosts reach each other?"
            return SegmentOutcome("paused", "unmet", failures=failures, log_message=words)
        case CutOff():
            cause = "its connection to another host broke, or that host's rank died"
            return _outcome_of_death(ending, cause)
        case Died(exit_code) if exit_code in (LEASE_EXPIRED_EXIT_CODE, -signal.SIGALRM):
            return SegmentOutcome("paused", "untrusted", failures=failures)
        case Died(exit_code):
            return _outcome_of_death(ending, _describe_death(ending, exit_code))


def _outcome_of_error(ending: SegmentEnding, line: str, trace: str) -> SegmentOutcome:
    if "address already in use" in line.lower() or "EADDRINUSE" in line:
        return SegmentOutcome("paused", "port", failures=ending.failures)
    for signs, cause in _AS_DEATHS:
        if any(sign in line for sign in signs):
            return _outcome_of_death(ending, f"{cause}: {line}")
    return SegmentOutcome(
        "failed", "error", log_message=Lines(f"the objective raised {line}\n{trace}")
    )


def _outcome_of_death(ending: SegmentEnding, cause: str) -> SegmentOutcome:
    deaths = deaths_after(ending.failures, saved=ending.saved)
    words = f"a rank died ({cause}), {deaths} in a row without a new checkpoint"
    if deaths >= MAX_DEATHS:
        return SegmentOutcome("failed", "died", failures=deaths, log_message=f"{words}; it fails")
    return SegmentOutcome("paused", "died", failures=deaths, log_message=f"{words}; it resumes")


def _outcome_of_value(value: float | None) -> SegmentOutcome:
    if value is None:
        return SegmentOutcome("failed", "error", log_message="the objective returned no value")
    if math.isnan(value):
        return SegmentOutcome("failed", "error", log_message="the objective returned NaN")
    return SegmentOutcome("complete", "complete", value=value)


def _describe_death(ending: SegmentEnding, exit_code: int | None) -> str:
    if ending.silent_for is not None:
        return f"no rank sent a message for {ending.silent_for:g} s or more"
    if exit_code == -9:
        return "SIGKILL; often the machine was out of memory"
    if exit_code is not None and exit_code < 0:
        return f"signal {-exit_code}"
    return f"exit code {exit_code}"
