"""A worker is taken for dead where that is certain: its process and its ranks have ended here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from optuna_deadline.allocation.database.schema import worker as worker_table
from optuna_deadline.allocation.records import Worker
from optuna_deadline.rank.processes import WORKER, ended_workers, own_boot

SLEEPS = "import sys; print(flush=True); sys.stdin.read()"


class Machine:
    """As much of a /proc as is looked at, with this process 1 in it."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder
        (folder / "sys/kernel/random").mkdir(parents=True)
        self.boot("0f1e2d3c-0000-4000-8000-0123456789ab")
        self.start("self", began=5)
        (folder / "self/ns").mkdir()
        (folder / "self/ns/pid").touch()

    def boot(self, name: str) -> None:
        (self.proc / "sys/kernel/random/boot_id").write_text(name + "\n")

    def start(self, pid: int | str, began: int, state: str = "S", environment: str = "") -> None:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        fields = [state, *["0"] * 18, str(began), "0"]
        (folder / "stat").write_text(f"7 (a (strange) name) {' '.join(fields)}\n")
        (folder / "environ").write_text(environment)

    def end(self, pid: int) -> None:
        (self.proc / str(pid) / "stat").unlink()

    def worker(self, pid: int, began: int) -> Worker:
        self.start("self", began)
        boot = own_boot(self.proc)
        self.start("self", 5)
        return Worker("me", "pool", 1, "host", pid, "live", 9.0, boot=boot)

    def ended(self, *workers: Worker) -> set[str]:
        gone, self.lingering = ended_workers(workers, self.proc)
        return gone


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_process_that_runs_has_not_ended_and_one_that_is_gone_has(machine: Machine) -> None:
    machine.start(20, began=77)
    worker = machine.worker(20, began=77)
    assert machine.ended(worker) == set()
    machine.end(20)
    assert machine.ended(worker) == {"me"}


def test_a_zombie_has_ended(machine: Machine) -> None:
    machine.start(20, began=77, state="Z")
    assert machine.ended(machine.worker(20, began=77)) == {"me"}


def test_another_process_of_the_same_number_is_not_taken_for_it(machine: Machine) -> None:
    machine.start(20, began=78)
    assert machine.ended(machine.worker(20, began=77)) == {"me"}


def test_a_number_that_is_not_seen_in_another_container_proves_nothing(machine: Machine) -> None:
    worker = machine.worker(20, began=77)
    assert machine.ended(worker) == {"me"}
    (machine.proc / "self/ns/pid").rename(machine.proc / "theirs")
    (machine.proc / "self/ns/pid").touch()  # another inode: another namespace
    assert machine.ended(worker) == set()


def test_nor_does_one_of_another_boot_or_of_nobody_knows_which(machine: Machine) -> None:
    """A machine of the same name may run it."""
    worker = machine.worker(20, began=77)
    machine.boot("another")
    assert machine.ended(worker) == set()
    assert machine.ended(Worker("old", "pool", 1, "host", 20, "live", 9.0)) == set()


def test_without_a_proc_nothing_is_known(tmp_path: Path) -> None:
    assert own_boot(tmp_path) is None
    worker = Worker("me", "pool", 1, "host", 1, "live", 9.0, boot="x.y.z.1")
    assert ended_workers([worker], tmp_path) == (set(), set())


def test_as_long_as_a_rank_lives_its_worker_has_not_ended(machine: Machine) -> None:
    """It may be in a kernel's call that no signal ends, with a GPU in its hands."""
    worker = machine.worker(20, began=77)
    machine.start(21, began=80, environment=f"HOME=/\0{WORKER}=me\0")
    machine.start(22, began=80, environment=f"{WORKER}=another\0")
    assert machine.ended(worker) == set() and machine.lingering == {"me"}
    (machine.proc / "21" / "environ").write_text("")
    assert machine.ended(worker) == {"me"}


def test_the_column_has_room(machine: Machine) -> None:
    boot = machine.worker(20, began=2**44).boot
    assert boot is not None and len(boot) + len(f"{2**32:x}") <= worker_table.c.boot.type.length  # type: ignore[attr-defined]


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_processes_of_this_machine_are_seen_to_live_and_to_end() -> None:
    boot = own_boot()
    assert boot is not None
    program = subprocess.Popen(
        [sys.executable, "-S", "-c", SLEEPS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with program:
        assert program.stdout is not None
        program.stdout.readline()
        place = boot.rpartition(".")[0]
        fields = Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()
        worker = Worker(
            "me", "pool", 1, "host", program.pid, "live", 9.0, boot=f"{place}.{int(fields[19]):x}"
        )
        assert ended_workers([worker]) == (set(), set())
        program.kill()
        program.wait()
        assert ended_workers([worker]) == ({"me"}, set())
