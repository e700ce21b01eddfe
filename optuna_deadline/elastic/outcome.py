"""What came of a study: the best model in hand, and what it has cost."""

from __future__ import annotations

from optuna.study import Study

from optuna_deadline.allocation.sql.store import AllocationTable
from optuna_deadline.checkpoints.files import verified
from optuna_deadline.elastic.result import Result
from optuna_deadline.planning.billing.ledger import Ledger
from optuna_deadline.planning.settlement import InHand, find_winner
from optuna_deadline.study.best import find_best


def outcome(
    study: Study, table: AllocationTable, direction: str, in_hand: InHand, ledger: Ledger | None
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
    elsewhere = None if ok or saved is None else in_hand.elsewhere(saved)
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
