"""From "how many slots" to "which slots": pure, stable, each study's side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from optuna_deadline.allocation.records import Slot

_NEVER = 1e6
#: What is held stays where it is before what is lent, and that before what lies side by side.
_HELD, _LENT = 8.0, 3.0


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
    seats = [study for study in sorted(shares) for _ in range(shares[study])]
    dealt = _seat(seats, slots, reach)
    left = [slot for slot in slots if slot.id not in dealt]
    if len(dealt) < len(seats) and left:
        had = {study: list(dealt.values()).count(study) for study in shares}
        extra = [
            study
            for study in sorted(shares)
            for _ in range(min(most[study] - had[study], len(left)))
        ]
        dealt |= _seat(extra, left, reach)
    return dealt


def _seat(
    seats: Sequence[int], slots: Sequence[Slot], reach: Mapping[int, frozenset[int]]
) -> dict[int, int]:
    """The cheapest assignment of seats, a study for each, to slots."""
    if not seats or not slots:
        return {}
    from scipy.optimize import linear_sum_assignment  # half a second of every worker's start

    # Distances together stay below any other reason.
    rows, columns = np.arange(len(seats))[:, None], np.arange(len(slots))[None, :]
    costs = np.abs(rows - columns) / (len(seats) + len(slots)) ** 2
    for row, study in enumerate(seats):
        for column, slot in enumerate(slots):
            if slot.id not in reach[study]:
                costs[row, column] = _NEVER
            costs[row, column] -= _HELD * (slot.study_id == study) + _LENT * (
                slot.lent_to == study
            )
    chosen = zip(*linear_sum_assignment(costs), strict=True)
    return {slots[j].id: seats[i] for i, j in chosen if slots[j].id in reach[seats[i]]}
