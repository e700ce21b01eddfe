"""Former public names, which work with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: From each old name to the module with its contents.
MOVED = {
    "optuna_deadline.dashboard.page": "optuna_deadline.dashboard.server",
    "optuna_deadline.deadlines": "optuna_deadline.values.deadlines",
    "optuna_deadline.elastic.terms": "optuna_deadline.elastic.arguments",
    "optuna_deadline.forecasting.course": "optuna_deadline.forecasting.futures",
    "optuna_deadline.forecasting.doublings": "optuna_deadline.forecasting.learning_curves",
    "optuna_deadline.outlook": "optuna_deadline.scenarios",
    "optuna_deadline.outlook.answers": "optuna_deadline.scenarios.comparison",
    "optuna_deadline.outlook.calibration": "optuna_deadline.scenarios.comparison",
    "optuna_deadline.policies.asha": "optuna_deadline.policies.baselines.halving",
    "optuna_deadline.policies.dividing": "optuna_deadline.policies.pool.fair_share",
    "optuna_deadline.policies.early": "optuna_deadline.policies.baselines.stopping",
    "optuna_deadline.policies.fifo": "optuna_deadline.policies.baselines.fifo",
    "optuna_deadline.policies.halving": "optuna_deadline.policies.baselines.halving",
    "optuna_deadline.policies.market": "optuna_deadline.policies.shockwave",
    "optuna_deadline.policies.market.allocators": "optuna_deadline.policies.shockwave.baselines",
    "optuna_deadline.policies.market.allox": "optuna_deadline.policies.shockwave.baselines",
    "optuna_deadline.policies.market.shares": "optuna_deadline.policies.shockwave.accounting",
    "optuna_deadline.policies.market.shockwave": "optuna_deadline.policies.shockwave.scheduler",
    "optuna_deadline.policies.market.studies": "optuna_deadline.policies.shockwave.policy",
    "optuna_deadline.policies.market.views": "optuna_deadline.policies.shockwave.forecast",
    "optuna_deadline.policies.money": "optuna_deadline.policies.api",
    "optuna_deadline.policies.naive": "optuna_deadline.policies.baselines.fifo",
    "optuna_deadline.policies.plan": "optuna_deadline.policies.api",
    "optuna_deadline.policies.slaq": "optuna_deadline.policies.baselines.slaq",
    "optuna_deadline.policies.snapshot": "optuna_deadline.policies.api",
    "optuna_deadline.policies.turns": "optuna_deadline.policies.baselines.time_sharing",
    "optuna_deadline.prices": "optuna_deadline.values.prices",
    "optuna_deadline.pruners._book": "optuna_deadline.pruners._clock",
    "optuna_deadline.samplers._situation": "optuna_deadline.samplers._prospects",
    "optuna_deadline.samplers._wrapper": "optuna_deadline.samplers._warm_start",
    "optuna_deadline.simulation.families": "optuna_deadline.simulation.workload",
    "optuna_deadline.simulation.outcome": "optuna_deadline.simulation.study",
    "optuna_deadline.simulation.provider": "optuna_deadline.simulation.cluster",
    "optuna_deadline.simulation.simulation": "optuna_deadline.simulation.study",
    "optuna_deadline.simulation.tables.prices": "optuna_deadline.simulation.tables.spot_prices",
}


class _OldNames(MetaPathFinder, Loader):
    """The last finder of modules: it finds old names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        warnings.warn(f"{name} is {MOVED[name]} now.", DeprecationWarning, stacklevel=2)
        found = import_module(MOVED[name])
        vars(module).update(__doc__=found.__doc__, __getattr__=partial(getattr, found))


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module in which names have changed.

    Args:
        module: The module's name.
        names: From each old name to the new one.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"{module}.{name} is {module}.{names[name]} now.", DeprecationWarning, stacklevel=2
        )
        return getattr(sys.modules[module], names[name])

    return find


def install() -> None:
    """Install the finder of old names."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.append(_OldNames())
