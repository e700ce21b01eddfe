"""Where many rows become objects, garbage is collected afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from optuna_deadline._garbage import collecting_later


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.enable()


def test_garbage_is_collected_again_after_the_outer_block_and_after_an_error() -> None:
    with collecting_later():
        with collecting_later():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), collecting_later():
        raise KeyError
    assert gc.isenabled()


def test_a_user_that_has_switched_it_off_keeps_it_off() -> None:
    gc.disable()
    with collecting_later():
        pass
    assert not gc.isenabled()
