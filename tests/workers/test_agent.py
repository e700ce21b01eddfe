"""What a worker does and writes when its ranks, its plan, its database or its time change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import optuna
import pytest
from by_hand import DEADLINE, Clock, Hand, faked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optuna_deadline.allocation.records import (
    GangMembership,
    GangPart,
    Grant,
    MachineInfo,
    Rendezvous,
)
from optuna_deadline.checkpoints.files import Checkpoint, checksum
from optuna_deadline.errors import DatabaseGone
from optuna_deadline.rank.channel import channel_pair
from optuna_deadline.rank.encoding import MAX_MESSAGE, packed
from optuna_deadline.rank.messages import (
    MESSAGES,
    Advanced,
    Answered,
    Directed,
    Leaves,
    Left,
    PassOn,
    Planned,
    Question,
    Raised,
    Reported,
    Resumed,
    Returned,
    Saved,
    StaysWarm,
    Trusted,
    Waits,
)
from optuna_deadline.worker.rank_connection import Rank
from optuna_deadline.worker.segment import Gang
from optuna_deadline.worker.verdict import decide_outcome


@pytest.fixture
def fakes() -> Iterator[tuple[Clock, list[int]]]:
    with faked() as both:
        yield both


@pytest.fixture
def killed(fakes: tuple[Clock, list[int]]) -> list[int]:
    """The process ids that the worker killed."""
    return fakes[1]


@pytest.fixture
def hand(fakes: tuple[Clock, list[int]], tmp_path: Path) -> Hand:
    return Hand(fakes[0], tmp_path, keep_warm=1)


def test_a_trial_reports_and_completes(hand: Hand) -> None:
    number = hand.started()
    hand.say(number, Reported(0.5, 0, 1.0))
    hand.turn()
    hand.end(number, Returned(0.5))
    hand.turn()
    assert hand.writes == ["acquire", "add_reports", "release complete"]
    assert hand.state() == ("complete", "complete")
    assert hand.table.free_slots(hand.agent.id)


def test_a_trial_pauses_and_goes_on_in_a_new_segment(hand: Hand) -> None:
    number = hand.started()
    hand.say(number, Reported(0.5, 0, 1.0))
    hand.plan(number, "pause", 0)
    hand.turn()
    [directive] = hand.directives(number)
    assert (directive.kind.value, directive.keep_warm) == ("pause", True)
    hand.end(number, Left())
    hand.turn()
    assert hand.state() == ("paused", "pause")
    hand.plan(number)
    hand.turn()
    assert [row.fence for row in hand.table.segments()] == [1, 2]
    assert hand.writes == ["acquire", "add_reports", "release pause", "acquire"]


def test_a_trial_leaves_to_go_on_with_more_slots(hand: Hand) -> None:
    number = hand.started()
    hand.plan(number, slots=2)
    hand.turn()
    [directive] = hand.directives(number)
    assert directive.kind.value == "resize"
    hand.end(number, Left())
    hand.turns(2)
    assert hand.outcomes() == ["resize", None]
    assert [row.slots for row in hand.table.segments()] == [1, 2]
    assert hand.key(number, 1)[1] == 2  # a second rank, of the second segment


def test_a_trial_that_was_stopped_is_retired(hand: Hand) -> None:
    number = hand.started()
    hand.plan(number, "stop", 0)
    hand.turn()
    hand.end(number, Left())
    hand.turn()
    assert hand.state() == ("retired", "stop")


def test_a_warm_process_goes_on_without_another_fork(hand: Hand) -> None:
    number = hand.started()
    hand.plan(number, "pause", 0)
    hand.turn()
    hand.say(number, StaysWarm())
    hand.turn()
    assert hand.state() == ("paused", "warm")
    assert len(hand.table.free_slots(hand.agent.id)) == 2
    hand.heard(number)
    hand.plan(number)
    hand.turn()
    assert [type(message) for message in hand.heard(number)] == [Resumed]
    assert len(hand.fork_server.ranks) == 1
    hand.say(number, Reported(0.5, 3, 1.0))
    hand.end(number, Returned(0.5))
    hand.turns(2)
    assert hand.steps() == [3] and hand.state() == ("complete", "complete")


def test_a_warm_process_that_dies_is_replaced_by_a_fork(hand: Hand) -> None:
    number = hand.started()
    hand.plan(number, "pause", 0)
    hand.turn()
    hand.say(number, StaysWarm())
    hand.turn()
    hand.end(number, code=-9)
    hand.turn()
    hand.plan(number)
    hand.turns(2)
    assert hand.state() == ("running", None) and len(hand.fork_server.ranks) == 2


def test_a_trial_whose_ranks_die_three_times_in_a_row_fails(hand: Hand) -> None:
    number = hand.started()
    for _ in range(3):
        assert hand.state()[0] == "running"
        hand.end(number, code=-9)
        hand.turns(2)
    assert hand.outcomes() == ["died"] * 3 and hand.state() == ("failed", "died")


def test_a_checkpoint_between_two_deaths_begins_the_count_anew(hand: Hand) -> None:
    number = hand.started()
    for _ in range(2):
        hand.end(number, code=-9)
        hand.turns(2)
    hand.say(number, Saved("step-1.ckpt", 1, 0.5, 1, "a"))
    hand.turn()
    hand.end(number, code=-9)
    hand.turns(2)
    assert hand.outcomes() == ["died"] * 3 + [None] and hand.state()[0] == "running"


def test_the_other_rank_of_a_dead_one_is_killed_after_a_moment(
    hand: Hand, killed: list[int]
) -> None:
    number = hand.started(slots=2)
    hand.rank(number, 1).close()
    hand.fork_server.outgoing.send(("exited", hand.key(number, 1), -9))
    hand.turns(2)
    assert not killed
    hand.turns(3)
    assert set(killed) == {hand.pid(number)}


def test_slots_that_were_not_renewed_are_left_at_once(hand: Hand, killed: list[int]) -> None:
    number = hand.started()
    hand.clock.now += hand.table.ttl + hand.table.grace + 1
    hand.table.reap()
    hand.turn()
    assert set(killed) == {hand.pid(number)}
    hand.end(number, code=-9)
    hand.turn()
    assert not any(write.startswith("release") for write in hand.writes)


def test_only_the_loops_thread_touches_a_rank(hand: Hand, killed: list[int]) -> None:
    """A pass of the table thread forks, sends and kills nothing by itself."""
    agent, number = hand.agent, hand.open()
    hand.plan(number)
    hand.reconciler.run_pass()
    assert hand.gang(number) and not hand.fork_server.ranks
    hand.turn()
    hand.heard(number)
    hand.plan(number, "pause")
    hand.say(number, Question(7, "params", (), {}))
    hand.receive()
    hand.reconciler.run_pass()
    assert not hand.heard(number)
    agent._event_loop.run_soon()
    assert [type(message) for message in hand.heard(number)] == [Answered, Directed]
    hand.clock.now += hand.table.ttl + hand.table.grace + 1
    hand.table.reap()
    hand.reconciler.run_pass()
    assert not killed
    agent._event_loop.run_soon()
    assert set(killed) == {hand.pid(number)}


def test_a_trial_that_is_lost_while_it_reports_takes_no_other_with_it(
    hand: Hand, killed: list[int]
) -> None:
    first, second = hand.started(), hand.started()
    hand.table.release(hand.agent.id, hand.gang(first).grant, "paused", ended="died")
    for number in (first, second):
        hand.say(number, Reported(0.5, 0, 1.0))
    hand.turn()
    assert killed == [hand.pid(first)]
    assert hand.steps(second) == [0] and hand.state(second) == ("running", None)


def test_a_grant_whose_answer_was_lost_is_given_back(hand: Hand) -> None:
    number = hand.open()
    hand.lost_answers = 1
    hand.plan(number)
    hand.turn()
    hand.turn(1.0)
    assert hand.writes[:2] == ["acquire", "cancel_grant"]
    hand.turns(2)
    assert hand.state() == ("running", None)


def test_a_drained_worker_leaves_once_it_is_idle(hand: Hand) -> None:
    number = hand.started()
    hand.table.drain(hand.reconciler._membership.host, True)
    hand.look()
    hand.turn()
    assert hand.agent.leaving is None
    hand.plan(number, "pause", 0)
    hand.turn()
    hand.end(number, Left())
    hand.turns(2)
    assert hand.agent.leaving == "the host is drained" and hand.agent._finished()


def test_a_worker_that_is_asked_to_leave_pauses_its_trials(hand: Hand) -> None:
    number = hand.started()
    hand.agent.leave("asked to leave")
    hand.turn()
    assert [(d.kind.value, d.reason) for d in hand.directives(number)] == [
        ("pause", "asked to leave")
    ]
    hand.end(number, Left())
    hand.turn()
    assert hand.state() == ("paused", "shutdown") and hand.agent._finished()


def test_reports_wait_for_a_database_that_is_away(hand: Hand) -> None:
    number = hand.started()
    hand.away = True
    for step in range(3):
        hand.say(number, Reported(0.5, step, 1.0))
        hand.turn(1.0)
    assert hand.steps() == [] and hand.directives(number) == []
    hand.away = False
    hand.turns(2)
    assert hand.steps() == [0, 1, 2]


def test_trials_save_before_the_leases_run_out_without_a_database(hand: Hand) -> None:
    number = hand.started()
    hand.reconciler.view = replace(hand.reconciler.view, deadline=float("inf"))
    hand.away = True
    while not (told := hand.directives(number)):
        hand.turn(0.5)
    assert [directive.kind.value for directive in told] == ["pause"]
    assert 1.0 < hand.agent._lease_clock.trusted_until - hand.clock.now < 5.0


def test_trials_stop_shortly_before_the_deadline(hand: Hand) -> None:
    number = hand.started()
    while not (told := hand.directives(number)):
        hand.turn(0.1)
    assert [(d.kind.value, d.deadline) for d in told] == [("stop", True)]
    assert 0.5 < DEADLINE - hand.clock.now < 3.0


def test_ranks_that_do_not_leave_by_the_deadline_are_killed(hand: Hand, killed: list[int]) -> None:
    number = hand.started()
    hand.turns(30)
    assert hand.pid(number) in killed
    hand.end(number, code=-9)
    hand.turn()
    assert hand.state() == ("paused", "deadline")


def test_a_stop_stands_when_the_worker_is_asked_to_leave(hand: Hand) -> None:
    number = hand.started()
    hand.plan(number, "stop", 0)
    hand.turn()
    hand.agent.leave("asked to leave")
    hand.look()
    hand.turn()
    assert [directive.kind.value for directive in hand.directives(number)] == ["stop"]
    hand.end(number, Left())
    hand.turn()
    assert hand.state() == ("retired", "stop")


def test_a_worker_that_leaves_says_the_deadline_once(hand: Hand) -> None:
    number = hand.started()
    hand.turn(20.0)
    hand.agent.leave("asked to leave")
    hand.turn()
    hand.clock.now = DEADLINE - 1.4
    for _ in range(3):
        hand.look()
        hand.turn()
    assert [directive.deadline for directive in hand.directives(number)] == [False, True]


def test_a_database_outage_is_not_measured_as_a_slow_stop(hand: Hand) -> None:
    number = hand.started()
    hand.reconciler.view = replace(hand.reconciler.view, deadline=float("inf"))
    hand.away = True
    hand.turns(28)
    hand.end(number, Left())
    hand.turn(0.1)
    hand.turns(60)
    hand.away = False
    hand.turns(2)
    assert hand.reconciler._outbox.slowest_stop < 10


def test_a_message_that_cannot_be_read_ends_its_trial_alone(hand: Hand, killed: list[int]) -> None:
    first, second = hand.started(), hand.started()
    hand.rank(first).send_bytes(b"cno_such_module\nThing\n.")
    hand.turn()
    assert killed == [hand.pid(first)]
    hand.end(first, code=-9)
    hand.turn()
    assert hand.state(first) == ("failed", "error")
    assert hand.state(second) == ("running", None)


def test_a_message_that_is_never_completed_does_not_stop_the_worker(hand: Hand) -> None:
    first, second = hand.started(), hand.started()
    hand.rank(first)._socket.sendall(b"\0\0\1\0[half of")
    for _ in range(3):
        hand.turn()  # does not return if the worker waits for the rest
    hand.say(second, Reported(0.5, 0, 1.0))
    hand.turn()
    assert [report.number for report in hand.table.reports()] == [second]


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
#: Messages of any kind with any values, as a rank with other code may send them.
_MESSAGES = st.builds(
    lambda kind, values: b'{"%s": %s}' % (kind.encode(), packed(values)),
    st.sampled_from([*MESSAGES, "Unknown"]),
    st.lists(_VALUES, max_size=5),
) | _VALUES.map(packed)


@given(messages=st.lists(_MESSAGES, min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_message_of_a_rank_stops_its_worker_or_another_trial(
    messages: list[Any], tmp_path: Path
) -> None:
    send_any_messages(messages, tmp_path)


def send_any_messages(messages: list[Any], folder: Path) -> None:
    """A rank sends each message; another one takes its place once it has ended or was killed."""
    with faked() as (clock, killed):
        hand = Hand(clock, folder)
        first, second = hand.started(), hand.started()
        for message in messages:
            hand.rank(first).send_bytes(message)
            hand.turn()
            [rank] = hand.gang(first).ranks
            if killed or rank.end_message is not None:
                hand.end(first, code=-9 if killed else 0)
                killed.clear()
                hand.turn()
                if hand.agent.leaving == "the sampler fails":  # as objectives asked for nonsense
                    break
                if hand.state(first)[0] != "running":  # else it goes on in a new segment
                    first = hand.started()
        hand.say(second, Reported(0.5, 1, 1.0))
        hand.turn()
        assert [row.step for row in hand.table.reports() if row.number == second] == [1]
        assert hand.state(second) == ("running", None)
        for row in hand.table.reports():
            assert type(row.step) is int and isinstance(row.value, (int, float))
        hand.close()


def test_an_answer_that_is_too_large_is_an_error_of_its_call(hand: Hand) -> None:
    first, second = hand.started(), hand.started()
    for key in "ab":  # each of them is small enough for a message
        hand.gang(first).inbox._trial.set_user_attr(key, "x" * (3 << 20))  # type: ignore[union-attr]
    answer = hand.ask(first, "user_attrs")
    assert isinstance(answer, ValueError) and "6.0 MiB" in str(answer)
    assert hand.state(first) == hand.state(second) == ("running", None)


def test_a_start_up_takes_no_negative_time(hand: Hand) -> None:
    number = hand.started()
    hand.say(number, Advanced(0.0, 1.0, 1000000.0))
    hand.turn()
    assert hand.gang(number).progress.startup == 0.0


@pytest.mark.parametrize("method", ["study", "_trial_id", "__class__", "storage"])
def test_a_rank_can_ask_for_nothing_but_what_a_trial_offers(hand: Hand, method: str) -> None:
    number = hand.started()
    hand.rank(number).send(Question(7, method, (), {}))
    hand.turn()
    answers = [one for one in hand.heard(number) if isinstance(one, Answered)]
    assert [(one.good, type(one.value)) for one in answers] == [(False, AttributeError)]


def test_a_message_that_is_too_large_ends_its_trial_alone(hand: Hand) -> None:
    first, second = hand.started(), hand.started()
    pipe = hand.rank(first)
    sending = Thread(target=_send_until_closed, args=(pipe, bytes(MAX_MESSAGE + 1)))
    sending.start()
    assert wait([hand.gang(first).ranks[0].link], 10)  # type: ignore[union-attr]
    hand.turn()
    sending.join(10)
    with pytest.raises((EOFError, OSError)):
        while True:  # what the rank sees: its worker has closed the pipe
            pipe.recv()
    hand.end(first, code=1)
    hand.turn()
    assert hand.table.trials()[first].failures == 1
    assert hand.state(second) == ("running", None)


def _send_until_closed(pipe: Any, content: bytes) -> None:
    with suppress(OSError):
        pipe.send_bytes(content)


def test_a_value_that_is_too_large_is_an_error_of_the_objective() -> None:
    message = Question(1, "set_user_attr", ("notes", "x" * MAX_MESSAGE), {})
    with pytest.raises(ValueError, match=r"set_user_attr got 4\.0 MiB, .*: save large values"):
        packed(message, "set_user_attr")
    assert len(packed(Waits())) < 100


def test_a_rank_forked_as_the_fork_server_dies_can_end(hand: Hand) -> None:
    hand.plan(hand.open())
    loop, server = hand.agent._event_loop, hand.fork_server
    hand.reconciler.run_pass()
    loop.run_soon()
    server.alive = False
    loop.replace_dead(hand.agent._all_gangs)
    server.ranks[0, 1, 0].send(Returned(0.5))
    server.ranks[0, 1, 0].close()
    hand.turns(5)
    assert hand.state() == ("complete", "complete")


def test_a_fork_server_that_hangs_does_not_hold_the_worker_past_the_deadline(hand: Hand) -> None:
    number = hand.open()
    hand.turn(25.0)
    hand.fork_server.answers = False
    hand.plan(number)
    hand.turns(15)
    assert hand.state() == ("paused", "deadline")
    hand.table.settle(hand.agent.id, hand.term)
    hand.look()
    hand.turn()
    assert hand.agent._finished()


def test_a_fork_server_that_hangs_is_replaced(hand: Hand) -> None:
    hand.fork_server.answers = False
    hung = hand.fork_server
    number = hand.open()
    hand.plan(number)
    hand.turns(15)
    assert hand.fork_server is not hung and hand.outcomes() == ["died", None]
    hand.end(number, Returned(0.5))
    hand.turn()
    assert hand.state() == ("complete", "complete")


class Watching(optuna.samplers.RandomSampler):
    """Notes how many trials that have ended Optuna's samplers see."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.ended: list[int] = []
        self.while_sampling = lambda: None

    def sample_independent(self, study: optuna.Study, *args: Any) -> Any:
        trials = study._get_trials(deepcopy=False, use_cache=True)
        self.ended.append(sum(trial.state.is_finished() for trial in trials))
        self.while_sampling()
        return super().sample_independent(study, *args)


