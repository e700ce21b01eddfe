"""``optuna-deadline create``: a study with its deadline, for all processes."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from typing import Annotated

import optuna
import typer

from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.cli.app import Storage, command
from optuna_deadline.cli.databases import (
    check_made,
    is_made,
    make_storage,
)
from optuna_deadline.elastic import agree, keep_all_checkpoints
from optuna_deadline.errors import DeadlineError
from optuna_deadline.options import Direction, StudyOptions
from optuna_deadline.samplers import check_earlier, winners
from optuna_deadline.samplers._named import keep_earlier, keep_sampler, make_sampler, sampler_of
from optuna_deadline.study.agreement import check_ahead
from optuna_deadline.study.policy_choice import parse_call
from optuna_deadline.study.terms import Terms, check_single_objective, passed
from optuna_deadline.values.deadlines import parse_deadline


@command
def create(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    storage: Storage,
    options: StudyOptions,
) -> None:
    """Create a study with a deadline; the same command again changes nothing."""
    _, terms = make(study, storage, options)
    limits = f"deadline {terms}" + (f", budget {terms.budget}" if terms.budget else "")
    print(f"{study}: {terms.direction}, {limits}, policy {terms.policy}.")
    words = f"--study {shlex.quote(study)} --storage URL --cpus 2"
    print(f"Next: optuna-deadline worker FILE.py:OBJECTIVE {words}")


def make(
    name: str, url: str, options: StudyOptions, before: Callable[[], object] = lambda: None
) -> tuple[optuna.Study, Terms]:
    """Create or load a study; return it with its terms.

    All arguments are checked before anything is written, and so is ``before``, which may raise.

    Raises:
        DeadlineError: An argument is invalid, or the study has other terms.
    """
    if not name.strip():
        raise DeadlineError("A study needs a name, as in 'optuna-deadline create digits'.")
    assert options.deadline is not None
    wanted, earlier = parse_deadline(options.deadline), list(options.warm_start_from or [])
    if options.sampler is not None:
        sampler, settings = parse_call(options.sampler, "sampler")
        make_sampler(sampler, settings)
    if earlier:
        check_made(url)
    elif wanted.instant(now := time.time()) <= now and not is_made(url):
        raise passed(wanted)
    if new := not is_made(url):
        before()
    storage = make_storage(url)
    there = name in optuna.get_all_study_names(storage)
    if not there:
        check_ahead(connect(url), wanted)
        if not new:
            before()
    check_earlier(storage, name, earlier)
    created = optuna.create_study(
        study_name=name,
        storage=storage,
        direction=(options.direction or Direction.minimize).value,
        load_if_exists=True,
    )
    _check_direction(created, options.direction)
    if earlier:
        winners(created, earlier)  # refuses studies that have none
        keep_earlier(created, earlier)
    if options.sampler is not None:
        keep_sampler(created, sampler, settings)
    if options.keep_all:
        keep_all_checkpoints(created)
    created.sampler = sampler_of(created)
    return created, agree(created, wanted, options.given)


def _check_direction(study: optuna.Study, wanted: Direction | None) -> None:
    check_single_objective(study)
    has = study.direction.name.lower()
    if wanted is not None and wanted.value != has:
        raise DeadlineError(
            f"The study {study.study_name!r} exists with the direction {has}: leave --direction "
            "out, or choose another name."
        )
