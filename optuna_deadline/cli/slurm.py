"""``optuna-deadline slurm``: run workers as jobs of a SLURM cluster until the study ends.

The batch script is a pure function of the options. It replaces submitit, which runs one pickled
function: here a command runs on each node, and a user can read the script, change it and submit
it again.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.cli.app import ObjectivePlace, Storage, command
from optuna_deadline.cli.databases import check_url, load_study, storage_options
from optuna_deadline.cli.option_groups import Without
from optuna_deadline.errors import DeadlineError
from optuna_deadline.options import WorkerOptions
from optuna_deadline.planning.billing.ledger import BillingLedger
from optuna_deadline.planning.billing.price_schedule import tariff_of
from optuna_deadline.study.agreement import read_stored

#: Seconds for which a worker waits for the slots of a dead worker: twice a lease and its grace.
WAIT = 90

#: Seconds by which SLURM may send its signals early.
_EARLY = 90

_TEXT = r"""
{worker}

asked= ended= again= # not from whatever environment sbatch was called in

# The job itself; in an array the number alone may be the whole array's.
job=$SLURM_JOB_ID
if [[ $SLURM_ARRAY_TASK_ID ]]; then job=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID; fi

# When this job's time is over the workers have left: --max-time. The study's deadline is its own.
end=$SLURM_JOB_END_TIME
if [[ ! $end ]]; then
    end=$(SLURM_TIME_FORMAT=%s scontrol show job "$job" | sed -n 's/.* EndTime=\([0-9]*\).*/\1/p')
fi
if [[ $end ]]; then worker+=(--max-time "$(date --utc --date="@$end" +%Y-%m-%dT%H:%M:%SZ)"); fi

# USR1 well before that end is a notice: the workers save, leave, and come back.
notice() {{
    if [[ $end ]] && (( end - $(date +%s) <= {early} )); then return; fi
    asked=1
    scancel --signal=TERM "$job"
}}
trap notice USR1
trap : TERM # the workers have it too, and are waited for

# Where SLURM gives a preempted job time, it may give SIGTERM to the workers alone.
preempted() {{ [[ $(scontrol show job "$job") == *PreemptTime=[0-9]* ]]; }}

# One worker on each node, with the GPUs that the job has there.
steps=()
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    OPTUNA_DEADLINE_HOST=$node-$SLURM_JOB_ID \
        srun --nodes=1 --ntasks=1 --nodelist="$node" "${{worker[@]}}" &
    steps+=($!)
done

# A worker ends with 0 where the study has ended, and with 75 where its own time was over.
worst=0
for step in "${{steps[@]}}"; do
    while kill -0 "$step" 2>/dev/null; do wait "$step"; done # a signal ends a wait
    wait "$step"
    code=$?
    case $code in
        0) ended=1 ;;
        75) again=1 ;;
        *) if (( code > worst )); then worst=$code; fi ;;
    esac
done
if [[ $ended ]]; then exit 0; fi
if [[ $again || $asked ]] || preempted; then
    echo "The study goes on: job $job is queued again."
    scontrol requeue "$job"
fi
exit "$worst"
"""


@dataclass(frozen=True)
class SlurmJob:
    """A batch job, and the command that runs on each of its nodes.

    Args:
        name: The name of the study.
        worker: The command of a worker.
        folder: The working directory of the command.
        logs: The folder for the job's output.
        options: Options of sbatch by name; None leaves an option out, "" gives it no value.
        further: Further options of sbatch, as typed.
        notice: Seconds before a job's end or preemption at which SLURM sends USR1.
    """

    name: str
    worker: Sequence[str]
    folder: Path
    logs: Path
    options: dict[str, str | int | None]
    further: Sequence[str] = ()
    notice: int = 60

    @property
    def label(self) -> str:
        """The study's name with characters that file names allow."""
        return re.sub(r"[^\w.+-]+", "_", self.name)

    def script(self) -> str:
        """The text of the script."""
        number = "%A_%a" if self.options.get("array") is not None else "%j"
        log = str(self.logs).replace("%", "%%") + f"/{self.label}-{number}.out"
        options = {
            "job-name": self.label,
            "ntasks-per-node": 1,
            **self.options,
            "chdir": str(self.folder),
            "output": log,
            "open-mode": "append",
            "requeue": "",
            "signal": f"B:USR1@{self.notice}",
        }
        lines = [
            "#!/bin/bash",
            f"# Trains the study {self.name!r}; written by 'optuna-deadline slurm'.",
            *(_directive(_option(name, value)) for name, value in options.items()
              if value is not None),
            *(_directive(words) for words in _by_option(self.further)),
        ]  # fmt: skip
        text = _TEXT.format(worker=_array(self.worker), early=self.notice + _EARLY)
        return "\n".join(lines) + "\n" + text


