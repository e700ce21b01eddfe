"""Studies under Syne Tune 0.14's schedulers in its simulator, in its own environment.

This process reads lines of JSON (see :mod:`benchmarks.syne_tune.asking`) and answers each with one
line. It does not import our package, since its environment has another numpy.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

os.environ.setdefault("SYNETUNE_FOLDER", tempfile.gettempdir())  # it logs each study
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")

from syne_tune import Tuner  # noqa: E402
from syne_tune.backend.simulator_backend.simulator_backend import SimulatorConfig  # noqa: E402
from syne_tune.backend.simulator_backend.time_keeper import SimulatedTimeKeeper  # noqa: E402
from syne_tune.blackbox_repository.blackbox_tabular import BlackboxTabular  # noqa: E402
from syne_tune.blackbox_repository.simulated_tabular_backend import (  # noqa: E402
    UserBlackboxBackend,
)
from syne_tune.config_space import choice, loguniform, randint, uniform  # noqa: E402
from syne_tune.constants import ST_TUNER_TIME  # noqa: E402
from syne_tune.optimizer.legacy_baselines import ASHA, PASHA, DyHPO  # noqa: E402
from syne_tune.optimizer.schedulers.legacy_hyperband import LegacyHyperbandScheduler  # noqa: E402
from syne_tune.optimizer.schedulers.searchers.conformal.legacy_surrogate_searcher import (  # noqa: E402
    LegacySurrogateSearcher,
)
from syne_tune.tuner_callback import TunerCallback  # noqa: E402

_LOOK = 1.0  #: seconds between two polls of the trials, as in our workers
_SCORE, _REPORT, _SECONDS, _LAST = "score", "report", "seconds", "last"


class Table:
    """A table's configurations, and the trials that train them.

    Args:
        asked: The study; its ``curves`` have None after training has diverged.
    """

    def __init__(self, asked: dict[str, Any]) -> None:
        self.curves = np.array(asked["curves"], dtype=float)
        self.space = {name: _domain(*kind) for name, kind in asked["space"].items()}
        self.parameters = asked["parameters"]
        self.trained: dict[int, int] = {}  # configurations by trial
        seconds = np.cumsum(asked["report_seconds"], axis=1)
        reports = np.arange(1, self.curves.shape[1] + 1)
        scores = np.stack([_as_reported(self.curves), seconds], axis=2)[:, None]
        # It needs two columns to look a row up; the second is the same for all rows.
        rows = pd.DataFrame({"row": range(len(scores)), "table": 0})
        most = len(reports)
        self.blackbox = BlackboxTabular(
            rows,
            dict.fromkeys(rows, randint(0, len(scores))),
            {_REPORT: randint(1, most)},
            scores,
            objectives_names=[_SCORE, _SECONDS],
        )
        self._asked = asked
        self._places = np.array([self._place(given) for given in self.parameters])

    def take(self, trial: int, given: dict[str, Any]) -> int:
        """The configuration of a trial: the untrained one that is nearest to its parameters."""
        if trial not in self.trained:
            count = len(self.curves)
            if "row" in given:
                self.trained[trial] = given["row"] % count
            else:
                away = np.square(self._places - self._place(given)).sum(axis=1)
                taken = list(self.trained.values())
                if len(taken) < count:  # else a small table starts again
                    away[taken] = math.inf
                self.trained[trial] = int(away.argmin())
        return self.trained[trial]

    def _place(self, given: dict[str, Any]) -> list[float]:
        """A point in the cube, as in ``benchmarks.accuracy.search``."""
        found: list[float] = []
        for name, (low, high, log, names) in self._asked["space"].items():
            if names:
                found += [math.sqrt(0.5) * (given[name] == each) for each in names]
            else:
                scale = math.log if log else float
                part = scale(min(max(given[name], low), high)) - scale(low)
                found.append(part / (scale(high) - scale(low)))
        return found


def _domain(low: float, high: float, log: bool, names: list[str]) -> Any:
    if names:
        return choice(names)
    return loguniform(low, high) if log else uniform(low, high)


def _as_reported(curves: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Scores as reported to the scheduler: logarithmic below the median configuration's.

    Ranks do not change. Models of curves fail at the 10^19 of a diverged training. A score that is
    not finite is worse than all others.
    """
    scores = np.where(curves < 0, -np.log1p(np.abs(curves)), curves)
    return np.where(np.isfinite(scores), scores, np.nanmin(scores) - 1.0)


class FreeThought(SimulatedTimeKeeper):  # type: ignore[misc, unused-ignore]
    """Virtual time without the time of decisions, so that results do not depend on the machine."""

    def real_time_since_last_recent_exit(self) -> float:
        """Return 0."""
        return 0.0


class Backend(UserBlackboxBackend):  # type: ignore[misc, unused-ignore]
    """Syne Tune's simulator, in which a trial trains the table's configuration."""

    def __init__(self, table: Table, asked: dict[str, Any]) -> None:
        super().__init__(
            blackbox=table.blackbox,
            elapsed_time_attr=_SECONDS,
            max_resource_attr=_LAST,
            seed=0,
            tuner_sleep_time=_LOOK,
            simulator_config=SimulatorConfig(
                delay_start=asked["startup"],
                delay_stop=0.0,
                delay_complete_after_stop=asked["stop"],
            ),
        )
        self._table, self._time_keeper = table, FreeThought()

    def _run_job_and_collect_results(self, trial_id: int, config: Any = None) -> Any:
        given = dict(self._trial_dict[trial_id].config)
        row = self._table.take(int(trial_id), given)
        return super()._run_job_and_collect_results(
            trial_id, {"row": row, "table": 0, **{k: v for k, v in given.items() if k == _LAST}}
        )


