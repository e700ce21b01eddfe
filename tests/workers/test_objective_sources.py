"""Objectives come from scripts, modules, objects and notebook cells."""

from __future__ import annotations

import platform
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tables import wait_until

from optuna_deadline.errors import DeadlineError
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.rank.objective import source_of

pytestmark = pytest.mark.nightly_but(r"guarded|said_by|is_kept")

OBJECTIVE = """
import gc
import time
import optuna
import optuna_deadline

def objective(trial):
    assert gc.isenabled()  # it was not while the objective was loaded
    x = trial.suggest_float("x", 0, 1)
    for step in range(5):
        time.sleep(0.05)
        trial.report(x * step, step)
    return x * 4
"""
RUN = """
TWO = {"policy": "fifo", "n_trials": 2}  # it ends once these have
study = optuna.create_study(
    study_name="s", storage="sqlite:///s.db", load_if_exists=True, direction="maximize"
)
result = optuna_deadline.run(study, objective, cpus=1, deadline="90s", **TWO)
print("value", result.value, "trials", len(study.trials))
"""
GUARDED = "if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in RUN.splitlines())
NOTEBOOK = f"cells = [{OBJECTIVE!r}, {RUN!r}]\nfor cell in cells:\n    exec(cell, globals())\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [OBJECTIVE + RUN, OBJECTIVE + GUARDED, NOTEBOOK], ids=["bare", "guarded", "cells"]
)
def test_a_script_runs_once_however_it_is_written(script: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("value") == 1 and "None" not in done.stdout


@pytest.mark.parametrize("script", [OBJECTIVE + RUN, OBJECTIVE + GUARDED], ids=["bare", "guarded"])
def test_a_script_is_loaded_for_its_objective_alone(script: str, tmp_path: Path) -> None:
    (tmp_path / "train_alone.py").write_text(script)
    assert callable(source_of(f"{tmp_path}/train_alone.py:objective").load())
    assert not (tmp_path / "s.db").exists()


def test_a_function_of_a_script_travels_out_of_a_process_that_it_has_spawned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = ModuleType("__mp_main__")  # what multiprocessing calls the script there
    exec("def objective(trial):\n    return 1.5", script.__dict__)
    monkeypatch.setitem(sys.modules, "__mp_main__", script)
    source = source_of(script.objective)
    monkeypatch.delitem(sys.modules, "__mp_main__")
    assert source.load()(None) == 1.5


KINDS = """
import collections, dataclasses, enum, functools, multiprocessing, pickle, sys

class Color(enum.Enum):
    RED = 1

class Base:
    pass

class Net(Base):
    class Part:
        pass

@dataclasses.dataclass
class Config:
    rate: float = 0.1

Pair = collections.namedtuple("Pair", "left right")

class OnlyOfAnInstance:
    pass

instance = OnlyOfAnInstance()

@functools.lru_cache(maxsize=7)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

def traced(function):
    @functools.wraps(function)
    def traced(*arguments):
        return function(*arguments)
    return traced

@traced
def square(x):
    return x * x

def objective(trial):
    for value in (Color.RED, Net(), Net.Part(), Config(), Pair(1, 2), square, fibonacci, instance):
        again = pickle.loads(pickle.dumps(value))
        assert type(again) is type(value)
    assert fibonacci(10) == 55 and fibonacci.cache_parameters()["maxsize"] == 7
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return float(sum(pool.map(square, [1, 2])))

if __name__ == "__main__":
    from optuna_deadline.rank.objective import source_of
    if sys.argv[1:]:
        sys.stdout.buffer.write(pickle.dumps(source_of(objective)))
"""
LOADS = "import pickle, sys; print(pickle.load(sys.stdin.buffer).load()(None))"


@pytest.mark.parametrize("started", ["kinds.py", "-mkinds"])
def test_what_a_script_defines_can_be_pickled_where_its_objective_runs(
    started: str, tmp_path: Path
) -> None:
    (tmp_path / "kinds.py").write_text(KINDS)
    sent = subprocess.run(
        [sys.executable, started, "send"], cwd=tmp_path, capture_output=True, timeout=300
    )
    assert sent.returncode == 0, sent.stderr
    ran = subprocess.run(
        [sys.executable, "-c", LOADS], cwd=tmp_path, input=sent.stdout, capture_output=True,
        timeout=300,
    )  # fmt: skip
    assert (ran.stdout, ran.returncode) == (b"5.0\n", 0), ran.stderr


SPAWNS = """
import multiprocessing, optuna, optuna_deadline

def square(x):
    return x * x

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=square, args=(2,))
    child.start()
    child.join()
    print(child.exitcode)
else:
    optuna_deadline.run(optuna.create_study(), square, deadline="1h", cpus=1)
"""


def test_a_process_that_multiprocessing_spawns_starts_no_study(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNS)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "1\n" and "put the start under if __name__" in done.stderr


def test_a_module_is_imported_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_training.py").write_text(OBJECTIVE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert source_of("my_training:objective").load().__module__ == "my_training"


def test_what_cannot_be_found_is_named(tmp_path: Path) -> None:
    (tmp_path / "train_named.py").write_text(OBJECTIVE)
    with pytest.raises(DeadlineError, match=r"is not an objective: write FILE.py:FUNCTION"):
        source_of("train.py")
    with pytest.raises(DeadlineError, match=r"There is no file nowhere.py"):
        source_of("nowhere.py:objective")
    with pytest.raises(DeadlineError, match=r"has no objective 'objektive' \(it has: objective\)"):
        source_of(f"{tmp_path}/train_named.py:objektive").load()
    with pytest.raises(DeadlineError, match=r"There is no module 'no_such_module'"):
        source_of("no_such_module:objective").load()


_BEGINS = "import optuna\nstudy = optuna.create_study(storage='sqlite:///oops.db')\n"
_FUNCTION = "def objective(trial):\n    return 1.0\n"


@pytest.mark.parametrize(
    ("files", "place", "says"),
    [
        ({"below.py": _BEGINS + _FUNCTION}, "below.py:objective", "line 2 of {folder}/below.py"),
        (
            {"below_too.py": _BEGINS + _FUNCTION},
            "below_too:objective",
            "line 2 of {folder}/below_",
        ),
        (
            {"taken.py": f"from optuna import create_study\ncreate_study()\n{_FUNCTION}"},
            "taken.py:objective",
            "(it has: nothing): its import stops at line 2 of",
        ),
        (
            {"runs.py": f"import optuna_deadline\n\noptuna_deadline.run(1, 2)\n{_FUNCTION}"},
            "runs.py:objective",
            "its import stops at line 3 of {folder}/runs.py, which begins a study; move",
        ),
        (
            {"helped.py": f"import helps\n{_FUNCTION}", "helps.py": _BEGINS},
            "helped.py:objective",
            "line 2 of {folder}/helps.py",
        ),
    ],
)
def test_an_objective_below_the_line_that_begins_a_study_is_told_of_that_line(
    files: dict[str, str],
    place: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _write(files, tmp_path, monkeypatch)
    with pytest.raises(DeadlineError) as refused:
        source_of(place).load()
    assert says.format(folder=tmp_path) in str(refused.value)
    assert not (tmp_path / "oops.db").exists()


def test_a_module_is_loaded_for_its_objective_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"around/__init__.py": "", "around/above.py": _FUNCTION + _BEGINS + "later = 1\n"}
    _write(files, tmp_path, monkeypatch)
    assert source_of("around.above:objective").load()(None) == 1.0
    assert not (tmp_path / "oops.db").exists()
    assert not hasattr(sys.modules["around"].above, "later")


@pytest.mark.parametrize("package", ["a_package", "a_folder"])
def test_a_file_that_imports_from_its_package_is_told_of_its_module(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        f"{package}/data.py": "x = 1\n",
        f"{package}/trains.py": f"from .data import x\n{_FUNCTION}",
    }
    if package == "a_package":
        files["a_package/__init__.py"] = ""
    _write(files, tmp_path, monkeypatch)
    with pytest.raises(DeadlineError) as refused:
        source_of(f"{package}/trains.py:objective").load()
    assert f"name it as {package}.trains:objective, in the folder {tmp_path}." in str(
        refused.value
    )
    assert source_of(f"{package}.trains:objective").load()(None) == 1.0


def _write(files: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.slow
def test_an_objective_that_does_not_load_is_said_by_the_worker(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import a_library_that_is_not_here\n")
    fork_server = ForkServer(source_of(f"{tmp_path}/broken.py:objective"))
    with pytest.raises(DeadlineError, match="a_library_that_is_not_here"):
        fork_server.poll_ready(timeout=100)
    assert not fork_server.alive


REPEATED = """
import resource

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [bytearray(b"x") * (4 << 20) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

raise RuntimeError(f"again {[faults() for _ in range(3)][-1]} faults")
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
def test_memory_of_a_training_step_is_kept_for_the_next(tmp_path: Path) -> None:
    (tmp_path / "repeated.py").write_text(REPEATED)
    fork_server = ForkServer(source_of(f"{tmp_path}/repeated.py:objective"))
    with pytest.raises(DeadlineError, match=r"again \d+ faults") as refused:
        fork_server.poll_ready(timeout=100)
    [count] = re.findall(r"again (\d+) faults", str(refused.value))
    assert int(count) < 1000, "32 MiB are 8,192 pages"


INTERRUPTED = """
if __name__ == "__main__":
    study = optuna.create_study(storage=STORAGE)
    optuna_deadline.run(study, objective, cpus=1, deadline="90s", policy="fifo")
    print("goes on")
"""


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["sqlite:///s.db", None])
def test_ctrl_c_saves_and_ends_the_script(storage: str | None, tmp_path: Path) -> None:
    longer = OBJECTIVE.replace("range(5):", "range(5000):\n        open('started', 'w').close()")
    script = longer + f"STORAGE = {storage!r}\n"
    (tmp_path / "train.py").write_text(script + INTERRUPTED)
    with subprocess.Popen(
        [sys.executable, "train.py"], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        wait_until(lambda: (tmp_path / "started").exists() or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGINT  # 130 in a shell
    assert "goes on" not in out and "KeyboardInterrupt" in err
    assert ("start the same command again" in err) == (storage is not None)
