"""A study that is deleted while processes work on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from optuna.study import Study

from optuna_deadline.errors import StudyGone


@contextmanager
def unless_deleted(study: Study) -> Iterator[None]:
    """Tell a deleted study from every other error in what is asked of Optuna.

    Optuna's storages raise KeyError for it and ``Study.tell`` makes a ValueError of that. A
    sampler or an objective may raise the same on its own account, so the storage is asked.

    Args:
        study: The study that the calls in the block are about.

    Raises:
        StudyGone: The study was deleted.
    """
    try:
        yield
    except (KeyError, ValueError):
        if _exists(study):
            raise
        raise StudyGone("The study was deleted while the worker ran.") from None


def _exists(study: Study) -> bool:
    try:
        study._storage.get_study_user_attrs(study._study_id)  # no storage caches these
    except KeyError:
        return False
    return True
