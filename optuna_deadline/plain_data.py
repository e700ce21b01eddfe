"""Plain data of a training: numbers, texts, containers, arrays and tensors, to and from a file.

PyTorch writes the file if the script has imported it. Reading runs no code that a file names.
"""

from __future__ import annotations

import collections
import copyreg
import io
import pickle
import random
import sys
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from optuna_deadline.errors import DeadlineError
from optuna_deadline.optimizer_state import load_whole_state, whole_state

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, collections.Counter, collections.OrderedDict)
#: Keys under which an array's bytes and the items of some containers are saved.
_ARRAY = "numpy array"
_FACTORIES = {one.__name__: one for one in (bool, int, float, str, list, dict, set)}
_TAGGED: dict[str, tuple[type, Callable[[Any], list[Any]], Callable[[Any], Any]]] = {
    "<deque>": (
        collections.deque,
        lambda one: [one.maxlen, [*one]],
        lambda held: collections.deque(held[1], held[0]),
    ),
    "<set>": (set, lambda one: sorted(one, key=repr), set),
    "<frozenset>": (frozenset, lambda one: sorted(one, key=repr), frozenset),
    # A factory of the user's own stays in the container that is filled.
    "<defaultdict>": (
        collections.defaultdict,
        lambda one: [getattr(one.default_factory, "__name__", ""), {**one}],
        lambda held: collections.defaultdict(_FACTORIES.get(held[0]), held[1]),
    ),
}
_OF_PYTHON = 1 << 9  # the flag of a class that is not a static type of C
_OBJECT = "<object>"  # key of the attributes of an object of the user's
_WITHOUT_TORCH = "plain/data.pkl"  # the member of a file


class Attributes(NamedTuple):
    """What pickle keeps of an object whose class adds nothing to Python's: its attributes."""

    held: Any  #: by name; with slots a pair; whatever ``__getstate__`` returns


def encoded(value: Any, name: str) -> Any:
    """Plain data, with arrays and numbers of NumPy as bytes.

    Types are compared exactly: a file names the class of a named tuple, an enumeration or a number
    of NumPy, and could not be read.

    Raises:
        DeadlineError: It is something else.
    """
    if type(value) in _PLAIN or _is_of_torch(value):
        return value
    if type(value) in _CONTAINERS:
        for key in value if isinstance(value, dict) else ():
            if not _is_plain_key(key):
                raise _not_plain(name, key)
        return _mapped(lambda each: encoded(each, name), value)
    tag = f"<{type(value).__name__}>"
    if (tagged := _TAGGED.get(tag)) is not None and type(value) is tagged[0]:
        return {tag: encoded(tagged[1](value), name)}
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        text = io.BytesIO()
        numpy.save(text, value, allow_pickle=False)
        return {_ARRAY: text.getvalue()}
    raise _not_plain(name, value)


def has_state(value: Any) -> bool:
    """Whether an object saves and loads its state itself."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def is_data(value: Any) -> bool:
    """Whether it is neither an object, with a state or attributes, nor a random generator."""
    return not (has_state(value) or generator_of(value) or attributes_of(value))


def attributes_of(value: Any) -> Attributes | None:
    """The attributes of an object of a class written in Python; None for anything else."""
    torch = sys.modules.get("torch")
    if not type(value).__flags__ & _OF_PYTHON or has_state(value) or generator_of(value):
        return None
    if isinstance(value, type) or (torch is not None and isinstance(value, torch.Tensor)):
        return None
    try:
        made, given, held, *items = value.__reduce_ex__(2)
    except Exception:  # it is a module, a file, a lock, text ...
        return None
    if made is not copyreg.__newobj__ or given != (type(value),) or any(items):  # type: ignore[attr-defined]
        return None
    return Attributes({} if held is None else held)


def state_of(name: str, value: Any) -> Any:
    """The plain state of an object that training changes.

    Raises:
        DeadlineError: It has none.
    """
    if has_state(value):
        return encoded(whole_state(value), f"{name}.state_dict()")
    if (own := attributes_of(value)) is not None:
        return {_OBJECT: encoded(own.held, f"state[{name!r}]")}
    generator = generator_of(value)
    return encoded(value if generator is None else generator[0](), f"state[{name!r}]")


def put_back(old: Any, new: Any) -> Any:
    """Replace the state of an object; in place if possible, since other variables name it.

    Returns:
        The object, or the new value if the old one cannot be changed.
    """
    if has_state(old):
        load_whole_state(old, new)
        return old
    if (generator := generator_of(old)) is not None:
        generator[1](new)
        return old
    if isinstance(new, Attributes):
        _set_attributes(old, new.held)
        return old
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        if old.shape != new.shape:
            return new
        with torch.no_grad():
            return old.copy_(new)
    if type(old) is not type(new):
        return new
    if isinstance(old, (collections.deque, set)):
        old.clear()
        (old.extend if isinstance(old, collections.deque) else old.update)(new)
    elif isinstance(old, list):
        old[:] = [*map(put_back, old, new), *new[len(old) :]]
    elif isinstance(old, dict):
        kept_items = {key: put_back(old[key], each) for key, each in new.items() if key in old}
        old.clear()
        old.update({**new, **kept_items})
    elif numpy is not None and isinstance(old, numpy.ndarray) and old.shape == new.shape:
        old[...] = new
    else:
        return new
    return old


def _set_attributes(old: Any, held: Any) -> None:
    if hasattr(old, "__setstate__"):
        old.__setstate__(held)
        return
    plain, slots = held if isinstance(held, tuple) else (held, {})
    if plain is not None:
        put_back(vars(old), plain)
    for name, each in slots.items():
        object.__setattr__(old, name, put_back(getattr(old, name, None), each))


def fills_in_place(value: Any) -> bool:
    """Whether :func:`put_back` changes the value itself."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (
        isinstance(value, (list, dict, set, collections.deque))
        or generator_of(value) is not None
        or attributes_of(value) is not None
        or (numpy is not None and isinstance(value, numpy.ndarray))
        or (torch is not None and isinstance(value, torch.Tensor))
    )


