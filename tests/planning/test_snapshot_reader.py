"""Reading only what changed gives what reading everything gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.allocation.records import Assignment, NewReport, Orders, ReportRow
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.planning import planner
from optuna_deadline.planning.reading import Reading
from optuna_deadline.planning.snapshot import SnapshotReader, _Reports
from optuna_deadline.policies import TrialView, make_policy
from optuna_deadline.simulation import Cluster, Faults, Simulation, generate


@pytest.mark.parametrize("policy", ["hypersched", "asha_promote"])
def test_a_reader_that_reads_on_sees_what_a_new_one_sees(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Checked(SnapshotReader):
        def read(self, orders: Orders) -> Reading:
            mine = super().read(orders)
            anew = SnapshotReader(self._table, "maximize")
            theirs = anew.read(orders)
            assert mine.snapshot == theirs.snapshot
            assert (mine.workers, mine.capacities) == (theirs.workers, theirs.capacities)
            told = [line for n, line in theirs.trials.items() if n not in mine.trials]
            assert theirs.trials.items() >= mine.trials.items()
            assert all(line.end_reported and not line.alive for line in told)
            read.append(mine)
            return mine

    read: list[Reading] = []
    monkeypatch.setattr(planner, "SnapshotReader", Checked)
    faults = Faults(crash_every=300.0, host_every=600.0, straggler_share=0.2)
    cluster = Cluster(slots=2, hosts=2, faults=faults, ttl=10.0, grace=5.0)
    tuned = generate("diverging", 1, configurations=64, steps=20)
    chosen = make_policy(policy, {"max_resource": 20})
    Simulation(chosen, tuned, cluster, deadline=3 * tuned.full_seconds, seed=1).run()
    assert len(read) > 100
    views = [view for reading in read for view in reading.snapshot.trials]
    assert len({id(view) for view in views}) < len(views) / 4, "what has not changed is shared"


@given(st.permutations(range(1, 30)), st.integers(1, 10))
def test_reports_are_sorted_by_their_steps_in_any_order_of_arrival(
    order: list[int], at_once: int
) -> None:
    rows = {i: ReportRow(i, i % 3, i // 3, 0.1 * i, 1, 1.0, 1.0) for i in order}
    reports = _Reports("maximize")
    for begin in range(0, len(order), at_once):
        new = [rows[i] for i in order[begin : begin + at_once]]
        assert reports.take(new) == {row.number for row in new}
        assert reports.take(new) == set()
    for number in range(3):
        steps = [report.step for report in reports.of(number)]
        assert steps == [i // 3 + 1 for i in range(1, 30) if i % 3 == number], "from 0"


def test_steps_from_0_are_seen_as_the_steps_from_1() -> None:
    """So the first rung of every policy is the first report."""

    def seen(begin: int, horizons: tuple[int, int]) -> tuple[TrialView, ...]:
        now = [0.0]
        table = MemoryTable("pool", 1, now=lambda: now[0], started=0.0, deadline=100.0)
        table.register("w", "host", 1, [], 2)
        term = table.elect_planner("w")
        assert term is not None
        reader = SnapshotReader(table, "maximize")
        slots = [slot.id for slot in table.slots()]
        for number in (0, 1):
            table.open_trial("w", term, number, 10 + number)
            table.write_plan("w", term, [Assignment(number, "run", "w", 1, "its turn")])
            grant = table.acquire("w", number, [slots[number]])
            assert grant is not None
            speed = dict.fromkeys(["startup", "position_from", "position_to", "trained"])
            table.set_progress("w", grant, **speed, horizon=begin + horizons[number])
            # The second trial reports the first step, after the first one's second step.
            for step in (1, 2) if number == 0 else (0, 1):
                now[0] += 1.0
                table.add_reports("w", grant, [NewReport(begin + step, 0.5, now[0])])
                orders = table.orders("w")
                read = reader.read(orders).snapshot.trials
        assert read == SnapshotReader(table, "maximize").read(orders).snapshot.trials
        return read

    zero, one = seen(0, (19, 29)), seen(1, (19, 29))
    assert zero == one
    assert [[report.step for report in trial.reports] for trial in zero] == [[2, 3], [1, 2]]
    assert [trial.horizon for trial in zero] == [20, 30]
