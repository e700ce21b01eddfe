"""Deadlines as people write them."""

from __future__ import annotations

import contextlib
import math
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.errors import DeadlineError
from optuna_deadline.values.deadlines import (
    Deadline,
    format_duration,
    format_instant,
    parse_deadline,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h30m", 9000),
        ("90s", 90),
        ("1.5h", 5400),
        ("1d2h", 93600),
        ("2 h 30 min", 9000),
        ("10 minutes", 600),
        (" 1H ", 3600),
        (".5s", 0.5),
        ("1d1h1m1s", 90061),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_deadline(text) == Deadline(duration=seconds)


def test_timedelta() -> None:
    assert parse_deadline(timedelta(minutes=5)) == Deadline(duration=300)


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T18:00:00Z",
        "2026-11-21T18:00:00.000Z",
        "2026-11-21 18:00Z",
        "2026-11-21T19:00:00+01:00",
        "2026-11-21T19:00+0100",
        "2026-11-21T13:00:00-05",
    ],
)
def test_instants(text: str) -> None:
    assert parse_deadline(text) == Deadline(at=1795284000.0)


def test_aware_datetime() -> None:
    moment = datetime(2026, 11, 21, 19, tzinfo=timezone(timedelta(hours=1)))
    assert parse_deadline(moment) == Deadline(at=1795284000.0)


@pytest.mark.parametrize(
    "naive", ["2026-11-21T18:00:00", "2026-11-21 18:00", datetime(2026, 11, 21)]
)
def test_naive_is_refused(naive: Any) -> None:
    with pytest.raises(DeadlineError, match="no time zone; add one"):
        parse_deadline(naive)


@pytest.mark.parametrize("none", ["0s", "0h0m", timedelta(0), timedelta(seconds=-1)])
def test_non_positive_duration_is_refused(none: Any) -> None:
    with pytest.raises(DeadlineError, match="positive"):
        parse_deadline(none)


@pytest.mark.parametrize(
    "garbage",
    ["", "soon", "2h30", "h", "-2h", "1h1h", "5m2h", "1e3s", "9999999d", "9" * 400 + "s"],
)
def test_garbage_is_refused_in_one_sentence(garbage: str) -> None:
    with pytest.raises(DeadlineError) as error:
        parse_deadline(garbage)
    assert str(error.value).endswith(".")
    assert "give" in str(error.value)


@pytest.mark.parametrize("wrong", ["2026-13-01T00:00Z", "2026-02-30T00:00Z", True, None])
def test_other_things_are_refused(wrong: Any) -> None:
    with pytest.raises(DeadlineError, match=r"is not a deadline.*give a timedelta"):
        parse_deadline(wrong)


def test_number_without_unit_says_so() -> None:
    with pytest.raises(DeadlineError, match="say the unit"):
        parse_deadline("90")


@given(st.text())
def test_any_text_is_a_deadline_or_an_error_of_ours(text: str) -> None:
    with contextlib.suppress(DeadlineError):
        parse_deadline(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *[(0, "0 s"), (0.4, "0.4 s"), (9.54, "9.5 s"), (9.96, "10 s"), (42.4, "42 s")],
        *[(59.9, "1 min"), (90, "1 min 30 s"), (1530, "25 min 30 s"), (3599.7, "1 h")],
        *[(7240, "2 h 1 min"), (9000, "2 h 30 min"), (86399, "1 d"), (100_000, "1 d 4 h")],
        *[(-90, "-1 min 30 s"), (math.inf, "inf s")],
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(10, 10**8))
def test_what_is_written_can_be_read(seconds: int) -> None:
    assert parse_deadline(format_duration(seconds, units=4)).duration == seconds


def test_instants_for_people_name_their_zone() -> None:
    written = format_instant(1795284000.0)
    assert written == datetime.fromtimestamp(1795284000).astimezone().strftime(
        "%Y-%m-%d %H:%M:%S %Z"
    )
    assert "1970" in format_instant(1e300)


def test_either_a_duration_or_an_instant() -> None:
    with pytest.raises(DeadlineError, match="one of them"):
        Deadline()
    assert parse_deadline(Deadline(at=5.0)).instant(100.0) == 5.0
    assert parse_deadline("5s").instant(100.0) == 105.0


@pytest.mark.parametrize("seconds", [90, 1.5])
def test_a_number_is_so_many_seconds(seconds: float) -> None:
    assert parse_deadline(seconds) == parse_deadline(timedelta(seconds=seconds))


@pytest.mark.parametrize("number", [0, -1, float("nan"), 1.8e9])
def test_a_number_that_is_no_duration_is_refused(number: float) -> None:
    with pytest.raises(DeadlineError, match=r"cannot be met|more than three years"):
        parse_deadline(number)
