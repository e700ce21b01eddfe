"""Rules for trials whose global batch grows with their slots, and their schedulers.

A rule lengthens the step and counts it as several. The learning rate changes during
``optimizer.step`` only and is restored after it, so schedulers and checkpoints do not depend on
the slots: a trial that shrinks, or resumes on another number, has its own learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from optuna_deadline.errors import DeadlineError
from optuna_deadline_torch.adascale import AdaScaleGain, LocalGradientNorm, squared_norm
from optuna_deadline_torch.consensus import Consensus

RULES = ("linear", "sqrt", "adascale")
_NEARLY = 1e-6  # sums of gains are rounded


class Scaling:
    """One rule in one rank.

    Args:
        rule: One of :data:`RULES`; None keeps batches and learning rates.

    Raises:
        DeadlineError: There is no such rule.

    Attributes:
        done: Steps so far, in steps of the base batch.
        ticks: Whole steps that the last one has added.
        factor: The factor of the last step's learning rate.
    """

    def __init__(self, rule: str | None) -> None:
        if rule is not None and rule not in RULES:
            raise DeadlineError(
                f"There is no scaling rule {rule!r}: choose 'linear', 'sqrt' or 'adascale', or"
                " leave scaling out to keep batch and learning rate on any number of slots."
            )
        self.rule = rule
        self.done = 0.0
        self.ticks = 1 if rule is None else 0
        self.factor = 1.0
        self._consensus: Consensus | None = None
        self._growth, self._even = 1, False
        self._began = 0.0  # value of `done` at the start of the pass over the data
        self._size = math.inf  # base batches in a pass
        self._gain = AdaScaleGain()
        self._apart = LocalGradientNorm()
        self._norms: tuple[torch.Tensor, torch.Tensor] | None = None
        self._rates: list[Any] = []  # the user's learning rates, while a step has others

    # ---- the steps

    def watch(self, *objects: Any) -> None:
        """Scale the steps of the optimizers among some objects; the first one's are counted.

        Raises:
            DeadlineError: The rule does not support them.
        """
        if self.rule is None:
            return
        if self.rule == "adascale":
            _refuse_unmeasured(objects)
        optimizers = [one for one in objects if isinstance(one, torch.optim.Optimizer)]
        for number, one in enumerate(optimizers):
            one.register_step_pre_hook(self._before)
            one.register_step_post_hook(self._restore if number else self._after)

    def listen(self, model: Any, consensus: Consensus) -> None:
        """Measure the ranks' gradients if the rule needs it.

        Args:
            model: The ranks' ``DistributedDataParallel``, before its first step.
            consensus: Of the ranks.

        Raises:
            DeadlineError: The model has a communication hook of the user's.
        """
        if self.rule != "adascale":
            return
        self._consensus = consensus
        try:
            self._apart.register_hook(model)
        except RuntimeError as error:
            raise DeadlineError(
                "The rule 'adascale' needs DDP's communication hook, and the model has one:"
                " leave it out, or choose another rule."
            ) from error

    def begin_pass(self, size: float) -> None:
        """Start a pass over the data.

        Args:
            size: Its number of base batches, if known.
        """
        self._began, self._size = self.done, size

    def begin(self, growth: int, even: bool) -> None:
        """Start a step.

        Args:
            growth: Its number of base batches.
            even: Whether each rank has one of them.
        """
        self._growth, self._even = growth, even

    def after_backward(self, parameters: Any) -> None:
        """Measure the ranks' mean gradient, before it is clipped."""
        if self.rule == "adascale" and self._growth > 1:
            parameters = [*parameters]
            self._norms = self._apart.take(parameters), squared_norm(parameters)

    def epochs(self) -> int:
        """Whole epochs that this pass over the data has added; 1 except under AdaScale."""
        if self.rule != "adascale" or math.isinf(self._size):
            return 1
        return math.floor(self._in_epochs(self.done)) - math.floor(self._in_epochs(self._began))

    def complete(self, epochs: int, passed: float) -> bool:
        """Whether a training of a number of epochs is complete.

        Args:
            epochs: With the base batch.
            passed: Passes over the data so far. AdaScale may need more, since a pass in longer
                steps counts for less.
        """
        if self.rule != "adascale" or math.isinf(self._size):
            return passed >= epochs
        return self._in_epochs(self.done) >= epochs

    def passes(self, epochs: int, passed: float) -> int:
        """The estimated total passes of such a training, from the last step."""
        left = 0.0
        if self.rule != "adascale" or math.isinf(self._size):
            left = max(epochs - passed, 0.0)
        elif not self.complete(epochs, passed):
            each = self.factor / self._growth  # of an epoch, in a pass
            left = (epochs - self._in_epochs(self.done)) / each
        return math.ceil(passed + left - _NEARLY)

    # ---- the checkpoint

    def state(self) -> dict[str, Any] | None:
        """The state for the next segment; None without a rule."""
        if self.rule is None:
            return None
        return {
            "rule": self.rule,
            "done": self.done,
            "began": self._began,
            "size": self._size,
            "gain": self._gain.state(),
        }

    def load(self, state: dict[str, Any] | None) -> None:
        """Restore :meth:`state`.

        Raises:
            DeadlineError: The trial started under another rule.
        """
        begun = state["rule"] if state else None
        if begun != self.rule:
            raise DeadlineError(
                f"The trial started with scaling={begun!r} and resumes with"
                f" scaling={self.rule!r}: keep one rule for the whole study."
            )
        if state is not None:
            self.done, self._began, self._size = state["done"], state["began"], state["size"]
            self._gain.load(state["gain"])

    # ---- internal

    def _in_epochs(self, done: float) -> float:
        return (done + _NEARLY) / self._size

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        self._restore(optimizer)  # a step before may have failed
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if closure is None:
            self._scale(optimizer)
            return None

        def scaled() -> Any:  # the gradients are measured here
            loss = closure()
            self._scale(optimizer)
            return loss

        return (args[0], scaled, *args[2:]) if len(args) > 1 else args, (
            {**kwargs, "closure": scaled} if "closure" in kwargs else kwargs
        )

    def _scale(self, optimizer: Any) -> None:
        self._measure()
        self.factor = self._factors[self.rule](self._growth)
        if self.factor == 1.0:
            return
        for group in optimizer.param_groups:
            self._rates.append((group, group["lr"]))
            group["lr"] = group["lr"] * self.factor

    @property
    def _factors(self) -> dict[str | None, Callable[[int], float]]:
        return {"linear": float, "sqrt": math.sqrt, "adascale": self._gain.of}

    def _measure(self) -> None:
        norms, self._norms = self._norms, None
        if norms is not None and self._even and self._consensus is not None:
            apart, together = self._consensus.mean(*map(float, norms))
            self._gain.measure(apart, together, self._growth)

    def _after(self, optimizer: Any, *_: Any) -> None:
        self._restore(optimizer)
        before = math.floor(self.done + _NEARLY)
        self.done += self.factor if self.rule == "adascale" else self._growth
        self.ticks = math.floor(self.done + _NEARLY) - before

    def _restore(self, optimizer: Any, *_: Any) -> None:
        for group, rate in self._rates:
            group["lr"] = rate
        self._rates.clear()


