"""Rows for the live page, written through the real table."""

from __future__ import annotations

from dataclasses import dataclass, field

import optuna

from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.records import Assignment, Grant, NewReport
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.elastic import agree
from optuna_deadline.study.terms import Given


@dataclass
class Lab:
    """A pool with studies, each with one worker on the same host."""

    url: str
    tables: dict[str, AllocationTable] = field(default_factory=dict)
    terms: dict[str, int] = field(default_factory=dict)
    grants: dict[tuple[str, int], Grant] = field(default_factory=dict)

    def join(self, study: str, slots: int = 4) -> None:
        """A study joins with a worker that offers the host's GPUs."""
        made = optuna.create_study(study_name=study, storage=self.url, direction="maximize")
        terms = agree(made, "1h", Given(budget=None))
        table = AllocationTable(open_table(made), "lab", terms.study_id)
        table.register(study, "node7", 4711, [f"gpu:{i}" for i in range(slots)], 0)
        term = table.elect_planner(study)
        assert term is not None
        self.tables[study], self.terms[study] = table, term

    def open(self, study: str, number: int) -> None:
        """A trial is put on the table."""
        self.tables[study].open_trial(study, self.terms[study], number, 100 + number)

    def want(self, study: str, number: int, slots: int, why: str = "test") -> None:
        """The plan wants a trial to have so many slots; none pauses it."""
        mode, worker = ("run", study) if slots else ("pause", None)
        line = Assignment(number, mode, worker, slots, why)
        self.tables[study].write_plan(study, self.terms[study], [line])

    def take(self, study: str, number: int) -> None:
        """The worker takes what the plan wants."""
        table = self.tables[study]
        [line] = [line for line in table.trials() if line.number == number]
        grant = table.acquire(study, number, table.free_slots(study)[: line.slots])
        assert grant is not None
        self.grants[study, number] = grant

    def report(self, study: str, number: int, step: int, value: float) -> None:
        """The trial reports."""
        self.tables[study].add_reports(
            study, self.grants[study, number], [NewReport(step, value, float(step))]
        )

    def leave(self, study: str, number: int, ended: str = "resize") -> None:
        """The trial leaves its slots."""
        grant = self.grants.pop((study, number))
        assert self.tables[study].release(study, grant, "paused", ended=ended)

    def lend(self, slot: int, study: str) -> None:
        """The leader lends a slot to a study."""
        one = next(iter(self.tables))
        led = self.tables[one].elect_leader(one)
        assert led is not None
        self.tables[one].lend(one, led, {slot: self.tables[study].study_id}, {})
