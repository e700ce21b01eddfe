"""``optuna-deadline stop``: the end of a study, now."""

from __future__ import annotations

from typing import Annotated

import typer

from optuna_deadline.allocation.sql.database.engine import open_table
from optuna_deadline.cli.app import Storage, Study, command
from optuna_deadline.cli.studies import load_study
from optuna_deadline.history.words import at_clock
from optuna_deadline.study import terms as study_terms
from optuna_deadline.values.deadlines import parse_duration


@command
def stop(
    study: Study,
    storage: Storage,
    within: Annotated[
        str, typer.Option(help="How long running trials have to save and leave.")
    ] = "10s",
) -> None:
    """End a study early, as its deadline would: the best model is kept, the rest is pruned."""
    seconds = parse_duration(within, "--within")
    found = load_study(study, storage)
    ended = study_terms.end_within(open_table(found), found, seconds)
    print(f"{study} ends at {at_clock(ended.deadline)}; after that see optuna-deadline load-best.")
