"""The options of a worker and of a study: one list for Python, the command line, SLURM and Ray.

The docstring of a class says what each option means. The command line prints its first sentence.
"""

# ruff: noqa: RUF009  (the defaults are fields)
from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from optuna_deadline._numbers import is_count, make_plain
from optuna_deadline.checkpoints.storage import place_of
from optuna_deadline.errors import DeadlineError, argument
from optuna_deadline.policies.registry import DEFAULT_SHARING, make_divider
from optuna_deadline.study import policy_choice
from optuna_deadline.study.terms import Given
from optuna_deadline.values.budgets import HOST_TYPE, Budget, BudgetLike, make_budget
from optuna_deadline.values.deadlines import DeadlineLike, parse_deadline
from optuna_deadline.values.prices import PriceLike
from optuna_deadline.worker.segment import HANG_TIMEOUT

#: The default folder for checkpoints.
CHECKPOINTS = Path("optuna_deadline_checkpoints")


class Direction(str, Enum):
    """Optuna's two directions."""

    minimize = "minimize"
    maximize = "maximize"


class CommandOption(NamedTuple):
    """A field as an option of the command line.

    Attributes:
        name: The field's name.
        type: Its type on the command line.
        default: Its default, or MISSING of dataclasses.
        variable: An environment variable that sets it.
        help: The first sentence of its description.
    """

    name: str
    type: Any
    default: Any
    variable: str | None
    help: str


def _option(type_: Any, *, variable: str | None = None, **default: Any) -> Any:
    return field(metadata={"type": type_, "variable": variable}, **default)


def _optional(type_: Any, variable: str | None = None) -> Any:
    """An option that is None by default."""
    return _option(type_ | None, variable=variable, default=None)


