"""What ``optuna-deadline slurm`` would submit, and what it refuses; no SLURM is needed."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import optuna
import pytest
from typer.testing import CliRunner

from optuna_deadline import DeadlinePruner
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.cli import app
from optuna_deadline.cli.slurm import SlurmJob, array_of
from optuna_deadline.elastic import agree
from optuna_deadline.errors import DeadlineError
from optuna_deadline.study import agreement
from optuna_deadline.study.rows import ANY_STUDY, bring_forward
from optuna_deadline.study.terms import Given
from optuna_deadline.values.budgets import make_budget


def job(**given: object) -> SlurmJob:
    facts = {
        "name": "digits", "worker": ["worker", "train.py:objective"], "folder": Path("/jobs"),
        "logs": Path("/jobs/logs"), "options": {"nodes": 2}, **given,
    }  # fmt: skip
    return SlurmJob(**facts)  # type: ignore[arg-type]


def directives(script: str) -> list[list[str]]:
    """The options, taken apart as sbatch does."""
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH ")]
    return [shlex.split(line.removeprefix("#SBATCH ")) for line in lines]


def check_syntax(script: str) -> None:
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_the_script_is_a_shell_script_with_its_options() -> None:
    script = job(options={"nodes": 2, "gpus-per-node": "4", "time": None}).script()
    check_syntax(script)
    found = [words for [words] in directives(script)]
    assert {"--nodes=2", "--gpus-per-node=4", "--ntasks-per-node=1", "--requeue"} <= {*found}
    assert {"--signal=B:USR1@60", "--output=/jobs/logs/digits-%j.out"} <= {*found}
    assert not any("time" in words for words in found), "what is not given is left out"
    array = job(options={"array": "0-3"}).script()
    assert ["--output=/jobs/logs/digits-%A_%a.out"] in directives(array)


@pytest.mark.parametrize(
    "nasty", ["a b", "it's", '"quoted"', "$HOME", "a;b", "`id`", "ä", "back\\"]
)
def test_values_reach_sbatch_and_the_worker_as_they_are(nasty: str, tmp_path: Path) -> None:
    further = ["--comment", nasty, f"--mail-user={nasty}"]
    made = job(worker=["echo", nasty, "--x", nasty], further=further, folder=Path(f"/{nasty}"))
    script = made.script()
    check_syntax(script)
    found = directives(script)
    assert ["--comment", nasty] in found and [f"--mail-user={nasty}"] in found
    assert [f"--chdir=/{nasty}"] in found
    end = script.index("\n)\n") + 3
    words = f"{script[:end]}\nprintf '%s\\n' \"${{worker[@]}}\""
    output = subprocess.run(["bash"], input=words, text=True, capture_output=True, check=True)
    assert output.stdout.splitlines() == ["echo", nasty, "--x", nasty]


def test_names_of_studies_and_folders_do_not_turn_into_patterns() -> None:
    made = job(name="my study/1 %j", logs=Path("/50%j"))
    assert ["--output=/50%%j/my_study_1_j-%j.out"] in directives(made.script())


@pytest.mark.parametrize("further", [["me"], ["--account", "me", "too"], ["--comment", "a\nb"]])
def test_what_cannot_be_an_option_is_refused(further: list[str]) -> None:
    with pytest.raises(DeadlineError, match=r"is not an option of sbatch|has a line break"):
        job(further=further).script()


def test_arrays() -> None:
    assert array_of("4") == "0-3" and array_of("1") == "0-0"
    assert array_of("0-9%4") == "0-9%4" and array_of("1,3,5") == "1,3,5"
    for wrong in ("0", "-1", "many", "1-"):
        with pytest.raises(DeadlineError, match="is a number of tasks"):
            array_of(wrong)


# -- the command ---------------------------------------------------------------


def run(*words: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["slurm", *words])
    return found.exit_code, found.stdout, " ".join(found.stderr.split())


@pytest.fixture
def train_py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an objective's file in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    return "train.py"


@pytest.fixture
def ready(postgres_url: str, train_py: str) -> list[str]:
    """The command's words for a study that is there."""
    study = optuna.create_study(study_name="my digits", storage=postgres_url)
    agree(study, "1h")
    return [f"{train_py}:objective", "--study", "my digits", "--storage", postgres_url]


