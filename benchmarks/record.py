"""Record the project's own tables: learning curves of the demo's tasks.

The networks and the data are the demo's. The seed and the index determine each configuration, so
an interrupted run continues, and more configurations can be added later. Finished configurations
are stored in a file beside the table until the table is written.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial
from optuna_deadline_demo import TASKS

from benchmarks.measuring import Progress, output_file

#: Narrower than the demo's networks, so that the table takes less than an hour of one core, and up
#: to learning rates at which training diverges, since users' ranges include those too.
WIDTHS = (4, 8, 12)
RATES = (1e-4, 1.0)
LIBRARIES = ("torch", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Training:
    """One configuration, trained to its end or until it diverged; NaN after that."""

    index: int
    hp: dict[str, float]
    values: list[float]  #: the validation's, after each epoch
    seconds: list[float]  #: CPU seconds of each epoch with its validation, as on an idle core
    wall: list[float]  #: wall-clock seconds, on a machine that may have been busy


def draw(seed: int, index: int) -> dict[str, float]:
    """One configuration's hyper-parameters, drawn independently of all others."""
    rng = np.random.default_rng([seed, index])
    low, high = np.log(RATES)
    return {
        "width": float(rng.choice(WIDTHS)),
        "dropout": float(rng.uniform(0.0, 0.5)),
        "lr": float(np.exp(rng.uniform(low, high))),
        "weight_decay": float(10 ** rng.uniform(-6, -2)),
    }


def train(task: str, seed: int, index: int, epochs: int) -> Training:
    """Train one configuration on one thread."""
    import torch

    torch.set_num_threads(1)
    return _digits(seed, index, epochs) if task == "digits" else _trial(task, seed, index)


class _Stopwatch(FrozenTrial):
    """Notes the values that an objective reports, and the seconds of each epoch."""

    def begin(self, index: int) -> None:
        self.done = Training(index, {}, [], [], [])
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    def report(self, value: float, step: int) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        if math.isfinite(value):
            self.done.values.append(value)
            self.done.seconds.append(cpu - self._cpu)
            self.done.wall.append(wall - self._wall)
        self._wall, self._cpu = time.perf_counter(), time.thread_time()


def _trial(task: str, seed: int, index: int) -> Training:
    """A whole training of a task, with parameters that the seed and the index choose."""
    objective = importlib.import_module(f"optuna_deadline_demo.{task}").objective
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = RandomSampler(seed=seed * 100_000 + index)
    asked = optuna.create_study(sampler=sampler).ask()
    objective.suggest(asked)
    known = asked.study.trials[0]
    trial = _Stopwatch(
        0, known.state, None, None, None, known.params, known.distributions, {}, {}, {}, 0
    )
    trial.begin(index)
    objective(trial)
    trial.done.hp.update(
        (name, float(known.distributions[name].to_internal_repr(value)))
        for name, value in known.params.items()
    )
    return trial.done


def _digits(seed: int, index: int, epochs: int) -> Training:
    """The index also seeds the weights and the batches."""
    import torch
    from optuna_deadline_demo.digits import BATCH, Digits, Net
    from torch.nn import functional as F

    torch.manual_seed(index)
    hp = draw(seed, index)
    data = Digits()
    data.setup("fit")
    (images, labels), (unseen, truth) = data.train.tensors, data.validation.tensors
    model = Net(int(hp["width"]), hp["dropout"], hp["lr"], hp["weight_decay"])
    optimizer = model.configure_optimizers()
    done = Training(index, hp, [], [], [])
    for _ in range(epochs):
        wall, cpu = time.perf_counter(), time.thread_time()
        model.train()
        order = torch.randperm(len(images))
        for begin in range(0, len(order), BATCH):
            batch = order[begin : begin + BATCH]
            optimizer.zero_grad()
            torch.autograd.backward(model.training_step((images[batch], labels[batch]), 0))
            optimizer.step()
        model.eval()
        with torch.no_grad():
            answers = model.layers(unseen)
            loss = F.cross_entropy(answers, truth).item()
            right = (answers.argmax(1) == truth).float().mean().item()
        if not math.isfinite(loss):
            break
        done.values.append(right)
        done.seconds.append(time.thread_time() - cpu)
        done.wall.append(time.perf_counter() - wall)
    return done


def _be_nice(by: int) -> None:
    os.nice(by)


