"""Which tests run when: a plugin with three tiers, each with a budget of CPU seconds.

``commit`` runs tests without real workers, training or PostgreSQL twins; it is the default.
``landing`` adds the tests marked ``slow`` and, in turn, an eighth of those marked ``nightly``, or
a half in the folders that its changes concern.
``all`` runs everything. Tests that are named by file run whatever their marks.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

TIERS = ("commit", "landing", "all")
#: CPU seconds of a tier, processes that the tests start included, where some work takes so many.
BUDGETS = {"commit": 400.0, "landing": 1100.0}
SAME_WORK = 0.010
EVERY = 25  # tests between two measurements of that work
ROOM = 1.3  # a tier fails above this multiple of its budget
TURNS = 8  # landings until each nightly test has run once,
AREA_TURNS = 2  # and of those that the landing's changes concern
DEAREST = 15  # tests that the summary names
#: These files start first, since they take longest from start to end.
FIRST = ("hosts", "workers", "checking", "lightning", "pytorch")

_USED: pytest.StashKey[list[tuple[float, str]]] = pytest.StashKey()
_TOTAL: pytest.StashKey[list[float]] = pytest.StashKey()
_PACE: pytest.StashKey[list[float]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--tier", choices=TIERS, help="which tests run; commit unless files are named")
    group.addoption("--turn", type=int, help="also nightly tests whose turn this number is")
    group.addoption(
        "--area", action="append", default=[], help="also nightly tests below this folder of tests"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_USED], config.stash[_TOTAL], config.stash[_PACE] = [], [], []
    for line in (
        "slow: takes more than some seconds, or a PostgreSQL twin; not in the tier `commit`",
        "slow_names(pattern): the tests of this file with these names are slow",
        "nightly: takes turns in the tier `landing`",
        "nightly_but(pattern): the slow tests of this file are nightly, but for these names",
    ):
        config.addinivalue_line("markers", line)


def tier_of(config: pytest.Config) -> str:
    """The tier that was asked for; files that are named run whole."""
    named = [arg for arg in config.args if ".py" in arg]
    return config.getoption("tier") or ("all" if named else "commit")


def pytest_itemcollected(item: pytest.Item) -> None:
    named = item.get_closest_marker("slow_names")
    if named is not None and re.search(named.args[0], item.name):
        item.add_marker(pytest.mark.slow)
    if not item.get_closest_marker("slow"):
        return
    kept = item.get_closest_marker("nightly_but")
    if kept is not None and not re.search(kept.args[0], item.name):
        item.add_marker(pytest.mark.nightly)
    if item.config.pluginmanager.hasplugin("xdist"):  # tests of one file run one after the other
        item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}/{item.path.stem}"))


def runs(nodeid: str, marks: Iterable[str], tier: str, turn: int | None, areas: list[str]) -> bool:
    """Whether a test with these marks runs in a tier."""
    slow, nightly = "slow" in marks, "nightly" in marks
    if tier == "all" or not (slow or nightly):
        return True
    if tier == "commit":
        return False
    concerned = any(nodeid.startswith(area.rstrip("/") + "/") for area in areas)
    if not nightly or turn is None:
        return concerned or not nightly
    turns = AREA_TURNS if concerned else TURNS
    return zlib.crc32(nodeid.encode()) % turns == turn % turns


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier, turn, areas = tier_of(config), config.getoption("turn"), config.getoption("area")
    chosen, dropped = [], []
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        nodeid = item.nodeid.partition("@")[0]
        (chosen if runs(nodeid, marks, tier, turn, areas) else dropped).append(item)
    items[:] = sorted(chosen, key=_priority)
    if dropped:
        config.hook.pytest_deselected(items=dropped)


def _priority(item: pytest.Item) -> int:
    folder = item.path.parent.name
    if not item.get_closest_marker("slow"):
        return len(FIRST) + 1
    return FIRST.index(folder) if folder in FIRST else len(FIRST)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    used = item.config.stash[_USED]
    if len(used) % EVERY == 0:
        item.config.stash[_PACE].append(same_work())
    before = cpu_seconds()
    try:
        return (yield)
    finally:
        used.append((cpu_seconds() - before, item.nodeid))


def same_work() -> float:
    """CPU seconds of work that is always the same: by its neighbours a machine's pace varies."""
    began = time.thread_time()
    hash("".join(sorted([str(n * 7919 % 10007) for n in range(30000)])))  # no garbage
    return time.thread_time() - began


def cpu_seconds() -> float:
    """CPU seconds of this process and of all that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    output = getattr(node, "workeroutput", {})
    node.config.stash[_TOTAL].append(float(output.get("cpu", 0.0)))
    node.config.stash[_USED] += [tuple(each) for each in output.get("dearest", [])]
    node.config.stash[_PACE] += output.get("pace", [])


@pytest.hookimpl(trylast=True)  # once all workers have said what they used
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker says what it used; the whole tier fails above its budget."""
    config = session.config
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output["cpu"], output["dearest"] = cpu_seconds(), dearest(config)
        output["pace"] = config.stash[_PACE]
    elif above_budget(config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def dearest(config: pytest.Config) -> list[tuple[float, str]]:
    """The tests that used the most CPU seconds, with the seconds, the dearest first."""
    return sorted(config.stash[_USED], reverse=True)[:DEAREST]


def used_in_all(config: pytest.Config) -> float:
    """CPU seconds of all processes of the tier."""
    return sum(config.stash[_TOTAL]) or cpu_seconds()


def slowness(paces: list[float]) -> float:
    """How many times as long the same work takes here; at least 1."""
    return max(1.0, median(paces) / SAME_WORK) if paces else 1.0


def above_budget(config: pytest.Config) -> bool:
    """Whether a whole tier used more than its budget, for a machine as slow as this one."""
    budget = BUDGETS.get(tier_of(config))
    if budget is None or not _is_whole(config):
        return False
    return used_in_all(config) > budget * ROOM * slowness(config.stash[_PACE])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the tier's CPU seconds, and the dearest tests of a whole tier above its budget."""
    tier = tier_of(config)
    slow = slowness(config.stash[_PACE])
    limit = f" of {BUDGETS[tier]:.0f} * {slow:.2f}" if tier in BUDGETS else ""
    terminalreporter.section(f"tier {tier}: {used_in_all(config):.0f}{limit} CPU seconds")
    if not above_budget(config):
        return
    for seconds, name in dearest(config):
        terminalreporter.line(f"{seconds:6.1f} s  {name}")
    terminalreporter.line(
        f"FAILED: the tier {tier} is above its budget; mark tests `slow` or `nightly`."
    )


def _is_whole(config: pytest.Config) -> bool:
    paths = {Path(arg).name for arg in config.args}
    return paths <= {"tests"} and not config.getoption("keyword") and not config.getoption("area")
