"""From how a segment ended to what becomes of its trial."""

from __future__ import annotations

import math
import signal

from optuna_deadline.directives import Kind
from optuna_deadline.workers.gang import Gang, Verdict
from optuna_deadline.workers.link import UNTRUSTED

#: A trial whose ranks died this often with no checkpoint between fails; before that it goes on.
MOST_DEATHS = 3

#: In the words of Python, CUDA and torch on the CPU. Memory may be there the next time,
#: so these count as deaths and not as the objective's mistake.
OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError", "can't allocate memory", "out of memory")


def judge(gang: Gang) -> Verdict:
    """Decide what becomes of a trial whose ranks have all exited."""
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
