"""Loops of ``study.optimize``: once the deadline has ended one, the next returns at once."""

from __future__ import annotations

import logging
from typing import Any

from optuna.study import Study

_logger = logging.getLogger("optuna_deadline")


class StudyOver(Study):
    """A study whose deadline has ended ``study.optimize`` in this process.

    A sampler or a pruner can only raise an error to keep the next ``study.optimize`` from
    training, and a script that tunes, looks and tunes again would never come to its last line.
    """

    _said = False

    def optimize(self, *args: Any, **kwargs: Any) -> None:
        """Return, with one line at the first time, or go on if the deadline was moved."""
        from optuna_deadline.pruners._wrapped import find_deadline_pruner

        pruner = find_deadline_pruner(self.pruner)
        if pruner is not None and pruner._is_over(self):
            if not self._said:
                self._said = True
                _logger.warning(
                    "The deadline of the study %r leaves no time for another trial: "
                    "study.optimize returns at once.",
                    self.study_name,
                )
            return
        self.__class__ = Study  # type: ignore[assignment]
        self.optimize(*args, **kwargs)


def returns_at_once(study: Study) -> None:
    """Let the next ``study.optimize`` of this process return, as long as the study is over."""
    if type(study) is Study:
        study.__class__ = StudyOver
