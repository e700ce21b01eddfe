"""A training of Hugging Face's ``Trainer`` that is paused or resized is the same training."""

from __future__ import annotations

import json
import logging
import shutil
import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import elastic_data
import optuna
import pytest
import tiny_bert
import torch
import users_objects
from accelerate import Accelerator
from left_segments import FakeSegment, FakeTrial, train_in_segments
from optuna.trial import TrialState
from optuna_deadline_transformers import DeadlineCallback
from optuna_deadline_transformers.slots import one_slot_only
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_bert import accuracy, make_model, train
from transformers import Trainer, TrainerCallback, TrainingArguments
from users_objects import KEPT
from worker_objective import Scripted

import optuna_deadline
from optuna_deadline import DeadlinePruner, DeadlineSampler
from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies import registry
from optuna_deadline.segments import SegmentEnd

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly_but(
        r"by steps|augmented|two passes|refused|between|ended_once|full_disk|forgotten|accelerate"
        r"|search|slots"
    ),
]

HABITS: dict[str, dict[str, Any]] = {
    "by epoch": {},
    "by steps": {"eval_strategy": "steps", "eval_steps": 3},
    "accumulated": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 8},
    "stopped early": {
        "patience": 1, "metric_for_best_model": "accuracy", "load_best_model_at_end": True,
        "save_strategy": "epoch", "num_train_epochs": 8,
    },
    "a number of steps": {"max_steps": 10},
    "half an epoch": {"num_train_epochs": 1.5},
    "a plateau": {"lr_scheduler_type": "reduce_lr_on_plateau", "num_train_epochs": 4},
    "the best is saved": {"save_strategy": "best", "metric_for_best_model": "accuracy"},
    "read by others": {"dataloader_num_workers": 1, "data": tiny_bert.Augmented},
    "augmented": {"data": tiny_bert.Augmented, "ignore_data_skip": True},
    "an order of torch's": {"accelerator_config": {"use_seedable_sampler": False}},
    "a stream": {"data": tiny_bert.Stream, "max_steps": 10},
    "evaluated before": {"eval_on_start": True},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("leave_at", [1, 3])
def test_a_training_that_is_left_after_any_step_gives_the_same_weights_and_reports(
    tmp_path: Path, habit: str, leave_at: int
) -> None:
    def run(folder: Path, looks: int) -> Any:
        (weights, value), reports, segments = train_in_segments(
            folder, lambda trial: train(trial, folder, **HABITS[habit]), looks
        )
        return weights, value, reports, segments

    weights, value, reports, _ = run(tmp_path / "whole", 10**9)
    others, other, reported, segments = run(tmp_path / "left", leave_at)
    assert segments > 1
    assert torch.equal(weights, others)
    assert other == value and reported == reports
    assert list(reports) == list(range(1, len(reports) + 1))


@pytest.mark.parametrize("leave_at", [1, 3, 4])
def test_what_other_callbacks_the_trainer_and_the_model_keep_goes_on(
    tmp_path: Path, leave_at: int
) -> None:
    def run(folder: Path, looks: int) -> Any:
        def train_counted(trial: Any) -> Any:
            callbacks = [tiny_bert.Counting(), tiny_bert.Counting(), tiny_bert.Thawing()]
            kind = tiny_bert.CountingTrainer
            return train(trial, folder, callbacks=callbacks, trainer=kind)

        return train_in_segments(folder, train_counted, looks)

    (weights, _), reports, _ = run(tmp_path / "whole", 10**9)
    (others, _), reported, segments = run(tmp_path / "left", leave_at)
    assert segments > 1 and reported == reports and torch.equal(weights, others)


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("leave_at", [1, 3])
def test_what_users_keep_between_steps_goes_on(tmp_path: Path, kept: str, leave_at: int) -> None:
    def run(folder: Path, looks: int) -> Any:
        return train_in_segments(folder, lambda trial: train(trial, folder, **KEPT[kept]()), looks)

    (weights, _), reports, _ = run(tmp_path / "whole", 10**9)
    (others, _), reported, segments = run(tmp_path / "left", leave_at)
    assert segments > 1 and reported == reports and torch.equal(weights, others)