@pytest.fixture
def sampler() -> Watching:
    return Watching()


@pytest.fixture
def sampled(fakes: tuple[Clock, list[int]], tmp_path: Path, sampler: Watching) -> Hand:
    return Hand(fakes[0], tmp_path, sampler=sampler, deadline=1e6)


def test_the_sampler_sees_each_trial_that_has_ended(sampled: Hand, sampler: Watching) -> None:
    for _ in range(3):
        number = sampled.started()
        assert 0.0 <= sampled.ask(number, "suggest_float", "x", 0.0, 1.0) <= 1.0
        sampled.study.tell(number, 0.5)
        sampled.end(number, Returned(0.5))
        sampled.turn()
    assert sampler.ended == [0, 1, 2]


def test_leases_are_kept_while_a_sampler_works(sampled: Hand, sampler: Watching) -> None:
    number, renewed, renew = sampled.started(), Event(), sampled.table.renew

    def note(*args: Any) -> Any:
        renewed.set()
        return renew(*args)

    def work_long() -> None:
        for _ in range(3):
            renewed.clear()
            sampled.clock.now += sampled.table.ttl / 3
            assert renewed.wait(20)

    sampled.table.renew = note  # type: ignore[method-assign]
    sampler.while_sampling = work_long
    assert 0.0 <= sampled.ask(number, "suggest_float", "x", 0.0, 1.0) <= 1.0
    sampled.turn()
    assert sampled.directives(number) == [] and sampled.state() == ("running", None)


