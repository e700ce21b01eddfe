"""The checker of chaos runs, which must be able to fail; `make chaos` is a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos import checker
from benchmarks.chaos.checker import Ending, Entry
from benchmarks.chaos.run import FEWEST, Verdict
from benchmarks.chaos.usage import UsageLog, Use, read_uses


def use(number: int, fence: int, first: float, last: float, device: str = "cpu:0") -> Use:
    """A use of a slot; the process is the segment's."""
    pid = 100 * number + fence
    return Use("study", number, fence, 0, device, pid, first, last, 0, 5)


GOOD_USES = [use(1, 1, 0, 10), use(2, 1, 11, 20), use(1, 2, 11, 15, "cpu:1"), use(1, 3, 21, 30)]


def test_uses_one_after_the_other_are_no_overlap() -> None:
    assert checker.overlaps(GOOD_USES) == []


@pytest.mark.parametrize(
    "planted",
    [
        use(3, 1, 9.9, 10.5),  # begins before the other ends
        use(3, 1, 2, 3),  # within another
        use(3, 1, -5, 100),  # around all others
        use(1, 4, 12, 14, "cpu:2"),  # another slot, but the same trial as on cpu:1
    ],
)
def test_a_planted_overlap_is_found(planted: Use) -> None:
    assert checker.overlaps([*GOOD_USES, planted])


def test_an_overlap_with_one_that_began_long_before_is_found() -> None:
    frozen, short, late = use(1, 1, 0, 100), use(1, 1, 1, 2), use(2, 1, 50, 60)
    assert len(checker.overlaps([frozen, short, late])) == 1


def test_the_ranks_of_one_gang_share_their_trial() -> None:
    gang = [use(1, 1, 0, 10), replace(use(1, 1, 0, 10, "cpu:1"), rank=1, pid=7)]
    assert checker.overlaps(gang) == []


BROUGHT = Entry(-1, "register", "pool", "study", worker="a", lent=(1,))


def events(*lines: tuple[str, int, str]) -> list[Entry]:
    """Changes of one slot that was brought to the study: kind, fence, worker."""
    return [
        BROUGHT,
        *(
            Entry(id, kind, "pool", "study", 1, 1, fence, worker=worker)
            for id, (kind, fence, worker) in enumerate(lines)
        ),
    ]


GOOD_EVENTS = [("acquire", 1, "a"), ("release", 2, "a"), ("acquire", 3, "b"), ("reap", 4, "b")]


def test_acquire_and_release_alternate() -> None:
    assert checker.illegal_events(events(*GOOD_EVENTS)) == []


@pytest.mark.parametrize(
    "mutate",
    [
        lambda log: [*log[:1], *log[2:]],  # taken from somebody who holds it
        lambda log: [*log, ("release", 5, "b")],  # given back twice
        lambda log: [*log[:2], ("acquire", 4, "b"), ("reap", 5, "b")],  # a fence left out
        lambda log: [*log[:1], ("release", 2, "b"), *log[2:]],  # given back by somebody else
        lambda log: [*log, ("acquire", 3, "c")],  # an old fence again
    ],
)
def test_an_illegal_change_is_found(
    mutate: Callable[[list[tuple[str, int, str]]], list[tuple[str, int, str]]],
) -> None:
    assert checker.illegal_events(events(*mutate(list(GOOD_EVENTS))))


def test_a_gang_that_holds_a_part_of_its_slots_is_found() -> None:
    def entry(id: int, kind: str, slot: int | None = None, slots: int | None = None) -> Entry:
        return Entry(id, kind, "pool", "study", 1, slot, 1, worker="a", slots=slots)

    brought = replace(BROUGHT, lent=(1, 2))
    whole = [brought, entry(0, "acquire", 1), entry(1, "acquire", 2), entry(2, "start", slots=2)]
    assert checker.illegal_events(whole) == []
    assert checker.illegal_events([*whole[:2], *whole[3:]])


def seat(id: int, kind: str, term: int | None, worker: str | None, study: str = "s") -> Entry:
    """A line by or about a planner or a leader."""
    slot = 1 if kind == "lend" else None
    return Entry(id, kind, "pool", study, slot=slot, term=term, worker=worker)


GOOD_TERMS = [
    seat(0, "elect", 1, "a"),
    seat(1, "lead", 1, "a"),
    seat(2, "plan", 1, "z"),  # for whom, not by whom
    seat(3, "elect", 2, "b"),
    seat(4, "lend", 1, "a", "t"),  # to another study, by the pool's leader
    seat(5, "elect", 1, "c", "t"),
    seat(6, "open", 2, None),
    seat(7, "settle", 2, "b"),
    seat(8, "lead", 2, "c"),
    seat(9, "lend", 2, "c"),
    seat(10, "gate", 1, "c", "t"),
]


def test_planners_and_the_leader_count_their_own_terms() -> None:
    assert checker.illegal_events(GOOD_TERMS) == []


