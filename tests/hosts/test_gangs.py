"""One trial on the slots of two hosts: it trains as on one, and ends as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
from allocation.suite.world import assert_whole
from gang_objective import EVERY
from gangs import Stretch, assert_each_sample_once, losses, stretches, training
from sites import GRACE, TTL, Site, until

from benchmarks.support.network import Host

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgres,
    pytest.mark.nightly_but(r"victim|follower"),
]

WIDE = {**os.environ, "COLUMNS": "160"}
GANG = {"objective": "gang_objective.py:train"}


def start(site: Site, *names: str, cpus: int = 1, across: bool = True) -> list[Host]:
    """Workers whose slots may be in one gang."""
    hosts = [site.network.host(name) for name in names]
    for host in hosts:
        site.work(host, *(["--multi-node"] if across else []), cpus=cpus, **GANG)
    return hosts


def pinned_to_two(site: Site, number: int = 0) -> list[Stretch]:
    """Trial 0 on two slots, in training."""
    folder = site.folder / "ranks"
    until(lambda: any(line.number == number for line in site.table.trials()))
    assert site.table.pin(number, 2)
    found: list[Stretch] = []

    def trains() -> bool:
        found[:] = training(folder, number, 2, steps=12)
        return bool(found)

    until(trains, 90)
    return found


def goes_on(site: Site, after: int, seconds: float = 60.0) -> list[Stretch]:
    """Trial 0 trains on in a later segment; its ranks."""
    found: list[Stretch] = []

    def trains() -> bool:
        found[:] = [one for one in training(site.folder / "ranks", 0, 2) if one.fence > after]
        return bool(found)

    until(trains, seconds)
    return found


def assert_sound(site: Site) -> None:
    found = stretches(site.folder / "ranks")
    assert_each_sample_once(found)
    assert_whole(site.table.events())
    saved = [
        (event.fence, int(str(event.detail["step"])))
        for event in site.table.events(kinds=["checkpoint"])
        if event.number == 0
    ]
    for one in found:
        if one.number == 0 and one.rank == 0:
            before = [step for fence, step in saved if fence is not None and fence < one.fence]
            assert one.first == max(before, default=-1) + 1


def test_a_gang_over_two_hosts_trains_what_one_on_a_host_trains(
    site: Site, request: pytest.FixtureRequest
) -> None:
    hosts = start(site, "node1", "node2")
    one, two = pinned_to_two(site)
    assert {one.host, two.host} == {"node1", "node2"}
    assert (one.node, one.local, two.node, two.local) == (0, 0, 1, 0)
    assert_sound(site)
    tell = site.command("status", "study", "--events", "--trial", "0")
    output = subprocess.run(tell, capture_output=True, text=True, check=True, env=WIDE).stdout
    assert " 2 slots on node1 and node2" in output
    shown = subprocess.run(
        site.command("status", "study"), capture_output=True, text=True, check=True, env=WIDE
    )
    assert "running on node1+node2, pinned 2" in shown.stdout
    across = losses(stretches(site.folder / "ranks"), 0)
    for host in hosts:
        host.die()
    here = request.getfixturevalue("another_site")
    start(here, "node3", cpus=2, across=False)
    pinned_to_two(here)
    until(lambda: len(losses(stretches(here.folder / "ranks"), 0)) >= 40)
    alone = losses(stretches(here.folder / "ranks"), 0)
    both = sorted(across.keys() & alone.keys())
    assert len(both) >= 12
    expected = [alone[step] for step in both]
    assert [across[step] for step in both] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("victim", ["follower", "frozen", "rank", "leader", "cut"])
def test_one_lost_rank_ends_it_for_all_and_it_goes_on_elsewhere(site: Site, victim: str) -> None:
    """A host dies, stands still or is cut off, or a rank dies: nothing saved is lost."""
    hosts = {host.name: host for host in start(site, "node1", "node2", "node3")}
    leader, follower = pinned_to_two(site)
    lost = leader.host if victim == "leader" else follower.host
    if victim == "rank":
        os.kill(follower.pid, signal.SIGKILL)
    elif victim == "frozen":
        [worker] = [row for row in site.table.workers() if row.host == lost]
        os.kill(worker.pid, signal.SIGSTOP)
    elif victim == "cut":
        hosts[lost].cut()
    else:
        hosts[lost].die()
    again = goes_on(site, leader.fence, 60 + 2 * (TTL + GRACE))
    if victim != "rank":
        assert lost not in {one.host for one in again}
    before = [one for one in stretches(site.folder / "ranks") if one.fence == leader.fence]
    before = [one for one in before if one.number == 0]
    assert again[0].first > max(before[0].steps) - EVERY
    assert max(one.last for one in before) < min(one.steps[one.first][0] for one in again)
    assert_sound(site)


def test_hosts_that_do_not_reach_each_other_share_no_gang(site: Site) -> None:
    """Both reach the database: no lease runs out, and yet none may train on without the other."""
    hosts = {host.name: host for host in start(site, "node1", "node2")}
    leader, follower = pinned_to_two(site)
    hosts[leader.host].avoid(hosts[follower.host])
    hosts[follower.host].avoid(hosts[leader.host])
    until(lambda: all(slot.number != 0 for slot in site.table.slots()), 120)  # three tries
    ranks = [one for one in stretches(site.folder / "ranks") if one.number == 0]
    assert all(time.monotonic() - one.last > 0.2 for one in ranks)
    site.table.pin(0, 1)  # a free choice might be another trial
    again: list[Stretch] = []

    def trains() -> bool:
        again[:] = training(site.folder / "ranks", 0, 1)
        return bool(again)

    until(trains, 90)
    before = [one for one in ranks if one.fence == leader.fence]
    assert again[0].first > max(before[0].steps) - EVERY
    assert_sound(site)


def test_a_host_that_reaches_both_goes_on_with_one_of_them(site: Site) -> None:
    hosts = {host.name: host for host in start(site, "node1", "node2", "node3")}
    leader, follower = pinned_to_two(site)
    hosts[leader.host].avoid(hosts[follower.host])
    hosts[follower.host].avoid(hosts[leader.host])
    again = goes_on(site, leader.fence, 120)
    assert {one.host for one in again} != {leader.host, follower.host}
    assert_sound(site)


def test_a_host_that_leaves_takes_no_step_along(site: Site) -> None:
    start(site, "node1", "node2", "node3")
    leader, follower = pinned_to_two(site)
    [worker] = [row for row in site.table.workers() if row.host == follower.host]
    os.kill(worker.pid, signal.SIGTERM)
    again = goes_on(site, leader.fence)
    ranks = stretches(site.folder / "ranks")
    before = [one for one in ranks if (one.number, one.fence) == (0, leader.fence)]
    assert again[0].first == max(before[0].steps) + 1
    assert follower.host not in {one.host for one in again}
    until(lambda: follower.host not in {row.host for row in site.table.workers()})
    assert_sound(site)
