"""The batch script that trains a study on SLURM: pure, from what is asked for to its text.

A script of our own, in place of submitit: that runs one pickled function, while here a command
runs on each node; and a user can read the script, change it, and submit it again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from optuna_deadline.errors import DeadlineError

#: Seconds for which a worker waits for slots whose last worker died; twice a lease and its grace.
WAIT = 90

#: SLURM sends its signals up to a minute early.
_EARLY = 90

_TEXT = r"""
{worker}

asked= ended= again= # not from whatever environment sbatch was called in

# The job itself; in an array the number alone may be the whole array's.
job=$SLURM_JOB_ID
if [[ $SLURM_ARRAY_TASK_ID ]]; then job=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID; fi

# When this job's time is over the workers have left: --until. The study's deadline is its own.
end=$SLURM_JOB_END_TIME
if [[ ! $end ]]; then
    end=$(SLURM_TIME_FORMAT=%s scontrol show job "$job" | sed -n 's/.* EndTime=\([0-9]*\).*/\1/p')
fi
if [[ $end ]]; then worker+=(--until "$(date --utc --date="@$end" +%Y-%m-%dT%H:%M:%SZ)"); fi

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
    """What is asked of SLURM, and what runs on each node of the job.

    Args:
        name: Of the study.
        worker: The command that works on a node.
        folder: Where it is run.
        logs: Folder for what the job writes.
        options: Of sbatch, by name; None leaves one out, and "" is one without a value.
        further: Options of sbatch as they were typed.
        notice: Seconds before a job's end, or its preemption, at which SLURM sends USR1.
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
        """The study's name, as files can have it."""
        return re.sub(r"[^\w.+-]+", "_", self.name)

    def script(self) -> str:
        """The whole text."""
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
    """SLURM's own words for an array: a number of tasks, or a range such as 0-9%4.

    Raises:
        DeadlineError: It is neither.
    """
    if tasks.isdigit() and int(tasks) > 0:
        return f"0-{int(tasks) - 1}"
    if re.fullmatch(r"\d+([-,:]\d+)+(%\d+)?", tasks):
        return tasks
    raise DeadlineError(f"--array is a number of tasks, or a range such as 0-9%4, not {tasks!r}.")


def _option(name: str, value: str | int | None) -> list[str]:
    return [f"--{name}" if value == "" else f"--{name}={value}"]


def _by_option(words: Sequence[str]) -> list[list[str]]:
    """Options with the values that follow them."""
    found: list[list[str]] = []
    for word in words:
        if word.startswith("-"):
            found.append([word])
        elif found and len(found[-1]) == 1:
            found[-1].append(word)
        else:
            raise DeadlineError(
                f"{word!r} is no option of sbatch: those that follow -- are handed on, as in "
                "-- --account=me --mem=32G."
            )
    return found


def _directive(words: Sequence[str]) -> str:
    line = " ".join(shlex.quote(word) for word in words)
    if "\n" in line or "\r" in line:
        raise DeadlineError(f"{line!r} has a line break, which a batch script cannot have there.")
    return f"#SBATCH {line}"


def _array(words: Sequence[str]) -> str:
    """A command as a shell's array, an option on each line."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shlex.quote(word))
    inner = "\n".join("    " + " ".join(line) for line in lines if line)
    return f"worker=(\n{inner}\n)"
