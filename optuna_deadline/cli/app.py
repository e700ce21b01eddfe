"""The commands, and the one place where an error becomes one sentence and an exit code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.logging import RichHandler

from optuna_deadline.errors import DeadlineError, StudyGone
from optuna_deadline.workers.errors import DATABASE_AWAY, explain

app = typer.Typer(
    name="optuna-deadline",
    help="The best model by a deadline, from the GPUs there are.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
P = ParamSpec("P")

#: One console for messages and the live view, so that neither overwrites the other.
console = Console(stderr=True)

#: Exit codes beside 0: the database or the study is gone, bad input, asked to leave.
GONE, BAD_INPUT, INTERRUPTED = 1, 2, 130

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the policy; again for more."),
]
Storage = Annotated[str, typer.Option(help="URL of the study's database (SQLite, PostgreSQL).")]


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """Turn what a user can mend into one sentence; everything else keeps its traceback."""
    try:
        yield
    except StudyGone as error:
        _complain(str(error))
        raise SystemExit(GONE) from None
    except DeadlineError as error:
        _complain(str(error))
        raise SystemExit(BAD_INPUT) from None
    except DATABASE_AWAY as error:
        _complain(
            f"The database does not answer ({explain(error)}): start it, or check --storage."
        )
        raise SystemExit(GONE) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def command_of(group: typer.Typer) -> Callable[[Callable[P, Any]], Callable[P, None]]:
    """Register a command of a group with logging and errors as users expect them."""

    def register(function: Callable[P, Any]) -> Callable[P, None]:
        @wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
            set_up_logging()
            with in_one_sentence():
                function(*args, **kwargs)

        group.command()(wrapped)
        return wrapped

    return register


def command(function: Callable[P, Any]) -> Callable[P, None]:
    """Register a command; see :func:`command_of`."""
    return command_of(app)(function)


def set_up_logging() -> None:
    """Our own messages on standard error; Optuna's chatter only when something is wrong."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logger = logging.getLogger("optuna_deadline")
    if not logger.handlers:
        handler = RichHandler(console=console, show_path=False, show_level=False, markup=False)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def _complain(sentence: str) -> None:
    print(f"optuna-deadline: {sentence}", file=sys.stderr)
