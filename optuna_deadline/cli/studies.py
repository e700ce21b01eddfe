"""Opening studies for the commands."""

from __future__ import annotations

import re

import optuna
from optuna.storages import BaseStorage, get_storage
from optuna.study import Study
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from optuna_deadline.errors import DeadlineError
from optuna_deadline.samplers import DeadlineSampler, winners

_EARLIER = "optuna_deadline:earlier"  #: an attribute of the study


def open_storage(url: str) -> BaseStorage:
    """Optuna's storage behind a URL.

    Raises:
        DeadlineError: The URL is none, or its driver is not installed.
    """
    check_url(url)
    try:
        return get_storage(url)
    except ImportError:
        driver = make_url(url).drivername
        raise DeadlineError(
            f"No driver for {driver} is installed: pip install 'optuna-deadline[postgres]'."
        ) from None


def check_url(url: str) -> None:
    """Refuse what is no URL.

    Raises:
        DeadlineError: With what one looks like.
    """
    try:
        make_url(url)
    except ArgumentError:
        raise DeadlineError(
            f"{_without_password(url)!r} is no database URL: write sqlite:///study.db or "
            "postgresql://user@host/database."
        ) from None


def _without_password(text: str) -> str:
    """What cannot be parsed may hold a password all the same."""
    return re.sub(r":[^:/]*@", ":***@", text)


def load_study(name: str, url: str) -> Study:
    """A study that exists.

    Raises:
        DeadlineError: There is none of that name.
    """
    storage = open_storage(url)
    try:
        study = optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        names = ", ".join(optuna.get_all_study_names(storage)) or "none yet"
        raise DeadlineError(
            f"There is no study {name!r} (there are: {names}); make it with "
            f"'optuna-deadline create {name}'."
        ) from None
    study.sampler = sampler_of(study)
    return study


def begin_with(study: Study, earlier: list[str]) -> None:
    """Write down the studies whose winners it is to begin with: every worker's sampler knows.

    Raises:
        DeadlineError: One of them is none, or not of one objective.
    """
    winners(study, earlier)
    study.set_user_attr(_EARLIER, earlier)


def sampler_of(study: Study) -> DeadlineSampler:
    """That of a study which workers train."""
    return DeadlineSampler(earlier=study.user_attrs.get(_EARLIER, []))
