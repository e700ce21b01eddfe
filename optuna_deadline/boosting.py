"""What the callbacks of XGBoost, LightGBM and CatBoost have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optuna_deadline.errors import DeadlineError
from optuna_deadline.rounds import GO_ON, Move, Rounds


class BoosterCallback:
    """Reports to Optuna after each round of a booster, and follows the study's deadline and plan.

    A round is reported before other callbacks see it, and obeyed after they have: they may end the
    training, and a trial leaves with what they have counted.

    Args:
        trial: The trial that the objective was called with.
        monitor: The metric to report: the name of the data, ``-``, and that of the metric.
        rounds: The number of rounds of a whole training.
        report_every: Rounds between two reports.
        save_every: Seconds between two checkpoints without a best value, under a worker.
        fit: A name, needed where the objective trains several models one after the other, such as
            the folds of a cross-validation. Call :meth:`result` after each.
    """

    file = ""  #: the model in the folder of a checkpoint
    _remedy = ""  #: how a resumed training continues the model

    def __init__(
        self,
        trial: Any,
        monitor: str,
        *,
        rounds: int,
        report_every: int = 1,
        save_every: float = 60.0,
        fit: str | None = None,
    ) -> None:
        super().__init__()
        self.monitor = monitor
        self._rounds = Rounds(
            trial,
            rounds,
            report_every=report_every,
            save_every=save_every,
            fit=fit,
            remedy=self._remedy,
        )
        self._move: Move = GO_ON  # what follows the round

    @property
    def rounds_left(self) -> int:
        """The rounds that this segment trains."""
        return self._rounds.left

    @property
    def rounds_done(self) -> int:
        """The rounds before this segment; 0 at the start of the trial."""
        return self._rounds.done

    @property
    def model(self) -> str | None:
        """The file of the model that this segment continues; None at the start of the trial."""
        folder = self._rounds.folder
        return None if folder is None else str(folder / self.file)

    def result(self, model: Any) -> float:
        """The last reported value, also of an earlier segment; return it from the objective.

        Args:
            model: The trained model.

        Raises:
            DeadlineError: Nothing was reported.
        """
        return self._rounds.result(lambda folder: self._write(model, folder))

    def _obey(self, model: Any) -> bool:
        """Do what follows the round; returns whether the training stops."""
        return self._rounds.obey(self._move, lambda folder: self._write(model, folder))

    def _write(self, model: Any, folder: Path) -> None:
        raise NotImplementedError


def no_cross_validation(name: str) -> DeadlineError:
    """The error of a function that trains several models at once."""
    return DeadlineError(
        f"{name} trains several models at once, which cannot be paused: train the folds one after "
        "the other, or run the study by study.optimize."
    )
