"""What a script or a notebook defines, sent to another process by value."""

from __future__ import annotations

import functools
import io
import operator
import pickle
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

#: A script by the name that it has itself, and in a process that multiprocessing has spawned.
_SCRIPTS = ("__main__", "__mp_main__")
_NAMED = (type, FunctionType, functools._lru_cache_wrapper)


@dataclass(frozen=True)
class ByValue:
    """An object with the functions and classes of the script that it uses.

    In the other process these are attributes of the module ``__main__`` again: pickle finds a
    class by its name there. Processes that multiprocessing spawns from there import the script, as
    they do from the script itself.
    """

    pickled: bytes
    file: str | None  #: the script, if it is a file
    module: str | None  #: its name, if it was started as ``python -m name``

    @classmethod
    def of(cls, value: Any) -> ByValue:
        """Pickle an object.

        Raises:
            Exception: Whatever a part of it raises.
        """
        if (script := sys.modules.get("__mp_main__")) is not None:
            cloudpickle.register_pickle_by_value(script)
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(value)
        pickler.dump(pickler.names)  # what was pickled already is a reference
        main = script or sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        return cls(file.getvalue(), getattr(main, "__file__", None), getattr(spec, "name", None))

    def load(self) -> Any:
        """The object; ``__main__`` gets the names of the script."""
        unpickler = pickle.Unpickler(io.BytesIO(self.pickled))
        main = sys.modules["__main__"]
        sys.modules.setdefault("__mp_main__", main)
        value, names = unpickler.load(), unpickler.load()
        for name, found in names.items():
            if "." in name:
                found.__qualname__ = name  # which cloudpickle drops
            else:
                setattr(main, name, found)
        if self.file is not None:
            main.__file__ = self.file
        if self.module is not None:
            main.__spec__ = ModuleSpec(self.module, None)
        return value


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Keeps the functions and classes of the script that it meets."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.names: dict[str, Any] = {}

    def reducer_override(self, obj: Any) -> Any:
        """The reduction by which an object is pickled."""
        if isinstance(obj, _NAMED) and obj.__module__ in _SCRIPTS:
            if _found(sys.modules[obj.__module__], obj.__qualname__) is obj:
                self.names[obj.__qualname__] = obj
            if isinstance(obj, functools._lru_cache_wrapper):  # pickle knows it by name only
                return functools.partial(_cached, **obj.cache_parameters()), (obj.__wrapped__,)
        return super().reducer_override(obj)


def _found(script: ModuleType, name: str) -> Any:
    try:
        return operator.attrgetter(name)(script)
    except AttributeError:  # made in a function
        return None


def _cached(function: FunctionType, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)
