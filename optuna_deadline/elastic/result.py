"""The result of a study: its best model, and its cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from optuna.study import Study

from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import verified
from optuna_deadline.checkpoints.storage import Location, loading_code
from optuna_deadline.planning.best_model import CheckpointAvailability, find_winner
from optuna_deadline.planning.billing.ledger import BillingLedger
from optuna_deadline.planning.feasibility import known_feasibility, none_feasible
from optuna_deadline.planning.optuna_storage import read_trial
from optuna_deadline.study.best import find_best


@dataclass(frozen=True)
class Result:
    """The best model when a worker returns."""

    trial_number: int | None  #: the trial with the best report
    value: float | None  #: that report; if no trial reports, the best returned value
    params: dict[str, Any] | None = field(hash=False)  #: the trial's parameters
    step: int | None  #: None if the trial only returned its value
    checkpoint: Location | None  #: a file, or the URL of one
    checkpoint_ok: bool  #: whether the file is byte for byte the written one
    deadline: float  #: seconds since the epoch, by the database's clock
    ended: float  #: likewise
    settled: bool  #: False if the worker left before the end of the study was stored
    spent: float | None = None  #: None if slots cost nothing
    checkpoint_host: str | None = None  #: the only host that has the file, if not this one
    best_value: float | None = None  #: ``study.best_value``, which optuna-dashboard shows
    feasible: bool = True  #: False if the best trial violates a constraint, as all do

    def why_best_differs(self) -> str | None:
        """Why ``study.best_value`` differs, in one sentence; None if it is the same.

        It also differs where no trial is feasible: Optuna has no best value then.

        Optuna stores what an objective returns as the value of its trial. If the trial reported a
        better value before, this result and its checkpoint are those of that report.
        """
        if not self.feasible and self.trial_number is not None:
            return none_feasible(self.trial_number)
        if self.best_value is None or self.value is None or self.best_value == self.value:
            return None
        return (
            f"study.best_value is {self.best_value:.6g}: Optuna keeps what an objective returns, "
            f"and {self.value:.6g} was reported before that; return the best report to have both "
            "alike."
        )

    @property
    def overshoot(self) -> float:
        """Seconds past the deadline; negative if the study ended before it."""
        return self.ended - self.deadline

    def how_to_load(self) -> str:
        """One line of Python that loads the best model's checkpoint.

        It uses torch for a file that ``torch.save`` wrote, and reads others as bytes.
        """
        if self.checkpoint is None:
            return "# no checkpoint was saved: see optuna_deadline.segment(trial).save"
        line = loading_code(self.checkpoint, here=self.checkpoint_host is None)
        return line if self.checkpoint_host is None else f"{line}  # on {self.checkpoint_host}"


def study_result(
    study: Study,
    table: AllocationTable,
    direction: str,
    in_hand: CheckpointAvailability,
    ledger: BillingLedger | None,
) -> Result:
    """The best model now; if no trial has reported, the best returned value.

    Args:
        study: The study.
        table: The study's allocation table.
        direction: "minimize" or "maximize".
        in_hand: Knows which checkpoints this host can read.
        ledger: The billing ledger, if slots cost money.
    """
    now, orders = table.now(), table.orders("")
    known = known_feasibility(study)
    winner = find_winner(table, direction, in_hand, feasibility=known)
    best = winner or find_best(study)
    saved = winner.checkpoint if winner else None
    ok = saved is not None and verified(saved)
    elsewhere = None if ok or saved is None else in_hand.remote_origin(saved)
    if ledger is not None:
        ledger.read(now)
    return Result(
        trial_number=best.number if best else None,
        value=best.value if best else None,
        params=dict(read_trial(study, best.number).params) if best else None,
        step=best.step if best else None,
        checkpoint=saved.path if saved else None,
        checkpoint_ok=ok,
        checkpoint_host=elsewhere.host if elsewhere else None,
        deadline=orders.deadline,
        ended=now,
        settled=orders.settled,
        spent=None if ledger is None else ledger.spent(now),
        best_value=_best_value(study),
        feasible=best is None or best.feasible,
    )


def _best_value(study: Study) -> float | None:
    """Optuna's best value; None if no trial is complete."""
    try:
        return study.best_value
    except ValueError:
        return None
