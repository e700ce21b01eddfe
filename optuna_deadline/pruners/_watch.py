"""One warning where nothing checks the deadline, with what that costs."""

from __future__ import annotations

import gc
import logging
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from optuna.pruners import BasePruner
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline.rank.processes import own_boot
from optuna_deadline.values.deadlines import format_duration

if TYPE_CHECKING:
    from optuna_deadline.pruners._deadline import DeadlinePruner

_logger = logging.getLogger("optuna_deadline")

#: The attribute of a trial with the id of its process, and its boot; DeadlineSampler sets it.
PROCESS = "optuna_deadline:process"

_GRACE = 0.25  # seconds after the deadline in which a trial may end
_PAUSE, _LOOKS = 1.0, 10  # while no trial runs that asks nothing
_DEPTH = 6  # pruners in pruners, or in lists of them
_LATE = 0.5  # seconds after the deadline from which a trial's end is worth a word
_ADVICE = (
    "Report in the objective and ask trial.should_prune() after each report; DeadlineSampler "
    "keeps study.optimize from starting further trials"
)


class DeadlineWatch:
    """Looks at the deadline for trials that no pruner ends.

    Optuna asks a pruner in ``trial.should_prune()`` only, so an objective that never asks would
    overrun without a word.

    Args:
        pruner: The study's pruner.
        seconds: Seconds to the deadline; None looks at the ends of trials alone.
    """

    def __init__(self, pruner: DeadlinePruner, seconds: float | None) -> None:
        self._pruner = weakref.ref(pruner)
        self._silent = False
        self._timer: threading.Timer | None = None
        if seconds is not None and 0 < seconds < threading.TIMEOUT_MAX:
            weakref.finalize(pruner, self.close).atexit = False  # the thread ends with the pruner
            self._look_in(seconds + _GRACE, _LOOKS)

    def close(self) -> None:
        """Say nothing: workers end their trials themselves."""
        self._silent = True
        if self._timer is not None:
            self._timer.cancel()

    def trial_ended(self, trial: FrozenTrial, left: float) -> None:
        """Tell by how much a trial overran, if it asked too seldom."""
        if left > -_LATE or trial.datetime_start is None:
            return
        reports = len(trial.intermediate_values)
        self._say(
            f"Trial {trial.number} ended {format_duration(-left)} after the deadline, with "
            f"{reports} report{'s' if reports != 1 else ''}. {_ADVICE}."
        )

    def asked_late(self, trial: FrozenTrial, left: float) -> None:
        """Tell that a loop of the user's own goes on after the deadline."""
        self._say(
            f"study.ask began trial {trial.number} {format_duration(-left)} after the deadline, "
            "and each further trial costs its whole time: a loop that asks and tells should go on "
            "while optuna_deadline.time_left(study) > 0."
        )

    def look(self, looks: int = 1, known: Sequence[weakref.ref[Study]] = ()) -> None:
        """Tell which trials run past the deadline without having asked.

        Args:
            looks: How often to look while no such trial runs.
            known: The studies that the last look found.
        """
        pruner = self._pruner()
        if pruner is None or self._silent:
            return
        studies = [study for ref in known if (study := ref()) is not None]
        studies = studies or list(_studies_of(pruner))
        for study in studies:
            try:
                left, asked = pruner._situation(study)
                trials = study.get_trials(deepcopy=False)
            except Exception as error:  # a storage that serves one thread, or is gone
                _logger.debug("Nothing is known of the deadline: %s", error)
                continue
            if left > 0:  # it was moved
                self._look_in(left + _GRACE, looks)
                return
            running = [trial for trial in trials if trial.state is TrialState.RUNNING]
            if unasked := [trial for trial in running if _is_unasked(trial, asked)]:
                self._say(*_overrun(study, unasked[0], trials, pruner))
                return
        if studies and looks > 1:
            self._look_in(_PAUSE, looks - 1, [weakref.ref(study) for study in studies])

    def _look_in(
        self, seconds: float, looks: int, known: Sequence[weakref.ref[Study]] = ()
    ) -> None:
        self._timer = threading.Timer(seconds, self.look, (looks, known))
        self._timer.daemon = True
        self._timer.start()

    def _say(self, words: str, is_last: bool = True) -> None:
        if not self._silent:
            self._silent = is_last
            _logger.warning("%s", words)


def trained_here(study: Study) -> bool:
    """Whether a trial of a study has ended in this process."""
    mine = [os.getpid(), own_boot()]
    trials = study.get_trials(deepcopy=False)
    return any(one.state.is_finished() and one.system_attrs.get(PROCESS) == mine for one in trials)


def _is_unasked(trial: FrozenTrial, asked: set[int]) -> bool:
    """Whether a trial of this process has not asked; another process tells of its own."""
    process = trial.system_attrs.get(PROCESS)
    if process is None:  # without DeadlineSampler
        return not asked
    return process[0] == os.getpid() and trial.number not in asked


def _overrun(
    study: Study, trial: FrozenTrial, trials: list[FrozenTrial], pruner: DeadlinePruner
) -> tuple[str, bool]:
    """What to say of a trial that runs past the deadline, and whether that has its cost."""
    began = trial.datetime_start
    elapsed = 0.0 if began is None else pruner.clock.since(began)
    ended = [one.duration.total_seconds() for one in trials if one.duration is not None]
    cost = ""
    if ended:
        cost = (
            f" It ends {format_duration(max(0.0, mean(ended) - elapsed))} late if it takes "
            f"{format_duration(mean(ended))} as those before it, and each further one costs as "
            "much."
        )
    words = (
        f"The deadline of the study {study.study_name!r} has passed and nothing checks it: trial "
        f"{trial.number} has run for {format_duration(elapsed)} and asked nothing.{cost}"
    )
    return f"{words} {_ADVICE}.", bool(ended)


def _studies_of(pruner: DeadlinePruner) -> Iterator[Study]:
    """The studies with this pruner; Optuna tells a pruner of none until a trial asks.

    They are found by what refers to the pruner and to the pruners around it; nothing else is
    followed, since each look at all objects stops all threads for a moment. A list of all objects
    would take one look, but it also refers to a tuple that another thread is building, and Python
    then raises a SystemError there.
    """
    from optuna_deadline.pruners._wrapped import find_deadline_pruner

    level: list[Any] = [pruner]
    seen = {id(pruner)}
    for _ in range(_DEPTH):
        if not level:
            return
        seen.add(id(level))
        holders = gc.get_referrers(*level)
        seen.add(id(holders))
        if attributes := [one for one in holders if isinstance(one, dict)]:
            seen.add(id(attributes))
            holders += gc.get_referrers(*attributes)
        holders = [one for one in holders if id(one) not in seen]
        seen |= {id(one) for one in holders}
        level = [one for one in holders if isinstance(one, (BasePruner, list, tuple))]
        for holder in holders:
            if not issubclass(type(holder), Study):
                continue
            held = getattr(holder, "pruner", None)  # none yet while another thread makes it
            if find_deadline_pruner(held) is pruner:
                yield holder
