"""A host that does not fit the others is refused in one sentence when it joins."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from sites import Site, until

from benchmarks.support.network import Network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgres,
    pytest.mark.nightly,
]

_AHEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real(id, t);
    if (id == CLOCK_REALTIME) t->tv_sec += 600;
    return answer;
}
int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
"""


@pytest.fixture
def ahead(tmp_path: Path) -> str:
    """A library under which a process's clock is ten minutes ahead."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a clock that is wrong needs a C compiler")
    source, library = tmp_path / "ahead.c", tmp_path / "ahead.so"
    source.write_text(_AHEAD)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return str(library)


def test_two_hosts_with_one_name(site: Site, network: Network) -> None:
    one, other = network.host("twin"), network.host("twin-too", called="twin")
    site.work(one)
    until(lambda: site.training_on("twin"))
    late = site.work(other)
    assert late.wait(60) == 2
    assert "Two machines are called 'twin'" in site.log_of("twin")
    assert "OPTUNA_DEADLINE_HOST" in site.log_of("twin")
    other.name = "named"
    site.work(other, OPTUNA_DEADLINE_HOST="twin-2")
    until(lambda: {row.host for row in site.table.workers()} == {"twin", "twin-2"})


def test_two_versions_of_torch(site: Site, network: Network, tmp_path: Path) -> None:
    one, two, three = (network.host(f"torch-{n}") for n in ("one", "two", "three"))
    site.work(one, **_with("torch", "2.13.0+cpu", tmp_path))
    until(lambda: site.training_on("torch-one"))
    late = site.work(two, **_with("torch", "2.12.1", tmp_path))
    assert late.wait(60) == 2
    log = site.log_of("torch-two")
    assert "trained with torch 2.13.0+cpu (on torch-one), and here is torch 2.12.1" in log
    site.work(three, **_with("torch", "2.13.4", tmp_path))
    until(lambda: site.training_on("torch-three"))


def test_two_versions_of_the_package(site: Site, network: Network, tmp_path: Path) -> None:
    one, two, three = (network.host(f"release-{n}") for n in ("one", "two", "three"))
    site.work(one, **_with("optuna-deadline", "7.1.0", tmp_path))
    until(lambda: site.training_on("release-one"))
    late = site.work(two, **_with("optuna-deadline", "7.2.0", tmp_path))
    assert late.wait(60) == 2
    log = site.log_of("release-two")
    assert (
        "This study is trained with optuna-deadline 7.1.0 (on release-one), and here is "
        "optuna-deadline 7.2.0: install optuna-deadline 7.1 here" in log
    ), log
    site.work(three, **_with("optuna-deadline", "7.1.3", tmp_path))
    until(lambda: site.training_on("release-three"))


def test_a_clock_that_is_wrong_changes_peoples_times_only(
    site: Site, network: Network, ahead: str
) -> None:
    one, two = network.host("clock-one"), network.host("clock-two")
    doctor = site.folder / "doctor.log"
    two.start(site.command("doctor"), doctor, {"LD_PRELOAD": ahead, "COLUMNS": "400"}).wait(60)
    words = doctor.read_text()
    assert "note  clocks: the database's is 600" in words.replace("599.9", "600.0"), words
    assert "behind; deadlines are kept by the database's clock; set this machine's by NTP" in words
    site.work(one)
    site.work(two, LD_PRELOAD=ahead)
    until(lambda: site.training_on("clock-one") and site.training_on("clock-two"))
    now = site.table.now()
    leases = {row.host: row.lease for row in site.table.workers()}
    assert all(now - 1 < lease < now + site.table.ttl + 1 for lease in leases.values()), leases
    assert not site.table.events(kinds=["reap"])
    site.assert_nothing_twice()


def _with(package: str, version: str, folder: Path) -> dict[str, str]:
    """An environment in which this version is installed, as far as pip knows."""
    name = package.replace("-", "_")
    site = folder / f"{name}-{version}"
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    return {"PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}"}
