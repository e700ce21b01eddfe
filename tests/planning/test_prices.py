"""Prices by host type, as people write them and as lists have them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from optuna_deadline.errors import DeadlineError
from optuna_deadline.values.budgets import Budget, make_budget
from optuna_deadline.values.prices import Price, make_prices, read_prices

SHARED = Path(__file__).parents[3] / "shared" / "data" / "prices"


def test_prices_are_read_as_people_write_them() -> None:
    text = "p3.8xlarge=12.24/4, g4dn.xlarge=.526"
    found, currency = make_prices(text)
    assert found == {"p3.8xlarge": Price(3.06, node=4), "g4dn.xlarge": Price(0.526)}
    assert make_prices({"p3.8xlarge": "12.24/4", "g4dn.xlarge": 0.526}) == (found, currency)
    assert make_prices("1.2usd") == ({"": Price(1.2)}, "usd")
    budget = make_budget("20usd", text)
    assert (
        budget is not None and Budget.from_dict(json.loads(json.dumps(asdict(budget)))) == budget
    )
    assert budget.rate == "0.526 to 3.06 for a slot and hour, by the type of its host"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("p3=", r"'p3=' is not TYPE=PRICE"),
        ("p3=1,p3=2", "name 'p3' twice"),
        ("p3=12/none", r"write 12.24/4 for a host of 4 slots"),
        ("p3=1eur,g4=1usd", "in eur and usd"),
        ({"p3": -1}, "A price of -1"),
        ({}, "no price in the list"),
        ({"": 1}, "is not a host type"),
    ],
)
def test_prices_that_cannot_be_are_refused_in_words(given: dict[str, float], words: str) -> None:
    with pytest.raises(DeadlineError, match=words):
        make_prices(given)


def test_a_host_without_a_price_is_refused_in_words() -> None:
    budget = make_budget(20, "a=1,b=2")
    assert budget is not None
    budget.check_type("a", budget.prices)
    with pytest.raises(
        DeadlineError, match=r"by host type \(a, b\) and this host says none: name"
    ):
        budget.check_type(None, budget.prices)
    with pytest.raises(
        DeadlineError, match=r"no price for the host type 'c' .*set STUDY --price c="
    ):
        budget.check_type("c", budget.prices)
    flat = make_budget(20, 1)
    assert flat is not None
    flat.check_type(None, flat.prices)
    flat.check_type("c", flat.prices)


def test_a_budget_below_one_start_up_of_the_cheapest_is_refused() -> None:
    with pytest.raises(DeadlineError, match=r"below one start-up, .* \(2 slots of b for 60 s\)"):
        make_budget(1, {"a": Price(3600.0), "b": Price(36.0, minimum=60.0, node=2)})


def test_a_list_of_our_own_says_all_that_a_price_has(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(
        "type,per_hour,slots,granularity,minimum,startup,from\n"
        "p3,12.24,4,60,120,90,\n"
        "g4,0.5,,,,,\n"
        "g4,0.9,,,,,2h\n"
    )
    assert read_prices(path) == {
        "p3": Price(3.06, 60.0, 90.0, 120.0, 4),
        "g4": Price(0.5, then=(("2h", 0.9),)),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("type,per_hour\ng4,cheap\n", "line 2 is not a price: 'cheap' for 'g4'"),
        ("type,per_hour,from\ng4,1,2h\n", "no first price for 'g4'"),
        ("type,per_hour,from\ng4,1,\ng4,1,soon\n", "soon"),
        ("type,per_hour\ng4,1\ng4,2\n", "several prices for g4"),
        ("kind,cost\ng4,1\n", r"has the columns cost, kind: name those of"),
        ("type,per_hour\n", "of no row"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused_in_words(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(text)
    with pytest.raises(DeadlineError, match=words):
        read_prices(path)


def test_a_list_that_is_not_there_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(DeadlineError, match="cannot be read: No such file"):
        read_prices(tmp_path / "none.csv")


@pytest.mark.skipif(not SHARED.exists(), reason="the recorded price lists are not here")
def test_published_lists_are_read_by_their_own_columns() -> None:
    clouds = SHARED / "fsdl_cloud-gpus.csv"
    assert read_prices(clouds)["p3.8xlarge"] == Price(12.24 / 4, node=4)
    assert read_prices(clouds, ("Name", "Spot", "GPUs"))["p3.8xlarge"] == Price(3.67 / 4, node=4)
    maker = read_prices(SHARED / "synetune_sagemaker_instance_cost.csv")
    assert maker["ml.p3.8xlarge"].node == 4
