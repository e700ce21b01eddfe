"""DeadlinePruner and DeadlineSampler in `study.optimize`: lateness, and the best model.

`ends` runs studies with short deadlines in real time, each with a random objective, storage and
number of threads. It prints the seconds from each deadline to the return.

`digits` trains small networks on scikit-learn's digits under DeadlinePruner and Optuna's own
pruners, with the same seeds and seconds. The result is the lowest validation loss that was
reported by the deadline. Optuna's pruners get `timeout=`, which is only checked between trials.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner

from benchmarks.measuring import (
    Progress,
    Spread,
    machine,
    output_file,
    quiet,
    with_error,
    write_json,
)
from optuna_deadline import DeadlinePruner, DeadlineSampler, out_of_time
from optuna_deadline.errors import DeadlineError
from optuna_deadline.simulation.comparison import Estimate

OURS = "DeadlinePruner"
EPOCHS = 40
_OTHERS: dict[str, Callable[[], BasePruner]] = {
    "MedianPruner": MedianPruner,
    "HyperbandPruner": lambda: HyperbandPruner(max_resource=EPOCHS),
    "none": NopPruner,
}
ASKS = ("should_prune", "out_of_time", "nothing")


@dataclass(frozen=True)
class End:
    """The end of one study of `ends`.

    Attributes:
        seconds: Seconds from the deadline to the return; negative if it returned before.
        trials: The number of trials.
    """

    deadline: float
    report: float
    asks: str
    storage: str
    n_jobs: int
    seconds: float
    trials: int


def end_of_a_study(seed: int, folder: Path) -> End:
    """Run a study with a deadline of 2 to 5 s, in which a report takes 0.05 to 0.5 s."""
    rng = random.Random(seed)
    deadline, report = rng.uniform(2, 5), 10 ** rng.uniform(-1.3, -0.3)
    asks, storage, n_jobs = rng.choice(ASKS), rng.choice(("memory", "sqlite")), rng.choice((1, 4))
    # An objective without checks runs to its end, so its trials have one report.
    steps = 1 if asks == "nothing" else 20

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        for step in range(1, steps + 1):
            time.sleep(report)
            trial.report(x + 1 / step, step)
            if asks == "out_of_time" and out_of_time(trial):
                break
            if asks != "nothing" and trial.should_prune():
                raise optuna.TrialPruned
        return x

    began = time.monotonic()
    study = optuna.create_study(
        storage=None if storage == "memory" else f"sqlite:///{folder}/{seed}.db",
        pruner=DeadlinePruner(deadline),
        sampler=DeadlineSampler(seed=seed),
    )
    study.optimize(objective, n_jobs=n_jobs)
    after = time.monotonic() - began - deadline
    return End(deadline, report, asks, storage, n_jobs, after, len(study.trials))


def measure_ends(studies: int, progress: Progress) -> list[End]:
    """Run one study after the other."""
    ends = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(studies):
            progress.write_progress(f"study {seed + 1} of {studies}")
            ends.append(end_of_a_study(seed, Path(folder)))
    return ends


@cache
def _digits() -> tuple[Any, ...]:
    import torch
    from sklearn.datasets import load_digits

    torch.set_num_threads(1)
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(data.data, dtype=torch.float32)[order] / 16
    y = torch.tensor(data.target)[order]
    return x[:1200], y[:1200], x[1200:], y[1200:]


def train(trial: optuna.Trial, report: Callable[[float, int], bool]) -> float:
    """Train one network until ``report`` returns True."""
    import torch
    from torch import nn

    x, y, x_valid, y_valid = _digits()
    width = trial.suggest_int("width", 8, 256, log=True)
    dropout = trial.suggest_float("dropout", 0, 0.6)
    layers = trial.suggest_int("layers", 1, 3)
    batch = trial.suggest_categorical("batch", [8, 16, 32, 64])
    blocks: list[nn.Module] = []
    for number in range(layers):
        inputs = 64 if number == 0 else width
        blocks += [nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(dropout)]
    model = nn.Sequential(*blocks, nn.Linear(width, 10))
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=trial.suggest_float("lr", 1e-4, 1, log=True),
        momentum=trial.suggest_float("momentum", 0, 0.99),
        weight_decay=trial.suggest_float("weight_decay", 1e-6, 1e-2, log=True),
    )
    loss = math.inf
    for epoch in range(1, EPOCHS + 1):
        model.train()
        for rows in torch.split(torch.randperm(len(y)), batch):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(x[rows]), y[rows]))
            optimizer.step()
        model.eval()
        with torch.no_grad():
            loss = float(nn.functional.cross_entropy(model(x_valid), y_valid))
        if report(loss, epoch):
            break
    return loss


@dataclass(frozen=True)
class Outcome:
    """The result of one study of `digits`.

    Attributes:
        loss: The lowest loss that was reported by the deadline.
        seconds: Seconds from the deadline to the return; negative if it returned before.
        reports: The times and losses of all reports.
        study: The study.
    """

    loss: float
    seconds: float
    reports: list[tuple[float, float]]
    study: optuna.Study


def train_until(pruner: str, seed: int, seconds: float, n_jobs: int) -> Outcome:
    """Run one study of small networks."""
    import torch

    torch.manual_seed(seed)
    _digits()
    ours = pruner == OURS
    tpe = optuna.samplers.TPESampler(seed=seed)
    found: list[tuple[float, float]] = []
    began = time.monotonic()
    study = optuna.create_study(
        pruner=DeadlinePruner(seconds, max_resource=EPOCHS) if ours else _OTHERS[pruner](),
        sampler=DeadlineSampler(tpe) if ours else tpe,
    )

    def objective(trial: optuna.Trial) -> float:
        def report(loss: float, epoch: int) -> bool:
            if math.isfinite(loss):
                found.append((time.monotonic() - began, loss))
            trial.report(loss, epoch)
            if ours and out_of_time(trial):
                return True
            if trial.should_prune():
                raise optuna.TrialPruned
            return False

        return train(trial, report)

    study.optimize(objective, n_jobs=n_jobs, timeout=None if ours else seconds)
    after = time.monotonic() - began - seconds
    in_time = [loss for at, loss in found if at <= seconds]
    return Outcome(min(in_time, default=math.log(10)), after, found, study)


def measure_digits(
    seeds: int,
    seconds: float,
    n_jobs: int,
    progress: Progress,
    pictures: Path | None = None,
    known: Sequence[dict[str, Any]] = (),
    keep: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
) -> list[dict[str, Any]]:
    """Run all pruners for each seed, in a random order for each seed.

    Args:
        seeds: The number of seeds.
        seconds: The seconds to the deadline.
        n_jobs: The threads of a study.
        progress: Shows the progress.
        pictures: A folder for the pictures of seed 0.
        known: Rows of an earlier run, whose seeds are skipped.
        keep: Gets all rows after each seed, so that an interrupted run loses one seed only.
    """
    rows, done = list(known), {row["seed"] for row in known}
    for seed in range(seeds):
        if seed in done:
            continue
        names = [OURS, *_OTHERS]
        random.Random(seed).shuffle(names)
        outcomes = {}
        for name in names:
            progress.write_progress(f"seed {seed + 1} of {seeds}, {name}")
            found = outcomes[name] = train_until(name, seed, seconds, n_jobs)
            row = {"pruner": name, "seed": seed, "loss": found.loss, "late": found.seconds}
            rows.append({**row, "trials": len(found.study.trials)})
        keep(rows)
        if seed == 0 and pictures is not None:
            draw_curves(outcomes[OURS].study, pictures / "pruner.png")
            draw_progress(outcomes, seconds, pictures / "plain.png")
    return rows


def draw_progress(outcomes: dict[str, Outcome], seconds: float, path: Path) -> None:
    """Draw the lowest loss against time, from the first report to the return of each study."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    chart = figure.subplots()
    for name in (OURS, *_OTHERS):
        outcome = outcomes[name]
        lowest, end = math.inf, seconds + outcome.seconds
        points = []
        for at, loss in sorted(outcome.reports):
            lowest = min(lowest, loss)
            points.append((at, lowest))
        points.append((end, lowest))
        label = name if name == OURS else f"{name}, timeout="
        (line,) = chart.step(*zip(*points, strict=True), where="post", label=label)
        chart.plot([end], [lowest], "o", color=line.get_color())
    chart.axvline(seconds, color="black", linewidth=0.8, linestyle="--")
    chart.annotate("deadline", (seconds, 1), xycoords=("data", "axes fraction"), va="bottom")
    chart.set(yscale="log", xlabel="seconds; a dot is the return", ylabel="lowest validation loss")
    chart.legend()
    figure.savefig(path, dpi=100)


