"""The storage of a trial in a rank."""

from __future__ import annotations

from typing import Any, NoReturn

from optuna_deadline.rank.link import Link


class RankStorage:
    """The attributes of a trial and of its study, which helpers of Optuna keep in the storage.

    Artifacts, notes of the dashboard and scores of a cross validation are such attributes. All
    else that a storage does, the worker does alone.

    Args:
        link: To the worker.
        rank: The rank; only the first one writes.
    """

    def __init__(self, link: Link, rank: int) -> None:
        self._link = link
        self._rank = rank

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, Any]:
        """As in Optuna, of this trial."""
        self._check("trial_id", trial_id)
        return dict(self._link.request("system_attrs"))

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """As in Optuna, of this trial."""
        self._check("trial_id", trial_id)
        if self._rank == 0:
            self._link.request("set_system_attr", key, value)

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """As in Optuna, of the trial's study."""
        self._check("study.id", study_id)
        return dict(self._link.request("study.system_attrs"))

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """As in Optuna, of the trial's study."""
        self._check("study.id", study_id)
        if self._rank == 0:
            self._link.request("study.set_system_attr", key, value)

    def _check(self, whose: str, asked: int) -> None:
        if asked != self._link.request(whose):
            raise ValueError(
                "The storage of a trial in a worker has the attributes of this trial and of its "
                "study alone: load another study by optuna.load_study(study_name=..., "
                "storage=...)."
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError("The storage of a trial in a worker stays in its process.")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"The storage of a trial in a worker has no {name!r}, since only the worker uses the "
            "storage: load the study by optuna.load_study(study_name=..., storage=...) if the "
            "objective needs it."
        )