@pytest.mark.parametrize("leave_at", [1, 4])
def test_a_trial_whose_epoch_is_cut_stays(
    tmp_path: Path, leave_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Trainer would resume it at another place."""

    def run(folder: Path, looks: int) -> Any:
        options = {"callbacks": [users_objects.Cutting()], "num_train_epochs": 4}
        return train_in_segments(folder, lambda trial: train(trial, folder, **options), looks)

    (weights, _), reports, _ = run(tmp_path / "whole", 10**9)
    caplog.clear()
    (others, _), reported, segments = run(tmp_path / "left", leave_at)
    assert segments == 4 - leave_at if leave_at < 4 else 1
    assert reported == reports and torch.equal(weights, others)
    assert sum("a callback has ended an epoch early" in one for one in caplog.messages) == 1


def test_data_that_counts_its_reads_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(trial: Any) -> Any:
        return train(trial, tmp_path, data=users_objects.Reads)

    train_in_segments(tmp_path / "left", run, 3)
    [line] = [one for one in caplog.messages if "Reading the training data changes it" in one]
    assert "dataset" in line and "reads" in line


class CountsEpochs(Trainer):
    """Has a sampler that counts how often it is read."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return elastic_data.CountsEpochs(64)


def test_a_sampler_that_counts_epochs_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeadlineError, match="CountsEpochs draws another order"):
        train_in_segments(
            tmp_path, lambda trial: train(trial, tmp_path, trainer=CountsEpochs), 10**9
        )


def test_a_parameter_beside_the_model_is_refused(tmp_path: Path) -> None:
    _, trial = start(tmp_path)
    with pytest.raises(DeadlineError, match="trains 1 parameters that no checkpoint would hold"):
        train(trial, tmp_path, trainer=users_objects.Tempered)


def start(folder: Path, **options: Any) -> tuple[FakeSegment, FakeTrial]:
    (own := folder / "1").mkdir()
    segment = FakeSegment(own, 1, None, options.pop("leave_at", 10**9))
    return segment, FakeTrial(segment, {})


def test_a_checkpoint_is_a_folder_of_the_trainers(tmp_path: Path) -> None:
    segment, trial = start(tmp_path)
    train(trial, tmp_path)
    assert segment.saved is not None and segment.horizons == [tiny_bert.EPOCHS]
    with zipfile.ZipFile(segment.saved) as archive:
        archive.extractall(tmp_path)
    loaded = type(make_model()).from_pretrained(tmp_path / "checkpoint")
    arguments = TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True
    )
    judge = Trainer(
        loaded, arguments, eval_dataset=tiny_bert.Sums(64, 1), compute_metrics=accuracy
    )
    assert judge.evaluate()["eval_loss"] == pytest.approx(min(trial.reports.values()))
    assert not list((tmp_path / "out").glob("checkpoint-*")), "only the worker's folder has it"


@pytest.mark.usefixtures("event_files_from_0")
def test_a_trial_has_one_run_of_a_logger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("TENSORBOARD_LOGGING_DIR", "WANDB_RUN_ID", "WANDB_RESUME")

    def in_a_new_process(trial: Any) -> Any:
        for name in names:
            monkeypatch.delenv(name, raising=False)
        logs = {"report_to": ["tensorboard"], "logging_strategy": "steps", "logging_steps": 1}
        return train(trial, tmp_path, **logs)

    for name in names:  # set back after the test
        monkeypatch.setenv(name, "")
    _, _, segments = train_in_segments(tmp_path, in_a_new_process, 3)
    [folder] = {path.parent for path in tmp_path.rglob("events.out*")}
    assert segments > 2 and folder.parent == tmp_path / "out" / "runs"
    found = EventAccumulator(str(folder)).Reload()
    assert [one.step for one in found.Scalars("train/loss")] == list(range(1, 13))


