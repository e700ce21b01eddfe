"""What a person sees, in a real browser: the live page moves, the figures render."""

from __future__ import annotations

import json
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from browsers import Visit, launched, served
from scenes import Lab

import optuna_deadline
from optuna_deadline.dashboard import publisher

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
sys.path.insert(0, str(Path(__file__).parents[1] / "workers"))
FIGURES = ("allocation", "forecast", "budget", "utilization", "rungs")
PATIENCE = 20_000  # milliseconds


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as browser:
        yield browser


def test_the_live_page_changes_when_a_trial_is_resized(browser: Any, sqlite_url: str) -> None:
    lab = Lab(sqlite_url)
    lab.join("resnet")
    lab.open("resnet", 0)
    lab.want("resnet", 0, 1, "starts")
    lab.take("resnet", 0)
    with served(sqlite_url) as base:
        size = {"width": 390, "height": 844}
        visit = Visit(browser, f"{base}/allocation", viewport=size, color_scheme="dark")
        page = visit.page
        page.wait_for_selector(".slot .tile", timeout=PATIENCE)
        assert page.locator(".slot").count() == 4 and page.locator(".slot .tile").count() == 1
        lab.want("resnet", 0, 2, "grows <b>1</b> -> 2")
        page.wait_for_selector("#handovers >> text=1 → 2 slots", timeout=PATIENCE)
        assert page.locator("#handovers").inner_text().endswith("grows <b>1</b> -> 2")
        lab.leave("resnet", 0)
        lab.take("resnet", 0)
        lab.report("resnet", 0, 7, 0.875)
        page.wait_for_selector("[data-trial='0'] >> text=0.875", timeout=PATIENCE)
        assert page.locator(".slot .tile").all_inner_texts() == ["0", "0"]
        assert "None: the plan is carried out." in page.locator("#handovers").inner_text()
        assert "2 of 4 slots in use" in page.locator("#summary").inner_text()
        assert lab.tables["resnet"].pin(0, 2) and lab.tables["resnet"].drain("node7", True)
        page.wait_for_selector("[data-trial='0'] >> text=running, pinned to 2", timeout=PATIENCE)
        assert page.locator(".host").all_inner_texts() == ["node7, drained"]
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, "nothing sticks out of a phone"
        assert (
            page.evaluate("getComputedStyle(document.body).backgroundColor")
            != "rgb(246, 247, 249)"
        )
        assert visit.complaints == []
        page.close()


def test_a_study_in_training_is_seen_in_optuna_dashboard(
    browser: Any, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import objectives

    monkeypatch.setattr(publisher, "FIRST", 1.0)
    monkeypatch.setattr(publisher, "LEAST", 1.0)
    study = optuna.create_study(study_name="seen", storage=sqlite_url, direction="maximize")
    ended: list[optuna_deadline.Result] = []

    def train() -> None:
        ended.append(
            optuna_deadline.run(
                study, objectives.elastic, cpus=2, deadline="9s", checkpoints=tmp_path
            )
        )

    training = threading.Thread(target=train)
    with served(sqlite_url) as base:
        live = Visit(browser, f"{base}/allocation")
        training.start()  # under the eyes of who is there already
        live.page.wait_for_selector(".slot .tile", timeout=PATIENCE)
        live.page.wait_for_selector("#studies >> text=seen", timeout=PATIENCE)
        training.join(60)
        assert ended and ended[0].settled  # how soon is a matter of the demo's tests
        live.page.wait_for_selector("[data-ended=seen] >> text=trials", timeout=PATIENCE)
        assert live.complaints == []
        visit = Visit(browser, f"{base}/dashboard/studies/{study._study_id}")
        for name in FIGURES:
            plot = f"[id='user-defined-plot:deadline-{name}']"
            visit.page.wait_for_selector(f"{plot} svg.main-svg", timeout=PATIENCE)
        drawn = visit.page.locator("[id='user-defined-plot:deadline-allocation']")
        texts = drawn.inner_text()
        assert "of their time used" in texts and "the study has ended" in texts
        assert "deadline " in texts and "1 slot" in texts
        assert drawn.locator(".bars path").count() >= 2
        pruned = study.get_trials(states=(optuna.trial.TrialState.PRUNED,))[0].number
        visit.page.goto(f"{base}/dashboard/studies/{study._study_id}/note")
        visit.page.wait_for_selector("text=Last decisions", timeout=PATIENCE)
        visit.page.goto(f"{base}/dashboard/studies/{study._study_id}/trials?numbers={pruned}")
        visit.page.wait_for_selector("text=deadline:slot_seconds", timeout=PATIENCE)
        assert "pruned" in visit.page.locator("body").inner_text()
        with urllib.request.urlopen(f"{base}/api/studies/{study._study_id}") as answer:
            shown = json.load(answer)["union_user_attrs"]
        assert {"key": "deadline:slots", "sortable": True} in shown
        assert visit.complaints == []
        live.page.close()
        visit.page.close()
