"""``optuna-deadline dashboard``: optuna-dashboard, with the allocation table beside it."""

from __future__ import annotations

from typing import Annotated

import typer

from optuna_deadline.cli.app import Storage, command
from optuna_deadline.cli.databases import serving_storage


@command
def dashboard(
    storage: Storage,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 takes any that is free.")
    ] = 8080,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets everybody in.")
    ] = "127.0.0.1",
) -> None:
    """Show studies in optuna-dashboard, and who holds which slots on a live page beside it."""
    from optuna_deadline.dashboard.server import make_http_server, wsgi

    serving_storage(storage)
    server = make_http_server(wsgi(storage), host, port)
    base = f"http://{host}:{server.server_port}"
    print(f"Studies: {base}/dashboard", flush=True)
    print(f"Slots:   {base}/allocation", flush=True)
    print("Ctrl-C ends it.", flush=True)
    with server:
        server.serve_forever()
