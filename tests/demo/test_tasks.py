"""The tasks of the demo: data that is the same everywhere, and nothing on the screen."""

from __future__ import annotations

import importlib
from dataclasses import replace

import optuna
import pytest

pytest.importorskip("lightning")
pytest.importorskip("sklearn")

import lightning as L
import torch
from optuna_deadline_demo import TASKS, digits, mnist1d
from optuna_deadline_demo import bytes as language
from optuna_deadline_demo.training import Objective
from torch.utils.data import TensorDataset

from benchmarks import predicted

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.mark.parametrize(
    ("data", "rows", "unseen"),
    [
        (digits.Digits, 1437, 360),
        (lambda: mnist1d.curves(32), 4000, 2500),
        (lambda: language.windows(16), None, 256),
    ],
)
def test_the_split_is_the_same_each_time_and_shares_no_row(
    data: type[L.LightningDataModule], rows: int | None, unseen: int
) -> None:
    first, second = data(), data()
    first.setup("fit")
    second.setup("fit")
    train: TensorDataset = first.train
    assert len(train) == (rows or len(train)) and len(first.validation) == unseen
    assert all(map(torch.equal, train.tensors, second.train.tensors))
    seen = {row.numpy().tobytes() for row in train.tensors[0]}
    shared = sum(row.numpy().tobytes() in seen for row in first.validation.tensors[0])
    assert shared <= 0.01 * unseen, "sources repeat a phrase here and there"


def test_the_curves_and_the_library_are_made_anew_alike() -> None:
    assert all(map(torch.equal, mnist1d.rows(), (mnist1d.ROWS, mnist1d.CLASS_OF)))
    assert all(map(torch.equal, language.corpus(), (language.SEEN, language.UNSEEN)))
    assert len(language.SEEN) > 1 << 21, "enough to learn from for an hour"


EASY = {
    "digits": ({"width": 16, "dropout": 0.1, "lr": 0.01, "weight_decay": 1e-5}, 0.5),
    "bytes": ({"width": 32, "depth": 1, "lr": 0.01, "batch": 8, "schedule": "constant"}, 4.5),
    "mnist1d": ({"width": 32, "depth": 3, "lr": 0.005, "batch": 32, "shift": 0}, 0.3),
}


@pytest.mark.parametrize("task", TASKS)
def test_two_epochs_under_plain_optuna_learn_something_and_print_nothing(
    task: str, capfd: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"optuna_deadline_demo.{task}")
    objective: Objective = replace(module.objective, max_epochs=2)
    maximize = TASKS[task].direction == "maximize"
    study = optuna.create_study(
        direction="maximize" if maximize else "minimize",
        sampler=optuna.samplers.RandomSampler(seed=0),
    )
    parameters, bound = EASY[task]
    study.enqueue_trial(parameters)
    study.optimize(objective, n_trials=1)
    assert study.best_value > bound if maximize else study.best_value < bound
    assert len(study.best_trial.intermediate_values) == 2
    printed = capfd.readouterr()
    assert printed.out + printed.err == ""


def test_a_landscape_gives_each_contender_the_same_curves() -> None:
    study = predicted.PredictedStudy("adaptive_halving+deadline", "mnist1d", 1, 30.0, 2, 1.2)
    ours = study.run()
    assert ours == study.run()
    found = [ours, replace(study, contender="optuna_median+tpe").run()]
    [first, peer] = predicted.rows(["ours", "peer"], ["mnist1d"], found)
    assert (first["regret"], first["difference"], first["trials"]) == (ours[0], 0, ours[1])
    assert peer["difference"] == pytest.approx(found[1][0] - ours[0])