class Locked(Exception):
    """Cannot be pickled."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.lock = Lock()


class TwoArguments(Exception):
    """Can be pickled, but not read."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


@pytest.mark.parametrize("error", [Locked("no luck"), TwoArguments("no", "luck")])
def test_an_error_of_the_sampler_reaches_the_objective_in_words(
    sampled: Hand, sampler: Watching, error: Exception
) -> None:
    def fail() -> None:
        raise error

    number, sampler.while_sampling = sampled.started(), fail
    answer = sampled.ask(number, "suggest_float", "x", 0.0, 1.0)
    assert type(answer) is RuntimeError
    assert str(answer) == f"{type(error).__name__}: no luck"


def test_what_a_rank_said_before_its_exit_was_heard_is_written_before_the_release(
    hand: Hand,
) -> None:
    number = hand.started()
    hand.gang(number).ranks[0].exit_code = 0  # heard before its pipe is read
    hand.say(number, Reported(0.5, 7, 1.0))
    hand.rank(number).send(Returned(0.5))
    hand.rank(number).close()
    hand.gang(number).conclude()
    hand.reconciler.run_pass()
    assert hand.state() == ("running", None)
    hand.turn()
    assert hand.steps() == [7] and hand.state() == ("complete", "complete")


def test_a_frozen_rank_does_not_stop_the_renewal_of_leases(hand: Hand) -> None:
    gang = hand.gang(hand.started())
    for moment in range(5000):  # a blocked write would not end
        gang.extend_trust(2000.0 + moment)
    assert isinstance(hand.rank(0).recv(), Trusted)


