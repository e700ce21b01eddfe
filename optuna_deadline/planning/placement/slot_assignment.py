"""Chooses which slots form each study's share, in linear time.

Not every study reaches every slot. An assignment of least cost gives the same result but compares
each position with each slot: a hundred million pairs for ten thousand slots. Keeping a held slot
counts more than keeping a lent one, and that more than its place; each slot has one holder and is
lent to one study. So rounds that apply one reason after the other keep as many held slots,
provided that all studies reach all slots.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from optuna_deadline.allocation.records import Slot


def assign_slots(
    wanted: Mapping[int, int],
    slots: Sequence[Slot],
    reach: Mapping[int, frozenset[int]],
    *,
    spare: bool = False,
) -> dict[int, int]:
    """Assign as many slots as possible; returns the study of each assigned slot.

    A study keeps slots that it holds and that are lent to it. Then come slots that it holds, slots
    that are lent to it, and neighbouring slots. If a study reaches none of the remaining slots,
    studies that reach more give up some of theirs.

    Args:
        wanted: Slots to assign, by study.
        slots: In the order of hosts.
        reach: The slots that each study reaches.
        spare: Whether these are slots beyond shares: then a holder has no claim to its slot, and
            lent slots stay lent.
    """
    seating = _SlotMatching(wanted, slots, reach)
    seating.keep((_lent, _held) if spare else (_settled, _held, _lent))
    seating.fill(idle=True)
    seating.fill(idle=False)
    seating.augment()
    return seating.assigned


def _settled(slot: Slot) -> int | None:
    return slot.study_id if slot.study_id == slot.lent_to else None


def _held(slot: Slot) -> int | None:
    return slot.study_id


def _lent(slot: Slot) -> int | None:
    return slot.lent_to


class _SlotMatching:
    """The slots assigned so far, and the studies that need more."""

    def __init__(
        self,
        wanted: Mapping[int, int],
        slots: Sequence[Slot],
        reach: Mapping[int, frozenset[int]],
    ) -> None:
        self.assigned: dict[int, int] = {}
        self._left = Counter({study: seats for study, seats in wanted.items() if seats > 0})
        self._slots = slots
        self._reach = reach
        self._places = {slot.id: place for place, slot in enumerate(slots)}
        self._reached: dict[int, list[Slot]] = {}
        self._exhausted: set[int] = set()

    def keep(self, reasons: Sequence[Callable[[Slot], int | None]]) -> None:
        """Keep slots with their studies, for the strongest reason first."""
        for whose in reasons:
            for slot in self._slots:
                study = whose(slot)
                if study is None or not self._left[study] or slot.id in self.assigned:
                    continue
                if slot.id in self._reach[study]:
                    self._assign(slot.id, study)

    def fill(self, *, idle: bool) -> None:
        """Assign slots on a study's hosts, then where they fit tightest, then where most are.

        Args:
            idle: Whether only free slots are assigned.
        """
        for study in sorted(+self._left):
            free: dict[str, list[int]] = {}
            here: set[str] = set()
            for slot in self._slots_of(study):
                owner = self.assigned.get(slot.id)
                if owner is None and not (idle and slot.holder):
                    free.setdefault(slot.host, []).append(slot.id)
                elif owner == study:
                    here.add(slot.host)
            for host in sorted(free, key=lambda name: -len(free[name])):
                seats = self._left[study]
                if len(free[host]) >= seats:
                    fitting = [name for name in free if len(free[name]) >= seats]
                    host = min(fitting, key=lambda name: (name not in here, len(free[name])))
                for slot_id in free.pop(host)[:seats]:
                    self._assign(slot_id, study)
                if not self._left[study]:
                    break

    def augment(self) -> None:
        """Assign slots that other studies have, which get others in exchange."""
        if len(self.assigned) < len(self._slots):
            for study in sorted(+self._left):
                while self._left[study] and self._augment_once(study):
                    self._left[study] -= 1

    def _assign(self, slot_id: int, study: int) -> None:
        self.assigned[slot_id] = study
        self._left[study] -= 1

    def _slots_of(self, study: int) -> list[Slot]:
        """The slots that a study reaches, in order."""
        if study not in self._reached:
            places = sorted(self._places[i] for i in self._reach[study] if i in self._places)
            self._reached[study] = [self._slots[place] for place in places]
        return self._reached[study]

    def _augment_once(self, study: int) -> bool:
        """Assign one more slot to a study by the shortest chain of exchanges; returns success.

        A study that a failed search has visited ends no chain, so it is visited once.
        """
        met: dict[int, tuple[int, int] | None] = {study: None}  # its new study, and the slot
        queue = deque([] if study in self._exhausted else [study])
        while queue:
            taker = queue.popleft()
            # Its own slots come first, so that an exchanged slot stays where it is.
            for slot in sorted(self._slots_of(taker), key=lambda slot: slot.lent_to != taker):
                owner = self.assigned.get(slot.id)
                if owner is None:
                    self.assigned[slot.id] = taker
                    while (step := met[taker]) is not None:
                        taker, given = step
                        self.assigned[given] = taker
                    return True
                if owner not in met and owner not in self._exhausted:
                    met[owner] = (taker, slot.id)
                    queue.append(owner)
        self._exhausted |= met.keys()
        return False


def assign_shares(
    shares: Mapping[int, int],
    most: Mapping[int, int],
    slots: Sequence[Slot],
    reach: Mapping[int, frozenset[int]],
) -> dict[int, int]:
    """Choose the slots for each study's share.

    As few slots as possible change their study, those in use last. New slots are neighbours where
    possible, because a gang should be on one host. If a study's workers reach fewer slots than its
    share, other studies get more, up to what they can use.

    Args:
        shares: How many slots each study gets.
        most: How many each can use.
        slots: The slots that live workers offer.
        reach: The slots that each study's live workers offer.

    Returns:
        The new study of each slot that changes; the others stay.
    """
    slots = sorted(slots, key=lambda slot: (slot.host, slot.id))
    if len(reach) == 1:
        [(study, reached)] = reach.items()
        if shares.get(study, 0) >= len(slots) and all(slot.id in reached for slot in slots):
            return {slot.id: study for slot in slots}  # a study alone gets all slots
    dealt = assign_slots(shares, slots, reach)
    left = [slot for slot in slots if slot.id not in dealt]
    if len(dealt) < sum(shares.values()) and left:
        had = Counter(dealt.values())
        extra = {study: min(most[study] - had[study], len(left)) for study in shares}
        dealt |= assign_slots(extra, left, reach, spare=True)
    return dealt