def array_of(tasks: str) -> str:
    """An array in SLURM's syntax, from a number of tasks or a range such as 0-9%4.

    Raises:
        DeadlineError: The text is neither.
    """
    if tasks.isdigit() and int(tasks) > 0:
        return f"0-{int(tasks) - 1}"
    if re.fullmatch(r"\d+([-,:]\d+)+(%\d+)?", tasks):
        return tasks
    raise DeadlineError(f"--array is a number of tasks, or a range such as 0-9%4, not {tasks!r}.")


def _option(name: str, value: str | int | None) -> list[str]:
    return [f"--{name}" if value == "" else f"--{name}={value}"]


def _by_option(words: Sequence[str]) -> list[list[str]]:
    """Groups of an option and the values that follow it."""
    found: list[list[str]] = []
    for word in words:
        if word.startswith("-"):
            found.append([word])
        elif found and len(found[-1]) == 1:
            found[-1].append(word)
        else:
            raise DeadlineError(
                f"{word!r} is not an option of sbatch: options after -- are passed on, as in "
                "-- --account=me --mem=32G."
            )
    return found


def _directive(words: Sequence[str]) -> str:
    line = " ".join(shlex.quote(word) for word in words)
    if "\n" in line or "\r" in line:
        raise DeadlineError(
            f"{line!r} has a line break, which a batch script cannot contain there."
        )
    return f"#SBATCH {line}"


