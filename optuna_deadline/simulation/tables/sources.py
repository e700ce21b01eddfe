"""Where a study's workload comes from: a family that generates it, or a recorded table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from optuna_deadline.errors import DeadlineError
from optuna_deadline.simulation.families import FAMILIES, generate
from optuna_deadline.simulation.tables import load, own
from optuna_deadline.simulation.workload import Workload


def draw(name: str, seed: int, *, steps: int, data: Path | None = None) -> Workload:
    """One study's workload: generated, or a recorded one in an order of the seed's.

    Args:
        name: A generated family, or the whole name of a recorded workload.
        seed: The same seed draws the same workload, whatever the policy.
        steps: Of a whole training, where it is generated.
        data: The folder of recorded data; the project's own table if there is none.
    """
    if name in FAMILIES:
        return generate(name, seed, steps=steps)
    return _recorded(data)[name].shuffled(seed)


def choose(families: Sequence[str], data: Path | None) -> dict[str, list[str]]:
    """The workloads of each family that was asked for.

    A family is a generated one, a kind of recording with all its workloads ("taskset"), or one
    recorded workload by its name ("lcbench/3945", or "3945" where that is unique). Where none is
    asked for: every kind in the folder, or, without a folder, power laws and our own recording.

    Raises:
        DeadlineError: There is no such family; the message says which there are.
    """
    if data is None and families and all(name in FAMILIES for name in families):
        return {name: [name] for name in families}
    recorded = list(_recorded(data))
    kinds = list(dict.fromkeys(name.partition("/")[0] for name in recorded))
    if not families:
        families = kinds if data is not None else ["power-law", *kinds]
    chosen = {}
    for family in families:
        below = [
            name
            for name in recorded
            if family in (name, name.partition("/")[0], name.partition("/")[2])
        ]
        if family not in FAMILIES and not below:
            there = ", ".join([*FAMILIES, *kinds])
            raise DeadlineError(
                f"There is no family {family!r}; there are {there}, and the recorded ones one by "
                "one, as taskset/NAME."
            )
        chosen[family] = [family] if family in FAMILIES else below
    return chosen


@lru_cache(maxsize=2)
def _recorded(data: Path | None) -> dict[str, Workload]:
    workloads = own() if data is None else load(data)
    return {workload.name: workload for workload in workloads}
