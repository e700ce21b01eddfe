"""The axis of reports: one step for each evaluation, counted from the trainer's own state."""

from __future__ import annotations

import math
from typing import Any

from transformers.trainer_utils import IntervalStrategy

from optuna_deadline.errors import DeadlineError

_ROUNDING = 1e-9  # of an epoch


def whole_part(position: float) -> int:
    """The number of epochs or evaluations that have ended at a position."""
    return math.floor(position + _ROUNDING)


class ReportAxis:
    """Evaluations of one training, numbered from 1.

    Args:
        args: The training arguments.
        state: The trainer's state, whose ``eval_steps`` are known by then.
        stream: Whether the data has no length, so that an epoch may end at any step.
    """

    def __init__(self, args: Any, state: Any, *, stream: bool) -> None:
        if args.eval_strategy == IntervalStrategy.NO:
            raise DeadlineError(
                "DeadlineCallback reports after each evaluation, and this training has none: pass "
                'eval_strategy="epoch" and an eval_dataset.'
            )
        self._by_epoch = args.eval_strategy == IntervalStrategy.EPOCH
        self._every, self._stream = state.eval_steps, stream
        whole = state.num_train_epochs if self._by_epoch else state.max_steps / self._every
        self.last = max(math.ceil(whole), 1)  #: the number of the last one

    def position(self, state: Any) -> float:
        """The training that is done, in evaluations."""
        done = state.epoch if self._by_epoch else state.global_step / self._every
        return float(done or 0.0)

    def number(self, state: Any) -> int:
        """The number of an evaluation that takes place now; 0 if it is not one of the axis.

        The trainer also evaluates before it begins or resumes, and users do at any step.
        """
        number = math.ceil(self.position(state) - _ROUNDING)
        ends = self._stream or state.global_step >= state.max_steps
        return number if ends or number == self.passed(state) else 0

    def passed(self, state: Any) -> int:
        """The number of the last evaluation before this point in the training."""
        return whole_part(self.position(state))

    def ends_epoch(self, state: Any) -> bool:
        """Whether an evaluation of an epoch is due before the next step."""
        return self._by_epoch and float(state.epoch).is_integer()
