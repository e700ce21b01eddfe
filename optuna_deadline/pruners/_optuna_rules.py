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
_OWN = ("adaptive_halving", "freeze_thaw", "hypersched", "pruner")


def _asha(parameters: Mapping[str, Any]) -> BasePruner:
    return SuccessiveHalvingPruner(
        min_resource=parameters.get("min_resource") or 1,
        reduction_factor=parameters.get("reduction_factor") or 4,
    )


def _hyperband(parameters: Mapping[str, Any]) -> BasePruner:
    return HyperbandPruner(
        min_resource=parameters.get("min_resource") or 1,
        max_resource=parameters.get("max_resource") or "auto",
        reduction_factor=parameters.get("reduction_factor") or 3,
    )


_RULES: dict[str, Callable[[Mapping[str, Any]], BasePruner]] = {
    "fifo": lambda _: NopPruner(),
    "median": lambda _: MedianPruner(),
    "asha": _asha,
    "hyperband": _hyperband,
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
