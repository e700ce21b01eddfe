"""Checkpoints that an ended study needs no longer, and the process that has no time for them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from optuna_deadline.allocation.records import Assignment, MachineInfo
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.planning.leftovers import Deletion, delete, delete_needless, needless

STEPS = 5


def ended(root: Path, *, store: str | None = None, keep: bool = True) -> MemoryTable:
    """A study with one ended trial of some checkpoints, of which one stays."""
    table = MemoryTable("pool", 1, now=lambda: 1000.0, deadline=1e6)
    machine = MachineInfo(store=store)
    slots = [slot.id for slot in table.register("me", "there", 1, [], 1, machine_info=machine)]
    term = table.elect_planner("me")
    assert term is not None
    table.open_trial("me", term, 0, 100)
    table.write_plan("me", term, [Assignment(0, "run", "me", 1, "test")])
    grant = table.acquire("me", 0, slots)
    assert grant is not None
    folder = root / "trial-0"
    folder.mkdir(parents=True)
    rows = []
    for step in range(STEPS):
        path = folder / f"segment-{grant.fence:06}-step-{step:09}.ckpt"
        path.write_bytes(b"0" * 100)
        # as many as a trial keeps: the best value, and so each row, differs
        rows.append(Checkpoint(0, grant.fence, step, float(step), path, 100, "crc32:0"))
    table.add_checkpoint("me", grant, *rows[-3:])
    table.release("me", grant, "complete", ended="complete", value=0.0)
    table.settle("me", term, kept=rows[-1].path if keep else None)
    return table


def files(root: Path) -> list[str]:
    return sorted(path.name[-6:-5] for path in root.rglob("*.ckpt"))


def test_what_is_not_deleted_stays_in_the_rows_and_the_next_process_deletes_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "s-1234abcd"
    table = ended(root)
    rows = needless(table)
    delete_needless(table, root, "s", "there", -1.0)
    assert needless(table) == rows and len(files(root)) == STEPS
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{len(rows)} checkpoints ({len(rows)}00 bytes) that the study needs")
    assert "'optuna-deadline clean s'" in line
    delete_needless(table, root, "s", "there", 9.0)
    assert needless(table) == [] and len(table.checkpoints()) == 1
    assert len(files(root)) == STEPS - len(rows) and len(caplog.records) == 1


def test_without_a_decision_of_the_planner_nothing_is_deleted(tmp_path: Path) -> None:
    assert needless(ended(tmp_path / "s-1234abcd", keep=False)) == []


@pytest.mark.parametrize("folder", ["another-1234abcd", ""])
def test_files_outside_of_the_studys_folder_stay(tmp_path: Path, folder: str) -> None:
    table = ended(tmp_path / "s-1234abcd")
    done = delete(table, needless(table), folder, "there", math.inf)
    assert done == Deletion(0, 0, []) and len(files(tmp_path)) == STEPS


def test_files_of_a_host_that_does_not_share_them_are_left_to_it(tmp_path: Path) -> None:
    root = tmp_path / "s-1234abcd"
    table = ended(root, store=f"its mark:{root}")
    for host, left in (("here", STEPS), ("there", STEPS - 2)):
        assert delete(table, needless(table), root.name, host, math.inf).left == []
        assert len(files(root)) == left


def test_a_disk_that_refuses_ends_the_deletion_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "s-1234abcd"
    table = ended(root)

    def refuse(_: Path, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    delete(table, needless(table), root.name, "there", math.inf).warn("s")
    assert len(files(root)) == STEPS and "Permission denied" in caplog.text
