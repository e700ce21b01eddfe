"""Workers on hosts of their own, on one PostgreSQL: they die, are cut off, join and leave."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest
from endings import end_within
from sites import GRACE, TTL, Site, until

from benchmarks.support.network import Network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgres,
    pytest.mark.nightly_but(r"cut|drained"),
]


def test_a_host_cut_off_stops_before_its_slots_are_given_away(
    site: Site, network: Network
) -> None:
    """Its processes live, and its database is out of reach."""
    one, two = network.host("cut-one"), network.host("cut-two")
    site.work(one)
    until(lambda: site.training_on("cut-one"))
    site.work(two)
    until(lambda: site.training_on("cut-two"))
    one.cut()
    cut_at = time.monotonic()
    until(lambda: site.table.events(kinds=["reap"]))
    [reap] = site.table.events(kinds=["reap"])
    reaped = reap.at - time.time() + time.monotonic()  # this machine's clock is the database's
    stopped = max(s.last for s in site.segments() if s.host == "cut-one")
    assert cut_at < stopped < reaped, "it trained on past the end of its lease"
    assert stopped < cut_at + TTL and reaped > cut_at + GRACE
    one.mend(network)
    until(lambda: site.training_on("cut-one"))
    site.assert_nothing_twice(cut=["cut-one"])


def test_a_host_that_dies_costs_the_steps_since_its_checkpoints(
    site: Site, network: Network
) -> None:
    one, two = network.host("dead-one"), network.host("dead-two")
    site.work(one)
    until(lambda: (s := site.training_on("dead-one")) and s.trained_to > 12)
    one.die()
    site.table.pin(0, 1)  # a free choice might be the trial that starts before 0 can be reaped
    site.work(two)
    until(lambda: any(s.host == "dead-two" and s.number == 0 for s in site.segments()))
    until(lambda: site.training_on("dead-two", 0))
    assert [row.outcome for row in site.table.segments()][:1] == ["lost"]
    [first, second] = [s for s in site.segments() if s.number == 0]
    assert (first.host, second.host) == ("dead-one", "dead-two")
    assert second.first > 0 and first.trained_to - second.first < 5
    site.assert_nothing_twice()


def test_hosts_join_and_leave_while_the_study_runs(site: Site, network: Network) -> None:
    one, two, three = (network.host(f"move-{n}") for n in ("one", "two", "three"))
    leaver = site.work(one)
    site.work(two)
    until(lambda: site.training_on("move-one") and site.training_on("move-two"))
    site.work(three)
    until(lambda: site.training_on("move-three"))
    drain = site.command("drain", "move-one")
    subprocess.run(drain, check=True, capture_output=True)
    assert leaver.wait(30) == 130
    assert "This host is drained" in site.log_of("move-one")
    assert {row.host for row in site.table.workers()} == {"move-two", "move-three"}
    ended = [row.outcome for row in site.table.segments() if row.outcome is not None]
    assert "lost" not in ended, "who is drained loses no step"
    site.assert_nothing_twice()


def test_a_host_with_a_folder_of_its_own_is_told_so_and_keeps_its_trials(
    site: Site, network: Network
) -> None:
    own = {site.checkpoints: site.folder / "disk-of-one"}
    one, two = network.host("own-one", mounts=own), network.host("own-two")
    worker = site.work(one)
    until(lambda: (s := site.training_on("own-one")) and s.trained_to > 6)
    site.work(two)
    until(lambda: site.training_on("own-two"))
    assert "own-two does not share its checkpoints with own-one" in site.log_of("own-two")
    until(lambda: "Not every host can read the others' checkpoints" in site.log_of("own-one"))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 130
    waits = "waits for own-one, which alone has its checkpoint"
    until(lambda: site.table.trials()[0].reason == waits)
    shown = subprocess.run(site.command("status", "study"), capture_output=True, text=True)
    assert "waits for own-one" in " ".join(shown.stdout.split())
    assert not any(s.host == "own-two" and s.number == 0 for s in site.segments())
    site.work(one)
    until(lambda: site.training_on("own-one"))
    until(lambda: len([s for s in site.segments() if s.number == 0]) == 2)
    [first, second] = [s for s in site.segments() if s.number == 0]
    assert second.host == "own-one" and second.first == first.trained_to + 1
    site.assert_nothing_twice()


def test_the_best_model_may_be_on_a_host_that_others_do_not_reach(
    site: Site, network: Network
) -> None:
    """The worker that settles the study counts it and names its host."""
    own = {site.checkpoints: site.folder / "disk-of-best"}
    one, two = network.host("best-one", mounts=own), network.host("best-two")
    first = site.work(one)
    until(lambda: (s := site.training_on("best-one")) and s.trained_to > 40)
    second = site.work(two)
    until(lambda: site.training_on("best-two"))
    end_within(site.table, 6)
    assert first.wait(40) == 0 and second.wait(40) == 0
    best = max(s.trained_to for s in site.segments() if s.host == "best-one")
    assert max(s.trained_to for s in site.segments() if s.host == "best-two") < best
    assert "checkpoint verified" in site.log_of("best-one")
    assert "checkpoint on best-one, which alone has it" in site.log_of("best-two")
    assert site.study.best_trial.number == 0 and site.study.best_value == pytest.approx(
        best / 1000
    )
