"""A loop of `resumable`: paused anywhere and resumed, it is the same training."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import defaultdict, deque
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from left_segments import FakeSegment, FakeTrial, train_in_segments
from torch import nn

from optuna_deadline import SegmentEnd, resumable
from optuna_deadline.checkpoints.files import write_atomically
from optuna_deadline.directives import KEEP, Directive, Kind
from optuna_deadline.errors import DeadlineError
from optuna_deadline.segments import WholeTrial

STEPS = 6


class Scripted(WholeTrial):
    """A segment that ends after a step."""

    elastic = True
    direction = "minimize"

    def __init__(self, folder: Path, resume: Path | None, leave_at: int | None, slots: int = 1):
        self.at, self.leave_at, self.kind = 0.0, leave_at, Kind.PAUSE
        self.path, self.resume, self.world_size = folder, resume, slots
        self.limits: list[int] = []
        self.keeps = False
        self.saved: list[tuple[int, float | None, Path]] = []

    def progress(self, position: float) -> None:
        self.at = position

    def limit_slots(self, slots: int, reason: str) -> None:
        self.limits.append(slots)

    def keep_slots(self) -> None:
        self.keeps = True

    def directive(self) -> Directive:
        return KEEP if self.at != self.leave_at else Directive(self.kind, "as scripted")

    def save(self, write: Any, *, step: int, value: float | None = None, name: Any = None) -> Path:
        path = write_atomically(self.path / f"step-{step}-{len(self.saved)}", write)
        self.saved.append((step, value, path))
        return path

    def leave(self, directive: Directive | None = None) -> NoReturn:
        raise SegmentEnd(directive or KEEP)


class Reported:
    def __init__(self, segment: Scripted) -> None:
        self.segment, self.values = segment, dict[int, float]()

    def report(self, value: float, step: int) -> None:
        assert type(value) is float
        self.values[int(step)] = value


def train(trial: Any, steps: int = STEPS) -> tuple[list[float], dict[str, Any]]:
    """Draws from three global generators, and keeps an array and numbers besides the model."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    state = {
        "model": model, "optimizer": optimizer, "schedule": schedule,
        "seen": [], "mean": np.zeros(2), "best": (np.float32(9.0), {"at": 0}),
    }  # fmt: skip
    training = resumable(trial, steps=steps, state=state)
    for step in training:
        loss = model(torch.randn(8, 4) * random.random()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state["seen"] = [*state["seen"], int(step)]
        state["mean"] = state["mean"] + np.random.rand(2)
        state["best"] = min(state["best"], (np.float32(loss.item()), {"at": int(step)}))
        step.report(loss.item())
        schedule.step()
    assert training.result() == trial.values.get(steps, training.result())
    return [p.sum().item() for p in model.state_dict().values()], state


@pytest.mark.parametrize("at", range(1, STEPS))
def test_a_paused_training_is_the_same(at: int, tmp_path: Path) -> None:
    whole = Reported(Scripted(tmp_path, None, None))
    weights, kept = train(whole)
    first = Reported(Scripted(tmp_path, None, at))
    with pytest.raises(SegmentEnd):
        train(first)
    rest = Reported(Scripted(tmp_path, first.segment.saved[-1][2], None))
    again, found = train(rest)
    assert again == weights
    assert {**first.values, **rest.values} == whole.values
    assert min(rest.values) == at + 1, "no step is trained again"
    assert found["seen"] == kept["seen"] == [*range(1, STEPS + 1)]
    assert found["mean"].tolist() == kept["mean"].tolist() and found["best"] == kept["best"]
    assert isinstance(found["best"], tuple) and isinstance(found["best"][0], np.float32)


def train_in_place(trial: Any) -> tuple[Any, ...]:
    """Names what it trains by variables of its own, not by the state."""
    weight = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([weight], 0.1)
    history, sums, counts = list[float](), np.zeros(2), dict[str, Any](each=[0, [0]])
    window, names = deque([0.0], maxlen=3), {"start"}
    groups = defaultdict[int, Any](lambda: deque(maxlen=2))
    own = (
        torch.Generator().manual_seed(3), np.random.default_rng(3), np.random.RandomState(3),
        random.Random(3),
    )  # fmt: skip
    draws = (lambda: torch.rand((), generator=own[0]).item(), own[1].random, own[2].rand)
    state: dict[str, Any] = {
        "weight": weight, "optimizer": optimizer, "history": history, "sums": sums,
        "counts": counts, "window": window, "names": names, "groups": groups,
        **{str(number): each for number, each in enumerate(own)},
    }  # fmt: skip
    training = resumable(trial, steps=STEPS, state=state)
    rows = torch.rand(8)  # drawn after the state was read
    for step in training:
        target = sum(draw() for draw in draws) + own[3].random() + torch.rand(()).item()
        loss = (weight - target).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        sums += target
        counts["each"][1][0] += 1
        window.append(loss.item())
        names.add(f"step {step}")
        groups[step % 2].append(sum(window))
        state[f"at {step}"] = frozenset(names)
        step.report(loss.item())
    added = {name: each for name, each in state.items() if name.startswith("at")}
    own_names = weight.tolist(), history, sums.tolist(), counts, window, names, groups
    return *own_names, [one.maxlen for one in groups.values()], added, len(rows)


@pytest.mark.parametrize("at", [1, STEPS - 1])
def test_what_a_loop_names_by_its_own_variables_is_put_back_too(at: int, tmp_path: Path) -> None:
    torch.manual_seed(5)
    whole = train_in_place(Reported(Scripted(tmp_path, None, None)))
    torch.manual_seed(5)
    first = Reported(Scripted(tmp_path, None, at))
    with pytest.raises(SegmentEnd):
        train_in_place(first)
    again = train_in_place(Reported(Scripted(tmp_path, first.segment.saved[-1][2], None)))
    assert again == whole


def test_the_best_is_saved_with_its_value_and_a_stop_saves_nothing_else(tmp_path: Path) -> None:
    trial = Reported(Scripted(tmp_path, None, None))
    train(trial)
    values = list(trial.values.values())
    bests = [(n, v) for n, v in enumerate(values, 1) if v == min(values[:n])]
    assert [(step, value) for step, value, _ in trial.segment.saved] == bests
    stopped = Reported(Scripted(tmp_path, None, 4))
    stopped.segment.kind = Kind.STOP
    with pytest.raises(SegmentEnd):
        train(stopped)
    assert [save[0] for save in stopped.segment.saved] == [n for n, _ in bests if n <= 4]


def test_a_training_that_is_whole_returns_its_value_at_once(tmp_path: Path) -> None:
    first = Reported(Scripted(tmp_path, None, 2))
    with pytest.raises(SegmentEnd):
        train(first)
    ended = Reported(Scripted(tmp_path, first.segment.saved[-1][2], None))
    train(ended, steps=2)
    assert ended.values == {}
    other = Reported(ended.segment)
    with pytest.raises(DeadlineError, match=r"has state\['model'\], and this loop has none"):
        resumable(other, steps=2, state={})


def test_a_fit_that_ends_before_its_loop_has_begun_resumes(tmp_path: Path) -> None:
    def objective(trial: Any, *, skips: bool) -> int:
        training = resumable(trial, steps=4, state={"n": 0}, fit="a")
        if not skips:
            for step in training:
                step.report(float(step))
        return int(training.result())

    def segment(fence: int, resume: Path | None, leave_at: int = 9) -> FakeSegment:
        (folder := tmp_path / str(fence)).mkdir()
        return FakeSegment(folder, fence, resume, leave_at)

    first = segment(1, None, leave_at=2)
    with pytest.raises(SegmentEnd):
        objective(FakeTrial(first, {}), skips=False)
    ended = segment(2, first.saved)
    assert objective(FakeTrial(ended, {}), skips=True) == 2
    assert objective(FakeTrial(segment(3, ended.saved), {}), skips=False) == 4


def test_after_a_break_the_best_is_saved(tmp_path: Path) -> None:
    trial = Reported(Scripted(tmp_path, None, None))
    training = resumable(trial, steps=9, state={"n": 0})
    for step in training:
        step.report(-float(step))
        if step == 2:
            break
    assert training.result() == -2.0
    assert [save[:2] for save in trial.segment.saved] == [(1, -1.0), (2, -2.0)]


def test_several_slots_become_one(tmp_path: Path) -> None:
    trial = Reported(Scripted(tmp_path, None, None, slots=2))
    with pytest.raises(SegmentEnd):
        resumable(trial, steps=9, state={})
    assert trial.segment.limits == [1] and not trial.segment.saved


_LATER = """
import sys
from pathlib import Path
from optuna_deadline.plain_data import read_plain, set_random_state
assert "torch" not in sys.modules and "numpy" not in sys.modules
set_random_state(read_plain(Path(sys.argv[1]))["random"])
import numpy, torch
print(numpy.random.rand(), torch.rand(()).item())
"""


@pytest.mark.slow
def test_a_library_that_a_step_imports_later_goes_on_too(tmp_path: Path) -> None:
    trial = Reported(Scripted(tmp_path, None, 1))
    with pytest.raises(SegmentEnd):
        train(trial)
    expected = f"{np.random.rand()} {torch.rand(()).item()}"
    words = [sys.executable, "-c", _LATER, str(trial.segment.saved[-1][2])]
    assert subprocess.run(words, capture_output=True, text=True).stdout.strip() == expected


@pytest.mark.parametrize(
    ("steps", "state", "says"),
    [
        (0, {}, "steps must be a whole number from 1, but got 0"),
        (True, {}, "steps must be"),
        (3, {"a": [object()]}, r"state\['a'\] has a object, without state_dict\(\)"),
        (3, {"a": [lambda: 0]}, r"state\['a'\] has a function"),
    ],
)
def test_what_cannot_be_resumed_is_refused(
    steps: Any, state: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(DeadlineError, match=says):
        for step in resumable(Reported(Scripted(tmp_path, None, 1)), steps=steps, state=state):
            step.report(0.0)
    with pytest.raises(DeadlineError, match=r"Nothing was reported: call step\.report"):
        resumable(Reported(Scripted(tmp_path, None, None)), steps=1, state={}).result()


class Counting(nn.Module):
    """Keeps a number, tensors and a buffer that its ``state_dict`` leaves out.

    One is the head's weight by its norm, which has the memory of its parameter at first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 3), nn.utils.spectral_norm(nn.Linear(3, 1))
        self.scale, self.mean = 1.0, torch.zeros(3)
        self.register_buffer("norm", torch.zeros(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.layer(x))
        self.scale *= 1.1
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        self.norm.mul_(0.5).add_(hidden.detach().square().mean(0))
        score: torch.Tensor = self.head((hidden - self.mean) * self.scale / (1 + self.norm))
        return score


def thaw(trial: Any, change: Any = None) -> list[float]:
    """Trains its first layer from the third step on, which it freezes after the loop is made."""
    torch.manual_seed(0)
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    state = {"model": model, "optimizer": optimizer}
    training = resumable(trial, steps=STEPS, state=state)
    model.layer.requires_grad_(False)
    for step in training:
        if step == 3:
            model.layer.requires_grad_(True)
            if change is not None:
                change(model, optimizer, state)
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step.report(loss.item())
    return [p.sum().item() for p in model.state_dict().values()] + [model.scale]


@pytest.mark.parametrize("at", range(1, STEPS))
def test_what_a_model_keeps_outside_its_state_goes_on(at: int, tmp_path: Path) -> None:
    whole = Reported(Scripted(tmp_path, None, None))
    weights = thaw(whole)
    first = Reported(Scripted(tmp_path, None, at))
    with pytest.raises(SegmentEnd):
        thaw(first)
    between = Reported(Scripted(tmp_path, first.segment.saved[-1][2], at + 1))
    if at + 1 < STEPS:
        with pytest.raises(SegmentEnd):
            thaw(between)
        first = between
    rest = Reported(Scripted(tmp_path, first.segment.saved[-1][2], None))
    assert thaw(rest) == weights
    assert rest.values == {step: whole.values[step] for step in rest.values}


def add_layer(model: Any, optimizer: Any, state: dict[str, Any]) -> None:
    model.more = nn.Linear(2, 2)


def add_average(model: Any, optimizer: Any, state: dict[str, Any]) -> None:
    state["average"] = SimpleNamespace(state_dict=dict, load_state_dict=print)


def add_group(model: Any, optimizer: Any, state: dict[str, Any]) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


@pytest.mark.parametrize(
    ("change", "named"),
    [(add_layer, "model.more"), (add_group, "optimizer"), (add_average, "state['average']")],
)
def test_a_trial_that_could_not_resume_keeps_its_slot(
    change: Any, named: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial = Reported(Scripted(tmp_path, None, 4))
    thaw(trial, change)
    assert [*trial.values] == [*range(1, STEPS + 1)] and trial.segment.keeps
    [line] = [one.getMessage() for one in caplog.records if "keeps its slot" in one.getMessage()]
    assert named in line


def test_a_parameter_that_no_checkpoint_would_hold_is_refused(tmp_path: Path) -> None:
    model, weight = nn.Linear(2, 2), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*model.parameters(), weight], 0.1)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    trial = Reported(Scripted(tmp_path, None, None))
    with pytest.raises(DeadlineError, match=r"trains 1 parameters that no .* \(\(2,\)\)"):
        resumable(trial, steps=2, state=state)
    again = Reported(Scripted(tmp_path, None, None))
    resumable(again, steps=2, state={**state, "weights": [weight]})


def set_anew(trial: Any) -> tuple[Any, ...]:
    """Sets a learning rate, a weight and a number, and draws, between the two lines."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer, own = torch.optim.SGD(model.parameters(), 0.1), torch.Generator().manual_seed(1)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "own": own, "worst": 0.0}
    training = resumable(trial, steps=STEPS, state=state)
    optimizer.param_groups[0]["lr"] = 0.5
    nn.init.constant_(model.weight, 0.1)
    state["worst"] = -1.0
    rows = torch.randn(8, 4, generator=own)
    for step in training:
        loss = model(rows + torch.randn(8, 4, generator=own)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.7
        state["worst"] = max(state["worst"], loss.item())
        step.report(loss.item())
    return model.weight.tolist(), state["worst"], optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("at", [1, STEPS - 1])
def test_what_code_before_the_loop_sets_anew_is_put_back(at: int, tmp_path: Path) -> None:
    whole = set_anew(Reported(Scripted(tmp_path, None, None)))
    first = Reported(Scripted(tmp_path, None, at))
    with pytest.raises(SegmentEnd):
        set_anew(first)
    assert set_anew(Reported(Scripted(tmp_path, first.segment.saved[-1][2], None))) == whole


def test_a_scheduler_that_is_not_in_the_state_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    for named in (state, {**state, "scheduler": scheduler}):
        next(iter(resumable(Reported(Scripted(tmp_path, None, None)), steps=2, state=named)))
    [line] = [one.getMessage() for one in caplog.records]
    assert "A scheduler of SGD is in no checkpoint" in line and '{"scheduler": scheduler}' in line


def cross_validate(trial: Any) -> list[Any]:
    """Two folds; the second one ends early."""
    found: list[Any] = []
    for fold in range(3):
        torch.manual_seed(fold)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        state = {"model": model, "optimizer": optimizer}
        training = resumable(trial, steps=4, state=state, fit=f"fold-{fold}")
        for step in training:
            loss = model(torch.randn(8, 4) + fold).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step.report(loss.item())
            if fold == 1 and step == 2:
                break
        found += [training.result(), model.weight.tolist(), torch.rand(()).item()]
    return found


@pytest.mark.parametrize("leave_at", [1, 3, 100])
def test_folds_that_are_left_anywhere_are_the_same(leave_at: int, tmp_path: Path) -> None:
    whole, reports, _ = train_in_segments(tmp_path / "whole", cross_validate, 10**9)
    again, reported, segments = train_in_segments(tmp_path / "left", cross_validate, leave_at)
    assert again == whole and reported == reports
    assert sorted(reports) == list(range(1, 11)), "steps of folds follow each other"
    assert (segments > 1) == (leave_at < 100)


def test_a_second_loop_without_a_name_is_refused(tmp_path: Path) -> None:
    trial = Reported(Scripted(tmp_path, None, None))
    resumable(trial, steps=2, state={})
    with pytest.raises(DeadlineError, match=r'begins a second fit.*fit="fold-1"'):
        resumable(trial, steps=2, state={})


class Patience:
    worse = 0


def keep_variables(trial: Any) -> None:
    """Keeps a best value, a list and a count beside the state, and sets others in each step."""
    best, values, patience, unchanged, kept, copied = 9.0, [0.0], Patience(), [1], {"at": 0}, 0
    loss = None
    state: dict[str, Any] = {"kept": kept, "copied": 0}
    for step in resumable(trial, steps=STEPS, state=state):
        loss = 1.0 / step
        best, copied = min(best, loss), copied + len(unchanged)
        values.append(loss)
        patience.worse += 1
        kept["at"], state["copied"] = int(step), copied
        added = loss + copied
        step.report(added)


def test_variables_that_restart_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resume = None
    for at in (1, 2, None):
        trial = Reported(Scripted(tmp_path, resume, at))
        with pytest.raises(SegmentEnd) if at else nullcontext():
            keep_variables(trial)
        resume = trial.segment.saved[-1][2]
    [line] = [one for one in caplog.messages if "After a pause" in one]
    assert "its loop: best, loss, patience.worse, values. If a later step" in line