def _refuse_unmeasured(objects: Sequence[Any]) -> None:
    for one in objects:
        name = type(one).__name__
        if isinstance(one, torch.optim.Optimizer) and not isinstance(one, torch.optim.SGD):
            raise DeadlineError(
                f"The rule 'adascale' is for torch.optim.SGD: with {name} use scaling='sqrt'."
            )
        if "GradScaler" in name:
            raise DeadlineError(
                "The rule 'adascale' measures gradients, which a GradScaler changes: train in"
                " bfloat16, or choose another rule."
            )


class Schedules:
    """Steps schedulers as often as the base batch would, and finds those that do not.

    Args:
        objects: Objects that include the schedulers.
    """

    def __init__(self, objects: Iterable[Any]) -> None:
        self._last: dict[int, tuple[Any, int]] = {}
        kinds = [one for one in objects if isinstance(one, LRScheduler)]
        self._watched = [one for one in kinds if not isinstance(one, ReduceLROnPlateau)]

    def start(self) -> None:
        """Begin to look; call it once their states are restored."""
        for one in self._watched:
            self._seen(one)

    def advance(self, scheduler: Any, times: int) -> None:
        """Step a scheduler a number of times."""
        for _ in range(times):
            scheduler.step()
        if id(scheduler) in self._last:
            self._seen(scheduler)

    def look(self) -> None:
        """Check that no scheduler has stepped by itself.

        Raises:
            DeadlineError: A scheduler has.
        """
        for scheduler, last in self._last.values():
            if scheduler.last_epoch != last:
                raise DeadlineError(
                    "With scaling=... call loop.advance(scheduler) in place of scheduler.step():"
                    " on several slots a step counts as several."
                )

    def _seen(self, scheduler: Any) -> None:
        self._last[id(scheduler)] = scheduler, scheduler.last_epoch
