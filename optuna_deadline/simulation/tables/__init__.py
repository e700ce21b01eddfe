"""Recorded data for the simulator: learning curves, speed-ups and prices.

Files are recognised by their content, so they can have any name and folder.
"""

from __future__ import annotations

import csv
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from optuna_deadline.errors import DeadlineError
from optuna_deadline.forecasting.throughput import Speedup
from optuna_deadline.simulation.tables import (
    algoperf,
    curves,
    lcbench,
    pollux,
    spot_prices,
    taskset,
)
from optuna_deadline.simulation.tables.curves import open_archive
from optuna_deadline.simulation.tables.spot_prices import InstancePrice
from optuna_deadline.simulation.workload import FAMILIES, Workload, generate

__all__ = ["InstancePrice", "load", "load_prices", "load_speedups", "own"]

_logger = logging.getLogger("optuna_deadline")

_ARCHIVES: tuple[ModuleType, ...] = (taskset, lcbench, curves)


def load(folder: str | Path) -> list[Workload]:
    """Load all workloads of recorded learning curves below a folder, or in one file.

    A workload's name is its kind and its own name, as ``taskset/...``, ``lcbench/3945``,
    ``algoperf/ogbg`` and ``recorded/digits``. Scores are such that the regret is 0 for the best
    configuration of the table and 1 for the median one.

    Raises:
        DeadlineError: There are none, or a file of a known kind is malformed; it is named.
    """
    files = _files(folder)
    found: list[Workload] = []
    strangers = []
    for path in files:
        if path.suffix != ".npz":
            continue
        archive = open_archive(path)
        kind = next((kind for kind in _ARCHIVES if kind.recognises(archive)), None)
        if kind is None:
            strangers.append(path)
            keys = ", ".join(archive)
            _logger.warning("%s holds no learning curves that are known here (%s).", path, keys)
            continue
        found += kind.read(path, archive)
    by_folder: dict[Path, list[Path]] = defaultdict(list)
    for path in files:
        if path.suffix == ".parquet":
            by_folder[path.parent].append(path)
    for paths in by_folder.values():
        found += algoperf.read_folder(paths)
    if not found:
        unknown = f" ({len(strangers)} .npz of unknown kinds)" if strangers else ""
        raise DeadlineError(
            f"There are no learning curves in {folder}{unknown}: it needs .npz files as of "
            "TaskSet, LCBench or benchmarks.record, or AlgoPerf's two .parquet files."
        )
    return sorted(_unique(found), key=lambda workload: workload.name)


def load_speedups(folder: str | Path) -> dict[str, Speedup]:
    """S(k) of every model with recorded step times below a folder, by model name.

    Raises:
        DeadlineError: There are none, or a file is malformed; it is named.
    """
    folders = sorted({path.parent for path in _files(folder) if path.name in pollux.FILES})
    if not folders:
        raise DeadlineError(
            f"There are no step times in {folder}: it needs a folder for each model with "
            f"{' or '.join(pollux.FILES)}."
        )
    return {where.name: pollux.read_speedup(where) for where in folders}


def load_prices(folder: str | Path) -> list[InstancePrice]:
    """Every machine with GPUs in the price lists below a folder.

    Raises:
        DeadlineError: There are none, or a line is malformed; it is named.
    """
    found: list[InstancePrice] = []
    for path in _files(folder):
        if path.suffix == ".csv" and spot_prices.recognises(_header(path)):
            found += spot_prices.read(path)
    if not found:
        raise DeadlineError(f"There is no price list (.csv) in {folder}.")
    return found


def own() -> list[Workload]:
    """The project's own recording; empty in a wheel without it."""
    places = (Path(__file__).parent, Path(__file__).parents[3] / "benchmarks" / "tables")
    table = next(
        (place / "digits.npz" for place in places if (place / "digits.npz").is_file()), None
    )
    return [] if table is None else load(table)


def _files(folder: str | Path) -> list[Path]:
    where = Path(folder)
    if where.is_file():
        return [where]
    if not where.is_dir():
        raise DeadlineError(f"There is no folder {folder} with recorded data; check the path.")
    return sorted(path for path in where.rglob("*") if path.is_file())


def _header(path: Path) -> set[str]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        first = file.readline()
    return set(next(csv.reader([first], delimiter=";" if ";" in first else ","), ()))


def _unique(found: Iterable[Workload]) -> Iterable[Workload]:
    """Names, with a number added where two files have the same."""
    seen: dict[str, int] = defaultdict(int)
    for workload in found:
        seen[workload.name] += 1
        if seen[workload.name] == 1:
            yield workload
        else:
            yield workload.renamed(f"{workload.name}-{seen[workload.name]}")


def draw(name: str | Workload, seed: int, *, steps: int, data: Path | None = None) -> Workload:
    """One study's workload: generated, or a recorded one in an order drawn from the seed.

    Args:
        name: A generated family, the full name of a recorded workload, or a workload itself.
        seed: The same seed draws the same workload under every policy.
        steps: Steps of a full training of a generated workload.
        data: The folder of recorded data; the project's own table by default.
    """
    if isinstance(name, Workload):
        return name.shuffled(seed)
    if name in FAMILIES:
        return generate(name, seed, steps=steps)
    return _recorded(data)[name].shuffled(seed)


def choose(families: Sequence[str], data: Path | None) -> dict[str, list[str]]:
    """The workloads of each family.

    A family is a generated one, a kind of recording with all its workloads ("taskset"), or one
    recorded workload by its name ("lcbench/3945", or "3945" if that is unique). By default: every
    kind in the folder or, without a folder, power laws and the project's own recording.

    Raises:
        DeadlineError: There is no such family; the message lists those that exist.
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
