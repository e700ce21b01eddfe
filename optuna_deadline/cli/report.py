"""``optuna-deadline report``: a study as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optuna_deadline._garbage import collecting_later
from optuna_deadline.checkpoints.files import write_atomically
from optuna_deadline.cli.app import Storage, Study, command
from optuna_deadline.cli.databases import load_study
from optuna_deadline.cli.progress import show_wait
from optuna_deadline.dashboard.report import report_page
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.outcome import read_outcome
from optuna_deadline.history.reader import table_of
from optuna_deadline.planning.best_model import CheckpointAvailability
from optuna_deadline.worker.devices import host_name


@command
@collecting_later()
def report(
    study: Study,
    storage: Storage,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "report.html"
    ),
) -> None:
    """Write a study to one self-contained HTML page: best model, curve, trials."""
    found = load_study(study, storage)
    table, _ = table_of(found)
    with show_wait("Checking checkpoints"):
        outcome = read_outcome(found, is_intact=CheckpointAvailability(table, host_name()))
    page = report_page(outcome)
    try:
        write_atomically(output, lambda path: path.write_text(page, "utf-8"), mode=0o666)
    except OSError as error:
        raise DeadlineError(
            f"{output} cannot be written ({error.strerror or error}): name another file with -o."
        ) from error
    print(f"{study} is in {output}.")
