"""The forecast and what-if functions for any study with a deadline."""

from __future__ import annotations

from dataclasses import replace

from optuna.study import Study

from optuna_deadline._optuna import experimental_func
from optuna_deadline.errors import DeadlineError, argument
from optuna_deadline.history.forecast import Forecast
from optuna_deadline.history.forecast import forecast as look_ahead
from optuna_deadline.history.reader import read_history
from optuna_deadline.scenarios.comparison import DRAWS, SECONDS, Scenario, WhatIf
from optuna_deadline.scenarios.futures import Change
from optuna_deadline.study.policy_choice import PolicyLike
from optuna_deadline.values.budgets import Budget, BudgetLike
from optuna_deadline.values.deadlines import DeadlineLike, parse_duration
from optuna_deadline.values.prices import parse_amount


def forecast(
    study: Study, *, later: DeadlineLike | None = None, storage: str | None = None
) -> Forecast:
    """Predict the best value at the deadline, and the value of each trial.

    The band from ``low`` to ``high`` should contain eight of ten outcomes; ``python -m
    benchmarks.backtest`` measures how often it does. It is learned from the study's own curves
    and, as long as there are few, from the project's recording.

    Args:
        study: A study with a deadline, in training or ended.
        later: What if the deadline were this much later, as ``"1h"`` or a timedelta;
            :func:`what_if` also
            simulates the study's policy.
        storage: The database of the allocation table, if the study's storage is not SQL.

    Raises:
        DeadlineError: The study has no deadline, or ``later`` is not a duration.
        UnsupportedStorage: The study's storage is not SQL, and no ``storage`` is given.
    """
    history = read_history(study, storage)
    if later is not None:
        history = replace(
            history, deadline=history.deadline + parse_duration(later, argument("later"))
        )
    return look_ahead(history)


@experimental_func("0.1.0")
def what_if(
    study: Study,
    *,
    later: DeadlineLike | None = None,
    gpus: int = 0,
    budget: BudgetLike | None = None,
    draws: int = DRAWS,
    seconds: float = SECONDS,
    seed: int = 0,
    policy: PolicyLike | None = None,
    storage: str | None = None,
) -> WhatIf:
    """Predict the end of a study as it is, and with more time, slots or money.

    The rest of the study is simulated repeatedly from its present state. Its trials continue at
    values drawn from the bands of their forecasts, new trials resemble the study's own, starts and
    gangs take their measured times, and the study's policy plans to the deadline. Both cases use
    the same draws. The simulated gains are scaled to the level of :func:`forecast`.

    Args:
        study: A study with a deadline, in training, whose trials have reported.
        later: By how much the deadline would be later, as ``"1h"`` or a timedelta.
        gpus: Additional slots, on a machine of their own; negative for fewer.
        budget: Additional budget, as 20 or ``"20usd"``.
        draws: Simulated ends of each case.
        seconds: After this time no further draw starts; at least one is made.
        seed: Other seeds draw other ends.
        policy: The study's policy, if it is an object of this process.
        storage: The database of the allocation table, if the study's storage is not SQL.

    Raises:
        DeadlineError: The study has no deadline, has ended or not been trained yet, or the change
            makes no sense for it.
        UnsupportedStorage: The study's storage is not SQL, and no ``storage`` is given.
    """
    history = read_history(study, storage)
    question = Scenario(
        history,
        change_of(history.budget, later, gpus, budget),
        policy=policy,
        draws=draws,
        seed=seed,
    )
    return question.answer(list(question.pairs(seconds)))


def change_of(
    has: Budget | None, later: DeadlineLike | None, gpus: int, budget: BudgetLike | None
) -> Change:
    """A change from the user's arguments.

    Args:
        has: The study's budget.
        later: A duration.
        gpus: Slots.
        budget: An amount.

    Raises:
        DeadlineError: One of them is invalid, or is money in a study without prices.
    """
    money = 0.0
    if budget is not None:
        amount = budget.strip().removeprefix("+") if isinstance(budget, str) else budget
        money, currency = parse_amount(amount, "budget")
        if has is None:
            raise DeadlineError(
                "This study has no budget, and more money would change nothing: ask for more "
                "slots or more time."
            )
        if currency and currency != has.currency:
            raise DeadlineError(
                f"The study's budget is in {has.currency} and not in {currency}; ask for more "
                f"{has.currency}."
            )
        if has.amount + money <= 0:
            raise DeadlineError(f"The budget of {has} cannot be {-money:g} {has.currency} less.")
    seconds = 0.0 if later is None else parse_duration(later, argument("later"))
    return Change(seconds, gpus, money)
