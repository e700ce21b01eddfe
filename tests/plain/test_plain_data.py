"""What a loop of `resumable` saves can be read again, or is refused before it is written."""

from __future__ import annotations

import collections
import enum
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.errors import DeadlineError
from optuna_deadline.plain_data import decoded, encoded, read_plain, write_plain


class Level(enum.IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: float


NUMBERS = st.sampled_from(
    [1, 2.5, True, None, "text", b"bytes", 1j, np.float64(0.5), np.float32(0.5), np.int64(7),
     np.bool_(True), np.str_("text"), np.complex128(1j)]
)  # fmt: skip
REFUSED = st.sampled_from(
    [Level.HIGH, Point(1.0), collections.defaultdict(int), collections.deque(), {1},
     {Level.HIGH: 1}, {np.int64(1): 1}, np.array([object()])]
)  # fmt: skip


def data(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.tuples(inner, inner),
            st.dictionaries(st.one_of(st.integers(), st.text(max_size=3)), inner, max_size=3),
            st.builds(collections.OrderedDict, st.dictionaries(st.integers(), inner, max_size=2)),
        ),
        max_leaves=6,
    )


@given(value=st.one_of(data(NUMBERS), data(st.one_of(NUMBERS, REFUSED))), with_torch=st.booleans())
def test_plain_data_is_read_as_it_was_or_refused_before_it_is_written(
    value: Any, with_torch: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("kept") / "file"
    with pytest.MonkeyPatch.context() as patched:
        if with_torch:
            pytest.importorskip("torch")
        else:
            patched.delitem(sys.modules, "torch", raising=False)
        try:
            write_plain({"state": encoded(value, "state")}, path)
        except (DeadlineError, ValueError):
            assert not path.exists()
            return
        found = decoded(read_plain(path)["state"])
    assert found == value and repr(found) == repr(value)


@pytest.mark.parametrize("value", [Level.HIGH, Point(1.0), {np.int64(1): 1}])
def test_what_a_file_could_only_name_is_refused_in_words(value: Any, tmp_path: Path) -> None:
    with pytest.raises(DeadlineError, match=r"state\['epoch'\] has a (Level|Point|int64)"):
        encoded(value, "state['epoch']")