def test_slots_that_are_offered_again_are_not_trusted_for_longer(hand: Hand) -> None:
    before = hand.agent._lease_clock.trusted_until
    hand.clock.now += 4.0
    hand.reconciler._membership.check_offers(1)
    assert hand.agent._lease_clock.trusted_until == before


def test_rank_0_says_how_a_gang_over_two_hosts_ended() -> None:
    part = GangPart("other", 1, ((2, 1),), ("cpu:0",))
    gang = Gang(Grant(0, 0, 1, ((1, 1),), ("cpu:0",), (part,)), 0, 0.0)
    for index, value in ((1, None), (0, 0.9)):  # the remote rank is known first
        rank = Rank(index, None, remote=index == 1, orphaned=True, closed=True)
        rank.end_message = Returned(value)
        gang.ranks.append(rank)
    outcome = decide_outcome(gang.ending())
    assert (outcome.state, outcome.value) == ("complete", 0.9)


def test_a_part_that_was_lost_is_renewed_again_before_a_rank_is_forked(hand: Hand) -> None:
    member, part = hand.reconciler.cross_host, GangPart(hand.agent.id, 1, ((2, 1),), ("cpu:0",))
    waits = GangMembership(0, 0, 1, "leader", 2, part, True, None)
    assert member._reconcile_parts([waits], open=True)
    member.apply_renewal({(2, 1)})
    member.apply_renewal(set())  # reaped meanwhile
    meets = replace(waits, rendezvous=Rendezvous("host", 1, 2, "key"))
    assert member._reconcile_parts([meets], open=True), "no renewal is asked for"
    assert not hand.fork_server.ranks


