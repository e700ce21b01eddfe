"""The live page's data, and the server beside optuna-dashboard."""

from __future__ import annotations

import json
import math
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from scenes import Lab
from typer.testing import CliRunner

from optuna_deadline.allocation.database.access import listening
from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.cli import app as cli
from optuna_deadline.dashboard import server as page
from optuna_deadline.dashboard.pools import PoolStates
from optuna_deadline.dashboard.server import make_http_server, wsgi


@pytest.fixture
def lab(sqlite_url: str) -> Lab:
    """A pool with two studies, one of them in training."""
    return _fill(sqlite_url)


def _fill(url: str) -> Lab:
    lab = Lab(url)
    for study in ("resnet", "bert"):
        lab.join(study)
    lab.lend(4, "bert")
    for number in range(2):
        lab.open("resnet", number)
    lab.want("resnet", 0, 2, "starts")
    lab.take("resnet", 0)
    lab.report("resnet", 0, 3, 0.75)
    lab.report("resnet", 0, 4, math.nan)
    return lab


def look(lab: Lab) -> dict:  # type: ignore[type-arg]
    [pool] = PoolStates(connect(lab.url)).state()["pools"]
    assert 60 <= pool.pop("window") < 61
    return pool  # type: ignore[no-any-return]


def test_it_shows_slots_studies_and_trials(storage_url: str) -> None:
    pool = look(_fill(storage_url))
    assert (pool["name"], pool["workers"]) == ("lab", 2)
    assert [slot["device"] for slot in pool["slots"]] == [f"gpu:{i}" for i in range(4)]
    assert [slot["lent_to"] for slot in pool["slots"]] == ["resnet"] * 3 + ["bert"]
    assert [slot["number"] for slot in pool["slots"]] == [0, 0, None, None]
    assert all(25 < slot["lease"] <= 30 for slot in pool["slots"][:2])
    [hold] = pool["slots"][0]["past"]
    assert (hold["number"], hold["to"], hold["study"]) == (0, 0.0, "resnet")
    resnet, bert = pool["studies"]
    assert (resnet["used"], resnet["lent"], bert["lent"]) == (2, 3, 1)
    assert resnet["states"] == {"running": 1, "ready": 1, "paused": 0} and resnet["reports"] == 2
    first, second = pool["trials"]
    assert (first["number"], first["granted"], first["step"], first["value"]) == (0, 2, 4, None)
    assert first["where"] == ["gpu:0 on node7", "gpu:1 on node7"] and not first["handover"]
    assert second["state"] == "ready"
    assert "trial 0 of resnet starts on 2 slots" in [event["words"] for event in pool["events"]]


def test_it_says_what_people_ask_for(lab: Lab) -> None:
    table = lab.tables["resnet"]
    assert table.hold(1, True) and table.pin(0, 3)
    pool = look(lab)
    asked = [(row["number"], row["held"], row["pinned"]) for row in pool["trials"]]
    assert asked == [(0, False, 3), (1, True, None)]
    assert not any(slot["drained"] for slot in pool["slots"])
    assert table.drain("node7", True) == 2
    slots = look(lab)["slots"]
    assert all(slot["drained"] and not slot["offered"] for slot in slots)
    words = [event["words"] for event in look(lab)["events"]]
    assert words[0] == "node7 is drained" and "trial 1 of resnet is held by request" in words


def test_hand_overs_are_seen_until_they_are_done(lab: Lab) -> None:
    viewer = PoolStates(connect(lab.url), clock=iter(range(0, 1000, 10)).__next__)
    assert viewer.state()["pools"][0]["handovers"] == []
    lab.want("resnet", 0, 1, "shrinks 2 -> 1")
    [moving] = viewer.state()["pools"][0]["handovers"]
    assert (moving["granted"], moving["desired"]) == (2, 1)
    lab.leave("resnet", 0)
    [moving] = viewer.state()["pools"][0]["handovers"]
    assert (moving["granted"], moving["desired"]) == (0, 1)
    lab.take("resnet", 0)
    assert viewer.state()["pools"][0]["handovers"] == []
    lab.lend(1, "bert")
    [lending] = viewer.state()["pools"][0]["handovers"]
    assert (lending["slot"], lending["heir"]) == ("gpu:0 on node7", "bert")


def test_who_reads_on_sees_what_a_newcomer_sees(lab: Lab) -> None:
    viewer = PoolStates(connect(lab.url), clock=iter(range(0, 1000, 10)).__next__)
    viewer.state()
    for turn in range(3):
        lab.want("resnet", 0, 2 - turn % 2, f"turn {turn}")
        lab.leave("resnet", 0)
        lab.take("resnet", 0)
        lab.report("resnet", 0, 5 + turn, 0.8)
        mine, fresh = viewer.state()["pools"][0], look(lab)
        for pool in (mine, fresh):
            pool.pop("window", None)
            for event in pool["events"]:
                event.pop("ago")
            for slot in pool["slots"]:
                slot["holds"] = [hold["number"] for hold in slot.pop("past")]
                slot.pop("lease")
            for trial in (*pool["trials"], *pool["handovers"]):
                trial.pop("since", None)
            for study in pool["studies"]:
                study.pop("left")
        assert mine == fresh


def test_many_viewers_cost_one_look(lab: Lab) -> None:
    statements: list[str] = []
    viewer = PoolStates(connect(lab.url))
    viewer.state()
    viewer._until = math.inf
    with listening(lambda statement, *_: statements.append(statement)):
        assert viewer.state() is viewer.state() and statements == []
        viewer._until = -math.inf
        assert viewer.state() and statements != []


@pytest.fixture
def base(sqlite_url: str) -> Iterator[str]:
    """A server on a database of its own, with a study in it."""
    Lab(sqlite_url).join("resnet")
    with make_http_server(wsgi(sqlite_url), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def fetch(url: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_the_page_stands_beside_optuna_dashboard(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, kind in (("", "html"), ("/page.css", "css"), ("/page.js", "javascript")):
        status, found, text = fetch(f"{base}/allocation{path}")
        assert status == 200 and kind in found
        assert "http://" not in text and "https://" not in text, "no other host is asked"
    assert fetch(f"{base}/allocation/../../page.py")[0] == 404
    status, kind, text = fetch(f"{base}/allocation/api/state")
    assert (status, kind) == (200, "application/json")
    assert json.loads(text)["pools"][0]["studies"][0]["name"] == "resnet"
    assert fetch(f"{base}/dashboard")[0] == 200
    assert json.loads(fetch(f"{base}/api/studies")[2])["study_summaries"][0]["study_name"]

    def away(self: PoolStates) -> None:
        raise sa.exc.OperationalError("SELECT secret", {}, Exception("server closed"))

    monkeypatch.setattr(PoolStates, "state", away)
    status, _, text = fetch(f"{base}/allocation/api/state")
    assert status == 503 and "server closed" in text and "secret" not in text


def test_what_cannot_be_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    asked = CliRunner().invoke(cli, ["dashboard", "--storage", "user:secret@host"])
    assert asked.exit_code == 2 and "secret" not in asked.output
    with make_http_server(wsgi(url), "127.0.0.1", 0) as server:
        port = str(server.server_port)
        asked = CliRunner().invoke(cli, ["dashboard", "--storage", url, "--port", port])
    assert asked.exit_code == 2 and f"Port {port} of 127.0.0.1 is not available" in asked.output
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    asked = CliRunner().invoke(cli, ["dashboard", "--storage", url])
    assert asked.exit_code == 2 and "pip install 'optuna-deadline[dashboard]'" in asked.output
