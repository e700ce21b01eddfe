"""The loop in one process: every boundary, every schedule, what is refused, and plain Optuna."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import loop_training
import numpy as np
import optuna
import pytest
import torch
from elastic_harness import Plan, PlayedSegment, PlayedTrial
from left_segments import train_in_segments
from loop_training import net
from optuna.trial import TrialState
from optuna_deadline_torch import ElasticLoop
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics import SumMetric

from optuna_deadline import DeadlinePruner
from optuna_deadline.errors import DeadlineError
from optuna_deadline.segments import SegmentEnd

pytestmark = [
    pytest.mark.slow_names(
        r"^test_left_after_every_single_step\[(?!momentum, per step|dropout, whole)|^test_loaders"
    ),
    pytest.mark.nightly_but(r"\[(dropout, partial|accumulated)"),
]

PLAN = Plan("", epochs=3)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def segments(folder: Path, plan: Plan, leave_at: int | None) -> list[dict[str, Any]]:
    """Train to the end; each segment leaves at ``leave_at``, or after one step if it is over."""
    folder.mkdir()
    seen: list[dict[str, Any]] = []
    resume = None
    for fence in range(1, 100):
        now = replace(plan, folder=str(folder), fence=fence, leave_at=leave_at, resume=resume)
        segment = PlayedSegment(now, rank=0)
        trial, trace = PlayedTrial(segment), {}
        seen.append(trace)
        try:
            trace["result"] = loop_training.train(now, trial, segment, trace)
        except SegmentEnd:
            resume = segment.published[-1]["path"]
        trace.update(
            reports=trial.reports,
            published=segment.published,
            last=segment.last_step,
            positions=segment.positions,
        )
        if "result" in trace:
            return seen
    raise AssertionError("it never ends")


def joined(seen: list[dict[str, Any]], key: str) -> list[Any]:
    return [row for segment in seen for row in segment[key]]


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(PLAN, id="adam, per step"),
        pytest.param(replace(PLAN, optimizer="sgd", schedule="epoch"), id="momentum, per epoch"),
        pytest.param(replace(PLAN, epochs=4, schedule="plateau"), id="plateau"),
        pytest.param(replace(PLAN, dropout=0.5, batch=17), id="dropout, partial last batch"),
        pytest.param(replace(PLAN, trainer={"accumulate_grad_batches": 4}), id="accumulated"),
        pytest.param(replace(PLAN, epochs=1, workers=1), id="loader with a worker"),
        pytest.param(replace(PLAN, epochs=1, data="augmented"), id="augmented"),
        pytest.param(
            replace(PLAN, epochs=1, data="augmented", workers=2), id="augmented in workers"
        ),
        pytest.param(replace(PLAN, epochs=1, data="own generator"), id="own generators"),
        pytest.param(
            replace(PLAN, epochs=1, data="own generator in workers"), id="own ones in workers"
        ),
        pytest.param(replace(PLAN, epochs=2, data="jittered stream"), id="own ones of a stream"),
        pytest.param(replace(PLAN, reports=4), id="four reports an epoch"),
        pytest.param(
            replace(PLAN, reports=4, trainer={"accumulate_grad_batches": 4}),
            id="four reports an epoch, accumulated",
        ),
    ],
)
def test_left_after_every_single_step(tmp_path: Path, plan: Plan) -> None:
    """Schedulers that step after the report are left in between, too; equal to the last bit."""
    still = segments(tmp_path / "still", plan, None)
    moved = segments(tmp_path / "moved", plan, 0)
    assert len(still) == 1 and len(moved) >= still[0]["global_step"]
    for key in ("steps", "reports", "draws"):
        assert joined(still, key) == joined(moved, key)
    for key in ("result", "global_step", "last"):
        assert still[-1][key] == moved[-1][key]
    one, other = (torch.load(tmp_path / name / "final.pt") for name in ("still", "moved"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_best_checkpoint_is_the_model_of_its_value(tmp_path: Path) -> None:
    seen = segments(tmp_path / "run", replace(PLAN, epochs=5), None)[0]
    values = [one["value"] for one in seen["published"]]
    assert values == sorted(set(values)) and values[-1] == max(v for _, v in seen["reports"])
    newest = seen["published"][-1]
    assert Path(newest["path"]).name.startswith("segment-000001-step-0000000")
    model = net().eval()
    model.load_state_dict(torch.load(newest["path"], weights_only=True)["state_dict"])
    x, y, _ = loop_training.data(96)[1][:]
    assert float((model(x).argmax(1) == y).double().mean()) == newest["value"]


def test_an_epoch_that_is_reported_often_has_as_many_steps(tmp_path: Path) -> None:
    seen = segments(tmp_path / "run", replace(PLAN, epochs=2, reports=4), None)[0]
    assert [step for step, _ in seen["reports"]] == [*range(8)] and seen["last"] == 7
    assert seen["positions"] == sorted(seen["positions"]) and seen["positions"][-1] == 8.0
    other = replace(PLAN, epochs=2, reports=4, batch=8)  # steps mean the same in both
    again = segments(tmp_path / "other", other, None)[0]
    assert [step for step, _ in again["reports"]] == [*range(8)] and again["last"] == 7
    assert seen["published"][0]["step"] == 0


def test_lost_after_the_last_report(tmp_path: Path) -> None:
    first = segments(tmp_path / "first", replace(PLAN, epochs=1), None)[0]
    path = first["published"][-1]["path"]
    plan = replace(PLAN, epochs=1, folder=str(tmp_path), resume=path, fence=2)
    segment = PlayedSegment(plan, 0)
    seen: dict[str, Any] = {}
    assert loop_training.train(plan, PlayedTrial(segment), segment, seen) == first["result"]
    assert seen["steps"] == []


def played(segment: PlayedSegment) -> PlayedTrial:
    trial = PlayedTrial(segment)
    trial.suggest_float = lambda *_: 0.1  # type: ignore[attr-defined]
    return trial


def small(trial: Any, **options: Any) -> tuple[ElasticLoop, torch.optim.Optimizer, Any]:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.suggest_float("lr", 0.01, 0.1))
    loader = DataLoader(TensorDataset(torch.randn(8, 2)), 2, shuffle=True)
    return ElasticLoop(trial, model, optimizer, epochs=4, **options), optimizer, loader


def descend(loop: ElasticLoop, optimizer: Any, loader: Any) -> None:
    for (x,) in loop.batches(loader):
        optimizer.zero_grad()
        loop.backward(loop.model(x).square().mean())
        optimizer.step()


def test_plain_optuna_prunes_and_completes() -> None:
    def objective(trial: optuna.Trial) -> float:
        loop, optimizer, loader = small(trial)
        for epoch in loop.epochs():
            descend(loop, optimizer, loader)
            loop.report(trial.number + epoch)
        return loop.result()

    pruner = DeadlinePruner("1h", max_resource=4)
    study = optuna.create_study(pruner=pruner, sampler=optuna.samplers.RandomSampler(0))
    study.optimize(objective, n_trials=6)
    assert study.trials[0].state is TrialState.COMPLETE and study.trials[0].value == 3.0
    pruned = [trial for trial in study.trials if trial.state is TrialState.PRUNED]
    assert pruned and all(len(trial.intermediate_values) < 4 for trial in pruned)


def test_plain_optuna_prunes_and_ends_within_an_epoch() -> None:
    def objective(trial: optuna.Trial) -> float:
        loop, optimizer, loader = small(trial, reports_per_epoch=4)
        for _ in loop.epochs():
            for (x,) in loop.batches(loader):
                optimizer.zero_grad()
                loop.backward(loop.model(x).square().mean())
                optimizer.step()
                assert loop.report_due
                loop.report(float(trial.number))
                assert not loop.report_due
        return loop.result()

    study = optuna.create_study(pruner=DeadlinePruner("1h", max_resource=6))
    study.optimize(objective, n_trials=3)
    steps = [list(trial.intermediate_values) for trial in study.trials]
    assert study.trials[0].state is TrialState.COMPLETE and 4 < len(steps[0]) < 8
    pruned = [trial for trial in study.trials if trial.state is TrialState.PRUNED]
    assert pruned and all(len(trial.intermediate_values) < 4 for trial in pruned)


def test_reports_within_an_epoch_need_its_length_and_a_step() -> None:
    trial = optuna.create_study().ask()
    with pytest.raises(DeadlineError, match="reports_per_epoch must be 1 or more"):
        small(trial, reports_per_epoch=0)
    loop, optimizer, loader = small(trial, reports_per_epoch=2)
    with pytest.raises(DeadlineError, match="needs a loader with a length"):
        for _ in loop.epochs():
            next(loop.batches(iter([torch.ones(1, 2)])))
    loop, optimizer, loader = small(trial, reports_per_epoch=2)
    due = []
    for _ in loop.epochs():
        for (x,) in loop.batches(loader):
            loop.backward(loop.model(x).mean())
            if loop.batch == 1:
                with pytest.raises(DeadlineError, match="before a report"):
                    loop.report(1.0)
            if loop.batch >= 2:
                optimizer.step()
            due.append(loop.report_due)
        break
    assert due == [False, False, True, True]  # until it is reported


def test_plain_optuna_trains_as_a_worker_does(tmp_path: Path) -> None:
    worker = segments(tmp_path / "worker", PLAN, None)[0]
    seen: dict[str, Any] = {}
    plan = replace(PLAN, folder=str(tmp_path))

    def objective(trial: optuna.Trial) -> float:
        return loop_training.train(plan, trial, PlayedSegment(plan, 0), seen)

    study = optuna.create_study(direction="maximize")
    study.optimize(objective, n_trials=1)
    assert seen["steps"] == worker["steps"] and study.best_value == worker["result"]


def test_plain_optuna_ends_in_time_with_a_value() -> None:
    def objective(trial: optuna.Trial) -> float:
        loop, optimizer, loader = small(trial)
        for epoch in loop.epochs():
            descend(loop, optimizer, loader)
            loop.report(float(epoch))
        return loop.result()

    study = optuna.create_study(pruner=DeadlinePruner("1h", max_resource=2))
    study.optimize(objective, n_trials=1)
    [trial] = study.trials
    assert trial.state is TrialState.COMPLETE and len(trial.intermediate_values) < 4


def test_a_break_keeps_the_best(tmp_path: Path) -> None:
    segment = PlayedSegment(replace(PLAN, folder=str(tmp_path)), 0)
    trial = played(segment)
    loop, optimizer, loader = small(trial)
    for _ in loop.epochs():
        descend(loop, optimizer, loader)
        loop.report(0.75)
        break
    assert loop.result() == 0.75
    [published] = segment.published
    assert published["value"] == 0.75 and published["step"] == 0
    segment.resume = Path(published["path"])
    again, _, _ = small(played(segment))
    assert list(again.epochs()) == [] and again.result() == 0.75


def test_each_report_names_the_batch_and_the_precision(tmp_path: Path) -> None:
    segment = PlayedSegment(replace(PLAN, folder=str(tmp_path)), 0)
    trial = played(segment)
    loop, optimizer, loader = small(trial)
    for epoch in loop.epochs():
        descend(
            loop, optimizer, DataLoader(loader.dataset, 2 * loader.batch_size) if epoch else loader
        )
        loop.report(0.75)
    size = loader.batch_size
    assert segment.regimes[:2] == [f"batch {size}, float32", f"batch {2 * size}, float32"]


def test_what_is_refused() -> None:
    trial = optuna.create_study().ask()

    def loop(model: nn.Module, **also: Any) -> ElasticLoop:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
        return ElasticLoop(trial, model, optimizer, epochs=2, **also)

    sharded = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    engine = type("DeepSpeedEngine", (nn.Module,), {})()
    nn.Module.__init__(sharded)
    with pytest.raises(DeadlineError, match="sharded by FSDP cannot change its number of slots"):
        loop(nn.Sequential(sharded))
    with pytest.raises(DeadlineError, match="sharded by DeepSpeed"):
        loop(engine)
    with pytest.raises(DeadlineError, match="wrapped in DataParallel already"):
        loop(nn.DataParallel(nn.Linear(1, 1)))
    with pytest.raises(DeadlineError, match="total=SumMetric is a metric"):
        loop(nn.Linear(1, 1), total=SumMetric())
    with pytest.raises(DeadlineError, match=r"count=int has no state_dict.*keep it in a dict"):
        loop(nn.Linear(1, 1), count=3)
    with pytest.raises(DeadlineError, match="The objective has not reported"):
        loop(nn.Linear(1, 1)).result()


def with_plain_states(trial: Any) -> tuple[Any, ...]:
    """A loop that names lists, numbers in a dict, arrays, tensors and generators by itself."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses, counts, weight, sums = list[float](), {"steps": 0}, torch.ones(4), np.zeros(2)
    draws, rows = torch.Generator().manual_seed(2), torch.randn(32, 4)
    loader = DataLoader(TensorDataset(rows), 8, shuffle=True)
    loop = ElasticLoop(
        trial, model, optimizer, epochs=3, losses=losses, counts=counts, weight=weight,
        sums=sums, draws=draws,
    )  # fmt: skip
    for _ in loop.epochs():
        for (x,) in loop.batches(loader):
            loss = (loop.model(x) * weight + torch.rand((), generator=draws)).square().mean()
            optimizer.zero_grad()
            loop.backward(loss)
            optimizer.step()
            losses.append(loss.item())
            counts["steps"] += 1
            weight.mul_(0.9)
            sums += 1
        loop.report(sum(losses) / len(losses))
    return losses, counts, weight.tolist(), sums.tolist()


