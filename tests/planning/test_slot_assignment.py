"""Which slots a share is: stable, reachable, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from growth import instructions
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from optuna_deadline.allocation.records import Slot
from optuna_deadline.planning.placement.slot_assignment import assign_shares, assign_slots


def slot(number: int, host: str = "h", lent: int | None = None, held: int | None = None) -> Slot:
    holder = None if held is None else f"w{held}"
    return Slot(number, host, f"gpu:{number}", "pool", lent, 0, holder, held, None, None)


def everywhere(slots: list[Slot], *studies: int) -> dict[int, frozenset[int]]:
    return {study: frozenset(row.id for row in slots) for study in studies}


@st.composite
def situations(
    draw: st.DrawFn,
) -> tuple[dict[int, int], dict[int, int], list[Slot], dict[int, frozenset[int]]]:
    """Shares that fit, slots on two hosts, studies that do not reach all of them."""
    who = st.sampled_from([None, 1, 2, 3])
    hosts = draw(st.lists(st.sampled_from("ab"), min_size=1, max_size=8))
    slots = [slot(i, host, draw(who), draw(who)) for i, host in enumerate(hosts)]
    shares, left = {}, len(slots)
    for study in (1, 2, 3):
        shares[study] = draw(st.integers(0, left))
        left -= shares[study]
    most = {study: share + draw(st.integers(0, 3)) for study, share in shares.items()}
    ids = st.sets(st.sampled_from(range(len(slots))))
    return shares, most, slots, {study: frozenset(draw(ids)) for study in shares}


@settings(deadline=None)
@given(situations())
def test_nobody_gets_what_it_does_not_reach_or_need_and_nothing_idles(
    situation: tuple[dict[int, int], dict[int, int], list[Slot], dict[int, frozenset[int]]],
) -> None:
    shares, most, slots, reach = situation
    dealt = assign_shares(shares, most, slots, reach)
    counts = Counter(dealt.values())
    assert all(slot in reach[study] for slot, study in dealt.items())
    assert all(counts[study] <= most[study] for study in shares)
    for study in shares:
        if counts[study] < shares[study]:  # the others have all that it reaches
            assert reach[study] <= set(dealt)
    settled = [replace(row, lent_to=dealt.get(row.id, row.lent_to)) for row in slots]
    assert assign_shares(shares, most, settled, reach) == dealt


def test_what_is_held_stays_and_what_is_idle_moves() -> None:
    slots = [slot(0, lent=1, held=1), slot(1, lent=1), slot(2, lent=1, held=1), slot(3, lent=1)]
    dealt = assign_shares({1: 2, 2: 2}, {1: 4, 2: 4}, slots, everywhere(slots, 1, 2))
    assert dealt == {0: 1, 1: 2, 2: 1, 3: 2}


def test_labels_follow_the_holder_so_that_a_hand_over_cannot_hang() -> None:
    """The study gave back another slot than the one that was lent on."""
    slots = [slot(0, lent=1), slot(1, lent=2, held=1)]
    assert assign_shares({1: 1, 2: 1}, {1: 1, 2: 1}, slots, everywhere(slots, 1, 2)) == {
        0: 2,
        1: 1,
    }


def test_new_shares_lie_side_by_side() -> None:
    slots = [slot(i, "ab"[i // 4]) for i in range(8)]
    dealt = assign_shares({1: 4, 2: 4}, {1: 8, 2: 8}, slots, everywhere(slots, 1, 2))
    assert {dealt[i] for i in range(4)} == {1} and {dealt[i] for i in range(4, 8)} == {2}


def test_a_study_that_reaches_one_host_gets_its_share_there() -> None:
    slots = [slot(i, "ab"[i // 2], lent=1) for i in range(4)]
    reach = {1: frozenset(range(4)), 2: frozenset({0, 1})}
    assert assign_shares({1: 2, 2: 2}, {1: 4, 2: 4}, slots, reach) == {0: 2, 1: 2, 2: 1, 3: 1}
    more = assign_shares({1: 1, 2: 3}, {1: 4, 2: 4}, slots, reach)
    assert Counter(more.values()) == {1: 2, 2: 2}


def best(
    shares: dict[int, int],
    slots: list[Slot],
    reach: dict[int, frozenset[int]],
    worth: Callable[[Slot, int], bool],
) -> tuple[int, int]:
    """Seats, and how many of them are worth something, by an assignment of least cost."""
    seats = [study for study in shares for _ in range(shares[study])]
    gains = np.array(
        [[worth(s, study) if s.id in reach[study] else -1e6 for s in slots] for study in seats],
        dtype=float,
    ).reshape(len(seats), len(slots))
    found = [gains[pair] for pair in zip(*linear_sum_assignment(-gains), strict=True)]
    return sum(gain >= 0 for gain in found), int(sum(gain for gain in found if gain >= 0))


def is_held(slot: Slot, study: int) -> bool:
    return slot.study_id == study


def is_lent(slot: Slot, study: int) -> bool:
    return slot.lent_to == study


@settings(deadline=None)
@given(situations())
def test_as_many_seats_as_can_be_had(
    situation: tuple[dict[int, int], dict[int, int], list[Slot], dict[int, frozenset[int]]],
) -> None:
    shares, _, slots, reach = situation
    assert len(assign_slots(shares, slots, reach)) == best(shares, slots, reach, is_held)[0]


@settings(deadline=None)
@given(situations())
def test_where_all_reach_all_as_little_as_can_be_changes_hands(
    situation: tuple[dict[int, int], dict[int, int], list[Slot], dict[int, frozenset[int]]],
) -> None:
    shares, _, slots, _ = situation
    reach = everywhere(slots, 1, 2, 3)
    dealt = assign_slots(shares, slots, reach)
    held = sum(is_held(row, dealt[row.id]) for row in slots if row.id in dealt)
    assert (len(dealt), held) == best(shares, slots, reach, is_held)
    if all(row.study_id in (None, row.lent_to) for row in slots):
        lent = sum(is_lent(row, dealt[row.id]) for row in slots if row.id in dealt)
        assert (len(dealt), lent) == best(shares, slots, reach, is_lent)


def test_a_large_pool_is_dealt_in_proportion_to_its_slots() -> None:
    """All new, as it is, and with studies that must move aside."""

    def work(hosts: int) -> int:
        studies = range(1, hosts // 5 + 1)
        slots = [slot(i, f"h{i // 10}") for i in range(10 * hosts)]
        reach = {study: frozenset(range((study - 1) * 50, study * 50)) for study in studies}
        reach[1] = frozenset(range(10 * hosts))
        shares = dict.fromkeys(studies, 50)

        def deal_all() -> None:
            first = assign_shares(shares, shares, slots, reach)
            settled = [replace(row, lent_to=first[row.id]) for row in slots]
            assert assign_shares(shares, shares, settled, reach) == first
            moved = [replace(row, lent_to=1 + (row.id + 25) // 50) for row in slots]
            assign_shares(shares, shares, moved, reach)

        return instructions(deal_all)

    assert work(80) < 5 * work(20)
