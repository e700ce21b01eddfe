"""optuna-dashboard with a read-only page of the allocation table at ``/allocation``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.resources import files
from importlib.util import find_spec
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from optuna_deadline.allocation.database.engine import storage_at
from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.dashboard.ended import EndedStudies
from optuna_deadline.dashboard.pools import PoolStates
from optuna_deadline.errors import DeadlineError
from optuna_deadline.worker.database_errors import DATABASE_ERRORS, describe_database_error

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from bottle import Bottle

_TYPES = {"page.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
#: Of a page with its own style, which loads nothing.
_ALONE = "default-src 'none'; style-src 'unsafe-inline'"


def wsgi(storage: str) -> Bottle:
    """A WSGI application: optuna-dashboard, and the allocation table at ``/allocation``.

    Optuna's storage has no cache here, as in optuna-dashboard's own command. A cache would hide
    changes to the columns of trials that have ended.

    Args:
        storage: URL of the database.

    Raises:
        DeadlineError: optuna-dashboard is not installed.
        UnsupportedStorage: The URL is neither SQLite nor PostgreSQL.
    """
    if find_spec("optuna_dashboard") is None:
        raise DeadlineError(
            "This needs optuna-dashboard: pip install 'optuna-deadline[dashboard]'."
        )
    import optuna_dashboard

    optunas, database = storage_at(storage, cached=False), connect(storage)
    app: Bottle = optuna_dashboard.wsgi(optunas)
    ended = EndedStudies(database, optunas)
    mount(app, PoolStates(database, ended=ended.state), ended)
    return app


def mount(app: Bottle, pools: PoolStates, ended: EndedStudies) -> None:
    """Add the page and its data to an application; all of it only reads."""
    from bottle import HTTPResponse

    folder = files("optuna_deadline.dashboard") / "static"

    def page(name: str = "page.html") -> Any:
        if name not in _TYPES:
            return HTTPResponse("There is no such file.", 404)
        kind = f"{_TYPES[name]}; charset=utf-8"
        return HTTPResponse((folder / name).read_bytes(), 200, {**_HEADERS, "Content-Type": kind})

    def state() -> Any:
        try:
            status, answer = 200, pools.state()
        except DATABASE_ERRORS as error:
            status, answer = (
                503,
                {"error": f"The database does not answer: {describe_database_error(error)}"},
            )
        headers = {**_HEADERS, "Content-Type": "application/json", "Cache-Control": "no-store"}
        return HTTPResponse(json.dumps(answer, allow_nan=False), status, headers)

    def alone(text: str | None, kind: str) -> Any:
        if text is None:
            return HTTPResponse("There is no such study.", 404)
        headers = {**_HEADERS, "Content-Security-Policy": _ALONE, "Content-Type": kind}
        return HTTPResponse(text, 200, headers)

    def report(study_id: int) -> Any:
        return alone(ended.page(study_id), "text/html; charset=utf-8")

    def picture(study_id: int) -> Any:
        return alone(ended.chart(study_id), "image/svg+xml")

    app.get("/allocation/report/<study_id:int>", callback=report)
    app.get("/allocation/report/<study_id:int>.svg", callback=picture)
    app.get("/allocation", callback=page)
    app.get("/allocation/api/state", callback=state)
    app.get("/allocation/<name>", callback=page)


class ReadOnlyBanner:
    """Says on each page of optuna-dashboard that its buttons change nothing.

    Args:
        app: The application, whose server refuses all writes.
    """

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """Answer a request; a page gets the banner."""
        answered: list[Any] = []

        def keep(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            answered[:] = status, headers, rest
            return lambda data: None

        body = self._app(environ, keep)
        status, headers, rest = answered
        kind = next((text for name, text in headers if name.lower() == "content-type"), "")
        path = environ.get("PATH_INFO", "")
        if not (path.startswith("/dashboard") and kind.startswith("text/html")):
            start(status, headers, *rest)
            return body
        page = b"".join(body).replace(b"</body>", _BANNER + b"</body>")
        headers = [one for one in headers if one[0].lower() != "content-length"]
        start(status, [*headers, ("Content-Length", str(len(page)))], *rest)
        return [page]


_BANNER = (
    b'<div role="status" style="position:fixed;inset:auto 0 0 0;z-index:9999;padding:6px 16px;'
    b'font:14px system-ui,sans-serif;background:#fff3cd;color:#533f03;text-align:center">'
    b"Read-only: changes are refused. Start it with --write to allow them.</div>"
)


class _Threaded(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, since the page refreshes itself."""


def answers(storage: str) -> bool:
    """Whether the database at a URL answers."""
    try:
        connect(storage).now()
    except DATABASE_ERRORS:
        return False
    return True


def make_http_server(app: WSGIApplication, host: str, port: int) -> WSGIServer:
    """A server that answers several viewers at once.

    Raises:
        DeadlineError: The port is in use or not allowed.
    """
    try:
        return make_server(host, port, app, server_class=_Threaded, handler_class=_SilentHandler)
    except OSError as error:
        raise DeadlineError(
            f"Port {port} of {host} is not available ({error.strerror}); choose others with "
            "--port and "
            "--host."
        ) from None
