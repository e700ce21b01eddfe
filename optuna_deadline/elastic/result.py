"""What came of a study: the best model in hand, and what it has cost.

What a worker returns with.
"""

from __future__ import annotations

from dataclasses import dataclass

from optuna.study import Study

from optuna_deadline.allocation.sql.store import AllocationTable
from optuna_deadline.checkpoints.files import verified
from optuna_deadline.checkpoints.storage import Location, loading_code
from optuna_deadline.planning.billing.ledger import BillingLedger
from optuna_deadline.planning.settlement import CheckpointAvailability, find_winner
from optuna_deadline.study.best import find_best


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
        line = loading_code(self.checkpoint, here=self.checkpoint_host is None)
        return line if self.checkpoint_host is None else f"{line}  # on {self.checkpoint_host}"


def study_result(
    study: Study,
    table: AllocationTable,
    direction: str,
    in_hand: CheckpointAvailability,
    ledger: BillingLedger | None,
) -> Result:
    """The best model in hand now; where no trial has reported, the best value that one returned.

    Args:
        study: The study.
        table: Its table.
        direction: "minimize" or "maximize".
        in_hand: Knows which checkpoints can be read here.
        ledger: The bill, where slots cost something.
    """
    now, orders = table.now(), table.orders("")
    winner = find_winner(table, direction, in_hand)
    best = winner or find_best(study)
    saved = winner.checkpoint if winner else None
    ok = saved is not None and verified(saved)
    elsewhere = None if ok or saved is None else in_hand.remote_origin(saved)
    if ledger is not None:
        ledger.read(now)
    return Result(
        number=best.number if best else None,
        value=best.value if best else None,
        step=best.step if best else None,
        checkpoint=saved.path if saved else None,
        checkpoint_ok=ok,
        checkpoint_host=elsewhere.host if elsewhere else None,
        deadline=orders.deadline,
        ended=now,
        settled=orders.settled,
        spent=None if ledger is None else ledger.spent(now),
    )
