"""The reference has an entry for every public name, and each entry names something real."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest
from test_snapshots import PUBLIC

PAGES = Path(__file__).parents[1] / "docs" / "reference"
TEXT = "\n".join(page.read_text() for page in PAGES.glob("*.md"))
ENTRIES = set(re.findall(r"^::: (\S+)$", TEXT, re.MULTILINE))


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_has_an_entry(name: str) -> None:
    package = importlib.import_module(name)
    documented = {entry.rpartition(".")[2] for entry in ENTRIES}
    public = {
        each
        for each in package.__all__
        if inspect.isclass(getattr(package, each)) or inspect.isroutine(getattr(package, each))
    }
    assert public - documented == set()


def test_each_entry_names_something_with_a_docstring() -> None:
    for entry in ENTRIES - {"optuna_deadline_ray.launching.launch"}:  # Ray may be missing
        module, _, name = entry.rpartition(".")
        thing = getattr(importlib.import_module(module), name, None)
        assert (thing or importlib.import_module(entry)).__doc__, entry
