"""Machines that join must be who they say, and fit those that train."""

from __future__ import annotations

import pytest

from optuna_deadline.allocation.records import About
from optuna_deadline.errors import DeadlineError
from optuna_deadline.testing.allocation.world import TTL, AllocationWorld, checkpoint


class AdmissionSuite:
    """Names, devices and versions are checked where a worker joins."""

    def test_two_machines_of_one_name_are_told_so(self, world: AllocationWorld) -> None:
        table = world.table()
        table.register("a", "node", 7, [], 1, None, About(machine="m1"))
        with pytest.raises(DeadlineError, match=r"Two machines are called 'node': .*process 7"):
            table.register("b", "node", 8, [], 1, None, About(machine="m2"))
        table.register("c", "node", 9, [], 1, None, About(machine="m1"))
        assert {row.id for row in table.workers()} == {"a", "c"}

    def test_a_machine_that_was_restarted_has_its_name_again(self, world: AllocationWorld) -> None:
        table = world.table()
        table.register("a", "node", 7, [], 1, None, About(machine="m1"))
        world.time += TTL + 1
        table.register("b", "node", 8, [], 1, None, About(machine="m2"))
        [worker] = table.workers()
        assert (worker.id, worker.machine) == ("b", "m2")

    def test_a_gpu_is_known_by_its_uuid_under_any_name(self, world: AllocationWorld) -> None:
        _several_hosts(world)
        ours, theirs = world.table("ours"), world.table("theirs", "other")
        [slot] = ours.register("a", "one", 7, ["gpu:0"], 0, None, About(uuids={"gpu:0": "U0"}))
        assert slot.uuid == "U0"
        with pytest.raises(DeadlineError, match="gpu:3 is gpu:0 of 'one'"):
            theirs.register("b", "two", 8, ["gpu:3"], 0, None, About(uuids={"gpu:3": "U0"}))
        theirs.register("b", "two", 8, ["gpu:3"], 0, None, About(uuids={"gpu:3": "U3"}))

    def test_a_name_is_one_gpus_while_somebody_offers_it(self, world: AllocationWorld) -> None:
        one, two = world.table(study="one"), world.table(study="two")
        one.register("a", "node", 7, ["gpu:0"], 0, None, About(uuids={"gpu:0": "U0"}))
        with pytest.raises(DeadlineError, match="gpu:0 of 'node' is another GPU"):
            two.register("b", "node", 8, ["gpu:0"], 0, None, About(uuids={"gpu:0": "U1"}))
        two.register("b", "node", 8, ["gpu:0"], 0, None, About(uuids={"gpu:0": "U0"}))

    def test_gpus_may_be_numbered_anew_once_nobody_offers_them(
        self, world: AllocationWorld
    ) -> None:
        table, devices = world.table(), ["gpu:0", "gpu:1"]
        uuids = {"gpu:0": "U0", "gpu:1": "U1"}
        table.register("a", "node", 7, devices, 0, None, About(uuids=uuids))
        table.leave("a")
        world.time += 0.1
        turned = {"gpu:0": "U1", "gpu:1": "U0"}
        slots = table.register("b", "node", 8, devices, 0, None, About(uuids=turned))
        assert {slot.device: slot.uuid for slot in slots} == turned

    def test_one_study_runs_one_series_of_versions(self, world: AllocationWorld) -> None:
        _several_hosts(world)
        table, other = world.table(), world.table(study="other")
        said = "optuna-deadline 0.1.0, torch 2.13.0+cpu"
        table.register("a", "one", 7, [], 1, None, About(versions=said))
        with pytest.raises(DeadlineError, match=r"torch 2\.13\.0\+cpu \(on one\).*install torch"):
            table.register("b", "two", 8, [], 1, None, About(versions="torch 2.12.1"))
        with pytest.raises(DeadlineError, match=r"install optuna-deadline 0\.1 here"):
            table.register("b", "two", 8, [], 1, None, About(versions="optuna-deadline 0.2.0"))
        table.register("b", "two", 8, [], 1, None, About(versions="torch 2.13.1+cu130"))
        other.register("c", "three", 9, [], 1, None, About(versions="torch 2.12.1"))

    def test_a_study_is_in_one_pool_at_a_time(self, world: AllocationWorld) -> None:
        world.join("a")
        lab = world.table("lab")
        words = r"in the pool 'pool' \(process 1 on host\).*'lab': give it pool='pool'"
        with pytest.raises(DeadlineError, match=words):
            lab.register("b", "host", 2, [], 1)
        world.table("lab", "other").register("c", "host", 3, [], 1)
        world.table().leave("a")
        assert len(lab.register("b", "host", 2, [], 1)) == 1
        world.time += TTL + 1
        assert len(world.table().register("d", "host", 4, [], 1)) == 1

    def test_a_silent_worker_whose_study_went_on_in_another_pool_plans_no_more(
        self, world: AllocationWorld
    ) -> None:
        world.join("a")
        assert world.table().elect("a") == 1
        world.time += TTL + 1
        lab = world.table("lab")
        lab.register("b", "host", 2, [], 1)
        assert lab.elect("b") == 1
        world.table().renew("a", [])
        assert world.table().elect("a") is None
        world.time += TTL / 2
        lab.renew("b", [])
        assert lab.elect("b") == 1

    def test_a_checkpoint_has_the_home_of_who_wrote_it(self, world: AllocationWorld) -> None:
        table = world.table()
        table.register("a", "one", 7, [], 1, None, About(store="mark:/folder"))
        grant = world.grant("a")
        table.add_checkpoint("a", grant, checkpoint(grant, 1, 0.5))
        [home] = table.homes()
        assert (home.number, home.path) == (grant.number, checkpoint(grant, 1).path)
        assert (home.host, home.store, home.state) == ("one", "mark:/folder", "live")
        assert table.homes(number=grant.number) == [home] and table.homes(after=home.id) == []
        assert table.homes(number=grant.number + 1) == []
        table.leave("a")
        assert table.homes()[0].state == "left"


def _several_hosts(world: AllocationWorld) -> None:
    if world.one_host:
        pytest.skip("This store serves one host only.")
