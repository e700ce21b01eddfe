"""A study that pays for its slots, with real ranks; and what a budget may be."""

from __future__ import annotations

from pathlib import Path

import objectives
import optuna
import pytest
from tables import table_of

import optuna_deadline
from optuna_deadline import Price
from optuna_deadline.allocation.records import Event
from optuna_deadline.elastic import agree
from optuna_deadline.errors import DeadlineConflict, DeadlineError
from optuna_deadline.values.budgets import Budget, make_budget

pytestmark = pytest.mark.nightly_but(r"seer")

PER_SLOT_SECOND = 3600.0


def paid(events: list[Event]) -> float:
    """Slot-seconds that were wanted or held, from the audit alone."""
    wanted, held, total, before = 0, set[int](), 0.0, 0.0
    for event in sorted(events, key=lambda event: event.id):
        total += max(wanted, len(held)) * (event.at - before) if before else 0.0
        before = event.at
        if event.kind == "pool":
            wanted = int(str(event.detail["slots"]))
        elif event.kind == "settle":
            wanted = 0
        elif event.kind == "acquire" and event.slot is not None:
            held.add(event.slot)
        elif event.kind in ("release", "reap") and event.slot is not None:
            held.discard(event.slot)
    return total


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["seer", "hypersched"])
def test_the_money_is_never_overspent(
    sqlite_study: optuna.Study, tmp_path: Path, policy: str
) -> None:
    result = optuna_deadline.run(
        sqlite_study, objectives.elastic, cpus=4, oversubscribe=True, deadline="24s",
        policy=policy,
        budget="45usd", price=PER_SLOT_SECOND, checkpoints=tmp_path,
    )  # fmt: skip
    table = table_of(sqlite_study)
    log = table.events()
    assert result.settled and result.checkpoint_ok
    assert all(trial.state.is_finished() for trial in sqlite_study.get_trials(deepcopy=False))
    spent = paid(log)
    assert 10 < spent <= 45
    assert result.spent is not None and spent <= result.spent + 1e-6 <= 45 + 1e-6
    sizes = [int(str(event.detail["slots"])) for event in log if event.kind == "pool"]
    assert sizes[-1] == 0 and max(sizes) <= 4
    if policy == "seer":  # a round changes the pool's size within the slots on offer
        assert len({size for size in sizes if size}) >= 2, sizes


@pytest.mark.parametrize(
    ("budget", "price", "words"),
    [
        ("20usd", None, r"needs a price: .* as in price=0\.9"),
        (None, 0.9, "A price without a budget"),
        (-3, 0.9, "A budget of -3 usd pays for nothing"),
        ("20 bananas", 0.9, "'20 bananas' is no budget"),
        ("20usd", "cheap", "'cheap' is no price"),
        ("20usd", -1, "A price of -1"),
        ("20usd", "1eur", "in usd and the price in eur"),
        (0.001, 0.9, r"0.001 usd is below one start-up, which costs 0.00125"),
        (1, Price(36.0, startup=120.0, node=4), r"below one start-up, .*4 slots for 125 s"),
        (True, 0.9, "True is no budget"),
    ],
)
def test_a_budget_that_cannot_be_is_refused_in_words(
    budget: str | float | None, price: Price | str | float | None, words: str
) -> None:
    with pytest.raises(DeadlineError, match=words):
        make_budget(budget, price)


@pytest.mark.parametrize("text", ["20usd", "20 USD", "$20", "20", 20, 20.0])
def test_a_budget_is_read_as_people_write_it(text: str | float) -> None:
    assert make_budget(text, "0.9") == Budget(20.0, Price(0.9), "usd")
    kept = Budget(5.0, Price(0.9, startup=60.0, node=4), "eur")
    assert Budget.from_json(kept.to_json()) == kept
    assert make_budget(None, None) is None


def test_the_first_budget_holds(sqlite_study: optuna.Study) -> None:
    terms = agree(sqlite_study, "1h", "seer", {}, budget=make_budget("20usd", 0.9))
    assert terms.budget == make_budget(20, 0.9)
    assert agree(sqlite_study, "1h", None, {}).budget == terms.budget
    with pytest.raises(DeadlineConflict, match=r"budget 20 usd at 0.9 .*wants 30 usd"):
        agree(sqlite_study, "1h", None, {}, budget=make_budget("30usd", 0.9))
    with pytest.raises(DeadlineError, match="A budget is fixed with the deadline"):
        agree(sqlite_study, None, None, {}, budget=make_budget("30usd", 0.9))