@pytest.mark.parametrize(
    "planted",
    [
        seat(11, "plan", 1, "a"),  # an old term of the planner
        seat(11, "open", 1, None),
        seat(11, "lend", 1, "a"),  # an old term of the leader
        seat(11, "gate", 2, "a"),  # by somebody who was not elected
        seat(11, "lend", 2, "a"),
        seat(11, "plan", 3, "a"),  # a term that nobody began
        seat(11, "plan", 2, "c", "t"),  # another study's term
        seat(11, "elect", 2, "a"),  # a term again
        seat(11, "elect", 4, "a"),  # a term left out
        seat(11, "lead", 2, "a"),
        seat(11, "lead", 4, "a"),
    ],
)
def test_a_line_out_of_its_term_is_found(planted: Entry) -> None:
    assert checker.illegal_events([*GOOD_TERMS, planted])


def test_who_left_rules_no_more() -> None:
    left = [*GOOD_TERMS, seat(11, "leave", None, "c", "t")]
    assert checker.illegal_events([*left, seat(12, "plan", 2, None)]) == []
    assert checker.illegal_events([*left, seat(12, "lend", 2, "c")])
    assert checker.illegal_events([*left, seat(12, "plan", 1, None, "t")])
    assert checker.illegal_events([*left, seat(12, "lead", 3, "b")]) == []


def test_only_the_study_that_a_slot_is_lent_to_takes_it() -> None:
    log = [*events(*GOOD_EVENTS), seat(10, "lead", 1, "a"), seat(11, "lend", 1, "a", "t")]
    mine = Entry(12, "acquire", "pool", "study", 1, 1, 5, worker="a")
    theirs = replace(mine, study="t")
    assert checker.illegal_events([*log, theirs]) == []
    assert checker.illegal_events([*log, mine])
    again = replace(BROUGHT, id=12)  # all others who offered it are dead
    assert checker.illegal_events([*log, again, replace(mine, id=13)]) == []
    assert checker.illegal_events([*log, replace(again, lent=()), replace(mine, id=13)])
    assert checker.illegal_events(events(*GOOD_EVENTS)[1:])  # nobody brought it


def test_a_segment_granted_twice_is_found() -> None:
    log = [Entry(id, "start", "pool", "study", 1, fence=fence) for id, fence in [(0, 1), (1, 2)]]
    assert checker.illegal_events(log) == []
    assert checker.illegal_events([*log, replace(log[1], id=2)])
    assert checker.without_grant([use(1, 1, 0, 1)], log) == []
    assert checker.without_grant([use(1, 3, 0, 1)], log)


def test_lost_trials_are_found() -> None:
    good = Ending("PRUNED", True, [0, 1, 2])
    trial = ("study", 1)
    assert checker.lost_trials({trial: good}, {trial}) == []
    assert checker.lost_trials({}, {trial})
    for bad in (
        replace(good, state=None),
        replace(good, state="RUNNING"),
        replace(good, state="FAIL"),
        replace(good, told=False),
        replace(good, steps=[0, 2]),
        replace(good, steps=[0, 1, 1, 2]),
    ):
        assert checker.lost_trials({trial: bad}, {trial}), bad


def test_steps_done_again_are_counted() -> None:
    reported = {("study", 1, 1): [0, 1, 2, 3, 4], ("study", 1, 2): [5]}
    resumed = [
        replace(use(1, fence, 0, 1), resumed_at=at) for fence, at in [(1, 0), (2, 4), (3, 6)]
    ]
    found = checker.lost_steps(resumed, reported)
    assert found == {("study", 1, 2): 1, ("study", 1, 3): 0}
    assert checker.lost_steps(resumed, reported, [(2.0, 3.0)]) == found
    assert checker.lost_steps(resumed, reported, [(0.5, 3.0)]) == {}, "the disk was full"


def test_a_rank_that_is_killed_leaves_a_readable_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTUNA_DEADLINE_DEVICES", "cpu:3,cpu:4")
    monkeypatch.setenv("LOCAL_RANK", "1")
    log = UsageLog(tmp_path, "study", 7, 2, rank=1, resumed_at=10)
    [born] = read_uses(tmp_path)
    assert (born.device, born.trained_to, born.first) == ("cpu:4", 9, born.last)
    log.using(10)
    [path] = tmp_path.iterdir()
    with path.open("a") as file:
        file.write("12")  # cut off
    [found] = read_uses(tmp_path)
    assert found.segment == ("study", 7, 2)
    assert found.trained_to == 10 and found.last > found.first


@pytest.mark.parametrize(
    ("faults", "tenures", "good"), [(FEWEST, FEWEST, True), (0, FEWEST, False), (FEWEST, 0, False)]
)
def test_a_run_without_training_or_faults_fails(faults: int, tenures: int, good: bool) -> None:
    verdict = Verdict(30.0, faults, tenures, 0, 0, 0, 1, 1.0, "sqlite", 1, 1)
    assert verdict.good is good and verdict.inconclusive is not good
