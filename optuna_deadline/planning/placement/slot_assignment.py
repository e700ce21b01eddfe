"""From "how many slots" to "which slots": pure, stable, each study's side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from optuna_deadline.allocation.records import Slot
from optuna_deadline.planning.placement.seating import seat


def deal(
    shares: Mapping[int, int],
    most: Mapping[int, int],
    slots: Sequence[Slot],
    reach: Mapping[int, frozenset[int]],
) -> dict[int, int]:
    """Choose the slots for each study's share.

    As few slots as possible change hands, those in use last. New ones are chosen side by side, for
    a gang is packed on one host if it can be. Where a study's workers do not reach as many slots
    as its share counts, others get more, up to what they can use.

    Args:
        shares: How many slots each study is to have.
        most: How many each could use.
        slots: The slots that live workers offer.
        reach: The slots that each study's live workers offer.

    Returns:
        The study for each slot that somebody is to have; the others may stay as they are.
    """
    slots = sorted(slots, key=lambda slot: (slot.host, slot.id))
    if len(reach) == 1:
        [(study, reached)] = reach.items()
        if shares.get(study, 0) >= len(slots) and all(slot.id in reached for slot in slots):
            return {slot.id: study for slot in slots}  # a study alone has all
    dealt = seat(shares, slots, reach)
    left = [slot for slot in slots if slot.id not in dealt]
    if len(dealt) < sum(shares.values()) and left:
        had = Counter(dealt.values())
        extra = {study: min(most[study] - had[study], len(left)) for study in shares}
        dealt |= seat(extra, left, reach, spare=True)
    return dealt
