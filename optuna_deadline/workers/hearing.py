"""What ranks say and ask, turned into ordered writes; only here is Optuna touched for them."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import Trial

from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.checkpoints import Checkpoint
from optuna_deadline.workers.errors import DATABASE_AWAY
from optuna_deadline.workers.gang import Gang, Rank, Verdict

_logger = logging.getLogger("optuna_deadline")


class Hearing:
    """Listens to the ranks of one gang.

    Args:
        table: The allocation table.
        me: The worker.
        gang: The segment.
        trial: Its Optuna trial, which lives here alone.
    """

    def __init__(self, table: AllocationStore, me: str, gang: Gang, trial: Trial) -> None:
        self._table = table
        self._me = me
        self._gang = gang
        self._trial = trial
        storage = trial.study._storage
        self._reported = set(storage.get_trial(trial._trial_id).intermediate_values)

    @property
    def silent(self) -> bool:
        """Whether the trial has never reported, in this segment or before."""
        return not self._reported

    def hear(self, rank: Rank, message: tuple[Any, ...]) -> None:
        """Take one message."""
        kind, *rest = message
        if kind == "end":
            rank.end = (rest[0], rest[1])
        elif kind == "ask":
            number, method, args, kwargs = rest
            if method == "directive":
                rank_answer = self._gang.agree(args[0])
                self._gang.answer(rank, number, True, rank_answer)
            else:
                self._gang.writes.append(lambda: self._ask(rank, number, method, args, kwargs))
        else:
            what, facts = rest
            getattr(self, f"_hear_{what}")(**facts)

    def _ask(
        self, rank: Rank, number: int, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        try:
            found = getattr(self._trial, method)
            value = found(*args, **kwargs) if callable(found) else found
        except DATABASE_AWAY:
            raise
        except Exception as error:  # the user's own mistake: it belongs into the objective
            self._gang.answer(rank, number, False, error)
        else:
            self._gang.answer(rank, number, True, value)

    def _hear_progress(self, start: float, position: float, trained: float) -> None:
        progress = self._gang.progress
        if progress.startup is None:
            progress.startup = time.monotonic() - trained - self._gang.granted_at
        progress.start, progress.position, progress.trained = start, position, trained
        self._gang.progress_changed = True

    def _hear_horizon(self, last_step: int) -> None:
        self._gang.progress.horizon = last_step
        self._gang.progress_changed = True

    def _hear_report(self, value: float, step: int, trained: float) -> None:
        self._gang.writes.append(lambda: self._report(value, step, trained))

    def _report(self, value: float, step: int, trained: float) -> None:
        gang = self._gang
        if math.isnan(value):
            _logger.warning("Trial %d reported NaN at step %d; it ranks last.", gang.number, step)
        self._table.add_report(self._me, gang.grant, step, value, gang.trained_before + trained)
        if step in self._reported:
            return  # redone after a crash: the first value stands
        try:
            self._trial.report(value, step)
        except UpdateFinishedTrialError:
            _logger.warning(
                "Trial %d was finished by somebody else; its ranks are stopped.", gang.number
            )
            gang.verdict = Verdict("retired", "finished", failures=gang.failures)
            gang.kill()
        self._reported.add(step)

    def _hear_checkpoint(
        self, path: str, step: int, value: float | None, size: int, checksum: str
    ) -> None:
        new = Checkpoint(
            number=self._gang.number,
            fence=self._gang.grant.fence,
            step=step,
            value=value,
            path=Path(path),
            size=size,
            checksum=checksum,
        )
        self._gang.writes.append(lambda: self._commit(new))

    def _commit(self, new: Checkpoint) -> None:
        for path in self._table.add_checkpoint(self._me, self._gang.grant, new):
            path.unlink(missing_ok=True)
        self._gang.saved = True
