"""Optuna's own pruners for policies that never pause."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from optuna.pruners import (
    BasePruner,
    HyperbandPruner,
    MedianPruner,
    NopPruner,
    SuccessiveHalvingPruner,
)

_logger = logging.getLogger("optuna_deadline")

#: Policies whose trials :class:`~optuna_deadline.DeadlinePruner` prunes by its own rule.
_OWN = ("adaptive_halving", "hypersched", "pruner")


_RULES: dict[str, Callable[[Mapping[str, Any]], BasePruner]] = {
    "fifo": lambda _: NopPruner(),
    "median": lambda _: MedianPruner(),
    "asha": lambda given: SuccessiveHalvingPruner(
        given.get("min_resource") or 1, given.get("reduction_factor") or 4
    ),
    "hyperband": lambda given: HyperbandPruner(
        given.get("min_resource") or 1,
        given.get("max_resource") or "auto",
        given.get("reduction_factor") or 3,
    ),
}


def optuna_rule(policy: str, parameters: Mapping[str, Any]) -> BasePruner | None:
    """Optuna's pruner with the rule of a policy.

    Returns:
        None if :class:`~optuna_deadline.DeadlinePruner` prunes by its own rule.
    """
    if policy in _RULES:
        return _RULES[policy](parameters)
    if policy not in _OWN:
        names = ", ".join(_RULES)
        _logger.warning(
            "The policy %s pauses trials, which study.optimize cannot: DeadlinePruner prunes by "
            "its own rule here. Policies that study.optimize follows: %s.",
            policy,
            names,
        )
    return None
