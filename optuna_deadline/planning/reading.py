"""One look at a study: what the planner plans on, and the rows behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from optuna_deadline.allocation.records import Desired, Worker
from optuna_deadline.planning.cross_host import APART, Crossing
from optuna_deadline.policies.snapshot import Snapshot


@dataclass(frozen=True)
class Reading:
    """A snapshot, with the rows behind it that the planner acts on."""

    snapshot: Snapshot
    trials: Mapping[int, Desired]  #: that live, or whose end Optuna does not know
    ended: list[Desired]  #: those of them that do not live
    workers: list[Worker]  #: the study's live ones
    capacities: Mapping[str, int]  #: by worker, the slots that are lent to the study
    reach: Mapping[str, int]  #: by worker, all slots of the pool that it offers
    done: float  #: slot-seconds of training so far
    live: int  #: trials that a policy may still train
    reap_from: float = math.inf  #: when the first slot in reach may be reaped
    crossing: Crossing = APART  #: between which workers gangs may be spread

    @property
    def overdue(self) -> bool:
        """Whether a slot in reach is to be reaped."""
        return self.reap_from < self.snapshot.now
