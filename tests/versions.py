"""Run tests with other versions of the libraries: ``python tests/versions.py NAME``.

An environment of its own lies over the one that runs this: what it does not have comes from there.
PyTorch is not lowered, since its older wheels bring gigabytes of CUDA.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import requires
from pathlib import Path

ROOT = Path(__file__).parents[1]
_EXTRAS = ("postgres", "remote", "dashboard", "metrics", "lightning")
_REQUIREMENT = re.compile(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)[^;]*(?:; extra == .(\w+).)?")
_HIGHER = ("torch",)
_OPTUNA_4 = ["optuna==4.9.0"]
_TESTS = [
    "tests/plain", "tests/planning", "tests/allocation/test_connections.py",
    "tests/cli/test_databases.py", "tests/cli/test_run_command.py", "tests/workers/test_run.py",
    "tests/workers/test_trial_in_a_worker.py", "tests/lightning/test_plain_optuna.py",
]  # fmt: skip


def lowest() -> list[str]:
    """The lowest versions that this package allows."""
    bounds = map(_REQUIREMENT.fullmatch, requires("optuna-deadline") or [])
    return [
        f"{bound[1]}=={bound[2]}"
        for bound in bounds
        if bound is not None and bound[1] not in _HIGHER and bound[3] in (None, *_EXTRAS)
    ]


def main(name: str, *arguments: str) -> int:
    """Build the environment, and run the tests in it.

    Args:
        name: "lowest" or "optuna4".
        arguments: For pytest, in place of its choice of tests.
    """
    pins = _OPTUNA_4 if name == "optuna4" else lowest()
    pins += [pin.replace("psycopg", "psycopg-binary") for pin in pins if pin[:8] == "psycopg="]
    folder = ROOT / ".venv" / name
    venv.create(folder, with_pip=True)
    python, scheme = folder / "bin" / "python", {"base": str(folder), "platbase": str(folder)}
    own = Path(sysconfig.get_path("purelib", vars=scheme))
    (own / "zz-below.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [python, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*install, "--only-binary", ":all:", *pins], check=True)
    subprocess.run([*install, "--no-build-isolation", "-e", ROOT], check=True)
    print(f"== {name}: {' '.join(pins)}", flush=True)
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    tests = list(arguments) or ["-q", "-n", "2", "--tier", "commit", *_TESTS]
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
