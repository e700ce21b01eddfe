"""A real SLURM on this machine: a controller and several nodes with simulated GPUs.

The GPUs are character devices, so SLURM counts them and sets CUDA_VISIBLE_DEVICES as for real
ones; a program called nvidia-smi lists them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil

from optuna_deadline.worker.devices import free_port

_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol")
_CONF = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SlurmdTimeout=20
KillWait={kill_wait}
SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=1,preempt_send_user_signal
GresTypes=gpu
MailProg=/bin/true
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=UNLIMITED State=UP PriorityTier=2
"""
_ATTEMPTS = 3  # another program may take a free port before SLURM binds it
_TAKEN = "Address already in use"
_SMI = """\
#!/bin/sh
# GPUs of a node that has none: their indices, and uuids that no other node has.
for i in $(seq 0 {last}); do echo "$i, GPU-$SLURMD_NODENAME-$i"; done
"""


def missing() -> str | None:
    """The reason for which SLURM cannot run here, in words."""
    absent = [name for name in _PROGRAMS if _which(name) is None]
    if absent:
        return f"SLURM is not installed ({', '.join(absent)}): apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return "only root can start SLURM's nodes"
    return None


class SlurmCluster:
    """A controller and its nodes n1, n2, ... until the ``with`` block ends.

    Args:
        nodes: The number of nodes.
        gpus: The GPUs of each node.
        kill_wait: Seconds from SIGTERM to SIGKILL.
    """

    def __init__(self, nodes: int = 3, gpus: int = 2, kill_wait: int = 20) -> None:
        self.names = [f"n{index + 1}" for index in range(nodes)]
        self._gpus = gpus
        self._kill_wait = kill_wait
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SlurmCluster:
        for attempt in range(_ATTEMPTS):
            self.folder = Path(tempfile.mkdtemp(prefix="optuna-deadline-slurm-", dir="/tmp"))
            try:
                self._write()
                self._start()
                break
            except BaseException as error:
                self._stop()
                if _TAKEN not in str(error) or attempt == _ATTEMPTS - 1:
                    raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        self._stop()

    @property
    def environment(self) -> dict[str, str]:
        """The environment for commands of this cluster."""
        path = f"{self.folder}/bin{os.pathsep}{os.environ['PATH']}"
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    def ask(self, *words: str) -> str:
        """Run one of SLURM's commands; return its output."""
        return subprocess.run(
            words, env={**os.environ, **self.environment}, capture_output=True, text=True,
            check=True, timeout=60,
        ).stdout.strip()  # fmt: skip

    def state(self, job: str) -> str:
        """A job's state, such as RUNNING or PENDING; empty if SLURM no longer knows it."""
        return self.field(job, "JobState")

    def field(self, job: str, name: str) -> str:
        """The fields of ``scontrol show job``."""
        with suppress(subprocess.CalledProcessError):
            for word in self.ask("scontrol", "--oneliner", "show", "job", job).split():
                if word.startswith(f"{name}="):
                    return word.partition("=")[2]
        return ""

    def seconds_left(self, job: str) -> float:
        """The seconds that a job may still run."""
        words = self.ask("squeue", "--noheader", "--jobs", job, "--Format", "TimeLeft:20")
        parts = [int(part) for part in words.split(":")]
        return float(sum(part * 60**place for place, part in enumerate(reversed(parts))))

    def logs(self) -> str:
        """The end of the logs of SLURM's programs."""
        files = sorted(self.folder.glob("**/*.log"))
        return "\n".join(f"-- {file}\n{file.read_text()[-3000:]}" for file in files)

    def _write(self) -> None:
        folder = self.folder
        folder.chmod(0o755)
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        (folder / "bin").mkdir()
        smi = folder / "bin" / "nvidia-smi"
        smi.write_text(_SMI.format(last=self._gpus - 1))
        smi.chmod(0o755)
        lines, gres = [], []
        for name in self.names:
            (folder / name).mkdir()
            for index in range(self._gpus):
                device = folder / name / f"nvidia{index}"
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            gres.append(
                f"NodeName={name} Name=gpu File={folder}/{name}/nvidia[0-{self._gpus - 1}]"
            )
            lines.append(
                f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 "
                f"Port={free_port()} CPUs=8 RealMemory=1000 Gres=gpu:{self._gpus} State=UNKNOWN"
            )
        (folder / "gres.conf").write_text("\n".join(gres) + "\n")
        (folder / "slurm.conf").write_text(
            _CONF.format(
                name=folder.name,
                host=socket.gethostname(),
                port=free_port(),
                folder=folder,
                kill_wait=self._kill_wait,
                nodes="\n".join(lines),
            )
        )

    def _start(self) -> None:
        folder = self.folder
        self._run(
            "munged", "--foreground", "--force", f"--key-file={folder}/munge.key",
            f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid",
            f"--seed-file={folder}/munged.seed", f"--log-file={folder}/munged.log",
        )  # fmt: skip
        self._until(lambda: (folder / "munge.socket").exists())
        self._run("slurmctld", "-D", "-f", f"{folder}/slurm.conf")
        for name in self.names:
            self._run("slurmd", "-D", "-N", name, "-f", f"{folder}/slurm.conf")
        self._until(self._all_idle)

    def _all_idle(self) -> bool:
        with suppress(subprocess.CalledProcessError):
            return self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split() == [
                "idle"
            ] * len(self.names)
        return False

    def _run(self, program: str, *words: str) -> None:
        found = _which(program)
        assert found is not None
        log: IO[bytes]
        with (self.folder / f"{program}-{len(self._running)}.out.log").open("wb") as log:
            self._running.append(
                subprocess.Popen(
                    [found, *words],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **self.environment},
                    start_new_session=True,
                )
            )

    def _until(self, condition: object, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not condition():  # type: ignore[operator]
            dead = next((p for p in self._running if p.poll() is not None), None)
            if dead is not None or time.monotonic() > end:
                raise RuntimeError(f"SLURM did not start:\n{self.logs()}")
            time.sleep(0.1)

    def _stop(self) -> None:
        """Kill all processes that this cluster has started."""
        with suppress(subprocess.SubprocessError, OSError):
            self.ask("scancel", "--signal=KILL", "--full", "--user=root")
        mine = self._processes()
        for process in reversed(self._running):
            process.terminate()
        for process in reversed(self._running):
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for left in {*mine, *self._processes()}:
            with suppress(psutil.NoSuchProcess):
                left.kill()
        self._running.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _processes(self) -> set[psutil.Process]:
        """The processes of its nodes and jobs.

        They have its configuration in their environment, except slurmstepd, which overwrites its
        environment with a title and has its node's log open.
        """
        found, conf = set(), str(self.folder / "slurm.conf")
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and (
                    process.environ().get("SLURM_CONF") == conf or self._has_open(process.pid)
                ):
                    found.add(process)
        return found

    def _has_open(self, pid: int) -> bool:
        """Whether a process has a file of this cluster open, also a deleted one."""
        files = (os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir())
        return any(file.startswith(f"{self.folder}/") for file in files)


def _which(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
