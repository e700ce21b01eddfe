"""Intruders at the dashboard and the metrics: they are refused, and the owner is not."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from typing import Any

import optuna
import pytest
from browsers import launched

from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.dashboard.access import HEALTH, TOKEN, Protected, make_token
from optuna_deadline.dashboard.prometheus import StudyCollector, metrics_app
from optuna_deadline.dashboard.server import answers, make_http_server, wsgi
from optuna_deadline.errors import DeadlineError

pytestmark = pytest.mark.nightly_but(r"write")
SECRET = "a-token-of-the-owner"
PAGES = ("/dashboard", "/api/studies", "/allocation", "/allocation/api/state", "/static/bundle.js")


class Server:
    """A protected server, asked with any headers."""

    def __init__(self, app: Any, url: str, **options: Any) -> None:
        protected = Protected(
            app, SECRET, host="127.0.0.1", is_healthy=lambda: answers(url), **options
        )
        self.server = make_http_server(protected, "127.0.0.1", 0)
        self.port = self.server.server_port
        self.cookie = f"optuna-deadline-{self.port}={SECRET}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def ask(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[int, str, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, answer.headers


@pytest.fixture
def study(sqlite_url: str) -> optuna.Study:
    return optuna.create_study(study_name="mine", storage=sqlite_url)


@pytest.fixture(params=[False, True], ids=["read-only", "write"])
def dashboard(
    request: pytest.FixtureRequest, sqlite_url: str, study: optuna.Study
) -> Iterator[Server]:
    server = Server(wsgi(sqlite_url), sqlite_url, allowed=["cluster"], write=request.param)
    yield server
    server.server.shutdown()
    server.server.server_close()


@pytest.mark.parametrize("path", PAGES)
def test_another_user_of_the_machine_without_the_token_sees_nothing(
    dashboard: Server, path: str
) -> None:
    wrong = f"optuna-deadline-{dashboard.port}=x{SECRET[1:]}"
    for headers in ({}, {"Cookie": wrong}, {"Authorization": "Bearer wrong"}):
        status, text, _ = dashboard.ask(path, **headers)
        assert status == 403 and "mine" not in text and "token" in text
    assert dashboard.ask(f"{path}?token=wrong")[0] == 403
    assert dashboard.ask(path, "DELETE")[0] == 403


def test_another_user_deletes_no_study(dashboard: Server, sqlite_url: str) -> None:
    assert dashboard.ask("/api/studies/1", "DELETE")[0] == 403
    assert optuna.get_all_study_names(sqlite_url) == ["mine"]


def test_a_foreign_name_of_this_server_is_refused_even_with_the_token(dashboard: Server) -> None:
    """A page whose DNS name was rebound to this address sends its own name."""
    for name in ("evil.example", "evil.example:80", "[bad", "localhost.evil.example"):
        status, text, _ = dashboard.ask("/api/studies", Host=name, Cookie=dashboard.cookie)
        assert status == 421 and "--allow-host" in text
    for name in ("localhost", "cluster:8080", "CLUSTER"):
        assert dashboard.ask("/api/studies", Host=name, Cookie=dashboard.cookie)[0] == 200


def test_only_a_page_of_a_server_that_may_write_changes_anything(
    sqlite_url: str, study: optuna.Study
) -> None:
    for write in (False, True):
        server = Server(wsgi(sqlite_url), sqlite_url, write=write)
        own = f"http://127.0.0.1:{server.port}"
        for origin in ("http://evil.example", f"{own}0", "null"):
            asked = server.ask("/api/studies/1", "DELETE", Cookie=server.cookie, Origin=origin)
            assert asked[0] == 403
        assert optuna.get_all_study_names(sqlite_url) == ["mine"]
        status, text, _ = server.ask("/api/studies/1", "DELETE", Cookie=server.cookie, Origin=own)
        assert status == (204 if write else 403)
        assert write or "--write" in text
        server.server.shutdown()
        server.server.server_close()
    assert optuna.get_all_study_names(sqlite_url) == []


def test_the_printed_url_stores_the_token_in_a_cookie_and_hides_it(dashboard: Server) -> None:
    status, _, headers = dashboard.ask(f"/dashboard?token={SECRET}&x=1")
    assert (status, headers["Location"]) == (303, "/dashboard?x=1")
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert dashboard.ask("/api/studies", Cookie=cookie.partition(";")[0])[0] == 200
    # A path that looks like another host stays on this one.
    assert dashboard.ask(f"//evil.example?token={SECRET}")[2]["Location"] == "/evil.example"


def test_health_needs_no_token_and_shows_no_data(
    dashboard: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dashboard.ask(HEALTH, Host="10.1.2.3:8080")[:2] == (200, "\n")
    monkeypatch.setattr("test_access.answers", lambda url: False)
    assert dashboard.ask(HEALTH)[:2] == (503, "\n")


def test_metrics_need_the_token_too(sqlite_url: str, study: optuna.Study) -> None:
    pytest.importorskip("prometheus_client")
    server = Server(metrics_app(StudyCollector(connect(sqlite_url))), sqlite_url)
    assert server.ask("/metrics")[0] == 403
    status, text, _ = server.ask("/metrics", Authorization=f"Bearer {SECRET}")
    assert status == 200 and "optuna_deadline_database_up 1.0" in text
    assert server.ask("/other", Authorization=f"Bearer {SECRET}")[0] == 404
    server.server.shutdown()
    server.server.server_close()


def test_each_start_has_another_token_unless_the_environment_names_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    (one, new), (two, _) = make_token(), make_token()
    assert one != two and new and len(one) >= 32
    monkeypatch.setenv(TOKEN, SECRET)
    assert make_token() == (SECRET, False)
    for bad in ("", "short", f"{SECRET};x", f"{SECRET}\n"):
        monkeypatch.setenv(TOKEN, bad)
        with pytest.raises(DeadlineError, match="16 or more"):
            make_token()


@pytest.mark.slow
def test_the_owner_works_with_the_pages_in_a_browser(dashboard: Server) -> None:
    base = f"http://localhost:{dashboard.port}"
    with launched() as browser:
        page = browser.new_page()
        page.goto(f"{base}/dashboard?token={SECRET}")
        page.wait_for_selector("text=mine", timeout=30_000)
        assert "token" not in page.url
        page.goto(f"{base}/allocation")
        state = "fetch('/allocation/api/state').then((answer) => answer.status)"
        assert page.evaluate(state) == 200
        page.close()