def test_an_error_of_its_own_counts_before_that_of_a_rank_that_lost_its_peer() -> None:
    gang = Gang(Grant(0, 0, 1, ((1, 1), (2, 1)), ("cpu:0", "cpu:1")), 0, 0.0)
    lines = ("MemoryError: no room", "RuntimeError: Connection reset by peer")
    for index, (line, heard) in enumerate(zip(lines, (2.0, 1.0), strict=True)):
        rank = Rank(index, None, orphaned=True, closed=True)
        rank.end_message, rank.end_message_at = Raised(line, ""), heard
        gang.ranks.append(rank)
    assert gang.ending().end == Raised(lines[0], "")


def test_an_idle_worker_soon_leaves_a_database_that_is_away(hand: Hand) -> None:
    hand.turn()
    hand.away = True
    hand.agent.leave("asked to leave")
    with pytest.raises(DatabaseGone, match="has not answered for"):
        for _ in range(8):
            hand.clock.now += 1.0
            hand.agent._give_up_on_database()
    hand.agent.left_without_database = False


def test_a_worker_with_trials_waits_longer_for_its_database(hand: Hand) -> None:
    hand.started()
    hand.agent.leave("asked to leave")
    hand.away = True
    for _ in range(20):
        hand.clock.now += 1.0
        hand.agent._give_up_on_database()


