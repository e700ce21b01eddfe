"""A study that pays for its slots, with real ranks; and what a budget may be."""

from __future__ import annotations

import math
from dataclasses import asdict
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
from optuna_deadline.planning.billing.ledger import invoice_of
from optuna_deadline.planning.billing.price_schedule import tariff_of
from optuna_deadline.study.terms import Given
from optuna_deadline.values.budgets import Budget, make_budget

pytestmark = pytest.mark.nightly_but(r"seer")

PER_SLOT_SECOND = 3600.0


def paid(events: list[Event]) -> float:
    """Slot-seconds that were wanted or held, from the audit alone.

    Slots are wanted until the plan's end of the money. A slow worker settles the study after it.
    Slots of a dead worker are not paid for beyond the plan.
    """
    wanted, until, held, total, before = 0, math.inf, set[int](), 0.0, math.inf
    ordered = sorted(events, key=lambda event: event.id)
    reaped = {(e.slot, (e.fence or 0) - 1) for e in ordered if e.kind == "reap"}
    for event in ordered:
        planned = max(0.0, min(event.at, until) - before)
        total += max(wanted, len(held)) * planned
        total += len(held) * max(0.0, event.at - max(before, until))
        before = event.at
        if event.kind == "pool":
            wanted, until = int(str(event.detail["slots"])), float(str(event.detail["until"]))
        elif event.kind == "settle":
            wanted = 0
        elif event.kind == "acquire" and event.slot is not None:
            if (event.slot, event.fence) not in reaped:
                held.add(event.slot)
        elif event.kind == "release" and event.slot is not None:
            held.discard(event.slot)
    return total


def test_slots_are_wanted_until_the_money_ends_and_paid_for_while_they_are_held() -> None:
    def event(id: int, at: float, kind: str, slot: int | None = None, **detail: object) -> Event:
        return Event(id, at, kind, None, slot, 1, None, "w", detail)

    events = [
        event(1, 0.0, "pool", slots=2, until=20.0),
        event(2, 1.0, "acquire", 1),
        event(3, 23.0, "release", 1),
        event(4, 25.0, "settle"),
    ]
    tariff = tariff_of(Budget(1e6, Price(PER_SLOT_SECOND), "usd"), 0.0)
    assert paid(events) == 43.0
    assert invoice_of(events, tariff, 25.0).spent(25.0) >= 43.0


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["seer", "hypersched"])
def test_the_money_is_never_overspent(
    sqlite_study: optuna.Study, tmp_path: Path, policy: str
) -> None:
    result = optuna_deadline.run(
        sqlite_study,
        objectives.elastic,
        cpus=4,
        deadline="24s",
        budget="45usd",
        price=PER_SLOT_SECOND,
        checkpoints=tmp_path,
        policy=policy,
        worker=optuna_deadline.WorkerOptions(oversubscribe=True),
    )
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
        ("20 bananas", 0.9, "'20 bananas' is not a budget"),
        ("20usd", "cheap", "'cheap' is not a price"),
        ("20usd", -1, "A price of -1"),
        ("20usd", "1eur", "in usd and the price in eur"),
        (0.001, 0.9, r"0.001 usd is below one start-up, which costs 0.00125"),
        (1, Price(36.0, startup=120.0, node=4), r"below one start-up, .*4 slots for 125 s"),
        (True, 0.9, "True is not a budget"),
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
    assert Budget.from_dict(asdict(kept)) == kept
    assert make_budget(None, None) is None


def test_the_first_budget_holds(sqlite_study: optuna.Study) -> None:
    terms = agree(sqlite_study, "1h", Given("seer", budget=make_budget("20usd", 0.9)))
    assert terms.budget == make_budget(20, 0.9)
    assert agree(sqlite_study, "1h").budget == terms.budget
    with pytest.raises(DeadlineConflict, match=r"budget 20 usd at 0.9 .*wants 30 usd"):
        agree(sqlite_study, "1h", Given(budget=make_budget("30usd", 0.9)))
    with pytest.raises(DeadlineConflict, match="wants 30 usd"):
        agree(sqlite_study, None, Given(budget=make_budget("30usd", 0.9)))
