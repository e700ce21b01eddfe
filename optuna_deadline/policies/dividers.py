"""Dividers by name."""

from __future__ import annotations

from collections.abc import Callable

from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies.pool.fair_share import Divider, EvenDivider
from optuna_deadline.policies.shockwave import StudyMarket

_OURS: dict[str, Callable[[], Divider]] = {"even": EvenDivider, "market": StudyMarket}


def make_divider(name: str) -> Divider:
    """A divider: "even" for fair shares, "market" for Shockwave's market of studies.

    Raises:
        DeadlineError: Nobody knows the name.
    """
    if name not in _OURS:
        names = ", ".join(repr(known) for known in _OURS)
        raise DeadlineError(f"There is no divider {name!r}; choose one of {names}.")
    return _OURS[name]()
