"""``optuna-deadline metrics``: the studies of a database, for Prometheus to scrape."""

from __future__ import annotations

from typing import Annotated

import typer

from optuna_deadline.allocation.sql.database.engine import connect
from optuna_deadline.cli.app import Storage, command
from optuna_deadline.cli.databases import serving_storage
from optuna_deadline.dashboard.prometheus import StudyCollector, check_installed, serve


@command
def metrics(
    storage: Storage,
    study: Annotated[
        list[str] | None,
        typer.Option(help="A study, again for more; by default all that have not ended."),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 takes any that is free.")
    ] = 9464,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets everybody in.")
    ] = "127.0.0.1",
) -> None:
    """Serve the figures of studies to Prometheus: one exporter, however many workers there are."""
    check_installed()
    serving_storage(storage)
    address, thread = serve(StudyCollector(connect(storage), study or ()), host, port)
    print(f"Figures: {address}", flush=True)
    print("Ctrl-C ends it.", flush=True)
    thread.join()
