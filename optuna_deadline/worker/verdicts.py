"""From how a segment ended to what becomes of its trial."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from dataclasses import replace

from optuna_deadline.directives import Kind
from optuna_deadline.errors import DeadlineError
from optuna_deadline.rank.link import UNTRUSTED
from optuna_deadline.worker.segment import Gang, Verdict

#: A trial whose ranks died this often with no checkpoint between fails; before that it goes on.
MOST_DEATHS = 3

#: In the words of Python, CUDA and torch on the CPU. Memory may be there the next time,
#: so these count as deaths and not as the objective's mistake.
OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError", "can't allocate memory", "out of memory")


_UNUSED = (
    "Some parameters have no part in the loss: leave them out of the model, or in Lightning pass"
    ' trainer_options(strategy="ddp_find_unused_parameters_true").'
)
#: What cannot be trained on several slots, by torch's and Lightning's words.
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
_OURS = f"{DeadlineError.__name__}: "

#: Signals of a process that has crashed by itself.
_CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL)


def judge(gang: Gang, proven: Callable[[], int] = lambda: 0) -> Verdict:
    """Decide what becomes of a trial whose ranks have all exited.

    Training that is refused on several slots, or that crashes on more of them than it has ever
    trained a step on, fails no trial: that goes on from its checkpoint on as many as it had.

    Args:
        gang: Its segment.
        proven: Finds the most slots on which the trial has trained steps before.
    """
    verdict = _judge(gang)
    failed = verdict.state == "failed"
    if gang.size == 1 or not (failed or verdict.ended == "died"):
        return verdict
    if (refusal := _refusal(gang)) is not None:
        return _limited(1, refusal)
    crashed = failed or gang.hung or _crashed(gang)
    if not crashed or gang.stepped or gang.last_words()[0] == "result":
        return verdict
    before = proven()
    if before >= gang.size:
        return verdict
    what = verdict.words.partition("\n")[0].partition("; it ")[0].rstrip(".")
    limited = _limited(max(1, before), f"On {gang.size} slots {what}.")
    return replace(limited, words=verdict.words)


def _limited(slots: int, reason: str) -> Verdict:
    return Verdict("paused", "limit", limit=(slots, " ".join(reason.split())))


def _refusal(gang: Gang) -> str | None:
    """What a rank said that cannot be trained on several slots, in one sentence."""
    lines = [rank.end[1][0] for rank in gang.ranks if rank.end and rank.end[0] == "error"]
    for line in lines:
        if line.startswith(_OURS):
            return str(line.removeprefix(_OURS))
        for sign, sentence in _ONE_SLOT_ONLY.items():
            if sign in line:
                return sentence
    return None


def _crashed(gang: Gang) -> bool:
    """Whether a rank ended by a fault of its own, and not for want of memory or by a kill."""
    codes = {rank.exit_code for rank in gang.ranks if rank.end is None}
    return not codes.isdisjoint(_CRASHES)


def _judge(gang: Gang) -> Verdict:
    kind, payload = gang.last_words()
    told = gang.directive
    leaving = "deadline" if told.deadline else told.kind.value
    if kind == "result":
        return _judge_value(payload)
    if kind == "left" and gang.limit is not None and not told.leave:
        return Verdict("paused", "limit", failures=gang.failures)
    if kind == "left":
        return Verdict("retired" if leaving == "stop" else "paused", leaving)
    if kind == "pruned":
        # Out of time is no judgement: the trial may still hold the best model.
        return Verdict("paused", leaving) if told.deadline else Verdict("retired", "pruned")
    if kind == "error":
        line, trace = payload
        if "address already in use" in line.lower() or "EADDRINUSE" in line:
            return Verdict("paused", "port", failures=gang.failures)
        if any(sign in line for sign in OUT_OF_MEMORY):
            return _judge_death(gang, f"out of memory: {line}")
        return Verdict("failed", "error", words=f"the objective raised {line}\n{trace}")
    if told.leave:  # killed because it did not leave in time
        state = "retired" if told.kind is Kind.STOP and not told.deadline else "paused"
        return Verdict(state, leaving, failures=gang.failures)
    if kind == "absent":
        words = "a rank on another host did not come; can the hosts reach each other?"
        return Verdict("paused", "unmet", failures=gang.failures, words=words)
    if kind == "cut":
        return _judge_death(gang, "its connection to another host broke, or that host's rank did")
    if payload in (UNTRUSTED, -signal.SIGALRM):
        return Verdict("paused", "untrusted", failures=gang.failures)
    hung = f"no rank said anything for {gang.patience:g} s or more" if gang.hung else None
    return _judge_death(gang, hung or _cause(payload))


def _judge_death(gang: Gang, cause: str) -> Verdict:
    deaths = 1 if gang.saved else gang.failures + 1
    words = f"a rank died ({cause}), the {deaths}. time since it got further"
    if deaths >= MOST_DEATHS:
        return Verdict("failed", "died", failures=deaths, words=f"{words}; it is given up")
    return Verdict("paused", "died", failures=deaths, words=f"{words}; it goes on")


def _judge_value(value: float | None) -> Verdict:
    if value is None:
        return Verdict("failed", "error", words="the objective returned no value")
    if math.isnan(value):
        return Verdict("failed", "error", words="the objective returned NaN")
    return Verdict("complete", "complete", value=value)


def _cause(exit_code: int | None) -> str:
    if exit_code == -9:
        return "SIGKILL; often the machine was out of memory"
    if exit_code is not None and exit_code < 0:
        return f"signal {-exit_code}"
    return f"exit code {exit_code}"
