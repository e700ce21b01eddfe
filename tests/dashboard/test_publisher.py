"""What optuna-dashboard shows of a study, read back by its own functions, on both databases."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import optuna
import optuna_dashboard
import pytest
import sqlalchemy as sa
from optuna_dashboard._custom_plot_data import get_plotly_graph_objects

from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.records import Assignment, Grant, NewReport
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.dashboard import is_wanted
from optuna_deadline.dashboard import publisher as publishing
from optuna_deadline.dashboard.attributes import OURS, DashboardAttributes
from optuna_deadline.dashboard.publisher import Publisher, figures, make_publisher
from optuna_deadline.elastic import agree
from optuna_deadline.history.forecast import forecast
from optuna_deadline.history.reader import HistoryReader, read_history
from optuna_deadline.study.terms import Given

pytestmark = [pytest.mark.slow_names("postgres"), pytest.mark.nightly_but(r"figures_note")]


@dataclass
class Scene:
    """A study with two trials, one of which holds a slot."""

    study: optuna.Study
    table: AllocationTable
    publisher: Publisher
    term: int
    grants: list[Grant]
    now: float = 0.0
    rules: bool = True

    def shown(self, number: int) -> dict[str, object]:
        """The columns of a trial."""
        return dict(optuna.load_study(study_name="s", storage=self.url).trials[number].user_attrs)

    @property
    def url(self) -> str:
        """As another process opens the study."""
        return self.table.database.engine.url.render_as_string(hide_password=False)

    @property
    def attributes(self) -> dict[str, object]:
        """The study's system attributes."""
        return self.study._storage.get_study_system_attrs(self.study._study_id)


@pytest.fixture
def scene(storage_url: str) -> Scene:
    study = optuna.create_study(study_name="s", storage=storage_url, direction="maximize")
    terms = agree(study, "1h", Given(budget=None))
    engine = open_table(study)
    table = AllocationTable(engine, "s", terms.study_id)
    slots = [slot.id for slot in table.register("me", "node7", 1, ["gpu:0", "gpu:1"], 0)]
    term = table.elect_planner("me")
    assert term is not None
    found = make_publisher(engine, study, table, terms, lambda: scene.rules)
    assert found is not None
    found._clock = lambda: scene.now
    scene = Scene(study, table, found, term, [])
    for number in range(2):
        trial = study.ask()
        table.open_trial("me", term, number, trial._trial_id)
        table.write_plan("me", term, [Assignment(number, "run", "me", 1, f"starts | {number}")])
        grant = table.acquire("me", number, [slots[number]])
        assert grant is not None
        table.add_reports("me", grant, [NewReport(1, 0.5 + number / 10, 1.0)])
        scene.grants.append(grant)
    return scene


def test_figures_note_and_columns_are_the_dashboards_own(scene: Scene) -> None:
    scene.publisher.publish()
    shown = get_plotly_graph_objects(scene.attributes)
    assert sorted(shown) == [
        "deadline-allocation", "deadline-budget", "deadline-forecast", "deadline-rungs",
        "deadline-utilization",
    ]  # fmt: skip
    for text in shown.values():
        assert optuna_dashboard._custom_plot_data.is_valid_graph_object_id("deadline-rungs")
        assert {"data", "layout"} == set(json.loads(text))
    note = optuna_dashboard.get_note(scene.study)
    for words in ("**Deadline**", "**Best** 0.6 (trial 1, step 1)"):
        assert words in note
    assert re.search(r", in (1 h|59 min \d+ s) as of ", note)
    assert "| 1 | 1 | gpu:1 on node7 |" in note and "starts \\| 1" in note
    assert scene.shown(0) | {"deadline:slot_seconds": 0} == {
        "deadline:state": "running", "deadline:slots": 1, "deadline:segments": 1,
        "deadline:slot_seconds": 0, "deadline:overhead_seconds": 0.0,
    }  # fmt: skip
    trial = optuna.trial.Trial(scene.study, scene.study.trials[0]._trial_id)
    assert "**in training** since " in optuna_dashboard.get_note(trial)


def test_paused_and_retired_trials_read_as_such_though_they_have_ended(scene: Scene) -> None:
    scene.publisher.publish()
    assert scene.table.release("me", scene.grants[0], "paused", ended="pause")
    scene.table.conclude("me", scene.term, 0, "retired", "others were better")
    scene.study.tell(0, state=optuna.trial.TrialState.PRUNED)
    assert scene.table.release("me", scene.grants[1], "paused", ended="pause", stop=2.0)
    scene.publisher.publish()
    assert scene.shown(0)["deadline:state"] == "retired"
    paused = scene.shown(1)
    assert (paused["deadline:state"], paused["deadline:slots"]) == ("paused", 0)
    assert paused["deadline:overhead_seconds"] == 2.0
    note = optuna_dashboard.get_note(scene.study)
    assert "1 paused, 1 pruned" in note


def test_the_note_says_what_people_ask_for(scene: Scene) -> None:
    scene.table.hold(0, True)
    scene.table.pin(1, 2)
    scene.table.drain("node7", True)
    scene.publisher.publish()
    note = optuna_dashboard.get_note(scene.study)
    assert "**Requests** trial 0 held; trial 1 pinned to 2; node7 drained." in note
    assert " trial 0 is held by request" in note and " node7 is drained" in note
    scene.table.hold(0, False)
    scene.table.pin(1, None)
    scene.table.drain("node7", False)
    scene.publisher.publish()
    assert "Requests" not in optuna_dashboard.get_note(scene.study)