def draw_curves(study: optuna.Study, path: Path) -> None:
    """Draw all curves of a study with the rungs; pruned trials are grey."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    chart = figure.subplots()
    for state, color, width in (("PRUNED", "0.7", 0.6), ("COMPLETE", "tab:blue", 1.4)):
        for trial in study.trials:
            if trial.state.name == state and trial.intermediate_values:
                steps, losses = zip(*sorted(trial.intermediate_values.items()), strict=True)
                chart.plot(steps, losses, color=color, linewidth=width, marker=".", markersize=3)
        chart.plot([], [], color=color, label=f"{state.lower()} trials")
    for rung in (1, 2, 4, 8, 16, 32):
        chart.axvline(rung, color="tab:orange", linewidth=0.6, linestyle="--")
    chart.set(xscale="log", yscale="log", xlabel="report", ylabel="validation loss")
    chart.set_xticks([1, 2, 4, 8, 16, 32], [str(rung) for rung in (1, 2, 4, 8, 16, 32)])
    chart.legend()
    figure.savefig(path, dpi=100)


def print_ends(ends: Sequence[End]) -> None:
    """Print a line for all studies, and one for each kind of objective."""
    print("seconds from the deadline to the return of study.optimize")
    for title in ("all", *ASKS):
        after = [end.seconds for end in ends if title in ("all", end.asks)]
        if after:
            spread = Spread.of(after)
            late = sum(one > 1 for one in after)
            print(
                f"{title:13} {len(after):4} studies: median {spread.median:+.2f}, from "
                f"{min(after):+.2f} to {max(after):+.2f}; {late} more than 1 s late"
            )


def print_digits(rows: Sequence[dict[str, Any]]) -> None:
    """Print each pruner's mean loss, and its paired difference to DeadlinePruner's."""
    losses = {(row["pruner"], row["seed"]): row["loss"] for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    print("validation loss by the deadline, and how much more than under DeadlinePruner")
    for name in (OURS, *_OTHERS):
        loss = Estimate.of([losses[name, seed] for seed in seeds])
        more = Estimate.of([losses[name, seed] - losses[OURS, seed] for seed in seeds])
        trials = statistics.fmean(row["trials"] for row in rows if row["pruner"] == name)
        late = max(row["late"] for row in rows if row["pruner"] == name)
        difference = "" if name == OURS else "  " + with_error(more.mean, more.error, "+.4f")
        shown = with_error(loss.mean, loss.error, ".4f")
        print(f"{name:16} {shown}  {trials:6.0f} trials  latest {late:+.1f} s{difference}")


def known_rows(path: Path | None, terms: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of an earlier run; empty if there is no file.

    Raises:
        DeadlineError: The file was measured with other seconds or threads.
    """
    if path is None or not path.exists():
        return []
    found = json.loads(path.read_text())
    if any(found.get(name) != value for name, value in terms.items()):
        raise DeadlineError(f"{path} is not of {terms}: name another file.")
    return list(found["rows"])


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.plain", description=__doc__)
    parser.add_argument("what", choices=("ends", "digits"))
    parser.add_argument("--studies", type=int, default=100, help="of ends")
    parser.add_argument("--seeds", type=int, default=20, help="of digits")
    parser.add_argument("--seconds", type=float, default=60.0, help="to the deadline, of digits")
    parser.add_argument("--n-jobs", type=int, default=2, help="of digits")
    parser.add_argument(
        "--json", type=output_file, metavar="FILE", help="for all figures; digits continues it"
    )
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="for those of digits")
    given = parser.parse_args(arguments)
    quiet()
    logging.getLogger("optuna_deadline").setLevel(logging.ERROR)
    progress = Progress()
    try:
        if given.what == "ends":
            ends = measure_ends(given.studies, progress)
            rows = [asdict(end) for end in ends]
        else:
            terms = {"what": "digits", "seconds": given.seconds, "n_jobs": given.n_jobs}
            if given.pictures is not None:
                given.pictures.mkdir(parents=True, exist_ok=True)

            def keep(rows: list[dict[str, Any]]) -> None:
                write_json(given.json, {"machine": machine("torch"), **terms, "rows": rows})

            rows = measure_digits(
                given.seeds, given.seconds, given.n_jobs, progress, given.pictures,
                known_rows(given.json, terms), keep,
            )  # fmt: skip
    except DeadlineError as error:
        parser.error(str(error))
    finally:
        progress.end()
    if given.what == "ends":
        print_ends(ends)
        write_json(given.json, {"machine": machine("torch"), "what": given.what, "rows": rows})
    else:
        print_digits(rows)


if __name__ == "__main__":
    main()