@pytest.mark.parametrize("leave_at", [1, 3])
def test_plain_states_are_filled_in_place(tmp_path: Path, leave_at: int) -> None:
    whole, reports, _ = train_in_segments(tmp_path / "whole", with_plain_states, 10**9)
    left, reported, segments = train_in_segments(tmp_path / "left", with_plain_states, leave_at)
    assert segments > 1 and left == whole and reported == reports


def test_mistakes_in_the_loop_are_told() -> None:
    trial = optuna.create_study().ask()
    loop, optimizer, loader = small(trial)
    with pytest.raises(DeadlineError, match="in an epoch of"):
        loop.report(1.0)
    with pytest.raises(DeadlineError, match="once in each epoch"):
        next(loop.batches(loader))
    for _ in loop.epochs():
        for (x,) in loop.batches(loader):
            with pytest.raises(DeadlineError, match="after its batches"):
                loop.report(1.0)
            loop.backward(loop.model(x).mean())
        with pytest.raises(DeadlineError, match="The last 4 batches"):
            loop.report(1.0)
        with pytest.raises(DeadlineError, match="once in each epoch"):
            next(loop.batches(loader))
        break
    loop, optimizer, loader = small(trial)
    with pytest.raises(DeadlineError, match=r"Call loop\.backward\(loss\)"):
        for _ in loop.epochs():
            for (x,) in loop.batches(loader):
                loop.model(x).mean().backward()
                optimizer.step()