@pytest.fixture
def gang_of_two(
    fakes: tuple[Clock, list[int]], tmp_path: Path
) -> Iterator[tuple[Hand, Hand, int]]:
    """A leader and a member, each with a rank of one trial."""
    here = MachineInfo(address="127.0.0.1", store=str(tmp_path))
    leader = Hand(fakes[0], tmp_path, machine_info=here, cpus=1)
    member = Hand(fakes[0], tmp_path, of=leader, machine_info=here, cpus=1)
    number = leader.open()
    leader.plan(number, "run", 2, (member.agent.id, 1))
    leader.turn()  # takes both slots, and forks rank 0
    leader.turn()  # says where the ranks meet
    member.look()
    member.turn()  # renews its part, and forks rank 1
    yield leader, member, number
    leader.reconciler.cross_host.close()
    member.reconciler.cross_host.close()


def test_a_gang_over_two_workers_completes_and_gives_back_both_slots(
    gang_of_two: tuple[Hand, Hand, int],
) -> None:
    leader, member, number = gang_of_two
    assert list(leader.fork_server.ranks) == [(0, 1, 0)]
    assert list(member.fork_server.ranks) == [(0, 1, 1)]
    ours, far = channel_pair()
    assert leader.gang(number).attach_remote_rank(1, ours)
    leader.say(number, Reported(0.5, 0, 1.0))
    far.send(Returned(None))
    far.close()
    leader.end(number, Returned(0.5))
    leader.turn()
    assert leader.steps() == [0] and leader.state() == ("complete", "complete")
    member.rank(number, 1).close()
    member.fork_server.outgoing.send(("exited", (0, 1, 1), 0))
    member.look()
    member.turn()
    member.turn()
    assert "release_part" in member.writes
    for hand in (leader, member):
        assert len(hand.table.free_slots(hand.agent.id)) == 1


