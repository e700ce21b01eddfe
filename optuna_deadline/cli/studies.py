"""Opening studies for the commands."""

from __future__ import annotations

import optuna
from optuna.study import Study

from optuna_deadline.cli.databases import open_storage
from optuna_deadline.errors import DeadlineError
from optuna_deadline.samplers import DeadlineSampler, winners

_EARLIER = "optuna_deadline:earlier"  #: an attribute of the study


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
