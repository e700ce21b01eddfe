"""The state of a loop of the user's own, restored where code runs again in each segment.

In a segment that resumes, the objective runs from its beginning, and so does the body of an epoch
that was left within its batches. What this code sets, such as a learning rate or which parameters
are trained, is replaced by what the checkpoint has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from optuna_deadline.module_values import changed_structure, warn_of_structure
from optuna_deadline.segments import Segment
from optuna_deadline_torch.changed_values import ChangedValues
from optuna_deadline_torch.consensus import Consensus, StepDecision
from optuna_deadline_torch.module_walk import LoopWalk
from optuna_deadline_torch.object_walk import ObjectWalk
from optuna_deadline_torch.packing import same
from optuna_deadline_torch.states import TrainingState
from optuna_deadline_torch.surroundings import Surroundings

_LOADER, _DATA = "loader ", "data "  # how the names of their values begin
_LATER = _LOADER, _DATA


class LoopState:
    """All that the checkpoints of a loop hold, beside its position.

    Args:
        states: The objects that the loop is given.
        segment: The segment.
        device: The rank's device.
        tells: Whether to log something about a topic.
    """

    def __init__(
        self,
        states: TrainingState,
        segment: Segment,
        device: torch.device,
        tells: Callable[[str], bool],
    ) -> None:
        self._states = states
        self._segment = segment
        self._should_log = tells
        self._values = LoopValues(
            states.walk, tells, rank=segment.rank, world_size=segment.world_size, device=device
        )
        self._built: dict[str, Any] = {}  # the structure where training begins

    def open(self) -> dict[str, Any] | None:
        """Restore plain data; returns the position, if the segment resumes."""
        if self._segment.resume is None:
            return None
        position = self._states.open(self._segment.resume)
        self._values.load(position["values"])
        return position

    def begin(self, around: Surroundings, *, within: bool) -> None:
        """Restore the objects; call it before the first epoch.

        Args:
            around: The function around the loop.
            within: Whether the epoch resumes after some of its batches.

        Raises:
            DeadlineError: A state holds more than plain data.
        """
        self._restore()
        self._values.begin(around, within=within)
        self._built = self._states.structure
        self._states.check()

    def begin_batches(self, loaders: Sequence[Any], *, within: bool, replayed: bool) -> None:
        """Restore what an epoch has; call it before the first batch.

        Args:
            loaders: The loaders.
            within: Whether the epoch resumes after some of its batches.
            replayed: Whether these batches are read again.
        """
        if within:
            self._restore()
        self._values.begin_batches(loaders, within=within, replayed=replayed)

    def possible(self, verdict: StepDecision) -> StepDecision:
        """The decision, without an end from which the trial could not resume."""
        changed = [] if verdict.goes_on else changed_structure(self._built, self._states.structure)
        if not changed:
            return verdict
        if self._should_log("structure"):
            warn_of_structure(changed, "before ElasticLoop(...)")
            self._segment.keep_slots()
        return verdict.staying()

    def capture(self, position: Mapping[str, Any], consensus: Consensus) -> dict[str, Any]:
        """The state for a checkpoint; every rank calls it."""
        return self._states.capture({**position, "values": self._values.state(consensus)})

    def _restore(self) -> None:
        if self._segment.resume is not None:
            self._states.load(self._segment.resume)


class LoopValues(ChangedValues):
    """Those of a loop of the user's own, whose loaders are known from an epoch's first batch on.

    Code of an epoch that comes before its batches changes values too. Those of the datasets in
    the function's variables are restored before it, as an uninterrupted training has them there.

    Args:
        walk: Finds the values, with those of the function around the loop and of some loaders.
        tells: Whether to log something about a topic.
        rank: The rank.
        world_size: The number of ranks.
        device: The rank's device.
    """

    def __init__(
        self,
        walk: Callable[[Surroundings, Sequence[Any]], LoopWalk],
        tells: Callable[[str], bool],
        *,
        rank: int,
        world_size: int,
        device: torch.device,
    ) -> None:
        self._look: Callable[[], LoopWalk] = lambda: walk(self._around, self._loaders)
        super().__init__(
            self._look,
            tells,
            "Use a metric, or a value that all slots share.",
            "Keep them in what you pass to ElasticLoop(...), or in buffers of the model.",
        )
        self._around = Surroundings()
        self._loaders: Sequence[Any] = ()
        self._begun: dict[str, Any] = {}  # values of loaders at the epoch's first batch
        self._counted: dict[str, Any] = {}  # what this epoch has changed in segments before
        self._place = rank, world_size
        self._device = device

    def load(self, saved: Mapping[str, Any]) -> None:
        """Keep :meth:`state` until the training begins."""
        self._saved = saved

    def begin(self, around: Surroundings, *, within: bool) -> None:
        """Restore saved values; call it when the code before the first epoch has run.

        Args:
            around: The function around the loop.
            within: Whether the epoch resumes after some of its batches, which may be read again.
        """
        self._around = around
        walk = self._walk()
        self._first = walk.values()
        self._put_back(walk, lambda name: not name.startswith(_LATER if within else _LOADER))

    def begin_batches(self, loaders: Sequence[Any], *, within: bool, replayed: bool) -> None:
        """Restore saved values of an epoch's loaders; call it before the first batch.

        Args:
            loaders: The loaders.
            within: Whether the epoch resumes after some of its batches. Then code before them has
                run again, so all values are restored. Otherwise only those are that the batches
                of the epoch before have changed, such as a count of reads, and not those that
                code between epochs has set.
            replayed: Whether these batches are read again, so that datasets count anew.
        """
        self._loaders = [] if replayed else loaders
        walk = self._look()
        self._begun = now = _of_loaders(walk.values())
        self._first = {**now, **(self._first or {})}
        self._counted = {}
        if self._saved:
            counted = self._saved["counted"]
            self._put_back(
                walk,
                lambda name: (
                    not (replayed and name.startswith(_DATA))
                    if within
                    else name in counted and same(now.get(name), counted[name])
                ),
            )
            self._saved, self._counted = {}, counted if within else {}
            self._begun = _of_loaders(self.values())

    def state(self, consensus: Consensus) -> dict[str, Any]:
        """The changed values in plain form; every rank calls it.

        Those that this segment has not restored yet are as they were saved. What the batches of
        an epoch have changed in its loaders comes with its value in a new process.
        """
        walk = self._look()
        now = walk.values()
        names, state = self._divided(consensus, now, walk.choices)
        first = self._first or {}
        counted = {
            name: first[name]
            for name in names & self._begun.keys() & first.keys()
            if not same(self._begun[name], now[name])
        }
        counted |= self._counted
        if self._saved:
            waiting = self._of_this_rank(*self._place)
            state["all"] |= {name: waiting[name] for name in waiting if name not in names}
            counted |= self._saved["counted"]
        return {**state, "counted": counted}

    def _put_back(self, walk: ObjectWalk, wanted: Callable[[str], bool]) -> None:
        nodes = self._of_this_rank(*self._place) if self._saved else {}
        self._kept |= nodes.keys()
        for name, node in nodes.items():
            if wanted(name):
                walk.restore(name, node, self._device)


def _of_loaders(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in values.items() if name.startswith(_LOADER)}
