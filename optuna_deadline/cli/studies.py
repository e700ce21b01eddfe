"""Opening studies for the commands."""

from __future__ import annotations

import re

import optuna
from optuna.storages import BaseStorage, get_storage
from optuna.study import Study
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from optuna_deadline.errors import DeadlineError
from optuna_deadline.samplers import DeadlineSampler


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
        return optuna.load_study(study_name=name, storage=storage, sampler=DeadlineSampler())
    except KeyError:
        names = ", ".join(optuna.get_all_study_names(storage)) or "none yet"
        raise DeadlineError(
            f"There is no study {name!r} (there are: {names}); make it with "
            f"'optuna-deadline create {name}'."
        ) from None
