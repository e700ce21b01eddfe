"""A loss that is not a mean over its batch keeps a trial on one slot, whatever the loop does."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import losses
import pytest
import torch
from elastic_harness import Plan, PlayedSegment, PlayedTrial
from elastic_training import data
from optuna_deadline_torch import ElasticLoop
from torch import nn
from torch.utils.data import DataLoader, default_collate

from optuna_deadline.segments import SegmentEnd

pytestmark = pytest.mark.slow_names(r"^test_dropout_and_norms")


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def left(
    folder: Path,
    loss: str,
    model: str = "dense",
    habit: str = "",
    leave_at: int = 3,
    resume: str | None = None,
    kind: str = "resize",
    **options: Any,
) -> tuple[PlayedSegment, list[int]]:
    """A segment until it leaves: what was said of it, and how many samples its steps had."""
    segment = PlayedSegment(
        Plan(str(folder), leave_at=leave_at, resume=resume, kind=kind, direction="minimize"), 0
    )
    training, validation = data(96)
    net = losses.model(model)
    if habit == "second order":
        optimizer: Any = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    if habit == "scaler":
        options["scaler"] = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    loop = ElasticLoop(PlayedTrial(segment), net, optimizer, epochs=3, **options)
    mixed = _mixed if habit == "mixed" else None
    loader = DataLoader(training, 16, shuffle=True, collate_fn=mixed)
    sizes: list[int] = []
    with pytest.raises(SegmentEnd):
        for _ in loop.epochs():
            for x, y, _ in loop.batches(loader):
                x = x.float()
                if loop.rehearsing:
                    sizes.append(len(x))
                _step(loop, optimizer, losses.LOSSES[loss], x, y, habit)
                segment.step = loop.steps
            loop.report(
                float(nn.functional.cross_entropy(net(validation[:][0].float()), validation[:][1]))
            )
    return segment, sizes


def _step(loop: ElasticLoop, optimizer: Any, loss: Any, x: Any, y: Any, habit: str) -> None:
    if habit == "accumulated":
        loop.backward(loss(loop.model, x, y) / 2)
        if loop.batch % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
        return
    optimizer.zero_grad()
    if habit == "second order":

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loop.backward(found := loss(loop.model, x, y))
            return found

        optimizer.step(closure)
        return
    if habit == "scaler":
        scaler = loop._states.objects[-1]
        loop.backward(scaler.scale(loss(loop.model, x, y)))
        scaler.step(optimizer)
        scaler.update()
        return
    if habit == "several":
        loop.backward(0.5 * loss(loop.model, x, y))
        loop.backward(0.5 * loss(loop.model, -x, y))
    else:
        loop.backward(loss(loop.model, x, y))
    if habit == "clipped":
        nn.utils.clip_grad_norm_(loop.model.parameters(), 0.01)
    optimizer.step()


def _mixed(samples: list[Any]) -> Any:
    x, y, ids = default_collate(samples)
    return x + 0.1 * torch.randn_like(x), y, ids


HABITS = ["", "accumulated", "clipped", "scaler", "second order", "several"]


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("loss", losses.NO_MEANS)
def test_a_loss_that_is_no_mean_keeps_the_trial_on_one_slot(
    tmp_path: Path, loss: str, habit: str
) -> None:
    segment, sizes = left(tmp_path, loss, habit=habit)
    assert [slots for slots, _ in segment.limits] == [1]
    assert "the loss is not a mean over the batch" in segment.limits[0][1]
    assert sizes == [16, 16, 7, 9], "the whole batch twice, and its parts"


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("loss", losses.MEANS)
def test_a_mean_may_train_on_more(
    tmp_path: Path, loss: str, habit: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "optuna_deadline"):
        segment, sizes = left(tmp_path, loss, habit=habit)
    assert segment.limits == [] and len(sizes) == 4 and "was not compared" not in caplog.text


@pytest.mark.parametrize("model", losses.MODELS)
def test_dropout_and_norms_are_no_matter_of_the_loss(
    tmp_path: Path, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "optuna_deadline"):
        assert left(tmp_path, "mean", model)[0].limits == []
    assert "was not compared" not in caplog.text
    assert left(tmp_path, "class weights", model)[0].limits != []


@pytest.mark.parametrize(
    ("loss", "habit"), [*((loss, "") for loss in losses.RANDOM), ("mean", "mixed")]
)
def test_other_random_numbers_are_told_and_nothing_is_concluded(
    tmp_path: Path, loss: str, habit: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "optuna_deadline"):
        assert left(tmp_path, loss, habit=habit)[0].limits == []
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "draw random numbers" in caplog.text


def test_it_is_compared_once_in_a_trial_and_where_it_is_wanted(tmp_path: Path) -> None:
    segment, sizes = left(tmp_path, "sum")
    assert sizes
    resume = segment.published[-1]["path"]
    assert left(tmp_path, "sum", resume=resume, leave_at=5)[1] == []
    assert left(tmp_path, "sum", compare_gradients=False)[1] == []
    assert left(tmp_path, "sum", kind="stop")[1] == [], "nothing comes after it"


@pytest.mark.parametrize("leave_at", [3, 6], ids=["in an epoch", "at its end"])
def test_it_is_compared_wherever_the_trial_leaves(tmp_path: Path, leave_at: int) -> None:
    segment, sizes = left(tmp_path, "sum", leave_at=leave_at)
    assert len(sizes) == 4 and len(segment.limits) == 1
