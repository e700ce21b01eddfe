"""The best parameters of earlier studies of the same search, with which a study starts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial

from optuna_deadline._optuna import ENQUEUED, id_of, id_of_trial, storage_of
from optuna_deadline.errors import DeadlineError, spelled
from optuna_deadline.study.best import find_best
from optuna_deadline.study.terms import check_single_objective

Found = TypeVar("Found")


class OfTrial(Generic[Found]):
    """A value that is computed once per trial, although Optuna samples parameter by parameter.

    Each thread keeps the value of its last trial. Pickling drops the values.
    """

    def __init__(self) -> None:
        self._last = threading.local()

    def get(self, study: Study, trial: FrozenTrial, work_out: Callable[[], Found]) -> Found:
        """The value for a trial, computed if the trial is not the last one."""
        key = storage_of(study), id_of_trial(trial)
        if getattr(self._last, "key", None) != key:
            self._last.found = work_out()
            self._last.key = key
        found: Found = self._last.found
        return found

    def forget(self) -> None:
        """Compute the value anew at the next call."""
        self._last.key = None

    def __reduce__(self) -> tuple[type[OfTrial[Found]], tuple[()]]:
        return type(self), ()


_logger = logging.getLogger(__name__)

Params: TypeAlias = Mapping[str, Any]
#: A study, or the name of one in the storage of the study that is sampled.
StudyLike: TypeAlias = Study | str


class EarlierBest:
    """The best parameters of earlier studies for the first trials, one study each.

    The k-th trial, without enqueued ones, gets those of the k-th earlier study, in whichever
    process it starts. The earlier studies are read once, when the first trial is sampled.

    Args:
        earlier: The earlier studies, in the order of the first trials.

    Raises:
        DeadlineError: ``warm_start_from`` is not a list of studies and names.
    """

    def __init__(self, earlier: Iterable[StudyLike]) -> None:
        if isinstance(earlier, (str, Study)) or not isinstance(earlier, Iterable):
            raise DeadlineError(
                "warm_start_from is a list of studies or of their names: write "
                "warm_start_from=['last-week']."
            )
        self._earlier = tuple(earlier)
        if wrong := [one for one in self._earlier if not isinstance(one, (str, Study))]:
            raise DeadlineError(
                f"warm_start_from holds studies or their names, but has {wrong[0]!r}."
            )
        self._won: Sequence[Params] | None = None
        self._planned: OfTrial[Params | None] = OfTrial()

    def params(self, study: Study, trial: FrozenTrial) -> Params | None:
        """The parameters for one of the first trials; None for all others."""
        return self._planned.get(study, trial, lambda: self._plan(study, trial))

    def internal_value(
        self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> float | None:
        """The value of a parameter in Optuna's internal form, if it is valid in this study."""
        planned = self.params(study, trial)
        if planned is None or name not in planned:
            return None
        try:
            value = distribution.to_internal_repr(planned[name])
        except ValueError:  # the parameter has another kind now, or the choice is gone
            return None
        return value if distribution._contains(value) else None

    def _plan(self, study: Study, trial: FrozenTrial) -> Params | None:
        if not self._earlier or len(study.directions) > 1 or ENQUEUED in trial.system_attrs:
            return None
        turn = trial.number - sum(
            ENQUEUED in one.system_attrs
            for one in study.get_trials(deepcopy=False)
            if one.number < trial.number
        )
        if turn >= len(self._earlier):
            return None
        if self._won is None:
            self._won = winners(study, self._earlier)
        return self._won[turn] if turn < len(self._won) else None


def winners(study: Study, earlier: Sequence[StudyLike]) -> list[Params]:
    """The parameters of each earlier study's best report, without duplicates.

    Reports of trials in any state count. An earlier study without a report is skipped with a
    warning.

    Raises:
        DeadlineError: An earlier study does not exist, is the study itself, or has several
            objectives.
    """
    found: list[Params] = []
    for one in earlier:
        other = _named(storage_of(study), study.study_name, one) if isinstance(one, str) else one
        if storage_of(other) is storage_of(study) and id_of(other) == id_of(study):
            raise _itself(other.study_name)
        won = find_best(other)
        if won is None:
            _logger.warning("The earlier study %r has no reports to learn from.", other.study_name)
        elif won.params not in found:
            found.append(won.params)
    return found


def check_earlier(storage: BaseStorage, name: str, earlier: Sequence[str]) -> None:
    """Check the names for :func:`winners`, also before the study is created.

    Raises:
        DeadlineError: An earlier study does not exist, is the study itself, or has several
            objectives.
    """
    for one in earlier:
        if one == name:
            raise _itself(name)
        check_single_objective(_named(storage, name, one))


def _itself(name: str) -> DeadlineError:
    return DeadlineError(f"The study {name!r} cannot be earlier than itself.")


def _named(storage: BaseStorage, beside: str, name: str) -> Study:
    try:
        return optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        others = [other for other in optuna.get_all_study_names(storage) if other != beside]
        elsewhere = spelled("; pass the study itself where it is kept elsewhere", "")
        raise DeadlineError(
            f"There is no earlier study {name!r} beside {beside!r} (there are: "
            f"{', '.join(others) or 'none'}){elsewhere}."
        ) from None