def options_of(kind: type[Any]) -> tuple[CommandOption, ...]:
    """The fields of a class of options that the command line has, in their order."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(base) or "", re.M)
        texts |= {name: " ".join(text.split()) for name, text in found}
    return tuple(
        CommandOption(
            each.name, each.metadata["type"], each.default, each.metadata["variable"],
            re.split(r"(?<=\.)\s", texts[each.name])[0],
        )
        for each in fields(kind)
        if each.metadata
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """The options that hold for every trial of a study.

    Attributes:
        max_slots: Maximum number of slots of a trial; unlimited by default. It is 1 if the
            training cannot be distributed. The first process of a study sets it for all.
        keep_all: Keep the checkpoints of all trials, not only the best one's.
            ``optuna-deadline clean`` deletes them later.
    """

    max_slots: int | None = _optional(int)
    keep_all: bool = _option(bool, default=False)

    def __post_init__(self) -> None:
        make_plain(self)
        check_max_slots(self.max_slots)


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(TrialOptions):
    """The slots that a worker offers, and how it trains.

    Attributes:
        gpus: Number of GPUs to offer, or "all".
        gpu_ids: Indices of the GPUs to offer, as in 0,3, in place of their number.
        cpus: Number of CPU slots to offer, at most one per core. Each trains with one thread.
        oversubscribe: Allow more CPU slots than there are cores.
        pool: Name of the pool of slots; by default the study's name. Studies that name the same
            pool share the slots of each host on which both have workers.
        weight: Weight of the study in the pool; 1 for a new study. It holds from now on; None
            keeps the present one.
        sharing: How the studies of a pool share it while this worker leads it: fair, for equal
            totals, or even, for equal shares now. It is the same for all workers.
        checkpoints: Folder for checkpoints, or a URL such as s3://bucket/folder. All machines must
            reach it (``optuna-deadline[remote]`` for URLs).
        hang_timeout: Seconds without a report or step after which a trial counts as hung. Its
            ranks are killed, and it resumes from its checkpoint. A trial that was silent for
            longer before gets three times its longest silence.
        keep_warm: Number of paused trials that may wait in this machine's memory. They resume at
            once; each keeps a CUDA context on its GPU.
        dashboard: Update figures, notes and columns in optuna-dashboard; by default if it is
            installed.
        multi_node: Allow trials on slots of several hosts. Their workers allow it, too, and use
            the same checkpoint folder.
        host_type: Type of this host, if prices depend on it.
        max_time: Time by which this worker must have exited: 55m from now, or an instant by this
            machine's clock. Its trials save and leave before; the study goes on.
        slot_timeout: Seconds to wait for slots in use or for the database.
        preemption_notice: Command or URL that announces the preemption of this host.
        storage: URL of a database for the allocation table, if the study's storage is not SQL.
        show_progress: Whether :func:`optuna_deadline.run` shows the study on standard error: one
            live line on a terminal, else a line for each event.

    Raises:
        DeadlineError: A value is invalid; the message names its option.
    """

    gpus: str | int | None = _optional(str)
    gpu_ids: str | Sequence[int] | None = _optional(str)
    cpus: int | None = _optional(int)
    oversubscribe: bool = _option(bool, default=False)
    pool: str | None = _optional(str)
    weight: float | None = _optional(float)
    sharing: str = _option(str, default=DEFAULT_SHARING)
    checkpoints: str | Path = _option(str, default=CHECKPOINTS)
    hang_timeout: float = _option(float, default=HANG_TIMEOUT)
    keep_warm: int = _option(int, default=0)
    dashboard: bool | None = _optional(bool)
    multi_node: bool = _option(bool, default=False)
    host_type: str | None = _optional(str, variable=HOST_TYPE)
    max_time: DeadlineLike | None = _optional(str)
    slot_timeout: float = _option(float, default=0.0)
    preemption_notice: str | None = _optional(str)
    storage: str | None = None
    show_progress: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight is not None and not (
            _is_number(self.weight) and 0 < self.weight < math.inf
        ):
            raise _wrong("weight", "a positive number such as 2", self.weight)
        if not (_is_number(self.hang_timeout) and self.hang_timeout > 0):
            raise _wrong("hang_timeout", "a positive number of seconds", self.hang_timeout)
        if not is_count(self.keep_warm, 0):
            raise _wrong("keep_warm", "a number of trials such as 2", self.keep_warm)
        if not (_is_number(self.slot_timeout) and 0 <= self.slot_timeout < math.inf):
            raise _wrong("slot_timeout", "a number of seconds from 0", self.slot_timeout)
        make_divider(self.sharing)
        if self.max_time is not None:
            parse_deadline(self.max_time)
        place_of(self.checkpoints)

    def with_given(self, **values: Any) -> WorkerOptions:
        """These options, and values that are given beside them; None gives nothing.

        Raises:
            DeadlineError: An option is given twice with different values.
        """
        given = policy_choice.without_none(values)
        defaults = {each.name: each.default for each in fields(self)}
        for name, value in given.items():
            if getattr(self, name) not in (defaults[name], value):
                raise DeadlineError(
                    f"{argument(name)} is {value!r}, and WorkerOptions has {name}="
                    f"{getattr(self, name)!r}: give one of them."
                )
        return replace(self, **given)

    def words(self) -> Iterator[str]:
        """The words of the command line for the options that differ from their defaults."""
        for each in options_of(type(self)):
            value, flag = getattr(self, each.name), f"--{each.name.replace('_', '-')}"
            if value == each.default:
                continue
            if isinstance(value, bool):
                yield flag if value else flag.replace("--", "--no-")
            else:
                yield from (flag, str(value))


@dataclass(frozen=True, kw_only=True)
class StudyOptions(TrialOptions):
    """The terms of a study, which hold for all its workers.

    Attributes:
        deadline: Deadline: 2h30m from now, or 2030-01-31T18:00+01:00.
        direction: Direction of the study; minimize by default.
        policy: Policy: a name, FILE.py:NAME or MODULE:NAME, with its parameters as in
            hypersched:recharge=8; adaptive_halving by default.
        n_trials: Maximum number of trials; unlimited by default.
        budget: Budget, as in 20usd; needs a price.
        price: Price of a slot per hour: 0.9; or by host type, a=12.24/4,b=0.526; or a CSV file of
            them, prices.csv, with its columns as in prices.csv:TYPE,PRICE,SLOTS.
        sampler: Sampler: tpe (default), gp, cmaes, qmc, random, grid, or FILE.py:NAME, with its
            parameters as in tpe:seed=1.
        warm_start_from: Earlier study of the same search, with whose best trials this one starts;
            repeatable.

    Raises:
        DeadlineError: A value is invalid; the message names its option.
    """

    deadline: DeadlineLike | None = _option(str)
    direction: Direction | None = _optional(Direction)
    policy: policy_choice.PolicyLike | None = _optional(str)
    n_trials: int | None = _optional(int)
    budget: BudgetLike | None = _optional(str)
    price: PriceLike | None = _optional(str)
    sampler: str | None = _optional(str)
    warm_start_from: Sequence[str] | None = _optional(list[str])

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.deadline is not None:
            parse_deadline(self.deadline)
        given = self.given
        policy_choice.check_values(given.parameters)
        if self.deadline is not None:  # else the stored policy may take the parameters
            policy_choice.complete(given.policy, given.parameters)

    @cached_property
    def money(self) -> Budget | None:
        """The budget with its price."""
        return make_budget(self.budget, self.price)

    @cached_property
    def given(self) -> Given:
        """What a process asks for besides the deadline."""
        policy, parameters = policy_choice.asked_for(self.policy, self.n_trials)
        return Given(policy, parameters, self.money, self.max_slots)


def check_max_slots(max_slots: int | None) -> int | None:
    """Check the maximum number of slots of a trial.

    Raises:
        DeadlineError: It is not a number of slots.
    """
    if max_slots is not None and not is_count(max_slots, 1):
        raise _wrong("max_slots", "a number of slots such as 1", max_slots)
    return max_slots


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _wrong(name: str, wanted: str, value: Any) -> DeadlineError:
    return DeadlineError(f"{argument(name)} must be {wanted}, but got {value!r}.")
