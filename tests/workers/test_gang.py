"""A gang as its worker sees it."""

from __future__ import annotations

from optuna_deadline.allocation.records import Grant
from optuna_deadline.directives import Directive, Kind
from optuna_deadline.rank.channel import channel_pair
from optuna_deadline.rank.messages import Message, Reported, Returned
from optuna_deadline.worker.event_loop import _read_rank
from optuna_deadline.worker.rank_connection import Rank
from optuna_deadline.worker.segment import Gang


class Ear:
    """Remembers what was said."""

    never_reported = False

    def __init__(self) -> None:
        self.heard: list[Message] = []

    def receive(self, rank: Rank, message: Message) -> None:
        self.heard.append(message)


def test_the_last_words_of_a_rank_are_heard_though_it_was_told_something_just_then() -> None:
    ours, theirs = channel_pair()
    ear = Ear()
    rank = Rank(0, ours, pid=0)
    gang = Gang(Grant(0, 0, 1, ((1, 1),), ("cpu:0",)), 0, 0.0, ranks=[rank], inbox=ear)
    gang.extend_trust(1.0)  # never read
    theirs.send(Reported(0.5, 1, 1.0))
    theirs.send(Returned(0.5))
    theirs.close()
    gang.extend_trust(2.0)
    gang.send_directive(Directive(Kind.PAUSE, "waits"))
    assert not rank.closed  # nobody reads on where this is set
    _read_rank(gang, rank)
    assert ear.heard == [Reported(0.5, 1, 1.0), Returned(0.5)]
    assert rank.closed
