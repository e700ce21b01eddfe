"""Plain attributes of objects come back, and others are left alone."""

from __future__ import annotations

import copy
import itertools
import math
from collections import defaultdict, deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from optuna_deadline.plain_attributes import PlainAttributes


def made() -> list[Any]:
    return [
        SimpleNamespace(wait=0, best=None, folder="a", compare=None, open=object()),
        SimpleNamespace(kept=[1], weights=np.zeros(2)),
    ]


def test_what_has_changed_in_any_segment_goes_on_in_place() -> None:
    first = made()
    watched = PlainAttributes(first, {"folder"})
    assert watched.changed() == {}
    first[0].wait, first[0].best, first[0].compare, first[0].folder = 2, 0.5, math.isclose, "b"
    first[0].open, first[0].new = object(), (1, "x")
    first[1].kept.append(2)
    first[1].weights[:] = 3.0
    second = made()
    kept, weights = second[1].kept, second[1].weights
    again = PlainAttributes(second, {"folder"})
    again.restore(watched.changed())
    assert (second[0].wait, second[0].best, second[0].new) == (2, 0.5, (1, "x"))
    assert second[0].folder == "a", "the framework sets it"
    assert second[1].kept is kept and kept == [1, 2]
    assert second[1].weights is weights and weights.tolist() == [3.0, 3.0]
    assert again.changed() == watched.changed(), "a further segment has them too"


def test_an_iterator_is_named_as_lost() -> None:
    one = Counter()
    one.inner = itertools.count()  # type: ignore[assignment]
    watched = PlainAttributes([one])
    assert watched.changed() == {} and watched.lost() == ["Counter 0.inner"]


TOTALS = {"rounds": 0}
ROUNDS = 0


class Totaling:
    """Counts in a global variable, in another one of a function, and in its class."""

    calls = 0

    def after(self) -> None:
        TOTALS["rounds"] += 1
        type(self).calls += 1
        count_round()


def count_round() -> None:
    global ROUNDS
    ROUNDS += 1


def test_global_variables_and_those_of_classes_go_on_where_they_are_watched() -> None:
    global ROUNDS
    watched = PlainAttributes([Totaling()], with_globals=True)
    alone = PlainAttributes([Totaling()])
    Totaling().after()
    saved = copy.deepcopy(watched.changed())  # as a file has it
    assert alone.changed() == {} and len(saved) == 3
    TOTALS["rounds"] = Totaling.calls = ROUNDS = 0
    PlainAttributes([Totaling()], with_globals=True).restore(saved)
    assert (TOTALS["rounds"], Totaling.calls, ROUNDS) == (1, 1, 1)


SAMPLES, ARRAYS = list(range(2000)), {"x": np.zeros(10**6)}


class Sampling:
    def after(self) -> None:
        SAMPLES.append(len(ARRAYS))


def test_data_in_a_global_variable_is_not_packed_and_named_if_it_grows() -> None:
    watched = PlainAttributes([Sampling()], with_globals=True)
    assert not any(name.endswith(("SAMPLES", "ARRAYS")) for name in watched._first)
    assert watched.changed() == {} and watched.lost() == []
    Sampling().after()
    assert watched.changed() == {}
    assert [name.rpartition(".")[2] for name in watched.lost()] == ["SAMPLES"]


class Counter:
    def __init__(self) -> None:
        self.steps, self.inner = 0, SimpleNamespace(steps=0)


def test_objects_generators_and_other_containers_go_on_in_place() -> None:
    def kept() -> Any:
        return SimpleNamespace(
            counter=Counter(), rng=np.random.default_rng(0), last=deque([1], maxlen=2),
            seen={1}, sums=defaultdict(int), again=None,
        )  # fmt: skip

    first, second = kept(), kept()
    watched = PlainAttributes([first])
    first.counter.steps, first.again = 3, first.counter
    first.last.extend([2, 3])
    first.seen.add(2)
    first.sums["a"] += 4
    drawn = first.rng.random()
    again, last = PlainAttributes([second]), second.last
    again.restore(watched.changed())
    assert second.counter.steps == 3
    assert second.last is last and [*last] == [2, 3] and last.maxlen == 2
    assert second.seen == {1, 2} and second.sums == {"a": 4} and second.sums["b"] == 0
    assert second.rng.random() == first.rng.random() != drawn
    assert again.changed().keys() == watched.changed().keys() | {"SimpleNamespace 0.rng"}


def test_functions_go_on_by_their_names() -> None:
    first, second = made(), made()
    watched = PlainAttributes(first)
    first[0].compare = made
    again = PlainAttributes(second)
    again.restore(watched.changed())
    assert second[0].compare is made
    again.restore({"SimpleNamespace 0.compare": {"<function>": ["os", "no such"]}})
    assert second[0].compare is made, "an unknown one is left"


def counting() -> Any:
    count, seen, unset = 0, [0], None

    def called() -> int:
        nonlocal count
        count += 1
        seen.append(count)
        return count if unset is None else 0

    return called


class Held:
    """An object with a function, objects in containers, and others."""

    def __init__(self) -> None:
        self.function, self.counters = counting(), [Counter(), {"a": Counter()}]
        self.by_name, self.method = {"a": Counter()}, Counter().__init__
        self.files, self.opened, self.left = [object()], object(), object()


def test_functions_and_objects_in_containers_go_on() -> None:
    first, second = Held(), Held()
    watched, again = PlainAttributes([first]), PlainAttributes([second])
    assert first.function() == 1 and first.function() == 2
    first.counters[0].steps, first.by_name["a"].steps = 3, 4
    again.restore(watched.changed())
    assert second.function() == 3 and second.counters[0].steps == 3
    assert second.by_name["a"].steps == 4
    alone, other = counting(), counting()
    watched = PlainAttributes([partial(alone)])
    alone()
    PlainAttributes([partial(other)]).restore(watched.changed())
    assert other() == 2


def test_what_is_no_plain_data_is_named_once_training_has_changed_it() -> None:
    first = Held()
    watched = PlainAttributes([first, SimpleNamespace(of_a_library=object())])
    watched.changed()
    assert watched.lost() == []
    first.files.append(object())
    first.opened, first.new = object(), [object()]  # type: ignore[attr-defined]
    watched.changed()
    assert watched.lost() == [f"Held 0.{name}" for name in ("files", "opened", "new")]