def test_a_state_that_would_not_load_is_told_when_it_is_saved(tmp_path: Path) -> None:
    class Strange:
        def state_dict(self) -> Any:
            return {"path": Path("data")}

        def load_state_dict(self, state: Any) -> None: ...

    segment = PlayedSegment(replace(PLAN, folder=str(tmp_path), leave_at=0), 0)
    trial = played(segment)
    loop, optimizer, loader = small(trial, strange=Strange())
    with pytest.raises(DeadlineError, match="not a tensor, a number"):
        for _ in loop.epochs():
            descend(loop, optimizer, loader)
    assert list(tmp_path.iterdir()) == [] and segment.published == []


def test_a_stream_is_read_again_up_to_its_place(tmp_path: Path) -> None:
    class Stream(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            return (torch.tensor([float(i), 1.0]) for i in range(8))

    segment = PlayedSegment(replace(PLAN, folder=str(tmp_path), leave_at=0), 0)
    read: list[float] = []
    for fence in range(1, 4):
        segment.fence = fence
        trial = played(segment)
        loop, optimizer, _ = small(trial)
        with pytest.raises(SegmentEnd):
            for _ in loop.epochs():
                for x in loop.batches(DataLoader(Stream(), 2)):
                    read.append(float(x[0, 0]))
                    loop.backward(loop.model(x).mean())
                    optimizer.step()
        segment.resume = Path(segment.published[-1]["path"])
    assert read == [0.0, 2.0, 4.0]


def test_another_order_than_the_checkpoints_is_refused(tmp_path: Path) -> None:
    def train(loader: DataLoader[Any]) -> None:
        trial = played(segment)
        loop, optimizer, _ = small(trial)
        for _ in loop.epochs():
            descend(loop, optimizer, loader)

    data = TensorDataset(torch.randn(8, 2))
    segment = PlayedSegment(replace(PLAN, folder=str(tmp_path), leave_at=0), 0)
    with pytest.raises(SegmentEnd):
        train(DataLoader(data, 2))
    segment.resume = Path(segment.published[-1]["path"])
    with pytest.raises(DeadlineError, match="has batches of 4 samples"):
        train(DataLoader(data, 4))
    with pytest.raises(DeadlineError, match="order of samples that list draws for epoch 0"):
        train(DataLoader(data, 2, sampler=[*reversed(range(8))]))
    with pytest.raises(DeadlineError, match="Epoch 0 has 3 batches, and it had 4"):
        train(DataLoader(TensorDataset(torch.randn(6, 2)), 2))
    with pytest.raises(SegmentEnd):
        train(DataLoader(data, 2))


def test_a_sampler_with_a_state_of_its_own_is_refused_under_a_worker_only(tmp_path: Path) -> None:
    class Once:
        """As a batch sampler: another order each time."""

        def __init__(self) -> None:
            self.count = 0

        def __iter__(self) -> Iterator[list[int]]:
            self.count += 1
            return iter([[(self.count + i) % 8] for i in range(8)])

    loader = DataLoader(TensorDataset(torch.randn(8, 2)), batch_sampler=Once())  # type: ignore[arg-type]
    trial = played(PlayedSegment(replace(PLAN, folder=str(tmp_path)), 0))
    loop, optimizer, _ = small(trial)
    with pytest.raises(DeadlineError, match="loader's Once draws another order"):
        for _ in loop.epochs():
            descend(loop, optimizer, loader)
    assert loop.steps == 0
    plain, optimizer, _ = small(optuna.create_study().ask())
    for epoch in plain.epochs():
        descend(plain, optimizer, loader)
        plain.report(float(epoch))
    assert plain.steps == 4 * 8


def test_a_loader_that_does_not_ask_its_sampler_is_refused() -> None:
    class Wrapping(DataLoader[Any]):
        def __iter__(self) -> Any:
            return iter(DataLoader(self.dataset, 2))

    loop, optimizer, _ = small(optuna.create_study().ask())
    with pytest.raises(DeadlineError, match="without its batch_sampler"):
        for _ in loop.epochs():
            descend(loop, optimizer, Wrapping(TensorDataset(torch.randn(8, 2)), 2))
    assert loop.steps == 0


def test_a_loader_of_its_own_for_each_epoch_goes_on(tmp_path: Path) -> None:
    data = TensorDataset(torch.randn(8, 2))
    segment = PlayedSegment(replace(PLAN, folder=str(tmp_path), leave_at=0), 0)
    sizes: list[int] = []
    for fence in range(1, 30):
        segment.fence = fence
        trial = played(segment)
        loop, optimizer, _ = small(trial)
        try:
            for epoch in loop.epochs():
                for (x,) in loop.batches(DataLoader(data, 2**epoch, shuffle=True)):
                    sizes.append(len(x))
                    optimizer.zero_grad()
                    loop.backward(loop.model(x).square().mean())
                    optimizer.step()
                loop.report(0.5)
            break
        except SegmentEnd:
            segment.resume = Path(segment.published[-1]["path"])
    assert sizes == [1] * 8 + [2] * 4 + [4] * 2 + [8]


def test_a_loader_with_a_state_goes_on_at_its_place_and_begins_each_epoch_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Stateful:
        """Counts on over all epochs, three batches in each."""

        def __init__(self) -> None:
            self.epoch, self.next = 0, 0

        def __iter__(self) -> Iterator[torch.Tensor]:
            while self.next < 3:
                self.next += 1
                yield torch.tensor([[3.0 * self.epoch + self.next, 1.0]])
            self.epoch, self.next = self.epoch + 1, 0

        def state_dict(self) -> dict[str, int]:
            return {"epoch": self.epoch, "next": self.next}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.epoch, self.next = state["epoch"], state["next"]

    segment = PlayedSegment(replace(PLAN, folder=str(tmp_path), leave_at=0), 0)
    read: list[tuple[int, float]] = []
    for fence in range(1, 9):
        segment.fence = fence
        trial = played(segment)
        loop, optimizer, _ = small(trial)
        loader = Stateful()
        with pytest.raises(SegmentEnd):
            for epoch in loop.epochs():
                for x in loop.batches(loader):
                    read.append((epoch, float(x[0, 0])))
                    loop.backward(loop.model(x).mean())
                    optimizer.step()
                loop.report(0.5)
        segment.resume = Path(segment.published[-1]["path"])
    assert read == [(count // 3, count + 1.0) for count in range(len(read))] and len(read) > 5
    assert "read again" not in caplog.text


def test_a_step_that_a_scaler_skips_loses_nothing() -> None:
    """Gradients that overflowed are not kept for later, so the epoch may end with them."""
    trial = optuna.create_study().ask()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    loop, optimizer, loader = small(trial, scaler=scaler)
    for epoch in loop.epochs():
        for (x,) in loop.batches(loader):
            optimizer.zero_grad()
            overflow = float("inf") if loop.batch == 3 else 1.0
            loop.backward(scaler.scale(loop.model(x).square().mean() * overflow))
            scaler.step(optimizer)
            scaler.update()
        assert loop.steps == 3 * (epoch + 1)
        loop.report(1.0)
    assert loop.result() == 1.0


def test_loaders_beside_the_first_one_go_on_at_their_places(tmp_path: Path) -> None:
    plan = replace(PLAN, data="beside", samples=100)  # 7 batches; of the shorter one 5
    [still] = segments(tmp_path / "still", plan, None)
    paused = segments(tmp_path / "paused", plan, 0)
    assert len(paused) > 20
    assert [step for one in paused for step in one["steps"]] == still["steps"]
    for epoch in range(plan.epochs):
        ids = [step["ids"] for step in still["steps"] if step["epoch"] == epoch]
        shorter = [one for part in ids[:5] for one in part[16:-4]]
        assert sorted(shorter) == [*range(0, 100, 2)], "all of it, and then it begins again"
        assert ids[5][16:-4] != ids[0][16:-4], "in another order"
    again = torch.load(tmp_path / "paused" / "final.pt")
    assert all(
        torch.equal(one, again[name])
        for name, one in torch.load(tmp_path / "still" / "final.pt").items()
    )


def test_a_loader_that_is_zipped_with_the_batches_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for data in ("", "beside", "zipped"):
        caplog.clear()
        segments(tmp_path / f"data {data}", replace(PLAN, data=data), None)
        lines = [one for one in caplog.messages if "write `for x, y in loop.batches(a, b)`" in one]
        assert len(lines) == (data == "zipped")