def _array(words: Sequence[str]) -> str:
    """A command as a shell array, with one option on each line."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shlex.quote(word))
    inner = "\n".join("    " + " ".join(line) for line in lines if line)
    return f"worker=(\n{inner}\n)"


_LOGS = Path("optuna_deadline_slurm")
#: Options that the job sets itself, and those of the study.
_OF_THE_JOB = Without(
    ["gpus", "gpu_ids", "oversubscribe", "max_time", "slot_timeout", "preemption_notice",
     "max_slots", "keep_all"]
)  # fmt: skip


@command
def slurm(
    objective: ObjectivePlace,
    study: Annotated[str, typer.Option(help="Name of the study.")],
    storage: Storage,
    options: Annotated[WorkerOptions, _OF_THE_JOB],
    sbatch: Annotated[
        list[str] | None, typer.Argument(help="After --: further options of sbatch.")
    ] = None,
    nodes: Annotated[int, typer.Option(help="Nodes of a job.")] = 1,
    gpus_per_node: Annotated[
        str | None, typer.Option(help="GPUs per node, as for sbatch: 4, or a100:4.")
    ] = None,
    gres: Annotated[str | None, typer.Option(help="The same as --gres: gpu:a100:4.")] = None,
    array: Annotated[
        str | None, typer.Option(help="Number of independent jobs, or a range: 0-9%4.")
    ] = None,
    time: Annotated[
        str | None, typer.Option(help="Time limit of a job, as for sbatch: 4:00:00.")
    ] = None,
    partition: Annotated[str | None, typer.Option(help="SLURM's partition.")] = None,
    notice: Annotated[
        int, typer.Option(help="Seconds between SLURM's notice of a preemption and the end.")
    ] = 60,
    logs: Annotated[
        Path, typer.Option(help="Folder for the script and the output of jobs.")
    ] = _LOGS,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the script without submitting it.")
    ] = False,
) -> None:
    """Submit a SLURM job that trains a study and requeues itself until it ends."""
    resources = _resources(nodes, gpus_per_node, gres, options.cpus)
    _check_file(objective)
    _check_study(study, storage, options.host_type)
    offered = replace(options, gpus=None if options.cpus else "all", slot_timeout=WAIT)
    worker = [
        *_program(), "worker", objective, "--study", study, *storage_options(storage),
        *offered.words(),
    ]  # fmt: skip
    asked = {
        **resources,
        "array": None if array is None else array_of(array),
        "time": time,
        "partition": partition,
    }
    logs = logs.absolute()
    job = SlurmJob(study, worker, Path.cwd(), logs, asked, sbatch or (), notice)
    if dry_run:
        print(job.script(), end="")
        return
    number, script = _submit(job)
    print(f"Submitted job {number}: {script}; its output is in the same folder.")
    look = f"optuna-deadline top {shlex.quote(study)} --storage URL"
    print(f"Next: {look}; scancel {number} cancels it.")


def _resources(
    nodes: int, gpus_per_node: str | None, gres: str | None, cpus: int | None
) -> dict[str, str | int | None]:
    if nodes < 1:
        raise DeadlineError(f"--nodes must be a number from 1, but got {nodes}.")
    given = {"--gpus-per-node": gpus_per_node, "--gres": gres, "--cpus": cpus}
    wanted = [name for name, value in given.items() if value]
    if not wanted:
        raise DeadlineError(
            "The job requests no GPUs: name them with --gpus-per-node 4 or --gres gpu:4, "
            "or train on "
            "CPU slots with --cpus 2."
        )
    if len(wanted) > 1:
        raise DeadlineError(f"{' and '.join(wanted)} are alternatives: give one of them.")
    if gres and "gpu" not in gres:
        raise DeadlineError(f"--gres {gres} requests no GPU: write --gres gpu:4.")
    gpus = {"gpus-per-node": gpus_per_node, "gres": gres}
    return {"nodes": nodes, **gpus, "cpus-per-task": cpus or None}


def _check_file(objective: str) -> None:
    """Check the study and the objective now, before the job waits in a queue."""
    place, colon, _ = objective.rpartition(":")
    if not colon:
        raise DeadlineError(f"{objective!r} is not an objective: write FILE.py:FUNCTION.")
    if place.endswith(".py") and not Path(place).is_file():
        raise DeadlineError(f"There is no file {place} here.")


def _check_study(name: str, storage: str, host_type: str | None) -> None:
    if check_url(storage).get_backend_name() == "sqlite":
        raise DeadlineError(
            "SQLite serves the workers of one machine only: use a PostgreSQL storage that the "
            "nodes reach."
        )
    found = load_study(name, storage)
    database = open_table(found)
    terms = read_stored(database, found)  # a worker adds what the study lacks
    table = AllocationTable(database, name, terms.study_id)
    orders = table.orders("")
    if orders.settled or orders.end <= table.now():
        raise DeadlineError(
            f"The study {name!r} has ended, so no job is submitted; give it more time with "
            f"'optuna-deadline set {shlex.quote(name)} --deadline 2h'."
        )
    # If no type is given here, the environment of a node may set one.
    if host_type is not None and terms.budget is not None:
        ledger = BillingLedger(table, tariff_of(terms.budget, terms.started))
        ledger.read(table.now())
        terms.budget.check_type(host_type, ledger.tariff.rates)


def _program() -> list[str]:
    """The path of this command, independent of PATH on the nodes."""
    program = Path(sys.executable).with_name("optuna-deadline")
    if program.is_file():
        return [str(program)]
    return [sys.executable, "-c", "from optuna_deadline.cli import app; app()"]


def _submit(job: SlurmJob) -> tuple[str, Path]:
    """Write the script beside the logs, readable by its owner only: it may hold a password."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise DeadlineError(
            "There is no sbatch on the PATH: run this on a login node of the SLURM cluster; "
            "--dry-run prints the script anywhere."
        )
    text = job.script()
    job.logs.mkdir(parents=True, exist_ok=True)
    script = job.logs / f"{job.label}-{os.getpid()}.new.sh"
    script.touch(mode=0o700)
    script.write_text(text)
    answer = subprocess.run([sbatch, "--parsable", str(script)], capture_output=True, text=True)
    if answer.returncode:
        script.unlink()
        message = answer.stderr.strip().replace("sbatch: error: ", "").replace("\n", " ")
        raise DeadlineError(f"sbatch refuses the job: {message}")
    number = answer.stdout.strip().partition(";")[0]
    return number, script.replace(job.logs / f"{job.label}-{number}.sh")
