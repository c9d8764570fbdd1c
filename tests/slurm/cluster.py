"""A real SLURM cluster of this machine alone, for the length of a test session: controller, nodes, fake GPUs.

Invariants:
- Everything is below one folder (state, keys, logs), on ports that were free a moment ago; nothing is in /etc.
- The daemons are children of this process and end with it; `stop` ends the jobs first, then whatever they left.
- Several clusters live side by side: a client finds its own by SLURM_CONF (`Cluster.environ`).

Partitions (nodes n1, n2, ... pose as machines of 8 CPUs, 16 GB and 4 GPUs each):
    cpu   the default, never preempted
    gpu   the same nodes, four hours at most, never preempted
    low   the same nodes; its jobs are requeued when `cpu` or `gpu` needs their place (5 s of grace)
    busy  the same nodes, but down: jobs stay pending, with a reason, until `set_partition("busy", "UP")`
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_UP_S = 30.0
_REVOKED_S = 2.0
_END_S = 20.0
_OF_CLUSTER, _NODE_OF = "SWE_RL_TEST_CLUSTER", "SWE_RL_TEST_NODE"  # by which the daemons' children are found

CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=1
SlurmdTimeout=15
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=500
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
JobRequeue=1
KillWait={kill_wait_s}
MinJobAge={min_job_age_s}
InactiveLimit=0
OverTimeLimit=0
MaxArraySize=1001
GresTypes=gpu
{extra}
{nodes}
PartitionName=cpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=off
PartitionName=gpu Nodes=ALL MaxTime=04:00:00 State=UP PriorityTier=10 PreemptMode=off
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=requeue GraceTime=5
PartitionName=busy Nodes=ALL MaxTime=INFINITE State=DOWN PriorityTier=10 PreemptMode=off
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Boards=1 SocketsPerBoard=1 "
    "CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory_mb} Gres=gpu:fake:{gpus} State=UNKNOWN"
)
CGROUP = "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n"


def missing() -> str | None:
    """Why no cluster can be started here; None if one can."""
    gone = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    if gone:
        return (
            f"SLURM is not installed ({', '.join(gone)} not found): apt-get install slurmctld slurmd slurm-client munge"
        )
    if os.geteuid() != 0:
        return "slurmd needs root to start jobs"
    return None


@dataclass
class Cluster:
    """A context manager. `root` is short: paths of sockets have 107 characters at most."""

    root: Path
    nodes: int = 2
    cpus: int = 8
    gpus: int = 4
    memory_mb: int = 16_000
    kill_wait_s: int = 15  # SLURM's own is 30; on a busy machine 5 are too few to save and to ask
    min_job_age_s: int = 600  # how long `squeue` remembers a job that ended
    extra: str = ""  # more lines of slurm.conf
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    @property
    def conf(self) -> Path:
        return self.root / "slurm.conf"

    @property
    def environ(self) -> dict[str, str]:
        """What a client needs beside its own environment."""
        return {"SLURM_CONF": str(self.conf), "PATH": PATH}

    def __enter__(self) -> "Cluster":
        try:
            self._write()
            self._start_munge()
            self._daemon("slurmctld", "slurmctld", "-D", "-i", "-f", str(self.conf))
            for name in self.names:
                self.start_node(name)
            self.wait_until(self._all_up, "the nodes to come up", _UP_S)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- clients

    def run(self, *command: str, check: bool = True, timeout_s: float = 60.0, **environ: str) -> str:
        """A command of SLURM's against this cluster; its standard output."""
        done = subprocess.run(
            command, env={**os.environ, **self.environ, **environ}, capture_output=True, text=True, timeout=timeout_s
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}{self.log_tail()}")
        return done.stdout

    def jobs(self) -> list[dict[str, str]]:
        """Every job that SLURM remembers, an array's elements one by one: id, name, state, reason, partition."""
        text = self.run("squeue", "-h", "-r", "-t", "all", "-o", "%i|%j|%T|%r|%P|%N")
        keys = ("id", "name", "state", "reason", "partition", "nodes")
        return [dict(zip(keys, line.split("|"), strict=True)) for line in text.splitlines()]

    def state(self, job_id: str) -> str:
        """`PENDING`, `RUNNING`, `COMPLETED`, ...; empty where SLURM knows of no such job."""
        return next((job["state"] for job in self.jobs() if job["id"] == job_id), "")

    def reason(self, job_id: str) -> str:
        """Why the job waits (`PartitionDown`, `Resources`, ...) or ended."""
        return next((job["reason"] for job in self.jobs() if job["id"] == job_id), "")

    def script(self, name: str, *lines: str, **options: str) -> str:
        """Submits a batch script of `lines` with `options` (`partition="cpu"`) and returns the job's id."""
        path = self.root / f"{name}.sh"
        path.write_text("\n".join(["#!/bin/bash", *lines]) + "\n")
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        output = self.run("sbatch", "--parsable", f"--job-name={name}", f"--output={path}.out", *flags, str(path))
        return output.strip().partition(";")[0]

    def set_partition(self, name: str, state: str) -> None:
        """`UP` or `DOWN`; jobs of a partition that is down wait with the reason PartitionDown."""
        self.run("scontrol", "update", f"partitionname={name}", f"state={state}")

    def set_node(self, name: str, state: str) -> None:
        """`down` ends (and requeues) what runs on it, `drain` takes no new jobs, `resume` undoes both."""
        again = state.lower() == "resume"  # refused of a node that came back by itself
        why = [] if again else ["reason=test"]
        self.run("scontrol", "update", f"nodename={name}", f"state={state}", *why, check=not again)

    def start_now(self, job_id: str) -> None:
        """A requeued job waits two minutes on purpose, here six seconds; this ends the wait.

        Not at once: SLURM revokes the credentials of the job's last start by whole seconds, and a start in the same
        second would be refused for good.
        """
        if self.state(job_id) == "PENDING":
            time.sleep(_REVOKED_S)
            self.run("scontrol", "update", f"jobid={job_id}", "starttime=now", check=False)

    def wait_for_state(self, job_id: str, *states: str, timeout_s: float = 60.0) -> str:
        self.wait_until(lambda: self.state(job_id) in states, f"job {job_id} to be {' or '.join(states)}", timeout_s)
        return self.state(job_id)

    def wait_until(self, holds: Callable[[], Any], what: str, timeout_s: float = 60.0, pause_s: float = 0.1) -> None:
        """Raises TimeoutError with the queue and the ends of the logs."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                queue = self.run("squeue", "-r", "-t", "all", check=False)
                raise TimeoutError(f"waited {timeout_s:.0f} s for {what}\n{queue}{self.log_tail()}")
            time.sleep(pause_s)

    def cancel_all(self) -> None:
        """No job is left, running or waiting."""
        ids = self.run("squeue", "-h", "-o", "%A", check=False).split()
        if ids:
            self.run("scancel", *dict.fromkeys(ids), check=False)
            self.wait_until(lambda: not self.run("squeue", "-h", check=False).strip(), "jobs to be cancelled", _END_S)

    # ---- daemons

    def start_node(self, name: str) -> None:
        self._daemon(name, "slurmd", "-D", "-f", str(self.conf), "-N", name, **{_NODE_OF: name})

    def kill_node(self, name: str) -> None:
        """The node's daemon and its jobs die at once, as when the machine does; SLURM learns of it in 15-30 s."""
        _end(self.daemons.pop(name), signal.SIGKILL)
        # Those that watch over jobs first, or they would report how the jobs ended; then what began meanwhile.
        while found := [*self._processes(_NODE_OF, name), *self._processes("SLURMD_NODENAME", name)]:
            for pid in found:
                _kill(pid)
            time.sleep(0.05)

    def heal(self) -> None:
        """All nodes are up again, the partition `busy` down."""
        for name in self.names:
            if name not in self.daemons:
                self.start_node(name)
        self.set_partition("busy", "DOWN")
        for name in self.names:
            if not self._up([name]):
                self.set_node(name, "resume")
        self.wait_until(lambda: self._up(self.names), "the nodes to come back", _UP_S)

    def log_tail(self, lines: int = 15) -> str:
        parts = []
        for path in sorted((self.root / "log").glob("*.log")):
            text = path.read_text(errors="replace").splitlines()
            parts.append(f"\n== {path.name}\n" + "\n".join(text[-lines:]))
        return "".join(parts)

    def stop(self) -> None:
        """Jobs, then daemons, then what is left of them. Never raises."""
        if "slurmctld" in self.daemons:
            try:
                self.cancel_all()
            except Exception as error:  # what does not end in time is killed below
                print(f"jobs were left to the end of the cluster: {error}")
        for daemon in reversed(self.daemons.values()):
            _end(daemon, signal.SIGTERM)
        self.daemons.clear()
        for name, value in [(_OF_CLUSTER, str(self.root)), *(("SLURMD_NODENAME", name) for name in self.names)]:
            for pid in self._processes(name, value):
                _kill(pid)

    def _processes(self, name: str, value: str) -> list[int]:
        """Processes of this cluster, but this one and its daemons, whose environment has the variable."""
        ours = {os.getpid(), *(daemon.pid for daemon in self.daemons.values())}
        wanted = {f"SLURM_CONF={self.conf}".encode(), f"{name}={value}".encode()}
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in ours:
                continue
            try:
                entries = set((entry / "environ").read_bytes().split(b"\0"))
            except OSError:
                continue
            if wanted <= entries:
                found.append(int(entry.name))
        return found

    def _write(self) -> None:
        for name in ("munge", "state", "log", "spool", "dev"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        (self.root / "munge").chmod(0o711)
        host = socket.gethostname().partition(".")[0]
        ports = _free_ports(self.nodes + 1)
        lines = [
            NODE.format(name=name, host=host, port=port, cpus=self.cpus, memory_mb=self.memory_mb, gpus=self.gpus)
            for name, port in zip(self.names, ports[1:], strict=True)
        ]
        text = CONF.format(
            host=host,
            port=ports[0],
            user="root",
            root=self.root,
            kill_wait_s=self.kill_wait_s,
            min_job_age_s=self.min_job_age_s,
            extra=self.extra,
            nodes="\n".join(lines),
        )
        self.conf.write_text(text)
        (self.root / "cgroup.conf").write_text(CGROUP)
        self._write_gpus()

    def _write_gpus(self) -> None:
        """SLURM counts a GPU only where it finds a character device."""
        for number in range(self.gpus):
            device = self.root / "dev" / f"gpu{number}"
            if not device.exists():
                os.mknod(device, 0o020666, os.makedev(1, 3))  # another /dev/null
        which = f"gpu[0-{self.gpus - 1}]" if self.gpus > 1 else "gpu0"
        line = f"NodeName=n[1-{self.nodes}] Name=gpu Type=fake Flags=nvidia_gpu_env File={self.root}/dev/{which}\n"
        (self.root / "gres.conf").write_text(line if self.gpus else "")

    def _start_munge(self) -> None:
        folder = self.root / "munge"
        key = folder / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        parts = {"key-file": key, "socket": folder / "socket", "pid-file": folder / "pid", "seed-file": folder / "seed"}
        flags = [f"--{name}={path}" for name, path in parts.items()]
        self._daemon("munged", "munged", "--foreground", "--force", f"--log-file={folder}/log", *flags)
        self.wait_until((folder / "socket").exists, "munge", _UP_S, 0.02)

    def _daemon(self, name: str, program: str, *arguments: str, **environ: str) -> None:
        path = shutil.which(program, path=PATH)
        assert path is not None
        with (self.root / "log" / f"{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                [path, *arguments],
                env=_clean({**os.environ, **self.environ, _OF_CLUSTER: str(self.root), **environ}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.root,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def _all_up(self) -> bool:
        for name, daemon in self.daemons.items():
            if daemon.poll() is not None:
                raise RuntimeError(f"{name} ended with {daemon.returncode}{self.log_tail()}")
        return self._up(self.names)

    def _up(self, names: list[str]) -> bool:
        up = self.run("sinfo", "-h", "-N", "-p", "cpu", "-t", "idle,mixed,allocated", "-o", "%N %T", check=False)
        states = dict(line.split() for line in up.splitlines())
        return all(states.get(name) in ("idle", "mixed", "allocated") for name in names)  # `idle*` does not answer


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Daemons started inside a job of another cluster must not take its variables for their own."""
    return {key: value for key, value in environ.items() if not key.startswith("SLURM_") or key == "SLURM_CONF"}


def _die_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _end(daemon: subprocess.Popen[bytes], how: signal.Signals) -> None:
    daemon.send_signal(how)
    try:
        daemon.wait(_END_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    """Below the range from which the kernel gives ports to whoever connects."""
    found: list[int] = []
    start = 10_000 + os.getpid() * 101 % 15_000  # two clusters that start together look in different places
    for port in range(start, 32_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free ports below 32000")


def read_json(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text())
    assert isinstance(value, dict)
    return value