@pytest.mark.postgres
def test_a_dry_run_prints_the_script_and_submits_nothing(
    ready: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code, script, _ = run(
        *ready, "--gres", "gpu:a100:4", "--nodes", "2", "--array", "3", "--time", "4:00:00",
        "--partition", "gpu", "--multi-node", "--weight", "2", "--dry-run",
        "--", "--account", "me", "--mem=32G",
    )  # fmt: skip
    assert code == 0
    monkeypatch.undo()
    check_syntax(script)
    found = directives(script)
    for words in (
        ["--gres=gpu:a100:4"], ["--nodes=2"], ["--array=0-2"], ["--time=4:00:00"],
        ["--partition=gpu"], ["--account", "me"], ["--mem=32G"], [f"--chdir={tmp_path}"],
    ):  # fmt: skip
        assert words in found
    assert "    --study 'my digits'\n" in script and "    --gpus all\n" in script
    assert "    --multi-node\n" in script and "    --weight 2.0\n" in script
    assert not list(tmp_path.glob("optuna_deadline_slurm*"))


@pytest.mark.postgres
def test_the_policy_of_a_plain_study_is_left_to_its_first_worker(
    postgres_url: str, train_py: str
) -> None:
    study = optuna.create_study(
        study_name="plain", storage=postgres_url, pruner=DeadlinePruner("1h")
    )
    study.pruner._terms(study)  # type: ignore[attr-defined]
    words = [f"{train_py}:objective", "--study", "plain", "--storage", postgres_url]
    assert run(*words, "--gpus-per-node", "4", "--dry-run")[0] == 0
    known = agreement.read(open_table(study), study)
    assert known is not None and known.policy is None


@pytest.mark.postgres
def test_the_type_of_the_nodes_is_told_and_has_a_price(postgres_url: str, train_py: str) -> None:
    study = optuna.create_study(study_name="dear", storage=postgres_url)
    budget = make_budget("20usd", {"p3": "12.24/4"})
    agree(study, "1h", Given(budget=budget))
    words = [f"{train_py}:objective", "--study", "dear", "--storage", postgres_url]
    code, script, _ = run(*words, "--gpus-per-node", "4", "--host-type", "p3", "--dry-run")
    assert code == 0 and "    --host-type p3\n" in script
    code, _, output = run(*words, "--gpus-per-node", "4", "--host-type", "p4", "--dry-run")
    assert code == 2 and "no price for the host type 'p4' (it has some for p3)" in output
    code, script, _ = run(*words, "--gpus-per-node", "4", "--dry-run")
    assert code == 0 and "--host-type" not in script


@pytest.mark.postgres
def test_what_sbatch_says_is_passed_on(ready: list[str], tmp_path: Path) -> None:
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    path = f"{sbatch.parent}:/usr/bin:/bin"

    def answer(text: str) -> tuple[int, str, str]:
        sbatch.write_text(f"#!/bin/sh\n{text}\n")
        sbatch.chmod(0o755)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", path)
            return run(*ready, "--gpus-per-node", "1")

    code, _, output = answer("echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    assert code == 2 and "sbatch refuses the job: invalid partition specified" in output
    logs = tmp_path / "optuna_deadline_slurm"
    assert list(logs.iterdir()) == []
    code, output, _ = answer("echo '17;cluster'")
    script = logs / "my_digits-17.sh"
    assert code == 0 and "Submitted job 17" in output
    assert script.read_text().startswith("#!/bin/bash") and script.stat().st_mode & 0o077 == 0


@pytest.mark.postgres
def test_what_is_missing_is_said(ready: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "The job requests no GPUs" in run(*ready)[2]
    assert "are alternatives" in run(*ready, "--gres", "gpu:1", "--cpus", "2")[2]
    assert "requests no GPU" in run(*ready, "--gres", "disk:1")[2]
    assert "from 1" in run(*ready, "--nodes", "0", "--cpus", "1")[2]
    assert "no file other.py" in run("other.py:f", *ready[1:], "--cpus", "1")[2]
    sqlite = run(
        f"{train_py}:objective", "--study", "a", "--storage", "sqlite:///a.db", "--cpus", "1"
    )
    assert sqlite[0] == 2 and "SQLite serves the workers of one machine only" in sqlite[2]
    nobody = [ready[0], "--study", "nobody", *ready[3:], "--cpus", "1"]
    assert "There is no study 'nobody'" in run(*nobody)[2]
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, output = run(*ready, "--cpus", "1")
    assert code == 2 and "There is no sbatch on the PATH" in output


@pytest.mark.postgres
def test_a_study_that_has_ended_gets_no_job(ready: list[str]) -> None:
    study = optuna.load_study(study_name="my digits", storage=ready[-1])
    database = open_table(study)
    with database.each_alone(ANY_STUDY) as tx:
        bring_forward(tx, study._study_id, 1.0)
    code, _, output = run(*ready, "--cpus", "1")
    assert code == 2 and "has ended, so no job is submitted" in output
