"""The user's objective for the ranks: by place in a file, or by value."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import optuna

from optuna_deadline.errors import DeadlineError
from optuna_deadline.rank.by_value import ByValue

Objective = Callable[[Any], float]

_loading = False
_loaded: ObjectiveSource | None = None


class LoadingStops(BaseException):
    """A script without a ``__main__`` guard has reached the line that would start a study."""


def stop_if_loading() -> None:
    """Stop at the start of a run if this process only loads the objective.

    Raises:
        DeadlineError: multiprocessing imports the script for a process that it has spawned.
    """
    if _loading:
        raise LoadingStops
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise DeadlineError(
            "A process that multiprocessing has spawned imports this script and would start the "
            "study again: put the start under if __name__ == '__main__'."
        )


@contextmanager
def _loading_only() -> Iterator[None]:
    """Import a user's script for its objective alone: the start of a study stops the import."""
    global _loading

    def stop(*args: object, **kwargs: object) -> NoReturn:
        raise LoadingStops

    names = [(optuna, "create_study"), (optuna, "load_study"), (optuna.study.Study, "optimize")]
    before = [getattr(owner, name) for owner, name in names]
    _loading = True
    for owner, name in names:
        setattr(owner, name, stop)
    try:
        yield
    finally:
        _loading = False
        for (owner, name), value in zip(names, before, strict=True):
            setattr(owner, name, value)


@dataclass(frozen=True)
class ObjectiveSource:
    """What a new process needs to load the objective."""

    place: str | None = None  #: "train.py:objective" or "package.module:objective"
    by_value: ByValue | None = None
    path: list[str] = field(default_factory=list)
    folder: str = ""
    library: str | None = None  #: a module that ranks will use beside what it imports itself

    def load(self) -> Objective:
        """Import or unpickle it.

        Raises:
            DeadlineError: The file, the module or the name in it does not exist.
        """
        global _loaded
        _loaded = self
        sys.path[:] = [*self.path, *(p for p in sys.path if p not in self.path)]
        if self.library is not None:
            importlib.import_module(self.library)
        if self.by_value is not None:
            loaded: Objective = self.by_value.load()
            return loaded
        assert self.place is not None
        found: Objective = import_place(self.place)
        return found


def loaded() -> ObjectiveSource | None:
    """The source from which this process, or its fork server, has loaded its objective."""
    return _loaded


def source_of(objective: str | Objective | ObjectiveSource) -> ObjectiveSource:
    """The source of an objective given as "file.py:name", "module:name" or a callable.

    A source is returned as it is.

    Raises:
        DeadlineError: It is none of these, or its file does not exist.
    """
    if isinstance(objective, ObjectiveSource):
        return objective
    path, folder = list(sys.path), os.getcwd()
    if callable(objective):
        # A function in a script or a notebook cell exists nowhere else.
        return ObjectiveSource(by_value=_by_value(objective), path=path, folder=folder)
    if not isinstance(objective, str):
        raise DeadlineError(
            f"{objective!r} is not an objective: give a function of a trial, or its place as "
            "'train.py:objective'."
        )
    where, separator, name = objective.rpartition(":")
    if not separator or not where or not name:
        raise DeadlineError(
            f"{objective!r} is not an objective: write FILE.py:FUNCTION or MODULE:FUNCTION."
        )
    if where.endswith(".py"):
        file = Path(where).resolve()
        if not file.is_file():
            raise DeadlineError(f"There is no file {where} with an objective; check the path.")
        return ObjectiveSource(
            place=f"{file}:{name}", path=[str(file.parent), *path], folder=folder
        )
    return ObjectiveSource(place=objective, path=[folder, *path], folder=folder)


def _by_value(objective: Objective) -> ByValue:
    try:
        return ByValue.of(objective)
    except Exception as error:  # whatever the objective's own values raise
        raise DeadlineError(
            f"The objective cannot be sent to the processes that train ({error}): create what it "
            "uses inside it, or name its place as 'train.py:objective'."
        ) from error


def import_place(
    place: str, what: str = "objective", usable: Callable[[Any], bool] = callable
) -> Any:
    """The user's object at "file.py:name" or "module:name".

    Raises:
        DeadlineError: The file, the module or the name in it does not exist, or the import reached
            a line that starts a study before the name.
    """
    where, _, name = place.rpartition(":")
    stopped = None
    if (module := sys.modules.get(where)) is None:
        module, stopped = _load(_find(where), name)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if usable(found):
        return found
    own = [
        key
        for key, value in vars(module).items()
        if callable(value)
        and getattr(value, "__module__", "") == module.__name__
        and key[0] != "_"
    ]
    why = ""
    if stopped is not None:
        why = (
            f": its import stops at {stopped}, which begins a study; move that below {name!r}, or "
            "put it under if __name__ == '__main__'"
        )
    raise DeadlineError(
        f"{where} has no {what} {name!r} (it has: {', '.join(own) or 'nothing'}){why}."
    )


def _find(where: str) -> ModuleSpec:
    """The spec of a file or a module; the packages around a module are imported.

    Raises:
        DeadlineError: There is no such module.
    """
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
        else:
            with _loading_only():
                spec = importlib.util.find_spec(where)
    except ModuleNotFoundError as error:
        if error.name is None or not where.startswith(error.name):
            raise
        spec = None
    if spec is None or spec.loader is None:
        raise DeadlineError(f"There is no module {where!r}; check its name.")
    return spec


def _load(spec: ModuleSpec, name: str) -> tuple[ModuleType, str | None]:
    """Import until a study starts; returns where that is, if the import reached it."""
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # so that its objects can be pickled by name
    package, _, own = spec.name.rpartition(".")
    assert spec.loader is not None
    stopped: str | None = None
    try:
        with _loading_only():
            spec.loader.exec_module(module)
    except LoadingStops as stop:
        stopped = _place(stop)
    except BaseException as error:
        del sys.modules[spec.name]
        if isinstance(error, ImportError) and not package and "relative import" in str(error):
            raise DeadlineError(_as_module(Path(module.__file__ or ""), name)) from error
        raise
    if package:
        setattr(sys.modules[package], own, module)
    return module, stopped


def _place(stop: LoadingStops) -> str:
    """The user's line that would start a study."""
    ours = ("optuna.", "optuna_deadline.", "importlib.")
    lines = [
        f"line {line} of {frame.f_code.co_filename}"
        for frame, line in traceback.walk_tb(stop.__traceback__)
        if not str(frame.f_globals.get("__name__")).startswith(ours)
    ]
    return lines[-1]


def _as_module(file: Path, name: str) -> str:
    """What to do about a file that imports from the package around it."""
    parts, folder = [file.stem], file.parent
    while len(parts) == 1 or (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return (
        f"{file} imports from the package around it, which a file by itself does not know: name "
        f"it as {'.'.join(parts)}:{name}, in the folder {folder}."
    )