@pytest.mark.parametrize("leave_at", [10**9, 2])
def test_a_full_disk_costs_a_checkpoint_and_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave_at: int
) -> None:
    """The trainer's own writing would end the trial, so room is looked for before it."""
    segment, trial = start(tmp_path, leave_at=leave_at)
    errors = list[OSError]()

    def save(write: Any, **facts: Any) -> None:
        with pytest.raises(OSError, match="No space left on device") as info:
            write(tmp_path / "unused")
        errors.append(info.value)

    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1000))
    segment.save = save  # type: ignore[assignment, method-assign]
    with pytest.raises(SegmentEnd) if leave_at < 10**9 else nullcontext():
        train(trial, tmp_path)
    assert errors and not list(tmp_path.rglob("checkpoint-*"))
    assert leave_at < 10**9 or len(trial.reports) == tiny_bert.EPOCHS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eval_strategy": "no"}, 'pass eval_strategy="epoch"'),
        ({"monitor": "f1"}, r"no metric 'eval_f1': it has epoch, eval_accuracy, eval_loss"),
        ({"auto_find_batch_size": True}, "pass per_device_train_batch_size"),
        ({"fsdp": "full_shard"}, r"fsdp=\.\.\.\) shards the model"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_words(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    _, trial = start(tmp_path)
    with pytest.raises(DeadlineError, match=message):
        train(trial, tmp_path, **options)


def trainer(deadline: DeadlineCallback, args: TrainingArguments) -> Trainer:
    return Trainer(
        model_init=lambda: make_model(), args=args, train_dataset=tiny_bert.Sums(64, 0),
        eval_dataset=tiny_bert.Sums(64, 1), callbacks=[deadline],
    )  # fmt: skip


def arguments(folder: Path) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder / "out"), num_train_epochs=2, eval_strategy="epoch", use_cpu=True,
        report_to=[], disable_tqdm=True, save_strategy="no",
    )  # fmt: skip


def test_a_line_that_was_forgotten_is_named(tmp_path: Path) -> None:
    _, trial = start(tmp_path)
    deadline = DeadlineCallback(trial, "eval_loss")
    with pytest.raises(DeadlineError, match=r"args=deadline\.adapt\("):
        trainer(deadline, arguments(tmp_path)).train()
    with pytest.raises(DeadlineError, match="Nothing was reported"):
        _ = deadline.value

    segment, trial = start(tmp_path / "1", leave_at=2)
    with pytest.raises(SegmentEnd):
        train(trial, tmp_path)
    resumed = FakeTrial(FakeSegment(tmp_path, 2, segment.saved, 10**9), {})
    deadline = DeadlineCallback(resumed, "eval_loss")
    with pytest.raises(DeadlineError, match=r"resume_from_checkpoint=deadline\.checkpoint"):
        trainer(deadline, deadline.adapt(arguments(tmp_path))).train()


def test_a_second_training_without_a_name_is_refused(tmp_path: Path) -> None:
    _, trial = start(tmp_path)
    DeadlineCallback(trial, "eval_loss")
    with pytest.raises(DeadlineError, match="give each fit of the trial a name"):
        DeadlineCallback(trial, "eval_loss")


@pytest.mark.parametrize("habit", ["by epoch", "by steps", "stopped early", "a number of steps"])
@pytest.mark.parametrize("leave_at", [1, 3])
def test_folds_of_a_trial_resume_each_from_its_own_state(
    tmp_path: Path, habit: str, leave_at: int
) -> None:
    def run(folder: Path, looks: int) -> Any:
        def folds(trial: Any) -> Any:
            found = [
                train(trial, folder, fit=f"fold-{fold}", seed=fold, **HABITS[habit])
                for fold in range(3)
            ]
            return [one.tolist() for one, _ in found], [value for _, value in found]

        return train_in_segments(folder, folds, looks)

    found, reports, _ = run(tmp_path / "whole", 10**9)
    left, reported, segments = run(tmp_path / "left", leave_at)
    assert segments > 3 and left == found and reported == reports
    assert list(reports) == list(range(1, len(reports) + 1))


def test_a_stream_is_none_of_several_trainings(tmp_path: Path) -> None:
    _, trial = start(tmp_path)
    with pytest.raises(DeadlineError, match="needs data with a length"):
        train(trial, tmp_path, fit="fold-1", **HABITS["a stream"])


