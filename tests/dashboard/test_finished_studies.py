"""The live page after a deadline, and the banner of a dashboard that only reads."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from html import unescape
from typing import Any
from xml.etree import ElementTree

import optuna
import pytest
from browsers import Visit, launched, served
from endings import end_within
from scenes import Lab

from optuna_deadline.dashboard import pools
from optuna_deadline.dashboard.report import chart, report_page
from optuna_deadline.dashboard.server import ReadOnlyBanner, make_http_server, wsgi
from optuna_deadline.history.outcome import StudyOutcome, TrialOutcome


def load(url: str, name: str) -> optuna.Study:
    return optuna.load_study(study_name=name, storage=url)


@pytest.fixture
def lab(sqlite_url: str) -> Lab:
    """Two studies in training; each has a trial that has reported."""
    lab = Lab(sqlite_url)
    for name in ("resnet <b>", "bert"):
        lab.join(name)
        trial = load(sqlite_url, name).ask({"lr": optuna.distributions.FloatDistribution(0, 1)})
        lab.tables[name].open_trial(name, lab.terms[name], 0, trial._trial_id)
    lab.lend(4, "bert")
    lab.want("resnet <b>", 0, 1)
    lab.take("resnet <b>", 0)
    for step, value in ((1, 0.5), (2, 0.75), (3, 0.25)):
        lab.report("resnet <b>", 0, step, value)
    return lab


@pytest.fixture
def base(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(pools, "_FRESH", 0.0)  # an answer is not reused
    with served(lab.url) as address:
        yield address


def fetch(url: str) -> tuple[str, str]:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def ended(base: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(fetch(f"{base}/allocation/api/state")[1])["ended"]
    return found


def test_a_study_is_on_the_page_once_its_deadline_has_passed(lab: Lab, base: str) -> None:
    assert ended(base) == []
    end_within(lab.tables["resnet <b>"], 0.0)
    [study] = ended(base)
    assert study["name"] == "resnet <b>" and study["ago"] >= 0
    assert (study["best"]["value"], study["best"]["number"], study["best"]["step"]) == (0.75, 0, 2)
    assert 0 <= study["best"]["params"]["lr"] <= 1 and study["command"] is None
    kind, page = fetch(f"{base}/allocation/report/{study['id']}")
    assert "html" in kind and "<h1>resnet &lt;b&gt;</h1>" in page and "<b>" not in page
    kind, picture = fetch(f"{base}/allocation/report/{study['id']}.svg")
    assert "svg" in kind and ElementTree.fromstring(picture).tag.endswith("svg")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(f"{base}/allocation/report/4711")
    end_within(lab.tables["bert"], 0.0)
    assert [one["name"] for one in ended(base)] == ["bert", "resnet <b>"]
    optuna.delete_study(study_name="bert", storage=lab.url)
    assert [one["name"] for one in ended(base)] == ["resnet <b>"]


def outcome(**given: Any) -> StudyOutcome:
    facts: dict[str, Any] = {
        "study": "s", "direction": "minimize", "policy": "fifo", "started": 100.0,
        "deadline": 160.0, "ended": 150.0, "over": True, "best": None, "checkpoint": None,
        "loading": None, "trials": (), "improvements": (),
    }  # fmt: skip
    return StudyOutcome(**(facts | given))


def test_a_page_of_a_study_without_reports_says_so() -> None:
    page = report_page(outcome())
    assert "No trial has reported a value." in page
    ElementTree.fromstring(chart(outcome()))


@pytest.mark.parametrize("values", [(1.0,), (3.0, 2.0, 1.0), (1e-9, 0.0), (5.0, -1e300)])
def test_a_curve_stays_in_its_frame_and_ends_at_the_studys_end(values: tuple[float, ...]) -> None:
    points = tuple((10.0 * place, value) for place, value in enumerate(values))
    picture = ElementTree.fromstring(chart(outcome(improvements=points)))
    path = next(one for one in picture.iter() if one.tag.endswith("path")).attrib["d"]
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    moves = path.replace("M", "H").replace(",", "V").replace("V", " V").replace("H", " H").split()
    across = [float(one[1:]) for one in moves if one[0] == "H"]
    down = [float(one[1:]) for one in moves if one[0] == "V"]
    assert across == sorted(across) and across[0] >= 0 and across[-1] < width
    assert all(0 <= one <= height for one in down)


def test_trials_are_ranked_and_their_parameters_escaped() -> None:
    trials = (
        TrialOutcome(0, "failed", None, None, {}),
        TrialOutcome(1, "pruned", 0.5, 3, {"kind": "<script>"}),
        TrialOutcome(2, "complete", 0.25, 9, {"lr": 0.1}),
    )
    page = report_page(outcome(trials=trials, best=trials[2]))
    assert "<script>" not in page and '"<script>"' in unescape(page)
    assert page.index("<td>2</td>") < page.index("<td>1</td>") < page.index("<td>0</td>")


def test_a_dashboard_that_only_reads_says_so_on_its_pages(lab: Lab) -> None:
    app = ReadOnlyBanner(wsgi(lab.url))
    with make_http_server(app, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        assert "Read-only: changes are refused" in fetch(f"{base}/dashboard")[1]
        assert "Read-only" not in fetch(f"{base}/allocation")[1]
        assert json.loads(fetch(f"{base}/api/studies")[1])["study_summaries"]
        server.shutdown()


@pytest.mark.slow
def test_a_finished_study_is_seen_on_a_phone_and_leads_to_its_report(lab: Lab, base: str) -> None:
    end_within(lab.tables["resnet <b>"], 0.0)
    end_within(lab.tables["bert"], 0.0)
    phone = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
    with launched() as browser:
        visit = Visit(browser, f"{base}/allocation", **phone)
        card = visit.page.locator("[data-ended='resnet <b>']")
        card.wait_for()
        assert "0.75 (trial 0)" in card.inner_text()
        assert card.locator("img").evaluate("image => image.naturalWidth") > 100
        wide = "document.documentElement.scrollWidth"
        assert visit.page.evaluate(wide) == 390
        card.locator("a").click()
        visit.page.get_by_role("heading", name="Best value against time").wait_for()
        assert visit.page.evaluate(wide) == 390
        assert visit.complaints == []