def test_a_member_that_leaves_tells_the_leader(gang_of_two: tuple[Hand, Hand, int]) -> None:
    leader, member, number = gang_of_two
    member.heard(number, 1)
    member.agent.leave("asked to leave")
    member.turn()
    assert member.heard(number, 1) == [PassOn(Leaves("asked to leave"))]
    leader.say(number, Leaves("asked to leave"))
    leader.turn()
    assert [directive.kind.value for directive in leader.directives(number)] == ["pause"]


def test_what_a_slow_rank_may_still_read_is_not_deleted(hand: Hand) -> None:
    number = hand.started()
    kept = hand.reconciler._folders.local_folder(number) / "1-0.ckpt"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.touch()
    gang = hand.gang(number)
    gang.resume = kept
    swept: list[Any] = []
    hand.reconciler._sweeper.sweep = lambda _, gone: swept.extend(gone)  # type: ignore[method-assign]
    gang.inbox._sweep = hand.reconciler._sweeper.sweep  # type: ignore[union-attr]
    hand.table.add_checkpoint = lambda *_, **__: [kept, kept.with_name("1-1.ckpt")]  # type: ignore[method-assign]
    hand.say(number, Saved(str(kept), 1, 0.5, 1, "a"))
    hand.turn()
    assert [path.name for path in swept] == ["1-1.ckpt"]


