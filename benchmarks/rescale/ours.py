"""A worker that changes a trial's slots, lets trials take turns, and starts new ones."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import optuna
from optuna_deadline_lightning import DeadlineCallback

import optuna_deadline
from benchmarks.rescale import training
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.records import Event
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.policies import Pause, Plan, Run, Snapshot

_PARTS = ("save and leave", "hand over", "fork", "set up and restore", "first step")
_WOKEN = ("save and leave", "hand over", "wake", "first step")
_NOTES = "OPTUNA_DEADLINE_RESCALE_NOTES"


@dataclass(frozen=True)
class Switch:
    """A change of slots: its kind, and the seconds from step to step, in total and in parts."""

    change: str
    seconds: float
    parts: dict[str, float]


def objective(trial: Any) -> float:
    """Train without end, or for the study's number of epochs."""
    notes = training.Notes(Path(os.environ[_NOTES]), trial.number)
    deadline = DeadlineCallback(trial, monitor="val_acc")
    trainer = L.Trainer(
        max_epochs=int(os.environ[_NOTES + "_EPOCHS"]),
        callbacks=[notes, deadline],
        **training.quiet(),
        **deadline.trainer_options(),
    )
    trainer.fit(
        training.Net(),
        training.loader(),
        training.loader(samples=training.BATCH),
        ckpt_path=deadline.ckpt_path,
    )
    return trainer.callback_metrics["val_acc"].item()


def resizing(snapshot: Snapshot) -> Plan:
    """One trial, on two slots after every other report."""
    alive = [trial for trial in snapshot.trials if trial.alive]
    orders = {trial.number: Run(1 + trial.step % 2, "its turn") for trial in alive}
    return Plan(orders, start=0 if alive else 1)


def turns(snapshot: Snapshot) -> Plan:
    """Two trials on one slot, which goes to the one that has trained less."""
    alive = sorted((t for t in snapshot.trials if t.alive), key=lambda t: (t.step, t.number))
    if len(alive) < 2:
        return Plan({trial.number: Pause("another begins") for trial in alive}, start=1)
    first, second = alive[:2]
    return Plan({first.number: Run(1, "its turn"), second.number: Pause("not its turn")})


def beginning(snapshot: Snapshot) -> Plan:
    """One trial after another."""
    alive = [trial for trial in snapshot.trials if trial.alive]
    orders = {trial.number: Run(1, "until it is done") for trial in alive}
    return Plan(orders, start=0 if alive else 1)


def measure(
    policy: Callable[[Snapshot], Plan],
    *,
    slots: int,
    seconds: float,
    epochs: int,
    keep_warm: int = 0,
) -> list[Switch]:
    """Let a worker of this process train under a policy, and measure its switches."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes.jsonl"
        os.environ[_NOTES], os.environ[_NOTES + "_EPOCHS"] = str(notes), str(epochs)
        storage = f"sqlite:///{folder}/study.db"
        study = optuna.create_study(storage=storage, study_name="rescale", direction="maximize")
        optuna_deadline.run(
            study,
            "benchmarks/rescale/ours.py:objective",
            cpus=slots,
            deadline=f"{seconds:.0f}s",
            checkpoints=Path(folder) / "checkpoints",
            policy=policy,
            worker=optuna_deadline.WorkerOptions(
                oversubscribe=True, keep_warm=keep_warm, dashboard=False
            ),
        )
        if not notes.exists():
            raise RuntimeError(f"No trial began to train within {seconds:.0f} s on this machine.")
        table = AllocationTable(open_table(study), study.study_name, study._study_id)
        return list(switches(training.read(notes), table.events(kinds=["acquire", "release"])))


def switches(notes: list[dict[str, Any]], events: list[Event]) -> Iterator[Switch]:
    """The changes between successive steps of different segments.

    Args:
        notes: The steps of the training by time.
        events: The table's grants and releases.
    """
    steps = [note for note in notes if note["what"] == "step"]
    for last, first in pairwise(steps):
        between = [note for note in notes if last["at"] < note["at"] < first["at"]]
        began = [note["at"] for note in between if note["what"] == "objective"]
        fit = [note["at"] for note in between if note["what"] == "fit"]
        back = [note["at"] for note in between if note["what"] == "wake"]
        if not back and (not began or not fit):
            continue  # the same segment continues
        taken = [e.at for e in events if e.kind == "acquire" and last["at"] < e.at < first["at"]]
        freed = [e.at for e in events if e.kind == "release" and last["at"] < e.at < first["at"]]
        if not taken or not freed:
            continue
        marks = [last["at"], freed[0], taken[-1], *(back or [began[0], fit[0]]), first["at"]]
        names = list(_WOKEN if back else _PARTS)
        if back:
            change = "wake"
        elif first["trial"] == last["trial"]:
            change = f"{last['ranks']} -> {first['ranks']}"
        else:
            change = "resume" if first["step"] > 1 else "start"
        if change == "start":  # from the grant, since the time before belongs to another trial
            marks, names = marks[2:], names[2:]
        parts = {n: b - a for n, (a, b) in zip(names, pairwise(marks), strict=True)}
        yield Switch(change, marks[-1] - marks[0], parts)
