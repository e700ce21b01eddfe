"""A training loop of one's own that resumes, in two calls: :func:`resumable` and ``step.report``.

The core knows no framework: objects are saved by their ``state_dict``, and PyTorch writes the file
if the script has imported it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from optuna.exceptions import TrialPruned

from optuna_deadline._numbers import plain_number
from optuna_deadline._out_of_time import out_of_time
from optuna_deadline.directives import Kind
from optuna_deadline.errors import DeadlineError, check_counts
from optuna_deadline.fits import begin_fit
from optuna_deadline.loop_variables import LoopVariables
from optuna_deadline.module_values import (
    ModuleValues,
    refuse_unsaved,
    warn_of_schedulers,
    warn_of_structure,
)
from optuna_deadline.plain_data import (
    decoded,
    is_data,
    put_back,
    random_state,
    read_plain,
    set_random_state,
    state_of,
    write_plain,
)
from optuna_deadline.segments import take_one_slot
from optuna_deadline.values.scores import BestValue


class Step(int):
    """The number of a step, from 1, which takes its report."""

    _training: Resumable

    def report(self, value: float) -> None:
        """Report the value after this step; call it at most once in a step."""
        self._training.record(self, value)


class Resumable:
    """A training that continues where its last segment was paused; see :func:`resumable`."""

    def __init__(
        self,
        trial: Any,
        steps: int,
        state: MutableMapping[str, Any],
        save_every: float,
        fit: str | None,
    ) -> None:
        steps = plain_number(steps)
        check_counts(steps=steps)
        self._trial, self._steps, self._state = trial, steps, state
        self._objects = {name for name, each in state.items() if not is_data(each)}
        self._save_every = save_every
        self._segment = begin_fit(trial, fit, first=1)
        self._best = BestValue(self._segment.direction or "minimize")
        self._value: float | None = None
        self._begun = self._done = 0  # the present step, and the last one that has ended
        self._reported: float | None = None  # of the present step
        self._saved = 0  # the step of the last checkpoint
        self._saved_at = time.monotonic()
        if self._segment.elastic:
            take_one_slot(
                self._segment,
                "a loop of resumable() trains in one process; ElasticLoop trains on several slots",
            )
            self._segment.horizon(steps)
            refuse_unsaved(state, "name their module in the state too")
        self._values: ModuleValues | None = None  # once the loop has begun
        self._variables: LoopVariables | None = None
        self._told = False  # whether it was named what restarts after a pause
        self._keeps = False  # whether the trial keeps its slot to its end
        if self._segment.resume is not None:
            kept = self._restore(self._segment.resume, is_data)  # code before the loop may read it
            self._begun = self._done = self._saved = kept["step"]
            self._value, self._best.value = kept["value"], kept["best"]

    def __iter__(self) -> Iterator[Step]:
        """The steps that are left; a pause, a pruning and the deadline end the loop."""
        if self._values is None:
            self._begin()
        while self._done < self._steps and not self._segment.ended:
            step = Step(self._done + 1)
            step._training = self
            self._begun, self._reported = int(step), None
            yield step
            if self._is_over():
                return

    def _begin(self) -> None:
        if self._segment.elastic:
            warn_of_schedulers(self._state, 'name it in the state, as {"scheduler": scheduler}')
        self._values = ModuleValues(self._state)
        if self._segment.resume is not None:
            # Only now: code before the loop draws, copies and sets as it did in the first segment.
            kept = self._restore(self._segment.resume)
            set_random_state(kept["random"])
            self._told = kept["told"]
        if self._segment.elastic:
            self._variables = LoopVariables(
                lambda: [self._trial, self._state, *self._state.values()]
            )

    def record(self, step: int, value: float) -> None:
        """Report a value to the study."""
        self._value = self._reported = float(value)
        self._segment.report(self._trial, self._value, step)

    def result(self) -> float:
        """The last reported value, also of an earlier segment; return it from the objective.

        Raises:
            DeadlineError: Nothing was reported.
        """
        if self._value is None:
            raise DeadlineError("Nothing was reported: call step.report(value) in the loop.")
        if self._begun > self._done:  # after a break out of the loop
            self._end_step()
        self._segment.end(self._write)
        return self._value

    def _is_over(self) -> bool:
        """Save, leave or prune after a step; whether the loop ends here."""
        self._end_step()
        if not self._segment.elastic:
            if self._reported is None:
                return False
            if out_of_time(self._trial):
                return True  # not a pruning: the objective returns its last value
            if self._trial.should_prune():
                raise TrialPruned(f"Trial was pruned at step {self._done}.")
            return False
        if self._done == self._steps:
            return True
        directive = self._segment.directive()
        if directive.kind is Kind.STOP:
            self._segment.leave(directive)
        if directive.leave and not self._keeps_slot():
            self._save()
            self._segment.leave(directive)
        if time.monotonic() - self._saved_at >= self._save_every:
            self._save()
        return False

    def _keeps_slot(self) -> bool:
        """Whether training has changed what a new process would make, so none could resume."""
        changed = [] if self._values is None else self._values.changed_structure()
        changed += [
            f"state[{name!r}]"
            for name, each in self._state.items()
            if name not in self._objects and not is_data(each)
        ]
        if changed and not self._keeps:
            self._keeps = True
            warn_of_structure(changed, "before resumable(...)")
            self._segment.keep_slots()
        return bool(changed)

    def _end_step(self) -> None:
        self._done = self._begun
        self._segment.progress(self._done)
        if self._reported is not None and self._best.improved(self._reported):
            self._save()

    def _save(self) -> None:
        if self._saved != self._done:
            self._write()

    def _write(self) -> None:
        values = None if self._values is None else self._values.changed()
        if self._values is not None and self._variables is not None and not self._told:
            self._told = self._variables.warn("keep it in the state") | self._values.warn()
        kept = {
            "step": self._done,
            "value": self._value,
            "best": self._best.value,
            "state": {name: state_of(name, each) for name, each in self._state.items()},
            "data": [name for name, each in self._state.items() if is_data(each)],
            "values": values,
            "random": random_state(),
            "told": self._told,
        }
        self._segment.save(
            lambda path: write_plain(kept, path), step=self._done, value=self._reported
        )
        self._saved, self._saved_at = self._done, time.monotonic()

    def _restore(
        self, checkpoint: Path, wanted: Callable[[Any], bool] = lambda _: True
    ) -> Mapping[str, Any]:
        kept = read_plain(checkpoint)
        if self._values is not None and kept["values"] is not None:  # saved once a loop has begun
            # First, since an attribute may be a view of a parameter.
            self._values.restore(kept["values"])
        for name, found in kept["state"].items():
            if name not in self._state and name in kept["data"]:
                self._state[name] = decoded(found)
            elif name not in self._state:
                raise DeadlineError(
                    f"The checkpoint has state[{name!r}], and this loop has none: name the same "
                    "state in every segment of a trial."
                )
            elif wanted(self._state[name]):
                self._state[name] = put_back(self._state[name], decoded(found))
        return kept


def resumable(
    trial: Any,
    *,
    steps: int,
    state: MutableMapping[str, Any],
    save_every: float = 60.0,
    fit: str | None = None,
) -> Resumable:
    """The steps of a training loop that workers can pause and resume.

    Under a worker, the loop continues after the last saved step, with the state and the global
    random numbers of Python, NumPy and PyTorch at that step. It saves at each best value, every
    ``save_every`` seconds, and before it leaves its slot. In plain Optuna it reports and prunes,
    and ends at the deadline. It trains on one slot; ``optuna_deadline_torch.ElasticLoop`` trains
    on several.

    Example:
        ```python
        def objective(trial):
            model, optimizer = make(trial.suggest_float("lr", 1e-3, 1.0, log=True))
            state = {"model": model, "optimizer": optimizer}
            training = resumable(trial, steps=27, state=state)
            for step in training:
                train_one_epoch(model, optimizer)
                step.report(evaluate(model))
            return training.result()
        ```

    Args:
        trial: The trial that the objective was called with.
        steps: The number of steps of a whole training.
        state: By name, all that training changes: objects with ``state_dict`` and
            ``load_state_dict``, random generators, plain data, and objects of Python classes
            whose attributes are plain data. Lists, dicts, sets, deques,
            arrays and tensors are filled in place; numbers and texts are put back into this
            mapping, so read them from it. The loop may add plain data.
        save_every: Seconds between two checkpoints without a best value.
        fit: A name, needed where the objective trains several models one after the other, such as
            the folds of a cross-validation. Call ``training.result()`` after each loop.

    Returns:
        An iterable of the steps that are left, as numbers from 1 with the method ``report``.

    Raises:
        DeadlineError: An argument is invalid, a value in ``state`` cannot be saved, or the trial
            has a second loop without a name.
        TrialPruned: In plain Optuna, the pruner ends the trial.
        SegmentEnd: Under a worker, the loop leaves its slot.
    """
    return Resumable(trial, steps, state, save_every, fit)
