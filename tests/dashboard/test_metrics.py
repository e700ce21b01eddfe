"""The exporter, scraped for real."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable, Iterator

import optuna
import pytest
import sqlalchemy as sa
from scenes import Lab

from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.allocation.records import Assignment
from optuna_deadline.dashboard import prometheus
from optuna_deadline.dashboard.prometheus import StudyCollector, metrics_app
from optuna_deadline.dashboard.server import make_http_server
from optuna_deadline.errors import DeadlineError

pytestmark = pytest.mark.slow_names("postgres")

pytest.importorskip("prometheus_client")


def scrape(address: str) -> dict[tuple[str, ...], float]:
    """The samples by name and the values of their labels, the study first."""
    from prometheus_client.parser import text_string_to_metric_families

    text = urllib.request.urlopen(address, timeout=10).read().decode()
    return {
        (sample.name, *_labels(dict(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def serve() -> Iterator[Callable[[StudyCollector], str]]:
    """Serves metrics without access control; returns their address."""
    servers = []

    def start(collector: StudyCollector) -> str:
        server = make_http_server(metrics_app(collector), "127.0.0.1", 0)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/metrics"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def _labels(labels: dict[str, str]) -> list[str]:
    study = labels.pop("study", None)
    return [*([] if study is None else [study]), *labels.values()]


def test_two_studies_of_a_pool_are_scraped_while_they_train(
    storage_url: str, serve: Callable[[StudyCollector], str]
) -> None:
    lab = Lab(storage_url)
    for name in ("one", "two"):
        lab.join(name)
    for number in (0, 1):
        lab.open("one", number)
    table, term = lab.tables["one"], lab.terms["one"]
    table.write_plan("one", term, [Assignment(0, "run", "one", 2, "test")], seconds=0.02)
    lab.take("one", 0)
    lab.report("one", 0, 1, 0.5)
    address = serve(StudyCollector(connect(storage_url)))
    name = "optuna_deadline"
    found = scrape(address)
    assert 3500 < found[f"{name}_seconds_to_deadline", "one"] <= 3600
    assert found[f"{name}_best_value", "one"] == 0.5
    assert (f"{name}_best_value", "two") not in found
    assert found[f"{name}_slots_in_use", "one"] == 2
    assert found[f"{name}_slots_in_use", "two"] == 0
    assert found[f"{name}_slots", "one"] + found[f"{name}_slots", "two"] == 4
    assert (
        found[f"{name}_trials", "one", "running"] == found[f"{name}_trials", "one", "ready"] == 1
    )
    assert found[f"{name}_plan_seconds_count", "one"] == 1
    assert found[f"{name}_plan_seconds_sum", "one"] == pytest.approx(0.02)
    bucket = f"{name}_plan_seconds_bucket"
    assert found[bucket, "one", "0.01"] == 0 and found[bucket, "one", "0.025"] == 1
    assert found[f"{name}_handover_seconds_count", "one"] == 0
    grant = lab.grants["one", 0]
    table.set_progress(
        "one", grant, startup=2.0, position_from=0.0, position_to=1.0, trained=1.0, horizon=9
    )
    lab.report("one", 0, 2, 0.7)
    lab.leave("one", 0)
    after = scrape(address)
    assert after[f"{name}_best_value", "one"] == 0.7
    assert after[f"{name}_slots_in_use", "one"] == 0
    assert after[f"{name}_handover_seconds_sum", "one"] >= 2
    assert after[f"{name}_slot_seconds_total", "one"] > 0
    assert after[f"{name}_database_up",] == 1


def test_a_study_that_is_deleted_takes_no_other_from_the_scrape(sqlite_url: str) -> None:
    lab = Lab(sqlite_url)
    for name in ("one", "two"):
        lab.join(name)
    collector = StudyCollector(connect(sqlite_url))
    assert "one" in _studies(collector)
    optuna.delete_study(study_name="one", storage=sqlite_url)
    assert _studies(collector) == _studies(collector) == {"two"}


def _studies(collector: StudyCollector) -> set[str]:
    return {
        sample.labels["study"]
        for family in collector.collect()
        for sample in family.samples
        if "study" in sample.labels
    }


def test_a_database_that_is_away_is_said_and_not_a_failed_scrape(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, serve: Callable[[StudyCollector], str]
) -> None:
    address = serve(StudyCollector(connect(sqlite_url)))

    def away(engine: sa.Engine) -> None:
        raise sa.exc.OperationalError("SELECT 1", {}, Exception("connection refused"))

    monkeypatch.setattr(prometheus.agreement, "read_all", away)
    assert scrape(address)["optuna_deadline_database_up",] == 0


def test_studies_are_chosen_by_name_and_a_taken_port_is_told(
    storage_url: str, serve: Callable[[StudyCollector], str]
) -> None:
    lab = Lab(storage_url)
    lab.join("one")
    lab.join("two")
    address = serve(StudyCollector(connect(storage_url), ["two"]))
    found = scrape(address)
    assert ("optuna_deadline_slots", "two") in found
    assert ("optuna_deadline_slots", "one") not in found
    port = int(address.split(":")[2].partition("/")[0])
    with pytest.raises(DeadlineError, match="is not available"):
        make_http_server(metrics_app(StudyCollector(connect(storage_url))), "127.0.0.1", port)
