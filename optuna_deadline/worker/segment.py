"""A running segment on the worker's side: its ranks, their messages, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from optuna_deadline.allocation.records import Grant, NewReport, OtherWorkers
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.directives import KEEP, Directive
from optuna_deadline.rank.messages import (
    Answered,
    Directed,
    EndHeard,
    Leaves,
    Message,
    PassOn,
    Planned,
    Resumed,
    Trusted,
)
from optuna_deadline.worker.pending_writes import PendingWrites
from optuna_deadline.worker.rank_connection import Rank
from optuna_deadline.worker.verdict import RankEnding, SegmentEnding, SegmentOutcome, WentWarm
from optuna_deadline.worker.watchdog import kill_rank

if TYPE_CHECKING:
    from optuna_deadline.rank.channel import Channel

#: Seconds for the other ranks to end once one is dead.
_STRAGGLER_SECONDS = 3.0

#: Seconds after which a disconnected rank on another host counts as ended without a message.
#: The keep-alives of its own connection take about nine.
_REMOTE_EXIT_SECONDS = 12.0

#: Seconds in which ranks must acknowledge that their worker leaves, unless their steps are
#: longer: SLURM and Kubernetes kill all processes after 30.
ACKNOWLEDGE_SECONDS = 15.0
_SAVE_SECONDS = 120.0  # more seconds to save, if the host gives the time

#: Seconds without a message from any rank after which the gang counts as hung. Shorter than
#: the timeout of gloo's collectives, whose error would hide the cause.
HANG_TIMEOUT = 900.0


SegmentKey = tuple[int, int]  #: a trial's number and the fence of its grant


class Inbox(Protocol):
    """Handles the messages of one gang's ranks."""

    @property
    def never_reported(self) -> bool:
        """Whether the trial has never reported, in this segment or before."""

    def receive(self, rank: Rank, message: Message) -> None:
        """Handle one message."""

    def store(self, reports: Sequence[NewReport], checkpoints: Sequence[Checkpoint]) -> None:
        """Store reports and commit checkpoints, all or none."""

    def copy_to_optuna(self, reports: Sequence[NewReport]) -> None:
        """Copy stored reports to Optuna."""


@dataclass(frozen=True)
class Progress:
    """The progress and speed of a segment."""

    startup: float | None = None
    start: float | None = None
    position: float | None = None
    trained: float | None = None
    validated: float | None = None
    waited: float | None = None
    horizon: int | None = None
    batch: int | None = None
    pausable: bool | None = None

    def fields(self) -> dict[str, Any]:
        """The columns of the table."""
        return {
            "startup": self.startup,
            "position_from": self.start,
            "position_to": self.position,
            "trained": self.trained,
            "validated": self.validated,
            "waited": self.waited,
            "horizon": self.horizon,
            "batch": self.batch,
            "pausable": self.pausable,
        }


