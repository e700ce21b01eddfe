"""``python -m benchmarks.gallery [--seconds N] [--folder DIR]``: the pictures of the gallery.

A worker with two CPU slots and a budget tunes the demo's network; the pictures show the study
shortly before its deadline.
"""

from __future__ import annotations

import argparse
import io
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import optuna
from rich.console import Console

import optuna_deadline
from optuna_deadline.history.reader import HistoryReader, table_of
from optuna_deadline.live.top import render
from optuna_deadline.live.watcher import StudyWatcher
from optuna_deadline.visualization._allocation import chart_allocation
from optuna_deadline.visualization._budget import chart_budget
from optuna_deadline.visualization._forecast import chart_forecast
from optuna_deadline.visualization._rungs import chart_rungs
from optuna_deadline.visualization._utilization import chart_utilization
from optuna_deadline.visualization.matplotlib import axes_of

OBJECTIVE = "optuna_deadline_demo.digits:objective"
SLOTS = 2
LOOK = 0.8  #: the share of the time at which the pictures are drawn


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the study and draw its pictures."""
    parser = argparse.ArgumentParser(prog="benchmarks.gallery", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the study")
    parser.add_argument("--folder", type=Path, default=Path("docs/images"))
    given = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        study = optuna.create_study(
            study_name="gallery", storage=f"sqlite:///{folder}/study.db", direction="maximize"
        )
        worker = threading.Thread(target=_train, args=(study, given.seconds, Path(folder)))
        worker.start()
        time.sleep(LOOK * given.seconds)
        draw(study, given.folder)
        worker.join()


def _train(study: optuna.Study, seconds: float, folder: Path) -> None:
    price = 0.9
    optuna_deadline.run(
        study,
        OBJECTIVE,
        cpus=SLOTS,
        deadline=f"{seconds}s",
        budget=SLOTS * seconds * price / 3600,
        price=price,
        checkpoints=folder,
        policy="adaptive_halving:reduction_factor=3",
        worker=optuna_deadline.WorkerOptions(dashboard=False),
    )


def draw(study: optuna.Study, folder: Path) -> None:
    """Draw the five figures and the live view of a terminal, all of the same moment."""
    from matplotlib import pyplot

    table, terms = table_of(study)
    history, view = HistoryReader(table, terms).read(), StudyWatcher(table, terms).view()
    charts = {
        "allocation": chart_allocation(history),
        "forecast": chart_forecast(history),
        "budget": chart_budget(history),
        "utilization": chart_utilization(history),
        "rungs": chart_rungs(history),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, chart in charts.items():
        axes: Any = axes_of(chart)
        axes.figure.savefig(folder / f"gallery-{name}.png", dpi=80, bbox_inches="tight")
        pyplot.close(axes.figure)
    screen = Console(record=True, width=100, height=24, file=io.StringIO())
    screen.print(render(view, 24))
    screen.save_svg(str(folder / "gallery-top.svg"), title=f"optuna-deadline top {terms.name}")


if __name__ == "__main__":
    main()
