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
    if name in ENTRIES:
        return  # the whole module
    package = importlib.import_module(name)
    documented = {entry.rpartition(".")[2] for entry in ENTRIES}
    public = {
        each
        for each in package.__all__
        if inspect.isclass(getattr(package, each)) or inspect.isroutine(getattr(package, each))
    }
    assert public - documented == set()


def test_each_entry_names_something_with_a_docstring() -> None:
    for entry in ENTRIES - {"optuna_deadline_ray.launch"}:  # Ray may be missing
        module, _, name = entry.rpartition(".")
        thing = getattr(importlib.import_module(module), name, None)
        assert (thing or importlib.import_module(entry)).__doc__, entry


def test_each_entry_is_public_or_below_internals() -> None:
    public = {
        f"{name}.{each}" for name in PUBLIC for each in importlib.import_module(name).__all__
    }
    public |= {*PUBLIC, "optuna_deadline_ray.launch"}
    for page in PAGES.glob("*.md"):
        above = page.read_text().partition("## Internals")[0]
        assert {*re.findall(r"^::: (\S+)$", above, re.MULTILINE)} <= public, page.name


def test_the_page_on_stability_names_the_public_modules() -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith("| Python |"))
    named = {*re.findall(r"`(optuna_deadline[\w.]*)`", row)}
    assert named == {*PUBLIC, "optuna_deadline_ray"} - {"optuna_deadline.simulation"}
