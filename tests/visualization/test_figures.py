"""Every figure can be made of every history, by plotly and by matplotlib, and says the verdict."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable

import matplotlib
import optuna
import pytest
from histories import Recipe, paid, recipes
from hypothesis import given

from optuna_deadline import visualization
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.records import Assignment, NewReport
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.elastic import agree
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.records import History
from optuna_deadline.study.terms import Given
from optuna_deadline.visualization._allocation import chart_allocation
from optuna_deadline.visualization._budget import chart_budget
from optuna_deadline.visualization._chart import Bars, Chart
from optuna_deadline.visualization._forecast import chart_forecast
from optuna_deadline.visualization._plotly import figure_of, spec_of
from optuna_deadline.visualization._rungs import chart_rungs
from optuna_deadline.visualization._utilization import chart_utilization
from optuna_deadline.visualization.matplotlib import axes_of

matplotlib.use("Agg")
CHARTS: dict[str, Callable[[History], Chart]] = {
    "plot_allocation": chart_allocation,
    "plot_forecast": chart_forecast,
    "plot_budget": chart_budget,
    "plot_utilization": chart_utilization,
    "plot_rungs": chart_rungs,
}


@given(recipes | paid)
def test_every_figure_of_every_history(recipe: Recipe) -> None:
    history = recipe.make()
    for chart in [make(history) for make in CHARTS.values()]:
        text = json.dumps(spec_of(chart), allow_nan=False)
        assert "NaN" not in text and chart.summary and "[" in chart.x_title
        for part in chart.parts:
            if not isinstance(part, Bars):
                assert all(math.isfinite(x) for x in part.x)
    drawn = [part for part in chart_allocation(history).parts if isinstance(part, Bars)]
    bars = sum(len(part.bars) for part in drawn if part.name != "paused")
    assert bars == len(history.segments), "a legend hides nothing"


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("stopped", [0.0, 0.5])
def test_both_libraries_draw_it(name: str, stopped: float) -> None:
    history = Recipe(stopped=stopped, faulty=True).make()
    chart = CHARTS[name](history)
    figure = figure_of(chart)
    assert chart.summary.split(";")[0].split("→")[0].strip() in figure.layout.title.text
    axes = axes_of(chart)
    assert chart.summary in axes.get_title(loc="left")
    labels = {text.get_text() for text in axes.get_legend().get_texts()} if chart.parts else set()
    named = {t.name for t in figure.data if t.showlegend is not False and t.name}
    assert named == labels
    matplotlib.pyplot.close(axes.figure)


def test_the_verdict_says_how_slots_are_used_and_when_the_deadline_is() -> None:
    running = chart_allocation(Recipe(stopped=0.5).make()).summary
    assert running.startswith("4 of 4 slots busy now, ") and "deadline in " in running
    over = chart_allocation(Recipe(stopped=math.inf).make()).summary
    assert over.startswith("4 slots at most, ") and over.endswith("the study has ended")
    assert "no trial has had a slot yet" in chart_allocation(Recipe(stopped=0).make()).summary


def test_what_is_left_out_is_said() -> None:
    history = Recipe(stopped=math.inf).make()
    count = len(history.trials)
    some = chart_allocation(history, n_recent_trials=3, n_recent_spells=2)
    assert f"3 of {count} trials, the most recent ones; only the newest segments" in some.summary
    assert f"3 trials of {count} shown" in chart_forecast(history, 3).summary


def test_words_of_a_policy_are_no_tags() -> None:
    history = Recipe(stopped=0.5).make()
    for event in history.events:
        if "reason" in event.detail:
            event.detail["reason"] = "<b>&grows"
    text = json.dumps(spec_of(chart_allocation(history)))
    assert "<b>&grows" not in text and "&lt;b&gt;&amp;grows" in text


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database for all studies here: they are only read once they are made."""
    return f"sqlite:///{tmp_path_factory.mktemp('figures')}/study.db"


@pytest.fixture(scope="module")
def study(url: str) -> optuna.Study:
    """A study with one trial that has reported once, and a NaN."""
    study = optuna.create_study(study_name="s", storage=url, direction="maximize")
    terms = agree(study, "1h", Given(budget=None))
    table = AllocationTable(open_table(study), "s", terms.study_id)
    table.register("me", "node", 1, ["gpu:0", "gpu:1"], 0)
    term = table.elect_planner("me")
    assert term is not None
    trial = study.ask()
    table.open_trial("me", term, trial.number, trial._trial_id)
    table.write_plan("me", term, [Assignment(0, "run", "me", 2, "starts")])
    grant = table.acquire("me", 0, [1, 2])
    assert grant is not None
    table.add_reports("me", grant, [NewReport(1, 0.5, 1.0)])
    table.add_reports("me", grant, [NewReport(2, math.nan, 2.0)])
    return study


@pytest.mark.parametrize("name", CHARTS)
def test_a_study_is_all_that_a_figure_needs(name: str, study: optuna.Study) -> None:
    figure = getattr(visualization, name)(study)
    assert type(figure).__name__ == "Figure" and len(figure.data) > 0
    axes = getattr(visualization.matplotlib, name)(study)
    assert axes.get_title(loc="left")
    matplotlib.pyplot.close(axes.figure)


def test_a_study_that_nobody_works_on_has_figures_too(url: str) -> None:
    study = optuna.create_study(study_name="idle", storage=url)
    for name in CHARTS:
        with pytest.raises(DeadlineError, match="'idle' has no deadline, so there is nothing"):
            getattr(visualization, name)(study)
    agree(study, "1h", Given(budget=None))
    for name in CHARTS:
        title = getattr(visualization, name)(study).layout.title.text
        assert " yet" in title or "0 of 0 slot-min used" in title


@pytest.mark.parametrize("name", CHARTS)
def test_without_plotly_it_says_what_to_install(
    name: str, study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not visualization.is_available()
    with pytest.raises(ImportError, match=r"pip install 'optuna-deadline\[dashboard\]'"):
        getattr(visualization, name)(study)


def test_numbers_of_trials_are_checked_as_optuna_does(study: optuna.Study) -> None:
    with pytest.raises(ValueError, match="n_recent_trials must be a positive integer or None"):
        visualization.plot_allocation(study, n_recent_trials=0)


def test_figures_are_imported_without_plotly() -> None:
    program = (
        "import sys, optuna_deadline.visualization as v; v.is_available(); "
        "print({'plotly', 'matplotlib'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "set()", run.stderr