class Conformal(LegacySurrogateSearcher):  # type: ignore[misc, unused-ignore]
    """ASHACQR's searcher, which learns the trained configuration instead of its suggestion."""

    def __init__(self, table: Table, seed: int) -> None:
        super().__init__(table.space, _SCORE, mode="max", points_to_evaluate=[], random_seed=seed)
        self._table = table

    def get_config(self, trial_id: str, **kwargs: Any) -> Any:
        """The untrained configuration that is nearest to the model's suggestion."""
        suggested = super().get_config(trial_id, **kwargs)
        row = self._table.take(int(trial_id), suggested)
        found = {name: self._table.parameters[row][name] for name in self._table.space}
        self.trial_configs[int(trial_id)] = found
        return found


class Patient(Tuner):  # type: ignore[misc, unused-ignore]
    """A tuner that continues paused trials if no configuration is left."""

    def _schedule_new_tasks(self, running_trials_ids: Any) -> None:
        try:
            super()._schedule_new_tasks(running_trials_ids=running_trials_ids)
        except StopIteration:
            self._sleep()


class Watch(TunerCallback):  # type: ignore[misc, unused-ignore]
    """Moves the clock, and keeps the best score reported by the deadline."""

    def __init__(self, backend: Backend, table: Table, deadline: float) -> None:
        self._clock, self._table, self._deadline = backend.time_keeper, table, deadline
        self.best: float | None = None
        self.reports = 0

    def on_tuning_start(self, tuner: Tuner) -> None:
        """Give the scheduler the simulator's clock."""
        tuner.scheduler.set_time_keeper(self._clock)
        self._clock.start_of_time()

    def on_tuning_sleep(self, sleep_time: float) -> None:
        """Move the clock."""
        self._clock.advance(_LOOK)

    def on_trial_result(self, trial: Any, status: str, result: Any, decision: str) -> None:
        """Record a reported score."""
        if result[ST_TUNER_TIME] <= self._deadline:
            row = self._table.trained[int(trial.trial_id)]
            score = float(self._table.curves[row, int(result[_REPORT]) - 1])
            self.reports += 1
            if not math.isnan(score):
                self.best = score if self.best is None else max(self.best, score)

    def over(self, _: Any) -> bool:
        """Whether all reports until the deadline have been seen."""
        return bool(self._clock.time() > self._deadline + 2 * _LOOK)


def _in_order(table: Table, asked: dict[str, Any]) -> dict[str, Any]:
    """Configurations in the study's order, repeated when all are used."""
    least = np.min(asked["report_seconds"]) + asked["startup"]
    count = len(table.curves) + int(asked["slots"] * (asked["deadline"] / least + 2))
    return {
        "config_space": {"row": randint(0, count - 1), _LAST: table.curves.shape[1]},
        "points_to_evaluate": [{"row": number} for number in range(count)],
    }


def _by_parameters(table: Table) -> dict[str, Any]:
    """Configurations of the table, chosen by their hyper-parameters."""
    rows = [{name: given[name] for name in table.space} for given in table.parameters]
    unique = list({tuple(row.values()): row for row in rows}.values())
    return {
        "config_space": {**table.space, _LAST: table.curves.shape[1]},
        "points_to_evaluate": [],
        "search_options": {"restrict_configurations": unique, "debug_log": False},
    }


def _common(seed: int) -> dict[str, Any]:
    return {
        "metric": _SCORE, "mode": "max", "resource_attr": _REPORT, "max_resource_attr": _LAST,
        "random_seed": seed,
    }  # fmt: skip


def _cqr(table: Table, asked: dict[str, Any]) -> Any:
    return LegacyHyperbandScheduler(
        config_space={**table.space, _LAST: table.curves.shape[1]},
        searcher=Conformal(table, asked["seed"]),
        **_common(asked["seed"]),
    )


#: Syne Tune's schedulers with their defaults: reduction factor 3, rungs from the first report.
PEERS: dict[str, Callable[[Table, dict[str, Any]], Any]] = {
    "syne_asha": lambda table, asked: ASHA(
        type="stopping", **_in_order(table, asked), **_common(asked["seed"])
    ),
    "syne_asha_promote": lambda table, asked: ASHA(
        type="promotion", **_in_order(table, asked), **_common(asked["seed"])
    ),
    "syne_pasha": lambda table, asked: PASHA(**_in_order(table, asked), **_common(asked["seed"])),
    "syne_dyhpo": lambda table, asked: DyHPO(**_by_parameters(table), **_common(asked["seed"])),
    "syne_asha_cqr": _cqr,
}


def study(asked: dict[str, Any]) -> dict[str, Any]:
    """Run one study; return the best score by the deadline and the amount of training."""
    np.random.seed(asked["seed"])
    table = Table(asked)
    backend = Backend(table, asked)
    watch = Watch(backend, table, asked["deadline"])
    Patient(
        trial_backend=backend,
        scheduler=PEERS[asked["peer"]](table, asked),
        stop_criterion=watch.over,
        n_workers=asked["slots"],
        sleep_time=0,
        callbacks=[watch],
        save_tuner=False,
        print_update_interval=math.inf,
        tuner_name="accuracy",
        suffix_tuner_name=False,
    ).run()
    return {"value": watch.best, "trials": len(table.trained), "reports": watch.reports}


def main() -> None:
    """Answer requests until there are no more."""
    answers, sys.stdout = sys.stdout, sys.stderr  # Syne Tune prints
    for line in sys.stdin:
        print(json.dumps(study(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
