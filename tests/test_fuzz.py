"""Files and texts of any content are read, or refused by one sentence."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from optuna_deadline.errors import DeadlineError
from optuna_deadline.simulation import tables
from optuna_deadline.study.policy_choice import parse_call
from optuna_deadline.values.budgets import make_budget
from optuna_deadline.values.deadlines import parse_deadline, parse_duration
from optuna_deadline.values.prices import make_prices, read_prices
from optuna_deadline.worker.preemption import seconds_left

_PIECES = st.sampled_from(
    ["1", "8", "-3", "0", "0.5", "1e999", "nan", "inf", "h", "m", "s", "usd", "$", "eur", "/",
     "=", ",", " ", "9" * 400, "[" * 9999, "p3", "2026-01-31T18:00", "+01:00", "Z", "type",
     "per_hour", "\n", "from", "\x00", "é", '"'],
)  # fmt: skip
_TEXTS = st.lists(_PIECES, max_size=8).map("".join) | st.text(max_size=20)


@given(_TEXTS)
def test_a_text_is_a_value_or_is_refused_in_words(text: str) -> None:
    for read in (
        parse_deadline, make_prices, lambda text: parse_duration(text, "--ttl"),
        lambda text: make_budget(text, "1usd"), lambda text: make_budget("1usd", text),
        lambda text: parse_call(f"fifo:{text}", "policy"),
    ):  # fmt: skip
        with suppress(DeadlineError):
            read(text)  # type: ignore[operator]
    assert seconds_left(text, 0.0) >= 0.0


_HEADERS = st.lists(
    st.sampled_from(
        ["type", "per_hour", "slots", "from", "startup", "InstanceType", "SpotPrice", "x"]
    ),
    max_size=5,
).map(",".join) | st.sampled_from(
    ["instance,GPU,price", "placement,local_bsz,step_time",
     "num_nodes,num_replicas,local_bsz,step_time", "type,per_hour,slots"]
)  # fmt: skip
_ROWS = st.lists(_TEXTS | st.lists(_PIECES, max_size=4).map(",".join))
_TABLES = st.builds(lambda head, rows: "\n".join([head, *rows]), _HEADERS, _ROWS)


@given(_TABLES, st.binary(max_size=2))
def test_prices_and_step_times_are_read_or_refused_in_words(content: str, junk: bytes) -> None:
    with TemporaryDirectory() as folder:
        for name in ("prices.csv", "scalability.csv", "placements.csv"):
            file = Path(folder) / name
            file.write_bytes(content.encode("utf-8", "surrogatepass") + junk)
            for read in (read_prices, tables.load_prices, tables.load_speedups):
                with suppress(DeadlineError):
                    read(file if read is read_prices else folder)  # type: ignore[operator]


_ARRAYS = st.builds(
    lambda shape, dtype, fill: np.full(shape, fill, dtype=dtype),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from(["float64", "int32", "U5", "bool", "complex64"]),
    st.sampled_from([0, 1, -1]),
)
_KEYS = ("about", "curves", "scores", "time_s", "val_accuracy", "openml_task_id", "valid_loss",
         "test_loss", "hyperparameters", "names", "step_seconds", "x")  # fmt: skip


@given(st.dictionaries(st.sampled_from(_KEYS), _ARRAYS, max_size=6), st.binary(max_size=30))
def test_recorded_curves_are_read_or_refused_in_words(arrays: dict[str, Any], junk: bytes) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    whole = buffer.getvalue()
    with TemporaryDirectory() as folder:
        for content in (whole, junk, whole[: len(whole) // 2], whole[:50] + junk + whole[50:]):
            (Path(folder) / "curves.npz").write_bytes(content)
            with suppress(DeadlineError):
                tables.load(folder)


@given(st.binary(min_size=1, max_size=8), st.floats(0, 1))
@example(b"\0", 0.011878586864834343)  # in the header of an array, which Python tokenizes
def test_a_damaged_recording_is_read_or_refused_in_words(junk: bytes, where: float) -> None:
    source = Path(__file__).parents[1] / "benchmarks" / "tables" / "digits.npz"
    content = bytearray(source.read_bytes())
    place = int(where * (len(content) - len(junk)))
    content[place : place + len(junk)] = junk
    with TemporaryDirectory() as folder:
        (Path(folder) / "curves.npz").write_bytes(content)
        with suppress(DeadlineError):
            tables.load(folder)
