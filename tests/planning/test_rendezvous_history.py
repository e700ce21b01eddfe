"""Hosts whose ranks did not find each other are kept apart for a while, and no others."""

from __future__ import annotations

from optuna_deadline.allocation.records import PlannedTrial, SegmentRow, Worker
from optuna_deadline.planning.cross_host import NO_GROUPS, WorkerGroups
from optuna_deadline.planning.snapshot import RendezvousHistory

ABC = [
    Worker(name, "pool", 1, name, 1, "live", 9.0, store="s3://b", address=name) for name in "abc"
]
NOTHING = (None, None, None, None, None)


def tried(encounters: RendezvousHistory, fence: int, outcome: str, team: str = "ab") -> None:
    """A gang's whole life, as a planner sees it; without a team it was another planner's."""
    if team:
        others = tuple((name, 1) for name in team[1:])
        line = PlannedTrial(
            0, 0, "running", fence, team[0], "run", team[0], len(team), "", 0.0, None, None, False,
            0, others=others,
        )  # fmt: skip
        encounters.take_trials([line])
    for ended, stored in ((None, None), (float(fence), outcome)):
        row = SegmentRow(0, fence, 2, 0.0, ended, stored, *NOTHING, 2)  # type: ignore[arg-type]
        encounters.take_segment(row)


def groups(*lives: tuple[str, str], now: float = 10.0) -> set[str]:
    encounters = RendezvousHistory()
    for fence, (outcome, team) in enumerate(lives, start=1):
        tried(encounters, fence, outcome, team)
    return {"".join(sorted(names)) for names in encounters.allowed_groups(ABC, now).groups}


def test_twice_in_a_row_keeps_these_two_apart_for_ten_minutes() -> None:
    assert groups(("unmet", "ab")) == {"abc"}
    assert groups(("unmet", "ab"), ("unmet", "ab")) == {"ac", "bc"}
    assert groups(("unmet", "ab"), ("unmet", "ab"), now=700.0) == {"abc"}


def test_once_they_met_in_between_they_stay_together() -> None:
    assert groups(("unmet", "ab"), ("pause", "ab"), ("unmet", "ab")) == {"abc"}
    assert groups(("unmet", "ab"), ("pause", "ac"), ("unmet", "ab")) == {"ac", "bc"}


def test_a_gang_of_three_leaves_those_together_that_met_otherwise() -> None:
    lives = ("unmet", "abc"), ("pause", "ab"), ("unmet", "abc")
    assert groups(*lives) == {"ab"}


def test_gangs_of_another_planner_keep_all_apart() -> None:
    encounters = RendezvousHistory()
    tried(encounters, 1, "unmet", "")
    assert encounters.allowed_groups(ABC, 5.0) == WorkerGroups((frozenset("abc"),))
    tried(encounters, 2, "unmet", "ab")
    assert encounters.allowed_groups(ABC, 5.0) == NO_GROUPS
    tried(encounters, 3, "pause", "ac")
    assert encounters.allowed_groups(ABC, 5.0) != NO_GROUPS
