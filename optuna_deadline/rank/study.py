"""A trial's study in a rank."""

from __future__ import annotations

import copy
from collections.abc import Container
from typing import Any

from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline.rank.link import Link
from optuna_deadline.rank.storage import RankStorage

_READ = frozenset({
    "study_name", "user_attrs", "metric_names", "best_trial", "best_value", "best_params",
})  # fmt: skip


class RankStudy:
    """The part of :class:`optuna.study.Study` that an objective in a worker may use.

    Everything else needs the study's storage, which only the worker uses.
    """

    def __init__(self, link: Link, rank: int) -> None:
        self._link = link
        self._rank = rank

    @property
    def direction(self) -> StudyDirection:
        """As in Optuna."""
        return StudyDirection(self._link.request("study.direction"))

    @property
    def directions(self) -> list[StudyDirection]:
        """As in Optuna."""
        return [self.direction]

    @property
    def best_trials(self) -> list[FrozenTrial]:
        """As in Optuna."""
        return [self.best_trial]

    @property
    def trials(self) -> list[FrozenTrial]:
        """As in Optuna."""
        return self.get_trials()

    def get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """As in Optuna; each call gets copies."""
        found: list[FrozenTrial] = []
        while part := self._link.request("study.get_trials", len(found)):
            found += part
        return [trial for trial in found if states is None or trial.state in states]

    def set_user_attr(self, key: str, value: Any) -> None:
        """As in Optuna."""
        if self._rank == 0:
            self._link.request("study.set_user_attr", key, value)

    def enqueue_trial(
        self,
        params: dict[str, Any],
        user_attrs: dict[str, Any] | None = None,
        skip_if_exists: bool = False,
    ) -> None:
        """As in Optuna."""
        if self._rank == 0:
            self._link.request("study.enqueue_trial", params, user_attrs, skip_if_exists)

    def stop(self) -> None:
        """Let no new trial start, in any worker; those that have started go on to their ends."""
        if self._rank == 0:
            self._link.request("study.stop")

    @property
    def _storage(self) -> RankStorage:
        return RankStorage(self._link, self._rank)

    @property
    def _study_id(self) -> int:
        return int(self._link.request("study.id"))

    def _is_multi_objective(self) -> bool:
        """Callbacks of Optuna's integrations ask this."""
        return False

    def __deepcopy__(self, memo: dict[int, Any]) -> RankStudy:
        """Another view of the same study."""
        return copy.copy(self)

    def __getattr__(self, name: str) -> Any:
        """As in Optuna, for what is read.

        Raises:
            AttributeError: It needs the storage.
        """
        if name in _READ:
            return self._link.request(f"study.{name}")
        raise AttributeError(
            f"The study of a trial in a worker has no {name!r}, since only the worker uses the "
            "storage: load the study by optuna.load_study(study_name=..., storage=...) if the "
            "objective needs it."
        )