def finished(part: Path, settings: dict[str, Any]) -> dict[int, Training]:
    """The results of an earlier run, without an incomplete last line.

    Raises:
        ValueError: They were recorded with other settings.
    """
    if not part.is_file():
        part.write_text(json.dumps(settings) + "\n")
        return {}
    lines = part.read_text().splitlines(keepends=True)
    if json.loads(lines[0]) != settings:
        raise ValueError(
            f"{part} was begun with {lines[0].strip()}: give the same, or delete it first."
        )
    whole = [line for line in lines if line.endswith("\n")]
    part.write_text("".join(whole))
    found = [Training(**json.loads(line)) for line in whole[1:]]
    return {training.index: training for training in found}


def in_table(out: Path, settings: dict[str, Any]) -> dict[int, Training]:
    """The trainings of a table that is written, to which more are added.

    Raises:
        ValueError: They were recorded with other settings.
    """
    if not out.is_file():
        return {}
    with np.load(out) as table:
        about = {"task": "digits", **json.loads(str(table["about"]))}
        if any(about[key] != value for key, value in settings.items()):
            raise ValueError(f"{out} was recorded with other settings: name another file.")
        names = [str(name) for name in table["hp_names"]]
        columns = [table[key] for key in (about["metric"], "seconds", "wall_seconds")]
        rows = zip(table["hp"].tolist(), *columns, strict=True)
        return {
            index: Training(
                index,
                dict(zip(names, hp, strict=True)),
                *[row[np.isfinite(row)].tolist() for row in found],
            )
            for index, (hp, *found) in enumerate(rows)
        }


def write_table(out: Path, trainings: list[Training], settings: dict[str, Any]) -> None:
    """Write one compressed file; ``optuna_deadline.simulation.tables.curves`` has the format."""
    task, epochs = settings["task"], settings["epochs"]
    metric = importlib.import_module(f"optuna_deadline_demo.{task}").MONITOR

    def rows(name: str) -> NDArray[np.float32]:
        table = np.full((len(trainings), epochs), np.nan, dtype=np.float32)
        for row, training in zip(table, trainings, strict=True):
            values = getattr(training, name)
            row[: len(values)] = values
        return table

    names = list(trainings[0].hp)
    about = {
        "name": out.stem,
        "metric": metric,
        "direction": TASKS[task].direction,
        "seconds": "CPU seconds of one thread for each epoch",
        **settings,
        "versions": {library: version(library) for library in LIBRARIES},
    }
    arrays: dict[str, Any] = {
        "about": json.dumps(about),
        "hp_names": np.array(names),
        "hp": np.array([[training.hp[name] for name in names] for training in trainings]),
        "seconds": rows("seconds"),
        "wall_seconds": rows("wall"),
        metric: rows("values"),
    }
    np.savez_compressed(out, **arrays)


def record(
    out: Path, task: str, *, configurations: int, epochs: int, seed: int, jobs: int, nice: int
) -> Iterator[int]:
    """Train missing configurations and write the table; yield the number of finished ones."""
    settings: dict[str, Any] = {"task": task, "epochs": epochs, "seed": seed}
    part = out.with_suffix(".part")
    done = {**in_table(out, settings), **finished(part, settings)}
    missing = [index for index in range(configurations) if index not in done]
    yield len(done)
    with (
        part.open("a") as file,
        ProcessPoolExecutor(jobs, initializer=_be_nice, initargs=(nice,)) as executor,
    ):
        futures = [executor.submit(train, task, seed, index, epochs) for index in missing]
        try:
            for future in futures:
                training = future.result()
                done[training.index] = training
                file.write(json.dumps(asdict(training)) + "\n")
                file.flush()
                yield len(done)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
    write_table(out, [done[index] for index in range(configurations)], settings)
    part.unlink()


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.record", description=__doc__)
    parser.add_argument("--out", type=output_file, required=True, metavar="FILE.npz")
    parser.add_argument("--task", choices=TASKS, default="digits")
    parser.add_argument("--configurations", type=int, default=160, help="how many to train")
    parser.add_argument("--epochs", type=int, default=30, help="of each of the digits")
    parser.add_argument("--seed", type=int, default=0, help="of the configurations")
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--nice", type=int, default=15, help="how far to stand back for others")
    given = parser.parse_args(arguments)
    if given.out.suffix != ".npz":
        parser.error(f"{given.out} must end in .npz")
    progress = Progress()
    total, epochs = given.configurations, given.epochs
    if given.task != "digits":
        epochs = importlib.import_module(f"optuna_deadline_demo.{given.task}").MAX_EPOCHS
    try:
        for count in record(
            given.out, given.task, configurations=total, epochs=epochs, seed=given.seed,
            jobs=given.jobs, nice=given.nice,
        ):  # fmt: skip
            progress.write_progress(f"{count} of {total} configurations")
    except ValueError as error:
        parser.error(str(error))
    finally:
        progress.end()
    print(f"{given.out}: {total} configurations, {given.out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
