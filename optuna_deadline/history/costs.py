"""What a study has used and paid for, until now and, if nothing changes, by its end."""

from __future__ import annotations

from dataclasses import dataclass

from optuna_deadline.history.records import History
from optuna_deadline.history.series import area, in_use, level
from optuna_deadline.planning.billing.ledger import bill_of
from optuna_deadline.planning.billing.price_schedule import tariff_of


@dataclass(frozen=True)
class Costs:
    """Slot-time and money.

    Attributes:
        slot_hours: That trials have held slots.
        spent: Money, None where slots cost nothing.
        slot_hours_then: At the study's end, if as many slots stay in use as now.
        spent_then: At the study's end, if as many slots stay paid for as now.
        end: When that is: at the deadline, or when the money is used up.
    """

    slot_hours: float
    spent: float | None
    slot_hours_then: float
    spent_then: float | None
    end: float


def costs(history: History) -> Costs:
    """What was used and paid for; the end is the deadline, or that of the money."""
    used = in_use(history.holds)
    held = area(used, history.started, history.end)
    end = max(history.end, _end(history)) if history.settled is None else history.end
    ahead = level(used, history.end) * (end - history.end)
    spent = spent_then = None
    if history.budget is not None:
        tariff = tariff_of(history.budget, history.started)
        bill = bill_of(history.money_events, tariff, history.now)
        spent, spent_then = bill.spent(history.end), bill.spent(end)
    return Costs(held / 3600, spent, (held + ahead) / 3600, spent_then, end)


def _end(history: History) -> float:
    """The deadline, or when the money is used up, as the planner said last."""
    said = [event for event in history.events if event.kind in ("pool", "rest")]
    if history.budget is None or not said or said[-1].kind == "rest":
        return history.deadline
    return min(history.deadline, float(str(said[-1].detail["until"])))
