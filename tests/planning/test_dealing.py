"""Which slots a share is: stable, reachable, side by side."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from optuna_deadline.allocation.records import Slot
from optuna_deadline.planning.dealing import deal


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
    dealt = deal(shares, most, slots, reach)
    counts = Counter(dealt.values())
    assert all(slot in reach[study] for slot, study in dealt.items())
    assert all(counts[study] <= most[study] for study in shares)
    for study in shares:
        if counts[study] < shares[study]:  # the others have all that it reaches
            assert reach[study] <= set(dealt)
    settled = [replace(row, lent_to=dealt.get(row.id, row.lent_to)) for row in slots]
    assert deal(shares, most, settled, reach) == dealt


def test_what_is_held_stays_and_what_is_idle_moves() -> None:
    slots = [slot(0, lent=1, held=1), slot(1, lent=1), slot(2, lent=1, held=1), slot(3, lent=1)]
    dealt = deal({1: 2, 2: 2}, {1: 4, 2: 4}, slots, everywhere(slots, 1, 2))
    assert dealt == {0: 1, 1: 2, 2: 1, 3: 2}


def test_labels_follow_the_holder_so_that_a_hand_over_cannot_hang() -> None:
    """The study gave back another slot than the one that was lent on."""
    slots = [slot(0, lent=1), slot(1, lent=2, held=1)]
    assert deal({1: 1, 2: 1}, {1: 1, 2: 1}, slots, everywhere(slots, 1, 2)) == {0: 2, 1: 1}


def test_new_shares_lie_side_by_side() -> None:
    slots = [slot(i, "ab"[i // 4]) for i in range(8)]
    dealt = deal({1: 4, 2: 4}, {1: 8, 2: 8}, slots, everywhere(slots, 1, 2))
    assert {dealt[i] for i in range(4)} == {1} and {dealt[i] for i in range(4, 8)} == {2}


def test_a_study_that_reaches_one_host_gets_its_share_there() -> None:
    slots = [slot(i, "ab"[i // 2], lent=1) for i in range(4)]
    reach = {1: frozenset(range(4)), 2: frozenset({0, 1})}
    assert deal({1: 2, 2: 2}, {1: 4, 2: 4}, slots, reach) == {0: 2, 1: 2, 2: 1, 3: 1}
    more = deal({1: 1, 2: 3}, {1: 4, 2: 4}, slots, reach)
    assert Counter(more.values()) == {1: 2, 2: 2}
