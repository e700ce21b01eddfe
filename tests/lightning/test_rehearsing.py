"""In Lightning too, a loss that is not a mean keeps a trial on one slot."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import elastic_training
import losses
import pytest
import torch
from elastic_harness import Plan, PlayedSegment, PlayedTrial
from optuna_deadline_torch.rehearsal import Rehearsal

from optuna_deadline.segments import SegmentEnd

pytestmark = [
    pytest.mark.slow_names(
        r"^test_(wherever|however_the_module_steps\[(?!sum-\]|mean-\]|sum-manual))"
    ),
    pytest.mark.nightly_but(r"batch-d|mean-raw|sum-adversarial"),
]


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Habits(elastic_training.Net):
    """Steps as a user's module does; extras are the loss, the model and the habit."""

    def __init__(self, plan: Plan, seen: dict[str, Any], segment: Any = None) -> None:
        super().__init__(plan, seen, segment)
        loss, model, habit = plan.extras
        self.measure, self.habit, self.outputs = losses.LOSSES[loss], habit, []  # type: ignore[var-annotated]
        self.body = losses.model(model)  # type: ignore[assignment]
        self.automatic_optimization = habit not in ("manual", "raw", "adversarial")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        super().training_step(batch, batch_idx)
        x, y, _ = batch
        loss = self.measure(self.body, x.float(), y)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.outputs.append(loss)
        if self.habit == "dictionary":
            return {"loss": loss, "x": x}
        if self.habit == "nothing":
            return None
        if self.habit == "raises" and len(x) < 16:
            raise ValueError("a batch has 16 samples")
        if not self.automatic_optimization:
            self._step(loss)
            self.segment.step = self.trainer.global_step
        return loss

    def _step(self, loss: torch.Tensor) -> None:
        optimizers: Any = self.optimizers()
        for one in optimizers if self.habit == "adversarial" else [optimizers]:
            self.toggle_optimizer(one)
            one.zero_grad()
            if self.habit == "raw":
                loss.backward()  # type: ignore[no-untyped-call]
            else:
                self.manual_backward(loss, retain_graph=True)
            self.clip_gradients(one, 0.01, "norm")
            one.step()
            self.untoggle_optimizer(one)

    def configure_optimizers(self) -> Any:
        if self.habit == "adversarial":
            parts = self.body[0], self.body[-1]  # type: ignore[index]
            return tuple(torch.optim.SGD(part.parameters(), 0.1) for part in parts)
        if self.habit == "second order":
            return torch.optim.LBFGS(self.parameters(), 0.1, max_iter=3)
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)


def left(
    folder: Path,
    loss: str,
    model: str = "dense",
    habit: str = "",
    leave_at: int = 4,
    trainer: dict[str, Any] | None = None,
    **more: Any,
) -> tuple[PlayedSegment, list[int]]:
    """A segment until it leaves: what was said of it, and how many samples its steps had."""
    plan = Plan(
        str(folder),
        leave_at=leave_at,
        single=True,
        extras=(loss, model, habit),
        trainer=trainer or {},
        **more,
    )
    segment, seen = PlayedSegment(plan, 0), {}  # type: ignore[var-annotated]
    with pytest.raises(SegmentEnd):
        elastic_training.train(plan, PlayedTrial(segment), segment, seen, Habits)
    return segment, [len(step["ids"]) for step in seen["rehearsed"]]


HABITS = ["", "manual", "raw", "adversarial", "dictionary", "second order"]
TRAINERS = [
    {"gradient_clip_val": 0.01},
    {"accumulate_grad_batches": 2},
    {"precision": "bf16-mixed"},
]


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("loss", ["sum", "class weights", "mean"])
def test_however_the_module_steps(tmp_path: Path, loss: str, habit: str) -> None:
    segment, sizes = left(tmp_path, loss, habit=habit)
    assert sizes == [16, 16, 7, 9], "the whole batch twice, and its parts"
    assert [slots for slots, _ in segment.limits] == [1] * (loss != "mean")


@pytest.mark.parametrize("loss", [*losses.NO_MEANS, *losses.MEANS])
def test_whatever_the_loss(tmp_path: Path, loss: str) -> None:
    segment, _ = left(tmp_path, loss)
    assert bool(segment.limits) == (loss in losses.NO_MEANS)


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda one: next(iter(one)))
@pytest.mark.parametrize("loss", ["sum", "mean"])
def test_whatever_the_trainer_does(tmp_path: Path, loss: str, trainer: dict[str, Any]) -> None:
    segment, sizes = left(tmp_path, loss, trainer=trainer)
    assert len(sizes) == 4 and bool(segment.limits) == (loss == "sum")


@pytest.mark.parametrize("model", losses.MODELS)
@pytest.mark.parametrize("leave_at", [4, 6], ids=["after a batch", "after a validation"])
def test_wherever_it_leaves_and_whatever_the_model(
    tmp_path: Path, model: str, leave_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "optuna_deadline"):
        assert left(tmp_path, "mean", model, leave_at=leave_at)[0].limits == []
    assert "was not compared" not in caplog.text
    assert left(tmp_path, "sum", model, leave_at=leave_at)[0].limits != []


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"loss": "noise"}, "draw random numbers"),
        ({"loss": "mean", "habit": "raises"}, "ValueError: a batch has 16 samples"),
        ({"loss": "mean", "data": "stream"}, "more than one loader"),
    ],
)
def test_where_it_cannot_be_compared_one_line_says_so(
    tmp_path: Path, case: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "optuna_deadline"):
        assert left(tmp_path, **case)[0].limits == []
    assert [one.levelname for one in caplog.records if "was not compared" in one.message] == [
        "INFO"
    ]
    assert words in caplog.text


def test_what_is_saved_is_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is there, whole, before the first of its steps."""
    with_, _ = left(tmp_path, "mean", "batch norm", leave_at=6)
    one = torch.load(with_.published[-1]["path"], weights_only=False)
    monkeypatch.setattr(Rehearsal, "__init__", None)  # it ends there, with one line
    without, sizes = left(tmp_path, "mean", "batch norm", leave_at=6)
    other = torch.load(without.published[-1]["path"], weights_only=False)
    assert sizes == []
    for name, value in one["state_dict"].items():
        assert torch.equal(value, other["state_dict"][name]), name
    assert one["loops"] == other["loops"]
