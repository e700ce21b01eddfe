"""optuna-dashboard with a read-only page of the allocation table at ``/allocation``."""

from __future__ import annotations

import json
from importlib.resources import files
from importlib.util import find_spec
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from optuna_deadline.allocation.database.engine import storage_at
from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.dashboard.pools import PoolStates
from optuna_deadline.errors import DeadlineError
from optuna_deadline.worker.database_errors import DATABASE_ERRORS, describe_database_error

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication
    from bottle import Bottle

_TYPES = {"page.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


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

    app: Bottle = optuna_dashboard.wsgi(storage_at(storage, cached=False))
    mount(app, PoolStates(connect(storage)))
    return app


def mount(app: Bottle, pools: PoolStates) -> None:
    """Add the page and its data to an application; both only read."""
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

    app.get("/allocation", callback=page)
    app.get("/allocation/api/state", callback=state)
    app.get("/allocation/<name>", callback=page)


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
