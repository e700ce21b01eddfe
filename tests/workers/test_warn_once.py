"""Ranks of a worker show a warning once, however many segments repeat it."""

from __future__ import annotations

import logging
import os
import warnings

import pytest

from optuna_deadline.rank.warn_once import NewRecords, SharedTexts, warn_once


def test_a_text_that_a_forked_process_has_seen_is_not_new() -> None:
    texts = SharedTexts()
    child = os.fork()
    if child == 0:
        os._exit(0 if texts.add("one") else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert [texts.add(text) for text in ("one", "two", "two", "ümläut")] == [
        False, True, False, True,
    ]  # fmt: skip


def test_more_texts_than_there_is_room_for_are_all_new() -> None:
    texts = SharedTexts()
    assert all(texts.add(str(number)) for number in range(5000))


def test_warnings_and_records_of_another_process_are_not_shown_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: shown.append(str(message)))
    texts = SharedTexts()
    for _ in range(2):  # two segments
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warn_once(texts)
            for word in ("too few workers", "empty"):
                warnings.warn(word, stacklevel=1)
    assert shown == ["too few workers", "empty"]
    record = logging.LogRecord("lightning", logging.WARNING, "", 1, "tip", None, None)
    assert [NewRecords(texts).filter(record) for _ in range(2)] == [True, False]
    record.levelno = logging.INFO
    assert NewRecords(texts).filter(record)