@dataclass
class Gang:
    """A running segment: its ranks as the event loop's thread has them, and its mailbox.

    The table thread writes what is in the mailbox, in order and again after database errors, so
    reports are neither reordered nor lost. It reads ``progress`` and ``directive``, which are
    replaced as a whole, and changes nothing but the fields that are its own.
    """

    # Fixed at the grant.
    grant: Grant
    failures: int
    trained_before: float
    granted_at: float = field(default_factory=time.monotonic)
    hang_timeout: float = HANG_TIMEOUT
    known_limit: int | None = None  #: the most slots, as a segment before has said
    resume: Path | None = None  #: the checkpoint that its ranks resume from
    inbox: Inbox | None = None  #: None if its ranks send to the leader on another host
    #: lets the event loop's thread do something with its ranks
    call_soon: Callable[[Callable[[], object]], object] = lambda work: work()
    pending_writes: PendingWrites = field(default_factory=PendingWrites)  #: the mailbox

    # The event loop's thread.
    ranks: list[Rank] = field(default_factory=list)
    directive: Directive = KEEP
    directive_sent_at: float | None = None
    directives_by_call: dict[int, Directive] = field(default_factory=dict)
    progress: Progress = Progress()
    first_exit_at: float | None = None
    last_message_at: float | None = None
    longest_silence: float = 0.0  #: seconds between two messages, the first since the grant
    longest_step_silence: float = 0.0  #: the same without the first one, which is a start
    hung: bool = False
    acknowledged: bool = False  #: whether a rank has acknowledged that it is to leave
    overdue: bool = False
    #: whether one of its workers leaves, whose host may be switched off soon
    worker_leaving: bool = False
    announced: bool = False  #: whether the leader knows that this worker leaves
    abandoned: bool = False  #: whether it was killed since its slots are lost
    concluded: bool = False  #: whether its end is in the mailbox
    #: the most slots that its ranks can train on, and why
    slot_limit: tuple[int, str] | None = None
    answered_error: bool = False
    reported: bool = False  #: whether it has reported in this segment
    saved: bool = False  #: whether it has saved a checkpoint in this segment
    #: when it disconnected ranks on other hosts, which may not know yet
    disconnected_at: float | None = None
    without_members: bool = False  #: whether it no longer has slots of other workers

    # The table thread.
    outcome: SegmentOutcome | None = None
    lost: bool = False  #: whether its slots or its trial are another worker's
    #: its last report that no plan has seen: the step, and when it was stored
    unplanned: tuple[int, float] | None = None
    written_progress: Progress = Progress()
    progress_due: float = 0.0  #: it is not written again before then

    @property
    def number(self) -> int:
        """The trial's number."""
        return self.grant.number

    @property
    def key(self) -> SegmentKey:
        """The trial's number and the fence of the grant."""
        return self.grant.number, self.grant.fence

    @property
    def leads(self) -> bool:
        """Whether this worker has the trial, and not only a part of its ranks."""
        return self.inbox is not None

    @property
    def size(self) -> int:
        """The number of its slots."""
        return self.grant.size

    @property
    def others(self) -> OtherWorkers:
        """The other workers that give slots to it."""
        return tuple((part.worker, part.size) for part in self.grant.others)

    @property
    def remote_ranks_may_run(self) -> bool:
        """Whether a rank may still run on another host, so that the trial must wait for it.

        At most as long as that host needs to notice, and not past the deadline.
        """
        if self.disconnected_at is None or self.without_members or self.directive.deadline:
            return False
        return time.monotonic() - self.disconnected_at < _REMOTE_EXIT_SECONDS

    @property
    def stepped(self) -> bool:
        """Whether it has trained a step in this segment, as far as its ranks have reported."""
        start, position = self.progress.start, self.progress.position
        moved = start is not None and position is not None and position > start
        return moved or self.reported or self.saved

    @property
    def exited(self) -> bool:
        """Whether every rank has exited."""
        return bool(self.ranks) and all(rank.exited for rank in self.ranks)

    @property
    def never_reported(self) -> bool:
        """Whether the trial has never reported, in this segment or before."""
        return self.inbox is None or self.inbox.never_reported

    def receive(self, rank: Rank, message: Message) -> None:
        """Handle a message of a rank."""
        now = time.monotonic()
        self.longest_silence = max(
            self.longest_silence, now - (self.last_message_at or self.granted_at)
        )
        if self.last_message_at is not None:
            self.longest_step_silence = max(self.longest_step_silence, now - self.last_message_at)
        self.last_message_at = now
        if self.inbox is not None:
            self.inbox.receive(rank, message)

    def send_directive(self, directive: Directive) -> None:
        """Send a directive to every rank; a later one replaces an earlier one."""
        now = self.directive
        if directive.kind is now.kind and directive.deadline == now.deadline:
            return
        self.directive = replace(directive, seq=now.seq + 1)
        if self.directive_sent_at is None and directive.leave:
            self.directive_sent_at = time.monotonic()
        for rank in self.ranks:
            rank.send(Directed(self.directive))

    def send_planned(self, step: int, next_look: int) -> None:
        """Tell the reporting rank that a plan has seen its report of a step.

        Args:
            step: The step.
            next_look: No report of an earlier step decides about the trial.
        """
        for rank in self.ranks:
            if rank.index == 0:
                rank.send(Planned(step, next_look))

    def add_rank(self, rank: Rank) -> None:
        """Add a rank and send it the present directive."""
        self.ranks.append(rank)
        self._send_directive_to(rank)

    def attach_remote_rank(self, index: int, link: Channel) -> bool:
        """Attach a connection from another host; returns False if no rank is expected."""
        rank = next((rank for rank in self.ranks if rank.remote and rank.index == index), None)
        if rank is None or rank.link is not None or rank.closed:
            return False
        rank.link = link
        self._send_directive_to(rank)
        return True

    def _send_directive_to(self, rank: Rank) -> None:
        if self.directive is not KEEP:
            rank.send(Directed(self.directive))

    def announce_leaving(self, why: str) -> None:
        """Let the ranks ask their leader on another host to go on without this worker."""
        if self.ranks and not self.announced:
            self.announced = True
            for rank in self.ranks:
                rank.send(PassOn(Leaves(why)))

    def drop_member(self, worker: str) -> None:
        """Drop a member: its ranks are gone, or their slots are."""
        for part in self.grant.others:
            if part.worker == worker:
                for rank in self.ranks:
                    if rank.remote and part.first_rank <= rank.index < part.first_rank + part.size:
                        self._disconnect(rank)

    def _disconnect(self, rank: Rank) -> None:
        if rank.link is not None and not rank.closed and self.disconnected_at is None:
            self.disconnected_at = time.monotonic()
        rank.disconnect()

    def add_warm_rank(self, rank: Rank) -> None:
        """Add a warm process, which goes on as this segment's rank."""
        rank.send(Resumed(self.grant.fence, self.grant.devices))
        self.add_rank(rank)

    def directive_for_call(self, call: int) -> Directive:
        """The directive for the n-th question, the same for every rank."""
        return self.directives_by_call.setdefault(call, self.directive)

    def answer(self, rank: Rank, question: int, good: bool, value: Any) -> None:
        """Answer one question of a rank."""
        try:
            rank.send(Answered(question, good, value))
        except (TypeError, ValueError) as error:  # too large, such as many user attributes
            good = False
            rank.send(Answered(question, good, error))
        self.answered_error |= not good

    def acknowledge_end(self, rank: Rank) -> None:
        """Confirm an end message, so that a rank on another host can exit."""
        if rank.remote:
            rank.send(EndHeard())

    def extend_trust(self, until: float) -> None:
        """Extend the trust of the ranks."""
        for rank in self.ranks:
            if not rank.remote:
                rank.extend_trust(until)

    def lose(self) -> None:
        """Write no more, and let the ranks be killed; in the table thread."""
        self.lost = True
        self.call_soon(self._abandon)

    def _abandon(self) -> None:
        self.abandoned = True
        self.kill()

    def kill(self) -> None:
        """End every rank now."""
        for rank in self.ranks:
            if rank.remote:
                self._disconnect(rank)
            elif rank.pid is None:  # the fork server confirmed no fork: the rank ends itself
                rank.send(Trusted(0.0))
            elif not rank.exited:
                kill_rank(rank.pid)

    def kill_stragglers(self) -> None:
        """Kill the other ranks a moment after one has ended: without a peer they may hang."""
        if not any(rank.exited or rank.end_message for rank in self.ranks):
            return
        now = time.monotonic()
        if self.first_exit_at is None:
            self.first_exit_at = now
        elif now - self.first_exit_at > _STRAGGLER_SECONDS:
            self.kill()

    def discount(self, seconds: float) -> None:
        """Count these seconds as no silence of the ranks: the worker was stopped."""
        for name in ("last_message_at", "directive_sent_at", "first_exit_at"):
            if (at := getattr(self, name)) is not None:
                setattr(self, name, at + seconds)
        for rank in self.ranks:
            rank.requested_at += seconds

    def kill_hung(self) -> None:
        """Kill all ranks once none sends messages: one is frozen, or waits for a frozen one.

        A loop with one message an hour may be silent for three; one without any, for ever.
        """
        if self.hung or self.progress.position is None or self.last_message_at is None:
            return
        if time.monotonic() - self.last_message_at > max(
            self.hang_timeout, 3 * self.longest_silence
        ):
            self.hung = True
            self.kill()

    def kill_overdue(self, stop: float) -> bool:
        """Kill ranks that do not leave though their worker has to: they hang, or never ask.

        Ranks that have acknowledged it are saving and get more time.

        Args:
            stop: Seconds that the slowest gang took to leave so far.

        Returns:
            Whether it was killed now.
        """
        if (
            not self.worker_leaving
            or self.overdue
            or self.directive_sent_at is None
            or self.exited
        ):
            return False
        # it reads directives between two steps
        patience = max(ACKNOWLEDGE_SECONDS, 1.5 * (stop + self.longest_step_silence))
        if self.acknowledged:
            patience += _SAVE_SECONDS
        self.overdue = time.monotonic() - self.directive_sent_at > patience
        if self.overdue:
            self.kill()
        return self.overdue

    def stay_warm(self) -> None:
        """Its process needs its slot no more."""
        self.pending_writes.add_end(WentWarm(self._stop_seconds(time.monotonic())))

    def conclude(self) -> None:
        """Add the end to the mailbox, once all ranks have exited and all pipes are read."""
        waits = self.remote_ranks_may_run and not self.abandoned
        if self.concluded or waits or not self.exited:
            return
        if all(rank.closed for rank in self.ranks):
            self.concluded = True
            self.pending_writes.add_end(self.ending())

    def _stop_seconds(self, left_at: float) -> float | None:
        return None if self.directive_sent_at is None else left_at - self.directive_sent_at

    def ending(self) -> SegmentEnding:
        """How it has ended, now that all ranks have exited."""
        now = time.monotonic()
        return SegmentEnding(
            grant=self.grant,
            failures=self.failures,
            ranks=tuple(
                RankEnding(
                    index=rank.index,
                    end=rank.end_message,
                    ended_at=rank.end_message_at,
                    exit_code=rank.exit_code,
                    remote=rank.remote,
                    connected=rank.link is not None,
                )
                for rank in self.ranks
            ),
            directive=self.directive,
            slot_limit=self.slot_limit,
            stepped=self.stepped,
            saved=self.saved,
            silent_for=self.hang_timeout if self.hung else None,
            lost=self.abandoned,
            answered_error=self.answered_error,
            held_seconds=now - self.granted_at,
            stop_seconds=self._stop_seconds(
                min(now, max([rank.closed_at for rank in self.ranks], default=now))
            ),
        )


def busy_slots(gangs: Iterable[Gang]) -> set[int]:
    """The slots with ranks of these gangs."""
    return {slot for gang in gangs for slot, _ in gang.grant.slots}
