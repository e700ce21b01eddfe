"""Access control of the dashboard and of the metrics: a token, known hosts, and no writes.

The command prints a URL with a random token, as Jupyter does, and the first visit stores the token
in a cookie. Another user of the machine does not know the token, and a page of another site cannot
read or send the cookie. The check of the ``Host`` header refuses names that an attacker's DNS
points to this server.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit

from optuna_deadline.errors import DeadlineError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

#: The environment variable with a token; without it, each start of a server makes a new one.
TOKEN = "OPTUNA_DEADLINE_TOKEN"
#: A path without access control, for health checks of clusters; it shows no data.
HEALTH = "/healthz"

_VALID = re.compile(r"[A-Za-z0-9_-]{16,}")
_QUERY = "token"
_READS = ("GET", "HEAD", "OPTIONS")
_LOCAL = ("localhost", "127.0.0.1", "::1")
_ALL = ("", "0.0.0.0", "::")


def make_token() -> tuple[str, bool]:
    """The token from the environment, or a new one; and whether it is new.

    Raises:
        DeadlineError: The token of the environment is too short or has other characters.
    """
    given = os.environ.get(TOKEN)
    if given is None:
        return secrets.token_urlsafe(24), True
    if not _VALID.fullmatch(given):
        raise DeadlineError(f"{TOKEN} must be 16 or more letters, digits, '-' and '_'.")
    return given, False


class Protected:
    """A WSGI application that admits requests with the token to another application.

    A request brings the token as a parameter ``token`` of its URL, in the cookie, or as
    ``Authorization: Bearer TOKEN``.

    Args:
        app: The protected application.
        token: The token.
        host: The address on which the server listens.
        allowed: Further host names by which clients reach the server.
        write: Whether requests may change anything.
        is_healthy: Returns whether the server can answer, for :data:`HEALTH`.
    """

    def __init__(
        self,
        app: WSGIApplication,
        token: str,
        *,
        host: str,
        allowed: Iterable[str] = (),
        write: bool = False,
        is_healthy: Callable[[], bool] = lambda: True,
    ) -> None:
        self._app, self._token, self._write = app, token, write
        self._is_healthy = is_healthy
        own = (socket.gethostname(), socket.getfqdn()) if host in _ALL else ()
        self._hosts = {name.lower() for name in (*_LOCAL, host, *own, *allowed)}

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """Answer a request, or refuse it in one sentence."""
        if environ.get("PATH_INFO") == HEALTH:
            return _answer(
                start, "200 OK" if self._is_healthy() else "503 Service Unavailable", ""
            )
        if (refusal := self._refusal(environ)) is not None:
            return _answer(start, *refusal)
        query = _query(environ)
        if any(name == _QUERY for name, _ in query):
            return self._store_token(environ, start, query)
        return self._app(environ, start)

    def _refusal(self, environ: WSGIEnvironment) -> tuple[str, str] | None:
        address = environ.get("HTTP_HOST", "")
        if (name := _host_name(address)) not in self._hosts:
            return "421 Misdirected Request", (
                f"This server is not known as {name!r}; add --allow-host to its command if it is."
            )
        if not self._has_token(environ):
            return "403 Forbidden", (
                "Open the URL with the token that the command printed when it started, or send "
                "the header 'Authorization: Bearer TOKEN'."
            )
        if environ["REQUEST_METHOD"] in _READS:
            return None
        origin = environ.get("HTTP_ORIGIN")
        if origin is not None and urlsplit(origin).netloc.lower() != address.lower():
            return "403 Forbidden", "A page of another site may not change anything here."
        if not self._write:
            return "403 Forbidden", (
                "This dashboard is read-only; start it with --write to allow changes."
            )
        return None

    def _has_token(self, environ: WSGIEnvironment) -> bool:
        given = [value for name, value in _query(environ) if name == _QUERY]
        kind, _, credentials = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        if kind.lower() == "bearer":
            given.append(credentials.strip())
        try:
            cookies = SimpleCookie(environ.get("HTTP_COOKIE", ""))
        except CookieError:
            cookies = SimpleCookie()
        if (cookie := cookies.get(_cookie_name(environ))) is not None:
            given.append(cookie.value)
        token = self._token.encode()
        return any(hmac.compare_digest(one.encode(errors="replace"), token) for one in given)

    def _store_token(
        self, environ: WSGIEnvironment, start: StartResponse, query: list[tuple[str, str]]
    ) -> Iterable[bytes]:
        """Redirect to the URL without the token, which is then in no history and no log."""
        rest = urlencode([(name, value) for name, value in query if name != _QUERY])
        path = "/" + environ.get("PATH_INFO", "").lstrip("/")  # never another host
        cookie = f"{_cookie_name(environ)}={self._token}; HttpOnly; SameSite=Strict; Path=/"
        headers = [("Location", f"{path}?{rest}" if rest else path), ("Set-Cookie", cookie)]
        return _answer(start, "303 See Other", "", headers)


def _query(environ: WSGIEnvironment) -> list[tuple[str, str]]:
    return parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)


def _cookie_name(environ: WSGIEnvironment) -> str:
    """Cookies do not depend on the port, so their names do."""
    return f"optuna-deadline-{environ['SERVER_PORT']}"


def _host_name(address: str) -> str:
    try:
        return (urlsplit(f"//{address}").hostname or "").lower()
    except ValueError:
        return ""


def _answer(
    start: StartResponse, status: str, text: str, headers: Iterable[tuple[str, str]] = ()
) -> Iterable[bytes]:
    kind = ("Content-Type", "text/plain; charset=utf-8")
    start(status, [kind, ("Cache-Control", "no-store"), *headers])
    return [f"{text}\n".encode()]