def test_a_users_note_stays_and_its_version_rises(scene: Scene) -> None:
    optuna_dashboard.save_note(scene.study, "My own words.\n" * 300)
    scene.publisher.publish()
    body = optuna_dashboard.get_note(scene.study)
    assert body.startswith("My own words.") and body.count(OURS) == 1
    version = scene.attributes["dashboard:note_ver"]
    scene.table.release("me", scene.grants[0], "paused", ended="pause")
    scene.publisher.publish()
    body = optuna_dashboard.get_note(scene.study)
    assert body.count("My own words.") == 300 and body.count(OURS) == 1
    assert scene.attributes["dashboard:note_ver"] == version + 1  # type: ignore[operator]
    optuna_dashboard.save_note(scene.study, "All mine.")
    scene.publisher.publish()
    assert optuna_dashboard.get_note(scene.study).startswith("All mine.\n\n" + OURS)


def test_only_trials_that_a_reader_looks_at_have_notes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best one, those that train, the newest; a user's own text stays."""
    monkeypatch.setattr(publishing, "NOTES", 3)
    trials = [optuna.trial.Trial(scene.study, row._trial_id) for row in scene.study.trials]
    assert scene.table.release("me", scene.grants[0], "paused", ended="pause")
    for number in range(2, 6):
        trials.append(scene.study.ask())
        scene.table.open_trial("me", scene.term, number, trials[-1]._trial_id)
    optuna_dashboard.save_note(trials[0], "mine")

    def noted() -> list[int]:
        return [n for n, one in enumerate(trials) if OURS in optuna_dashboard.get_note(one)]

    scene.publisher.publish()
    assert len(noted()) == 3 and 1 in noted(), "the best one, which trains as well"
    before = noted()
    scene.table.retire("me", scene.term, {0: "others were better", 2: "likewise"})
    heir = make_publisher(
        scene.table.database, scene.study, scene.table, agree(scene.study, None),
        lambda: True,
    )  # fmt: skip
    assert heir is not None
    heir.publish()
    assert sorted(noted()) == [0, 1, 2] != before
    heir.publish()
    scene.table.retire("me", scene.term, {3: "likewise", 4: "likewise"})
    heir.publish()
    assert noted() == [1, 3, 4]
    assert [optuna_dashboard.get_note(one) for one in trials[:1]] == ["mine"]
    keys = [key for key in scene.attributes if "note" in key]
    assert len(keys) == 2 * (1 + 3 + 1), "of the study, of three trials, and the user's"


def test_only_what_changed_is_written_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.publisher.publish()
    calls: list[tuple[object, ...]] = []
    write = DashboardAttributes.write
    monkeypatch.setattr(DashboardAttributes, "write", lambda *a: (calls.append(a), write(*a)))
    scene.table.release("me", scene.grants[0], "paused", ended="pause")
    scene.publisher.publish()
    scene.publisher.publish()
    trials = [ids for _, _, _, ids in calls[:2] if ids]
    assert len(trials) == 1
    other = scene.study.trials[1]._trial_id
    assert all(other not in notes for _, _, notes, _ in calls), "it has no news"


def test_it_waits_rests_and_leaves_the_work_to_who_rules(scene: Scene) -> None:
    publisher = scene.publisher
    publisher._next = publishing.FIRST
    assert publisher.work() == publishing.FIRST and not publisher._passes
    scene.now, scene.rules = publishing.FIRST, False
    publisher.work()
    assert not publisher._passes
    scene.now, scene.rules = publisher._next, True
    assert publisher.work() >= publishing.LEAST and publisher._passes == 1


def test_an_error_is_said_once_and_ends_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [
        sa.exc.OperationalError("", {}, Exception("away"))
    ]  # told elsewhere
    errors += [RuntimeError("disk full\nand more")] * 2

    def fail(*_: object) -> None:
        raise errors.pop(0)

    calls: list[str] = []
    monkeypatch.setattr(DashboardAttributes, "write", fail)
    monkeypatch.setattr(publishing._logger, "warning", lambda *a: calls.append(a[0] % a[1:]))
    for _ in range(3):
        scene.now = scene.publisher._next
        scene.publisher.work()
    assert calls == [
        "optuna-dashboard cannot be updated (RuntimeError: disk full); the study continues."
    ]


def test_the_last_state_is_published_at_the_end(scene: Scene) -> None:
    scene.now = 1e6
    scene.publisher.start()
    scene.publisher.stop()
    scene.table.settle("me", scene.term)
    scene.publisher.finish(10.0)
    assert "the study has ended" in optuna_dashboard.get_note(scene.study)


def test_the_dashboard_of_another_database_is_left_alone(tmp_path: object) -> None:
    study = optuna.create_study()
    url = f"sqlite:///{tmp_path}/table.db"
    engine = open_table(study, url)
    assert DashboardAttributes.of(engine, study) is None
    assert not is_wanted(False) and is_wanted(None), "optuna-dashboard is installed here"


def test_figures_stay_within_their_bytes(scene: Scene) -> None:
    table, term = scene.table, scene.term
    for _ in range(40):
        for grant in scene.grants:
            table.release("me", grant, "paused", ended="pause")
        scene.grants = []
        for number, slot in enumerate((1, 2)):
            table.write_plan("me", term, [Assignment(number, "run", "me", 1, "its turn " * 9)])
            grant = table.acquire("me", number, [slot])
            assert grant is not None
            scene.grants.append(grant)
    history = read_history(scene.study)
    found = figures(history, forecast(history), most=9000)
    assert len(found) == 5 and all(len(text) <= 9000 for text in found.values())
    assert "only the newest segments" in found["deadline-allocation"]
    assert HistoryReader(table, agree(scene.study, None)).read().events == history.events
