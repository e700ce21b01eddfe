"""``dashboard`` and ``metrics``: servers that show studies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.cli.app import Storage, command
from optuna_deadline.cli.databases import serving_storage
from optuna_deadline.dashboard.access import TOKEN, Protected, make_token
from optuna_deadline.dashboard.prometheus import StudyCollector, check_installed, metrics_app

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 accepts all hosts.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(help="A further name by which clients reach this server; repeatable."),
]


@command
def dashboard(
    storage: Storage,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 selects a free one.")
    ] = 8080,
    host: Host = "127.0.0.1",
    allow_host: AllowHost = None,
    write: Annotated[
        bool, typer.Option("--write", help="Allow changes, such as the deletion of studies.")
    ] = False,
) -> None:
    """Start optuna-dashboard with a live page of slots and trials; it only reads by default."""
    from optuna_deadline.dashboard.server import ReadOnlyBanner, wsgi

    serving_storage(storage)
    app: WSGIApplication = wsgi(storage)
    _serve(
        app if write else ReadOnlyBanner(app), storage, host, port, allow_host, write=write,
        pages={"Studies: ": "/dashboard", "Slots:   ": "/allocation"},
    )  # fmt: skip


@command
def metrics(
    storage: Storage,
    study: Annotated[
        list[str] | None,
        typer.Option(help="A study; repeatable; by default all that have not ended."),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 selects a free one.")
    ] = 9464,
    host: Host = "127.0.0.1",
    allow_host: AllowHost = None,
) -> None:
    """Serve metrics of studies to Prometheus; one exporter serves all workers."""
    check_installed()
    serving_storage(storage)
    app = metrics_app(StudyCollector(connect(storage), study or ()))
    _serve(app, storage, host, port, allow_host, pages={"Figures: ": "/metrics"})


def _serve(
    app: WSGIApplication,
    storage: str,
    host: str,
    port: int,
    allowed: list[str] | None,
    *,
    pages: Mapping[str, str],
    write: bool = False,
) -> None:
    """Serve an application behind a token until Ctrl-C."""
    from optuna_deadline.dashboard.server import answers, make_http_server

    token, new = make_token()
    protected = Protected(
        app, token, host=host, allowed=allowed or (), write=write,
        is_healthy=lambda: answers(storage),
    )  # fmt: skip
    server = make_http_server(protected, host, port)
    for title, path in pages.items():
        query = f"?token={token}" if new else ""
        print(f"{title}http://{host}:{server.server_port}{path}{query}", flush=True)
    if not new:
        print(f"The token is in {TOKEN}.", flush=True)
    print("Ctrl-C ends it.", flush=True)
    with server:
        server.serve_forever()