def test_a_rank_learns_that_a_plan_has_seen_its_report(hand: Hand) -> None:
    number = hand.started()
    before = hand.clock.now
    hand.say(number, Reported(0.5, 3, 1.0))
    hand.turn()
    hand.agent.plan_made(before, {number: 9})  # it began to read before the report was stored
    hand.look()
    hand.turn()
    assert planned(hand, number) == []
    hand.agent.plan_made(hand.clock(), {number: 9})
    hand.look()
    hand.turn()
    assert planned(hand, number) == [Planned(3, 9)]
    hand.agent.plan_made(hand.clock(), {number: 9})
    hand.look()
    hand.turn()
    assert planned(hand, number) == [], "once"


def test_the_directive_of_a_plan_comes_before_the_message_of_the_plan(hand: Hand) -> None:
    number = hand.started()
    hand.say(number, Reported(0.5, 3, 1.0))
    hand.turn()
    hand.plan(number, "pause")
    hand.agent.plan_made(hand.clock(), {})
    hand.turn()
    assert [type(message) for message in hand.heard(number)][-2:] == [Directed, Planned]


def planned(hand: Hand, number: int) -> list[tuple[Any, ...]]:
    return [message for message in hand.heard(number) if isinstance(message, Planned)]


def test_a_worker_that_was_stopped_over_its_deadline_asks_the_database_before_it_gives_up(
    hand: Hand,
) -> None:
    hand.turn()
    hand.clock.now = DEADLINE + 40  # as if the machine was suspended
    hand.agent._discount_sleep()
    hand.agent._enforce_time_limits()
    hand.agent._give_up_on_database()
    assert hand.term is not None
    hand.table.settle(hand.agent.id, hand.term)
    hand.look()
    hand.turns(3)
    assert hand.agent._finished() and not hand.agent.left_without_database


def test_a_worker_that_was_stopped_takes_no_process_for_hung(hand: Hand) -> None:
    hand.fork_server.answers = False
    asked = hand.fork_server
    number = hand.open()
    hand.plan(number)
    hand.turn()
    hand.clock.now += 20.0
    hand.agent._discount_sleep()
    hand.turn()
    assert hand.fork_server is asked, "it was stopped as well"
    hand.turns(15)
    assert hand.fork_server is not asked


@pytest.fixture
def copied(hand: Hand, tmp_path: Path) -> tuple[int, Path]:
    """A planned trial that starts from another one's checkpoint, and that file."""
    first = hand.started()
    written = tmp_path / f"trial-{first}" / "1-5-0000.ckpt"
    written.parent.mkdir(mode=0o700)
    written.write_text("state")
    saved = Checkpoint(first, 1, 5, 0.5, written, 5, checksum(written))
    hand.table.add_checkpoint(hand.agent.id, hand.gang(first).grant, saved)
    trial = hand.study.ask()
    assert hand.term is not None
    hand.table.open_trial(hand.agent.id, hand.term, trial.number, trial._trial_id, first)
    hand.plan(trial.number)
    return trial.number, written


def test_a_copied_checkpoint_is_there_whatever_becomes_of_its_parent(
    hand: Hand, copied: tuple[int, Path]
) -> None:
    number, written = copied
    hand.turn()
    resume = hand.gang(number).resume
    written.unlink()
    assert resume is not None and resume.read_text() == "state"
    assert resume.parent.name == f"trial-{number}"


def test_a_checkpoint_that_is_dropped_while_a_copy_starts_is_looked_for_again(
    hand: Hand, copied: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    number, _ = copied
    with monkeypatch.context() as patched:
        patched.setattr(hand.table, "checkpoint_origins", lambda **_: [])
        hand.turn()
    assert not any(gang.number == number for gang in hand.reconciler.gangs.values())
    hand.look()
    hand.turn()
    assert hand.gang(number).resume is not None


def test_a_trial_whose_parent_has_no_checkpoint_starts_anew_in_words(
    hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    first, trial = hand.started(), hand.study.ask()
    assert hand.term is not None
    hand.table.open_trial(hand.agent.id, hand.term, trial.number, trial._trial_id, first)
    hand.plan(trial.number)
    hand.turn()
    assert hand.gang(trial.number).resume is None and trial.number in {
        k[0] for k in hand.fork_server.ranks
    }
    assert "Trial 1 starts anew: trial 0 has no checkpoint" in caplog.text