def generator_of(value: Any) -> tuple[Callable[[], Any], Callable[[Any], None]] | None:
    """How to read and write the state of a random generator; None if it is none."""
    if isinstance(value, random.Random):
        return value.getstate, value.setstate
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        return lambda: bits.state, partial(setattr, bits, "state")
    if (numpy is not None and isinstance(value, numpy.random.RandomState)) or (
        torch is not None and isinstance(value, torch.Generator)
    ):
        return value.get_state, value.set_state
    return None


def _is_plain_key(key: Any) -> bool:
    return type(key) in _PLAIN or (type(key) is tuple and all(map(_is_plain_key, key)))


def _not_plain(name: str, value: Any) -> DeadlineError:
    return DeadlineError(
        f"{name} has a {type(value).__name__}, without state_dict() and load_state_dict(): give "
        "it both, or keep plain data: numbers, texts, bytes, lists, tuples, dicts, sets, arrays."
    )


def decoded(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {_ARRAY}:
        found = import_module("numpy").load(io.BytesIO(value[_ARRAY]), allow_pickle=False)
        return found if found.shape else found[()]
    if isinstance(value, dict) and len(value) == 1:
        [(key, held)] = value.items()
        if key == _OBJECT:
            return Attributes(decoded(held))
        if (tagged := _TAGGED.get(key)) is not None:
            return tagged[2](decoded(held))
    return _mapped(decoded, value)


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """A container with changed items; itself if none changes, since it may have attributes."""
    if isinstance(value, dict):
        new: Any = {key: change(each) for key, each in value.items()}
        same = all(new[key] is each for key, each in value.items())
        return value if same else type(value)(new)
    if isinstance(value, (list, tuple)):
        new = [change(each) for each in value]
        if all(one is each for one, each in zip(new, value, strict=True)):
            return value
        return tuple(new) if isinstance(value, tuple) else new
    return value


def _is_of_torch(value: Any) -> bool:
    """Whether it is a tensor or its size, which PyTorch reads without running code."""
    torch = sys.modules.get("torch")
    return torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter, torch.Size)


def imported(module: str, name: str) -> Any:
    """A class or function of an imported module; None if there is none, as for an inner one."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def random_state() -> dict[str, Any]:
    """The state of the global generators of the libraries that the script has imported."""
    found: dict[str, Any] = {"python": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        found["numpy"] = encoded(list(numpy.random.get_state()), "numpy.random")
    if (torch := sys.modules.get("torch")) is not None:
        found["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():  # to ask would begin a context on each GPU
            found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def set_random_state(found: Mapping[str, Any]) -> None:
    """Restore :func:`random_state`, also of a library that a step imports only later."""
    random.setstate(found["python"])
    if "numpy" in found:
        import_module("numpy").random.set_state(tuple(decoded(found["numpy"])))
    if "torch" in found:
        torch = import_module("torch")
        torch.set_rng_state(found["torch"])
        if "cuda" in found and torch.cuda.device_count() == len(found["cuda"]):
            torch.cuda.set_rng_state_all(found["cuda"])


class _PlainUnpickler(pickle.Unpickler):
    """Reads plain data, and runs no code that a file names."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "collections" and name in ("Counter", "OrderedDict"):
            return getattr(collections, name)
        if (module, name) == ("builtins", "complex"):
            return complex
        raise pickle.UnpicklingError(f"The checkpoint holds {module}.{name}, which is no data.")


def write_plain(kept: Mapping[str, Any], path: Path) -> None:
    torch = sys.modules.get("torch")
    with path.open("wb") as file:
        if torch is None:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr(_WITHOUT_TORCH, pickle.dumps(kept))
        else:
            torch.save(kept, file)


def read_plain(path: Path | io.BytesIO) -> Mapping[str, Any]:
    found: Mapping[str, Any]
    with zipfile.ZipFile(path) as archive:
        if _WITHOUT_TORCH in archive.namelist():
            with archive.open(_WITHOUT_TORCH) as member:
                found = _PlainUnpickler(member).load()
            return found
    if isinstance(path, io.BytesIO):
        path.seek(0)
    found = import_module("torch").load(path, map_location="cpu", weights_only=True)
    return found
