"""``optuna-deadline extend``: a later deadline, for everybody."""

from __future__ import annotations

from typing import Annotated

import typer

from optuna_deadline import terms as study_terms
from optuna_deadline.allocation.engine import open_table
from optuna_deadline.cli.app import Storage, Study, command
from optuna_deadline.cli.studies import load_study


@command
def extend(
    study: Study,
    storage: Storage,
    deadline: Annotated[
        str, typer.Option(help="2h30m from now, or 2030-01-31T18:00+01:00; later than it is.")
    ],
) -> None:
    """Move a study's deadline to a later instant; workers that run obey it at their next look."""
    found = load_study(study, storage)
    moved = study_terms.extend(open_table(found), found, deadline)
    print(f"{study}: deadline {moved}.")
