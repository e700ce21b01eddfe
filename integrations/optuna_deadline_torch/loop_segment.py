"""A segment of a loop: it restores, agrees with the other ranks, saves and leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from optuna_deadline.loop_variables import LoopVariables
from optuna_deadline.segments import Segment, take_one_slot
from optuna_deadline_torch.consensus import ReplicatedState
from optuna_deadline_torch.decisions import SegmentController
from optuna_deadline_torch.differences import warn_of_differences
from optuna_deadline_torch.direction import direction_of
from optuna_deadline_torch.epoch_data import EpochData
from optuna_deadline_torch.loop_state import LoopState
from optuna_deadline_torch.ranks import connect, wrapped
from optuna_deadline_torch.sample_order import fingerprints, refuse_another_order
from optuna_deadline_torch.sampler import ElasticBatchSampler
from optuna_deadline_torch.scaling import Scaling
from optuna_deadline_torch.sources import LoaderSources, warn_if_counted, warn_if_zipped
from optuna_deadline_torch.states import TrainingState, read
from optuna_deadline_torch.surroundings import Surroundings
from optuna_deadline_torch.warm_memory import TrainingObjects

_REMEDY = "keep it in a list, a dict or a tensor, and give that to ElasticLoop by a name"
_FOREIGN = (
    "its optimizer trains parameters outside the model, whose gradients the slots would not share:"
    " make their module a part of the model"
)


@dataclass(frozen=True)
class LoopOptions:
    """Options of a loop that matter under a worker only; see ``ElasticLoop``."""

    seed: int
    save_every: float
    mode: str | None
    ddp: Mapping[str, Any]
    equal_shards: bool


class LoopSegment:
    """A segment of a loop.

    Args:
        trial: The trial.
        segment: Its segment.
        device: The rank's device.
        states: The model and everything else that a checkpoint holds.
        scaling: The scaling rule.
        options: The user's options.
        position: Returns the loop's place in its training and its values.
    """

    def __init__(
        self,
        trial: Any,
        segment: Segment,
        device: torch.device,
        states: TrainingState,
        scaling: Scaling,
        options: LoopOptions,
        position: Callable[[], Mapping[str, Any]],
    ) -> None:
        states.refuse_unsaved()
        if states.foreign:
            take_one_slot(segment, _FOREIGN)
        self.model: nn.Module = states.model  #: the model to call in training
        self._averaged: tuple[bool, ...] = ()  # which parameters it averages
        self._segment, self._device = segment, device
        self._states, self._scaling = states, scaling
        self._ddp = options.ddp
        self._position = position
        self._order: dict[str, Any] | None = None  # fingerprints before the checkpoint
        self._ordered: Sequence[ElasticBatchSampler] = ()  # loaders whose order was checked
        self._told = False  # whether the differences were logged
        self._variables: LoopVariables | None = None  # once the loop has begun
        self.controller = SegmentController(
            segment,
            direction=direction_of(trial, segment, options.mode),
            seed=options.seed,
            save_every=options.save_every,
            take_state=self._take,
            trained=self._trained_alike,
            verify=partial(read, mmap=True),
            training_objects=lambda: TrainingObjects(states.objects),
            grows=scaling.rule is not None,
            even=options.equal_shards,
        )
        self.controller.term.install()
        self._state = LoopState(states, segment, device, self.controller.should_log)
        self.sources = LoaderSources(self.controller.deal, segment.world_size)

    def resume(self) -> dict[str, Any] | None:
        """Join the other ranks; returns the position to resume from."""
        pilot, position = self.controller, self._state.open()
        if position is not None:
            self.sources.resume(position["loader"])
            self._order = position["order"]
            self._scaling.load(position["scaling"])
            pilot.logged_topics.update(position["told"])
            pilot.best.value, pilot.reported = position["best"], position["reported"]
        if self._segment.world_size > 1:
            connect(self._device)
            self._wrap()
        pilot.consensus.connect()
        return position

    def begin(self, *, within: bool) -> None:
        """Restore the states, before the first epoch here.

        Args:
            within: Whether it resumes after some of its batches.
        """
        around = Surroundings.of_caller()
        self._state.begin(around, within=within)
        self._variables = LoopVariables(
            lambda: [*self._states.saved, *around.datasets.values()], with_globals=False
        )
        self.controller.start()

    def begin_batches(self, data: EpochData, *, within: bool) -> None:
        """Restore what an epoch has, before its order of samples is drawn.

        Args:
            data: Of the epoch.
            within: Whether it resumes after some of its batches.
        """
        self._state.begin_batches(data.sources, within=within, replayed=data.replayed)
        if within:
            data.digest()
        if self._averaged and self._averaged != self._states.trained:
            self._wrap()  # some parameters were frozen or thawed

    def check_order(self, data: EpochData, epoch: int, start: int) -> None:
        """Check the order of samples, before the first batch.

        Args:
            data: Of the epoch.
            epoch: The epoch.
            start: Its first batch here.

        Raises:
            DeadlineError: The batches differ from those of another segment or rank.
        """
        if not data.samplers:
            return
        if data.samplers != self._ordered:  # or one loader for each epoch
            consensus = self.controller.consensus
            refuse_another_order(
                data.samplers, epoch, start, consensus=consensus, saved=self._order
            )
        self._ordered, self._order = data.samplers, None

    def log_differences(self, batches: Any, epoch: int, start: int, precision: str) -> None:
        """Log, once, what differs from an uninterrupted training on one slot.

        Args:
            batches: The iterator that the user's loop has.
            epoch: The epoch of the first step.
            start: Its batch.
            precision: Of the training, if it is known.
        """
        if self._told:
            return
        self._told = True
        tells, slots = self.controller.should_log, self._segment.world_size
        if self._segment.rank == 0:
            warn_if_zipped(batches)
            self._states.warn_of_schedulers()
        if start and tells("counted"):
            warn_if_counted(batches)
        if slots > 1 and tells("slots"):
            warn_of_differences(slots, self._states.model, precision)

    def stepped(
        self,
        progress: float,
        steps: int,
        value: float | None,
        *,
        saves: bool,
        ending: bool = False,
    ) -> None:
        """Follow the ranks' decision after a step of the optimizer.

        Args:
            progress: In reports, with fractions.
            steps: Of the optimizer, which names the checkpoint.
            value: The report of these very weights, if there is one.
            saves: Whether a safety checkpoint may be made here.
            ending: Whether training is about to end by itself.

        Raises:
            SegmentEnd: The ranks leave their slots here.
        """
        pilot = self.controller
        self._segment.progress(progress)
        better = value is not None and pilot.best.improved(value)
        decision = pilot.agree(save=better or (saves and pilot.checkpoint_due))
        pilot.apply(self._state.possible(decision), steps, value=value, ending=ending)

    # ---- internal

    def _wrap(self) -> None:
        self.model = self._states.model  # an old wrapper removes its hooks
        self.model = wrapped(self._states.model, self._device, self._ddp)
        self._averaged = self._states.trained
        self._scaling.listen(self.model, self.controller.consensus)

    def _trained_alike(self) -> ReplicatedState:
        return ReplicatedState(
            self._states.model.parameters(),
            self._states.optimizers,
            "call `loop.model(x)` in place of `model(x)`",
            self._states.objects,
        )

    def _take(self) -> dict[str, Any]:
        pilot, position = self.controller, self._position()
        said = "variables" in pilot.logged_topics or self._segment.rank > 0
        if self._variables is not None and not said and self._variables.warn(_REMEDY):
            pilot.logged_topics.add("variables")
        order = self._order
        if self._ordered:  # otherwise no batch was requested yet, or none is distributed
            epoch, start = position["position"]
            order = fingerprints(self._ordered, epoch, start, self._segment.world_size)
        return self._state.capture(
            {
                **position,
                "best": pilot.best.value,
                "reported": pilot.reported,
                "told": sorted(pilot.logged_topics),
                "loader": self.sources.state(),
                "order": order,
                "scaling": self._scaling.state(),
            },
            pilot.consensus,
        )
