"""The Typer application: shared options, logs, and errors as one sentence and an exit code."""

from __future__ import annotations

import inspect
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ParamSpec, cast

import sqlalchemy as sa
import typer
from rich.logging import RichHandler
from typer.core import TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

import optuna_deadline
from optuna_deadline._printable import Lines, printable
from optuna_deadline.cli.databases import STORAGE_VARIABLE, GivenStorage, error_message
from optuna_deadline.cli.logs import Log, choose, writes_json
from optuna_deadline.cli.option_groups import expand
from optuna_deadline.errors import DatabaseGone, DeadlineError, StudyGone, on_command_line
from optuna_deadline.live.console import SafeConsole
from optuna_deadline.worker.database_errors import DATABASE_ERRORS

#: The commands, in the order of the help (start, watch, act, try), and the modules that register
#: them. A module is imported for its own command only, so that a command starts at once.
_MODULES = {
    "run": "worker",
    "create": "create",
    "worker": "worker",
    "slurm": "slurm",
    "status": "status",
    "top": "top",
    "load-best": "load_best",
    "report": "report",
    "dashboard": "serving",
    "metrics": "serving",
    "clean": "clean",
    "set": "setting",
    "stop": "setting",
    "steer": "steering",
    "drain": "steering",
    "check": "check",
    "doctor": "doctor",
    "demo": "demo",
    "simulate": "simulate",
}


class _Contents(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        """All commands, in the order of their groups."""
        return list(_MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the module of a command."""
        if cmd_name not in _MODULES:
            return None
        import_module(f"optuna_deadline.cli.{_MODULES[cmd_name]}")
        return get_command_from_info(
            _registered[cmd_name],
            pretty_exceptions_short=False,
            rich_markup_mode=app.rich_markup_mode,
        )


_registered: dict[str, CommandInfo] = {}
app = typer.Typer(
    name="optuna-deadline",
    cls=_Contents,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
P = ParamSpec("P")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(optuna_deadline.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Find the best model by a deadline with the GPUs you have."""


#: One console for messages and the live view, so that neither overwrites the other.
console = SafeConsole(stderr=True)

#: Exit codes except 0: the database or the study is gone, or the study ended without a value;
#: invalid input; the worker's own time limit was reached; the worker was asked to stop.
GONE = NO_VALUE = 1
BAD_INPUT, TIME_WAS_OVER, INTERRUPTED = 2, 75, 130

Study = Annotated[str, typer.Argument(help="Name of the study.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
#: The URL of the database; :func:`as_command` replaces it by the options for it.
Storage = Annotated[str, typer.Option()]
OptionalStorage = Annotated[str | None, typer.Option()]
_StorageUrl = Annotated[
    str | None,
    typer.Option(
        envvar=STORAGE_VARIABLE,
        show_envvar=False,
        help=f"URL of the database (SQLite, PostgreSQL); by default {STORAGE_VARIABLE}.",
    ),
]
_StorageFile = Annotated[
    Path | None,
    typer.Option(help="File with that URL, so that no password is in the list of processes."),
]


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """Print errors that a user can correct as one sentence; others keep their traceback."""
    try:
        with on_command_line():
            yield
    except (DatabaseGone, StudyGone) as error:
        _print_error(str(error))
        raise SystemExit(GONE) from None
    except DeadlineError as error:
        _print_error(str(error))
        raise SystemExit(BAD_INPUT) from None
    except (*DATABASE_ERRORS, sa.exc.DatabaseError) as error:
        sentence = error_message(error)
        if sentence is None:
            raise
        _print_error(sentence)
        raise SystemExit(GONE) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def command(function: Callable[P, Any]) -> Callable[P, None]:
    """Register a command, with log set-up, error handling and classes of options."""
    wrapped = as_command(function)
    name = getattr(function, "__name__", "").rstrip("_").replace("_", "-")
    _registered[name] = CommandInfo(name=name, callback=wrapped)
    return wrapped


def as_command(function: Callable[P, Any]) -> Callable[P, None]:
    """A function with the signature that Typer reads; see :func:`command`."""
    signature = inspect.signature(function, eval_str=True)
    storage = signature.parameters.get("storage")
    if storage is not None and storage.annotation not in (Storage, OptionalStorage):
        storage = None  # the demo creates its own database
    parameters, collect = expand(signature, {} if storage is None else _storages(storage))

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        set_up_logging()
        with in_one_sentence():
            if "log" in kwargs:
                choose(cast("Log", kwargs["log"]))
            if storage is not None:
                _choose_storage(kwargs, storage.default is inspect.Parameter.empty)
            collect(kwargs)
            function(*args, **kwargs)

    # Typer reads both of these.
    vars(wrapped)["__signature__"] = signature.replace(parameters=parameters)
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapped


def _storages(parameter: inspect.Parameter) -> dict[str, list[inspect.Parameter]]:
    """The options --storage and --storage-file."""
    named = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    default = None if parameter.default is inspect.Parameter.empty else parameter.default
    url = named.replace(annotation=_StorageUrl, default=default)
    file = named.replace(name="storage_file", annotation=_StorageFile, default=None)
    return {parameter.name: [url, file]}


def _choose_storage(given: dict[str, Any], required: bool) -> None:
    """Replace both options by the URL of the database."""
    if (file := given.pop("storage_file", None)) is not None:
        given["storage"] = GivenStorage.read(file)
    elif given["storage"] is None and required:
        raise DeadlineError(
            f"Name the database: with --storage URL, --storage-file FILE or {STORAGE_VARIABLE}."
        )


def set_up_logging() -> None:
    """Log our messages to standard error, and of Optuna's only warnings and errors."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logger = logging.getLogger("optuna_deadline")
    if not logger.handlers:
        logger.addHandler(_message_handler())
        logger.setLevel(logging.INFO)
        logger.propagate = False


def _message_handler() -> logging.Handler:
    """Print messages above the live view on a terminal; elsewhere one unwrapped line each."""
    if console.is_terminal:
        return RichHandler(console=console, show_path=False, show_level=False, markup=False)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s  %(message)s", "%H:%M:%S"))
    return handler


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output; numbers that are not finite become null."""
    print(json.dumps(_finite(value), indent=2, default=str))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value


def _print_error(sentence: str) -> None:
    if writes_json():
        logging.getLogger("optuna_deadline").error(sentence)
        return
    print(f"optuna-deadline: {printable(Lines(sentence))}", file=sys.stderr)


ObjectivePlace = Annotated[str, typer.Argument(help="FILE.py:FUNCTION or MODULE:FUNCTION.")]
LogFormat = Annotated[Log, typer.Option(help="Format of messages.")]
