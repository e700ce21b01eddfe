"""Batches that grow with the slots: samples, learning rates and counts, on real ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from chains import assert_same, chain
from elastic_harness import Plan, run_segment
from optuna_deadline_torch import ElasticLoop
from optuna_deadline_torch.adascale import AdaScaleGain
from optuna_deadline_torch.scaling import Scaling
from torch.utils.data import DataLoader, TensorDataset

from optuna_deadline.errors import DeadlineError

pytestmark = pytest.mark.nightly_but(r"grown_and_shrunk\[linear|test_adascale|refused")

BASE = 0.1
#: 6 batches in an epoch; on two slots 3 steps.
PLAN = Plan("", training="loop_training", optimizer="sgd", schedule="", epochs=4)
MOVES: list[tuple[int, int | None]] = [(1, 4), (2, 8), (1, None)]
FACTORS = {"linear": 2.0, "sqrt": math.sqrt(2)}


def samples_by_epoch(segments: list[list[dict[str, Any]]]) -> dict[int, list[int]]:
    """The samples that count, of each epoch."""
    found: dict[int, list[int]] = {}
    for ranks in segments:
        for rank in ranks:
            for step in rank["steps"]:
                found.setdefault(step["epoch"], []).extend(step["ids"] if step["weight"] else [])
    return {epoch: sorted(ids) for epoch, ids in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["linear", "sqrt"])
def test_grown_and_shrunk(tmp_path: Path, rule: str) -> None:
    segments, _ = chain(tmp_path / "moved", replace(PLAN, scaling=rule), MOVES)
    one, two, again = segments
    assert one[0]["rates"] == [BASE] * 4 and again[0]["rates"] == [BASE] * len(again[0]["rates"])
    assert two[0]["rates"] == two[1]["rates"] == [BASE * FACTORS[rule]] * 4
    # 4 batches alone, then 1 + 3 steps of two: to the end of the second epoch.
    assert [(step["epoch"], step["batch"]) for step in two[0]["steps"]] == [
        (0, 4), (1, 0), (1, 2), (1, 4),
    ]  # fmt: skip
    assert samples_by_epoch(segments) == {epoch: [*range(96)] for epoch in range(4)}
    assert again[0]["global_step"] == 4 + 4 + 12


@pytest.mark.slow
def test_an_odd_batch_at_the_end(tmp_path: Path) -> None:
    plan = replace(PLAN, scaling="linear", samples=70, epochs=2)  # 5 batches, the last one of 6
    segments, _ = chain(tmp_path / "two", plan, [(2, None)])
    assert samples_by_epoch(segments) == {epoch: [*range(70)] for epoch in range(2)}
    # What is left over at the end is one batch, and has one batch's rate.
    assert segments[0][0]["rates"] == [2 * BASE, 2 * BASE, BASE] * 2


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["linear", "adascale"])
@pytest.mark.parametrize("schedule", ["cosine", "epoch"])
def test_resumed_on_the_same_slots_bit_by_bit(tmp_path: Path, rule: str, schedule: str) -> None:
    plan = replace(PLAN, scaling=rule, schedule=schedule, dropout=0.3)
    still = chain(tmp_path / "still", plan, [(2, None)])
    moved = chain(tmp_path / "moved", plan, [(2, 2), (2, 6), (2, None)])
    assert_same(still, moved, tolerance=0.0)
    assert still[0][0][0]["rates"] == [rate for ranks in moved[0] for rate in ranks[0]["rates"]]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["cosine", "epoch"])
def test_schedules_follow_the_samples(tmp_path: Path, schedule: str) -> None:
    plan = replace(PLAN, scaling="linear", schedule=schedule)
    moved, _ = chain(tmp_path / "moved", plan, MOVES)
    still, _ = chain(tmp_path / "still", replace(plan, scaling=""), [(1, None)])
    expected = {(step["epoch"], step["batch"]): step["lr"] for step in still[0][0]["steps"]}
    for ranks in moved:
        for rank in ranks:
            for step, rate in zip(rank["steps"], rank["rates"], strict=True):
                lr = expected[step["epoch"], step["batch"]]
                assert step["lr"] == pytest.approx(lr, rel=1e-12), "its own, outside of the step"
                assert rate == pytest.approx(lr * len(ranks), rel=1e-12)


@pytest.mark.slow
def test_adascale(tmp_path: Path) -> None:
    plan = replace(PLAN, scaling="adascale", epochs=6)
    segments, _ = chain(tmp_path / "moved", plan, [(1, 4), (2, 16), (1, None)])
    one, two, again = segments
    assert one[0]["rates"] == [BASE] * 4 and set(again[0]["rates"]) == {BASE}
    gains = [rate / BASE for rate in two[0]["rates"]]
    assert gains == [rate / BASE for rate in two[1]["rates"]], "all ranks have one gain"
    assert all(1.0 <= gain <= 2.0 for gain in gains) and 1.05 < sum(gains) / len(gains) < 1.99
    # The training is over when its gains sum up to 6 epochs of 6 batches, not after 6 passes.
    done = 4 + sum(gains) + len(again[0]["rates"])
    assert 36 <= done + 1e-6 < 37
    passes = samples_by_epoch(segments)
    assert len(passes) > 6 - 1 and [*passes] == [*range(len(passes))]
    assert all(ids == [*range(96)] for epoch, ids in passes.items() if epoch + 1 < len(passes))
    reports = [step for ranks in segments for step, _ in ranks[0]["reports"]]
    assert reports == [*range(len(passes))]
    assert again[0]["horizon"] == len(passes) - 1


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["linear", "adascale"])
def test_one_slot_is_bitwise_what_it_is_without_a_rule(tmp_path: Path, rule: str) -> None:
    plan = replace(PLAN, schedule="cosine", dropout=0.3)
    without = chain(tmp_path / "without", plan, [(1, None)])
    ruled = chain(tmp_path / "ruled", replace(plan, scaling=rule), [(1, 9), (1, None)])
    assert_same(without, ruled, tolerance=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scaling": "quadratic"}, "no scaling rule 'quadratic'"),
        ({"scaling": "adascale", "optimizer": "adam"}, "with Adam use scaling='sqrt'"),
        (
            {"scaling": "linear", "trainer": {"accumulate_grad_batches": 2}},
            "step the optimizer after each batch",
        ),
    ],
)
def test_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    (seen,) = run_segment(replace(PLAN, folder=str(tmp_path), **changes))
    assert words in (seen["error"] or ""), seen


def test_one_rule_for_the_whole_trial() -> None:
    state = Scaling("linear").state()
    Scaling("linear").load(state)
    Scaling(None).load(Scaling(None).state())
    for other in (Scaling("sqrt"), Scaling(None)):
        with pytest.raises(DeadlineError, match="started with scaling='linear'"):
            other.load(state)
    with pytest.raises(DeadlineError, match="started with scaling=None"):
        Scaling("sqrt").load(None)


def test_a_step_that_fails_leaves_the_learning_rate() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=BASE)
    scaling = Scaling("linear")
    scaling.watch(optimizer)
    scaling.begin(4, even=True)

    def fails() -> float:
        raise ValueError

    with pytest.raises(ValueError):
        optimizer.step(fails)
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] == BASE and scaling.done == 4
    assert weight.item() == pytest.approx(1 - 4 * BASE)


def test_gain_is_that_of_the_noise() -> None:
    generator = torch.Generator().manual_seed(0)

    def measured(noise: float, ranks: int) -> float:
        gain = AdaScaleGain()
        for _ in range(300):
            each = 1.0 + noise * torch.randn(ranks, 50, generator=generator)
            gain.measure(
                float(each.square().sum(1).mean()), float(each.mean(0).square().sum()), ranks
            )
        return gain.of(ranks)

    assert AdaScaleGain().of(8) == 1.0, "nothing is known"
    for noise in (0.0, 0.3, 1.0, 3.0, 100.0):
        for ranks in (2, 8):
            expected = (noise**2 + 1) / (noise**2 / ranks + 1)
            assert 1.0 <= measured(noise, ranks) <= ranks
            assert measured(noise, ranks) == pytest.approx(expected, rel=0.05)
    gain = AdaScaleGain()
    gain.measure(float("inf"), float("nan"), 2)
    assert gain.of(2) == 1.0


@pytest.mark.parametrize("rule", [None, "linear", "adascale"])
@pytest.mark.parametrize("by_itself", [False, True])
def test_under_plain_optuna_there_is_nothing_to_scale(rule: Any, by_itself: bool) -> None:
    rates: list[float] = []

    def objective(trial: optuna.Trial) -> float:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=BASE)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        loop = ElasticLoop(trial, model, optimizer, epochs=3, scheduler=scheduler, scaling=rule)
        for _ in loop.epochs():
            for (x,) in loop.batches(DataLoader(TensorDataset(torch.ones(8, 4)), 4)):
                optimizer.zero_grad()
                loop.backward(loop.model(x).square().mean())
                optimizer.step()
                rates.append(optimizer.param_groups[0]["lr"])
            if by_itself:
                scheduler.step()
            else:
                loop.advance(scheduler)
            loop.report(0.0)
        return loop.result()

    study = optuna.create_study()
    if by_itself and rule is not None:
        with pytest.raises(DeadlineError, match=r"call loop.advance\(scheduler\) in place of"):
            study.optimize(objective, n_trials=1)
        return
    study.optimize(objective, n_trials=1)
    assert rates == [BASE, BASE, BASE / 2, BASE / 2, BASE / 4, BASE / 4]