@pytest.mark.parametrize("elastic", [True, False])
def test_one_callback_in_two_trainings_is_refused(tmp_path: Path, elastic: bool) -> None:
    _, trial = start(tmp_path)
    if not elastic:
        trial.segment = None
        trial.should_prune = lambda: False  # type: ignore[attr-defined]
        trial.study = None  # type: ignore[attr-defined]
    deadline = DeadlineCallback(trial, "eval_loss")
    built = trainer(deadline, deadline.adapt(arguments(tmp_path)))
    built.train()
    with pytest.raises(DeadlineError, match="has reported another training"):
        built.train()


def test_evaluations_after_the_training_are_the_objectives_own(tmp_path: Path) -> None:
    _, trial = start(tmp_path)
    deadline = DeadlineCallback(trial, "eval_loss")
    built = trainer(deadline, deadline.adapt(arguments(tmp_path)))
    built.evaluate()
    built.train()
    assert list(trial.reports) == [1, 2]
    built.evaluate()
    assert list(trial.reports) == [1, 2] and deadline.value == trial.reports[2]


class Watched(TrainerCallback):
    """A user's own evaluations of other data, and of the same data between two reports."""

    trainer: Trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **also: Any) -> None:
        if state.global_step % 4 == 3:
            self.trainer.evaluate(tiny_bert.Sums(16, 2), metric_key_prefix="test")
            self.trainer.evaluate()


def test_an_evaluation_between_two_reports_is_none(tmp_path: Path) -> None:
    _, trial = start(tmp_path)
    deadline, watched = DeadlineCallback(trial, "eval_loss"), Watched()
    watched.trainer = built = trainer(deadline, deadline.adapt(arguments(tmp_path)))
    built.add_callback(watched)
    built.train()
    assert [*trial.reports] == [1, 2]
    evaluated = [entry for entry in built.state.log_history if "eval_loss" in entry]
    assert len(evaluated) > 2
    assert trial.reports[2] == evaluated[-1]["eval_loss"]


def test_a_stream_that_has_ended_once_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    segment, trial = start(tmp_path, leave_at=7)  # of 10 steps, in passes of 4
    kept: list[bool] = []
    segment.keep_slots = lambda: kept.append(True)  # type: ignore[method-assign]
    train(trial, tmp_path, data=tiny_bert.Stream, max_steps=10)
    assert list(trial.reports) == [1, 2, 3] and kept == [True]
    assert sum("ended once" in message for message in caplog.messages) == 1


def test_one_of_several_data_sets_has_the_metric_and_all_count_as_validation(
    tmp_path: Path,
) -> None:
    segment, trial = start(tmp_path)
    took: list[float] = []
    segment.validated = took.append  # type: ignore[method-assign]
    deadline = DeadlineCallback(trial, "eval_b_loss")
    built = trainer(deadline, deadline.adapt(arguments(tmp_path)))
    built.eval_dataset = {name: tiny_bert.Sums(16, 1) for name in "abc"}
    built.train()
    assert list(trial.reports) == [1, 2]
    assert len(took) == 6 and min(took) > 0.0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"train_sampling_strategy": "group_by_length"}, "grouped by length"),
        ({"accelerator_config": {"split_batches": True}}, "split_batches=True"),
        ({}, None),
    ],
)
def test_a_training_that_has_to_stay_on_one_slot_says_why(
    tmp_path: Path, options: dict[str, Any], why: str | None
) -> None:
    args = TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, per_device_train_batch_size=8, report_to=[],
        **options,
    )  # fmt: skip
    found = one_slot_only(args)
    assert found is None if why is None else why in str(found)


def accelerated(trial: Any) -> tuple[torch.Tensor, float]:
    """A loop with accelerate, on one slot."""
    torch.manual_seed(3)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    state = {"model": model, "optimizer": optimizer, "schedule": schedule}
    training = optuna_deadline.resumable(trial, steps=8, state=state)
    x = torch.ones(16, 4)
    for step in training:
        loss = (model(x) - 1).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        step.report(loss.item())
    return tiny_bert.weights(model), training.result()


@pytest.mark.parametrize("leave_at", [1, 3])
def test_a_loop_with_accelerate_is_resumed_exactly(tmp_path: Path, leave_at: int) -> None:
    (whole, value), reports, _ = train_in_segments(tmp_path / "whole", accelerated, 10**9)
    (left, other), reported, segments = train_in_segments(tmp_path / "left", accelerated, leave_at)
    assert segments > 2
    assert torch.equal(whole, left) and value == other and reports == reported


