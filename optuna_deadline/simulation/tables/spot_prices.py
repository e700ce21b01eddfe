"""Prices of machines with GPUs: two kinds of price lists, recognised by their headers."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from optuna_deadline.errors import DeadlineError

_CLOUD = {"Cloud", "GPU Type", "GPUs", "On-demand", "Name"}
_SAGEMAKER = {"instance", "GPU", "price"}


@dataclass(frozen=True)
class InstancePrice:
    """One type of machine.

    Attributes:
        cloud: The provider.
        instance: Its name; the type of its GPUs if it has none.
        gpus: The number of its GPUs.
        gpu: Their type; empty if the list does not name it.
        hour: Dollars for an hour of the whole machine, on demand.
        spot: The same at the spot price; None if it is not offered.
    """

    cloud: str
    instance: str
    gpus: int
    gpu: str
    hour: float
    spot: float | None = None

    @property
    def gpu_hour(self) -> float:
        """Dollars for an hour of one of its GPUs, on demand."""
        return self.hour / self.gpus

    @property
    def spot_gpu_hour(self) -> float | None:
        """The cost at the spot price."""
        return None if self.spot is None else self.spot / self.gpus


def recognises(header: set[str]) -> bool:
    """Whether a file with these columns is a known price list."""
    return header >= _CLOUD or header >= _SAGEMAKER


def read(path: Path) -> list[InstancePrice]:
    """All machines with a GPU in one list.

    Raises:
        DeadlineError: The file is not such a list, or a line is malformed.
    """
    try:
        return list(_read(path))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DeadlineError(f"{path} is not a CSV file in UTF-8: {error}.") from None


def _read(path: Path) -> Iterator[InstancePrice]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        first = file.readline()
        file.seek(0)
        rows = csv.DictReader(file, delimiter=";" if ";" in first else ",")
        header = set(rows.fieldnames or ())
        if not recognises(header):
            raise DeadlineError(
                f"{path} is not a price list: it needs {', '.join(sorted(_CLOUD))}, or "
                f"{', '.join(sorted(_SAGEMAKER))}."
            )
        parse = _cloud if header >= _CLOUD else _sagemaker
        for line, row in enumerate(rows, start=2):
            try:
                price = parse(row)
            except (KeyError, TypeError, ValueError):
                raise DeadlineError(f"{path}: line {line} cannot be read: {row}.") from None
            if price is not None:
                yield price


def _cloud(row: Mapping[str, str]) -> InstancePrice | None:
    if not row["GPUs"] or not row["On-demand"]:
        return None
    kind = row["GPU Type"]
    spot = float(row["Spot"]) if row.get("Spot") else None
    hour, gpus = float(row["On-demand"]), int(row["GPUs"])
    return InstancePrice(row["Cloud"], row["Name"] or kind, gpus, kind, hour, spot)


def _sagemaker(row: Mapping[str, str]) -> InstancePrice | None:
    gpus = int(row["GPU"])
    return (
        InstancePrice("SageMaker", row["instance"], gpus, "", float(row["price"]))
        if gpus
        else None
    )
