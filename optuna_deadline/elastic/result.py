"""What a worker returns with."""

from __future__ import annotations

from dataclasses import dataclass

from optuna_deadline.checkpoints.storage import Location, loading


@dataclass(frozen=True)
class Result:
    """What is in hand when a worker returns."""

    number: int | None  #: the best trial
    value: float | None
    step: int | None  #: None where the trial only returned its value
    checkpoint: Location | None  #: a file, or the URL of one
    checkpoint_ok: bool  #: whether the file is the one that was written, byte for byte
    deadline: float  #: seconds since the epoch, by the database's clock
    ended: float  #: likewise
    settled: bool  #: False where the worker was asked to leave before the end
    spent: float | None = None  #: None where slots cost nothing
    checkpoint_host: str | None = None  #: where alone the file is, if not here

    @property
    def overshoot(self) -> float:
        """Seconds past the deadline; negative where the study ended before it."""
        return self.ended - self.deadline

    def how_to_load(self) -> str:
        """One line of Python that loads the best model's checkpoint.

        A file that ``torch.save`` wrote is loaded by torch, any other one is read as bytes.
        """
        if self.checkpoint is None:
            return "# no checkpoint was saved: see optuna_deadline.segment(trial).save"
        line = loading(self.checkpoint, here=self.checkpoint_host is None)
        return line if self.checkpoint_host is None else f"{line}  # on {self.checkpoint_host}"
