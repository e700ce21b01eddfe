"""From "how many slots" to "which slots": pure, stable, each study's side by side.

So many seats for each study on slots that not everybody reaches: pure, in linear time.

An assignment of least cost would say the same and compare every seat with every slot, which are a
hundred million pairs in a pool of ten thousand slots. What is held counts more than what is lent,
that more than where a slot lies, and each slot has one holder and is lent to one study: so rounds
that take one reason after the other keep as much of what is held, wherever all studies reach all.
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
    """The study for each slot that is given to somebody; as many seats as can be had.

    What is held by a study and lent to it stays with it; then come what it holds, what it is lent,
    and what lies side by side. Where a study reaches nothing that is left, others that reach more
    move aside.

    Args:
        wanted: Seats by study.
        slots: In the order of hosts.
        reach: The slots that each study reaches.
        spare: Whether these are seats beyond shares: who holds a slot has no title to it then, and
            what is lent stays lent.
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
    """What is dealt so far, and who wants more."""

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
        """Let everybody keep what it has, for the strongest reason first."""
        for whose in reasons:
            for slot in self._slots:
                study = whose(slot)
                if study is None or not self._left[study] or slot.id in self.assigned:
                    continue
                if slot.id in self._reach[study]:
                    self._assign(slot.id, study)

    def fill(self, *, idle: bool) -> None:
        """Seats on hosts where a study is, then where they fit tightest, else in most number.

        Args:
            idle: Whether only slots that nobody holds are given.
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
        """Seats for those who reach only what others have, who get others in exchange."""
        if len(self.assigned) < len(self._slots):
            for study in sorted(+self._left):
                while self._left[study] and self._augment_once(study):
                    self._left[study] -= 1

    def _assign(self, slot_id: int, study: int) -> None:
        self.assigned[slot_id] = study
        self._left[study] -= 1

    def _slots_of(self, study: int) -> list[Slot]:
        """What a study reaches, in order."""
        if study not in self._reached:
            places = sorted(self._places[i] for i in self._reach[study] if i in self._places)
            self._reached[study] = [self._slots[place] for place in places]
        return self._reached[study]

    def _augment_once(self, study: int) -> bool:
        """One more slot for a study by the shortest chain of exchanges; whether there is one.

        Whom a search in vain has met can end no chain, so nobody is met in vain twice.
        """
        met: dict[int, tuple[int, int] | None] = {study: None}  # who takes its slot, and which
        queue = deque([] if study in self._exhausted else [study])
        while queue:
            taker = queue.popleft()
            # Its own come first, so that what was exchanged once stays so.
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
    dealt = assign_slots(shares, slots, reach)
    left = [slot for slot in slots if slot.id not in dealt]
    if len(dealt) < sum(shares.values()) and left:
        had = Counter(dealt.values())
        extra = {study: min(most[study] - had[study], len(left)) for study in shares}
        dealt |= assign_slots(extra, left, reach, spare=True)
    return dealt
