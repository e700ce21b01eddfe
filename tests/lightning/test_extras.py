"""What else has a state goes on too: precisions, averages, the usual callbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chains import assert_same, chain, trace
from elastic_harness import Plan

pytestmark = pytest.mark.slow

MOVES = [(1, 4), (2, 9), (1, 13), (2, None)]
EACH_STEP = [(1, 0)] * 60


def extras(found: Any) -> Any:
    return found[0][-1][0]["extras"]


def same(one: Any, other: Any, tolerance: float) -> None:
    assert extras(one).keys() == extras(other).keys()
    for name, state in extras(one).items():
        found, wanted = flat(extras(other)[name]), flat(state)
        assert [part for part in found if isinstance(part, str)] == [
            part for part in wanted if isinstance(part, str)
        ]
        assert numbers(found) == pytest.approx(numbers(wanted), abs=tolerance), name


def flat(state: Any) -> list[Any]:
    if isinstance(state, dict):
        return flat(list(state.values()))
    if isinstance(state, list):
        return [part for one in state for part in flat(one)]
    return [state]


def numbers(parts: list[Any]) -> list[float]:
    return [part for part in parts if isinstance(part, (int, float))]


PLANS = [
    pytest.param(Plan("", extras=("ema", "counting")), id="average by steps, a callback's state"),
    pytest.param(Plan("", epochs=6, extras=("swa",)), id="average by epochs"),
    pytest.param(Plan("", epochs=4, extras=("accumulation",)), id="accumulation by epochs"),
    pytest.param(Plan("", epochs=5, extras=("best", "every")), id="kept checkpoints"),
    pytest.param(Plan("", epochs=6, extras=("best",), patience=1), id="early stopping"),
    pytest.param(Plan("", extras=("hooks",)), id="what the module does in its own hooks"),
    pytest.param(Plan("", extras=("two",)), id="an optimizer that accumulates beside another"),
]


NORMS = pytest.param(
    Plan("", epochs=5, norm=True, extras=("swa",)), id="average by epochs, batch norms"
)


@pytest.mark.parametrize("plan", [*PLANS, NORMS])
def test_left_after_every_single_step(tmp_path: Path, plan: Plan) -> None:
    still = chain(tmp_path / "still", plan, [(1, None)])
    moved = chain(tmp_path / "moved", plan, EACH_STEP)
    assert len(moved[0]) > 4
    assert_same(still, moved, tolerance=0.0)
    same(still, moved, 0.0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_left_at_a_validation_before_an_accumulation_has_ended(tmp_path: Path, ranks: int) -> None:
    trainer = {"accumulate_grad_batches": 4, "val_check_interval": 3}
    plan = Plan("", epochs=2, trainer=trainer)
    still = chain(tmp_path / "still", plan, [(1, None)])
    moved = chain(tmp_path / "moved", plan, [(ranks, 0), (1, 0)] * 4)
    assert len(moved[0]) == 6  # two validations and a step between them, in each epoch
    assert_same(still, moved, tolerance=0.0 if ranks == 1 else 1e-9)


@pytest.mark.parametrize("moves", [EACH_STEP, MOVES], ids=["each step", "resized"])
def test_a_learning_rate_is_found_once_in_a_trial(
    tmp_path: Path, moves: list[tuple[int, int | None]]
) -> None:
    plan = Plan("", extras=("find",), schedule="")
    still = chain(tmp_path / "still", plan, [(1, None)])
    moved = chain(tmp_path / "moved", plan, moves)
    assert len(moved[0]) > 2
    assert_same(still, moved, tolerance=0.0 if moves is EACH_STEP else 1e-6)
    rates = {segment[0].get("lr") for found in (still, moved) for segment in found[0][-1:]}
    assert len(rates) == 1 and rates != {0.02}, "the module knows the rate that was found"


@pytest.mark.parametrize("plan", PLANS)
def test_resized(tmp_path: Path, plan: Plan) -> None:
    still = chain(tmp_path / "still", plan, [(1, None)])
    moved = chain(tmp_path / "moved", plan, MOVES)
    assert len(moved[0]) >= 3
    assert_same(still, moved)
    same(still, moved, 1e-6)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(Plan("", single=True, trainer={"precision": "bf16-mixed"}), id="bf16 mixed"),
        pytest.param(Plan("", single=True, trainer={"precision": "bf16-true"}), id="bf16"),
        pytest.param(Plan("", single=True, extras=("scaler",)), id="fp16 with a scaler"),
    ],
)
def test_lower_precision(tmp_path: Path, plan: Plan) -> None:
    still = chain(tmp_path / "still", plan, [(1, None)])
    each = chain(tmp_path / "each", plan, EACH_STEP)
    assert_same(still, each, tolerance=0.0)
    same(still, each, 0.0)
    moved = chain(tmp_path / "moved", plan, MOVES)
    # Sums over other slices round otherwise, in a precision of three digits.
    assert trace(still[0]) == trace(moved[0])
    gap = max(float((still[1][n].float() - moved[1][n].float()).abs().max()) for n in still[1])
    assert gap < 0.05
    same(still, moved, 0.0)