LONG = 5000  # epochs, more than any machine trains in the test's seconds


def plain(trial: optuna.Trial, folder: Path) -> float:
    trial.suggest_float("x", 0, 1)
    return train(trial, folder, num_train_epochs=LONG)[1]


def test_plain_optuna_ends_by_the_deadline(tmp_path: Path) -> None:
    study = optuna.create_study(pruner=DeadlinePruner("6s"), sampler=DeadlineSampler())
    study.optimize(lambda trial: plain(trial, tmp_path))
    ended = [trial for trial in study.trials if trial.state is TrialState.COMPLETE]
    assert ended and all(len(trial.intermediate_values) < LONG for trial in study.trials)
    assert optuna_deadline.time_left(study) > -1


def test_hyperparameter_search_takes_pruner_and_sampler(tmp_path: Path) -> None:
    searched = Trainer(
        model_init=lambda trial: make_model(), args=arguments(tmp_path),
        train_dataset=tiny_bert.Sums(64, 0), eval_dataset=tiny_bert.Sums(64, 1),
    )  # fmt: skip
    found = searched.hyperparameter_search(
        lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1)},
        compute_objective=lambda metrics: metrics["eval_loss"],
        n_trials=None, pruner=DeadlinePruner("5s"), sampler=DeadlineSampler(),
        storage=f"sqlite:///{tmp_path}/s.db", study_name="searched",
    )  # fmt: skip
    study = optuna.load_study(study_name="searched", storage=f"sqlite:///{tmp_path}/s.db")
    assert optuna_deadline.time_left(study) < 4
    assert found.hyperparameters == study.best_params


@pytest.mark.slow
def test_the_first_trial_is_checked_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTIONS", json.dumps({"check": True, "optim": "sgd"}))
    found = run_worker(tmp_path / "s", {0: 1}, monkeypatch)["attributes"]["optuna_deadline:check"]
    assert found and all(words.startswith("exact") for words in found.values()), found


def run_worker(
    folder: Path, sizes: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    folder.mkdir()
    monkeypatch.setenv("TRACE", str(folder))
    monkeypatch.setitem(registry._OURS, "scripted", lambda **_: Scripted(sizes))
    study = optuna.create_study(storage=f"sqlite:///{folder}/s.db")
    result = optuna_deadline.run(
        study, f"{tiny_bert.__file__}:objective", cpus=2, deadline="90s", checkpoints=folder,
        policy="scripted",
    )  # fmt: skip
    [trial] = study.trials
    assert result.settled and result.checkpoint_ok and trial.state is TrialState.COMPLETE
    rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    return {
        "rows": rows,
        "weights": torch.load(folder / "final.pt", weights_only=True),
        "values": trial.intermediate_values,
        "attributes": trial.user_attrs,
        "left": [one.name for one in folder.rglob("*.tmp")],
    }


@pytest.mark.parametrize(
    "options",
    [
        {},
        # The loss of BERT ignores the number of labels, so a step has the sum of its passes.
        {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "optim": "sgd"},
    ],
    ids=["one pass", "two passes"],
)
def test_a_worker_resizes_a_trial_and_its_steps_keep_their_batch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setenv("OPTIONS", json.dumps(options))
    whole = run_worker(tmp_path / "whole", {0: 1}, monkeypatch)
    resized = run_worker(tmp_path / "resized", {0: 1, 3: 2, 7: 1}, monkeypatch)
    steps = list(range(1, 12 * 4 + 1))
    assert [step for step, *_ in whole["rows"]] == steps
    seen: dict[int, list[int]] = {}
    for step, world, batch, passes in resized["rows"]:
        assert world * batch * passes == 16
        seen.setdefault(step, []).append(world)
    assert sorted(seen) == steps and all(len(worlds) == worlds[0] for worlds in seen.values())
    assert [seen[step][0] for step in (1, 20, 48)] == [1, 2, 1]
    assert (whole["weights"] - resized["weights"]).abs().max() < 1e-9
    assert resized["values"] == pytest.approx(whole["values"], rel=1e-9)
    assert list(whole["values"]) == list(range(1, 13))
    assert whole["left"] == resized["left"] == []
