"""The environment of Harbor's task folders: graded in the sandbox in which the agent acted.

Invariants:
- There is no patch: what the files of the sandbox are is the answer.
- With sandbox=process a prepared folder stands for an image where that is honest; else the task is refused.
- A proof is of the whole task folder, whose hash is the base commit: any changed file makes it void.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

from swe_rl.config.choices import SandboxKind
from swe_rl.config.schema import EnvConfig
from swe_rl.env.harbor.task import Task, digest_of, read_task
from swe_rl.env.harbor.tree import SCRIPT, check_folder, gold_script, make_folder
from swe_rl.env.harbor.verdict import PLACES, TEST, grade_in
from swe_rl.env.instance import Instance, InstanceError
from swe_rl.env.proof.prove import last_words
from swe_rl.env.protocol import Grade, GradeError, Limits
from swe_rl.env.swe.dataset import Split
from swe_rl.env.swe.prepared import is_evaluated
from swe_rl.env.swe.proven import ProvenEnv
from swe_rl.env.swe.read import Read
from swe_rl.logger.disk import disk_error
from swe_rl.sandbox.protocol import Sandbox, SandboxProvider, Workspace

_GOLD = ".gold.sh"
_JUDGED_BY = "a verifier that gives a verdict without a solution"  # as older proofs do not say


class HarborEnv(ProvenEnv):
    """Tasks of `conf/env/harbor.yaml`; see the protocols Env and GradesInPlace."""

    def __init__(self, config: EnvConfig, cache: Path, sandbox: SandboxKind = SandboxKind.process) -> None:
        super().__init__(config, cache, sandbox, self._read_split, _JUDGED_BY)
        self._by_folder = sandbox is SandboxKind.process
        self._lock = threading.Lock()
        self._tasks: dict[str, Task] = {}

    def _load(self, split: str) -> tuple[list[Instance], int | None]:
        """Folders are read as they are: nothing of them is prepared."""
        read = self._read_split(self._config, split)
        return read.instances, read.split_rows

    def _read_split(self, config: EnvConfig, split: str) -> Read:
        folders = task_folders(config, split)
        chosen = folders[Split.parse(split).rows]
        instances = [self._instance(folder) for folder in chosen]
        return Read(instances, "folder", len(chosen), split_rows=len(folders))

    def _instance(self, folder: Path) -> Instance:
        task = read_task(folder)
        if self._by_folder:
            check_folder(task)
        self._tasks[task.name] = task
        return Instance(
            instance_id=task.name,
            repo=f"harbor/{task.name}",
            base_commit=digest_of(task.folder),
            problem_statement=task.instruction,
            patch=gold_script(task),
            test_patch="",
            fail_to_pass=(TEST,),
            pass_to_pass=(),
            image="" if self._by_folder else task.docker_image,
        )

    def workspace(self, instance: Instance) -> Workspace:
        """Raises InstanceError, DiskError."""
        task = self._tasks[instance.instance_id]
        if not self._by_folder:
            return Workspace(image=task.docker_image, workdir=task.workdir)
        folder = self._cache / "harbor" / f"{task.name}-{instance.base_commit[:12]}"
        with self._lock:
            if not folder.is_dir():
                try:
                    folder.parent.mkdir(parents=True, exist_ok=True)
                    make_folder(task, folder)
                except OSError as error:
                    raise disk_error(folder, error, key="paths.cache") from error
        return Workspace(path=folder, workdir=task.workdir, places=PLACES)

    def limits(self, instance: Instance) -> Limits:
        task = self._tasks[instance.instance_id]
        return Limits(agent_s=task.agent_timeout_s, grade_s=task.verifier_timeout_s)

    async def grade_in(self, instance: Instance, sandbox: Sandbox, timeout_s: float) -> Grade:
        """Raises GradeError, SandboxError."""
        return await grade_in(self._tasks[instance.instance_id], sandbox, timeout_s)

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """For proofs: where the solution alone acted, or nobody, for any other patch. Raises InstanceError without a
        solution, GradeError, SandboxError."""
        if not patch:
            raise InstanceError(f"{instance.instance_id} has no solution/solve.sh, so nothing can prove it")
        sandbox = await sandboxes.create(self.workspace(instance), owner=f"grade-{instance.instance_id}")
        limits = self.limits(instance)
        try:
            if patch.startswith(SCRIPT):
                await sandbox.write_file(_GOLD, patch.encode())
                done = await sandbox.exec(f"bash {_GOLD}", timeout_s=limits.agent_s)
                await sandbox.exec(f"rm -f {_GOLD}", timeout_s=timeout_s)
                if done.exit_code:
                    raise GradeError(f"its solution ends with status {done.exit_code}: {last_words(done.output)}")
            return await self.grade_in(instance, sandbox, min(timeout_s, limits.grade_s))
        finally:
            await sandbox.close()


def task_folders(config: EnvConfig, split: str) -> Sequence[Path]:
    """Those of a split, by their names: FOLDER/SPLIT/TASK, or FOLDER/TASK, which is the split train.

    Raises InstanceError.
    """
    evaluated = is_evaluated(config, split)
    key = "env.eval_dataset" if evaluated else "env.dataset"
    root = Path((config.eval_dataset if evaluated else None) or config.dataset)
    name = Split.parse(split).name
    below = root / name
    if not below.is_dir() and name == "train":
        below = root
    folders = [root] if (root / "task.toml").is_file() and name == "train" else _with_task(below)
    if not folders:
        raise InstanceError(
            f"{key}={root} has no task for the split {name!r}: a task is a folder with task.toml, below {root / name}, "
            f"or below {root} for the split train; to evaluate on what is there, env.eval_split=train"
        )
    return folders


def _with_task(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if (path / "task.toml").is_file())
