"""Offers Harbor's task folders, which are graded in the sandbox in which the agent acted.

Invariants:
- There is no patch: what the files of the sandbox are is the answer.
- With sandbox=process a prepared folder stands for an image where that is honest; else the task is refused.
- A proof is of the whole task folder, whose hash is the base commit: any changed file makes it void.
"""

import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from swe_rl.config.choices import SandboxKind
from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.find_rows import Split
from swe_rl.dataset.instance import Instance, InstanceError, check_id
from swe_rl.env.env import Grade, GradeError, InstanceLimits
from swe_rl.env.folder import WorkspaceFolders
from swe_rl.env.harbor.poison import poisonable
from swe_rl.env.harbor.task import HarborTask, digest_of, read_task
from swe_rl.env.harbor.tree import SCRIPT, check_folder, gold_script, make_folder
from swe_rl.env.harbor.verdict import PLACES, TEST, grade_in, grade_in_twice
from swe_rl.env.proof.prove import last_words
from swe_rl.env.swe.prepared import is_evaluated
from swe_rl.env.swe.proven import ProvenEnv
from swe_rl.env.swe.read import Read
from swe_rl.sandbox.sandbox import Sandbox, SandboxProvider, Workspace

# The solution's script has this name in the sandbox until it has run.
_GOLD = ".gold.sh"
# Older proofs do not say this, so they count no longer.
_JUDGED_BY = "a verifier that gives a verdict without a solution"


class HarborEnv(ProvenEnv):
    """Offers the tasks of `conf/env/harbor.yaml`. The protocols Env and GradesInPlace say what each method does."""

    def __init__(self, config: EnvConfig, cache: Path, sandbox: SandboxKind = SandboxKind.process) -> None:
        super().__init__(config, cache, sandbox, self._read_split, _JUDGED_BY)
        self._by_folder = sandbox is SandboxKind.process
        self._folders = WorkspaceFolders(self._cache / "harbor")
        self._tasks: dict[str, HarborTask] = {}
        # It maps a split to the names of its unusable tasks, with the reasons.
        self._unusable: dict[str, dict[str, str]] = {}
        # These map a task to names of tests. With the solution in place, the verifier of a task pays for the weak ones
        # although they expect something else, and not for the strong ones.
        self._weak: defaultdict[str, set[str]] = defaultdict(set)
        self._strong: defaultdict[str, set[str]] = defaultdict(set)
        self._rng = random.SystemRandom()

    def _load(self, split: str) -> tuple[list[Instance], int | None]:
        """Returns the tasks of a split, read from their folders: nothing of them is prepared. Raises InstanceError."""
        read = self._read_split(self._config, split)
        return read.instances, read.split_rows

    def _read_split(self, config: EnvConfig, split: str) -> Read:
        """Returns the tasks of a split. A task that cannot be used is left out with the reason.

        Raises InstanceError where no task can be used, and for an unusable one that env.instance_ids names.
        """
        folders = task_folders(config, split)
        chosen = folders[Split.parse(split).rows]
        instances: list[Instance] = []
        unusable: dict[str, str] = {}
        for folder in chosen:
            try:
                instances.append(self._instance(folder))
            except InstanceError as error:
                unusable[folder.name] = str(error)
        asked = [reason for name, reason in unusable.items() if name in (self._config.instance_ids or ())]
        if asked:
            raise InstanceError(asked[0])
        if unusable and not instances:
            more = f" {len(unusable) - 1} more tasks cannot be used either." if len(unusable) > 1 else ""
            raise InstanceError(next(iter(unusable.values())) + more)
        self._unusable[split] = unusable
        dropped = {reason: [name] for name, reason in unusable.items()}
        return Read(instances, "folder", len(chosen), dropped, split_rows=len(folders))

    def unusable(self, split: str) -> Mapping[str, str]:
        if split not in self._unusable:
            self.chosen(split)
        return self._unusable[split]

    def _usable(self, split: str) -> tuple[Sequence[Instance], Mapping[str, str], int | None]:
        """Returns the usable tasks, and names what cannot be used beside what is not proven.

        Raises InstanceError as for other data sets.
        """
        instances, not_proven, rows = super()._usable(split)
        return instances, {**self.unusable(split), **not_proven}, rows

    def _instance(self, folder: Path) -> Instance:
        """Returns the instance of a task's folder. Raises InstanceError for a task that cannot be used."""
        check_id(folder.name, str(folder))
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
        """Returns the image, or the prepared folder, that a sandbox starts from. Raises InstanceError, DiskError."""
        task = self._tasks[instance.instance_id]
        if not self._by_folder:
            return Workspace(image=task.docker_image, workdir=task.workdir)
        folder = self._folders.find(instance, lambda folder: make_folder(task, folder))
        return Workspace(path=folder, workdir=task.workdir, places=PLACES)

    def limits(self, instance: Instance) -> InstanceLimits:
        task = self._tasks[instance.instance_id]
        return InstanceLimits(agent_s=task.agent_timeout_s, grade_s=task.verifier_timeout_s)

    async def grade_in(self, instance: Instance, sandbox: Sandbox, timeout_s: float) -> Grade:
        """Returns the verifier's verdict on the sandbox.

        The session of a verifier that would pay also says whether it pays for tests that have to fail. Raises
        GradeError, SandboxError.
        """
        task = self._tasks[instance.instance_id]
        if not instance.patch:  # without a solution a second run convicts nobody
            return await grade_in(task, sandbox, timeout_s)
        names = set(poisonable(task.folder / "tests")) - self._weak[task.name]
        return await grade_in_twice(task, sandbox, timeout_s, names, self._rng)

    async def failing_with_fix(
        self, instance: Instance, names: Collection[str], sandboxes: SandboxProvider, timeout_s: float
    ) -> frozenset[str]:
        strong = self._strong[instance.instance_id]
        weak = self._weak[instance.instance_id]
        for name in sorted(set(names) - strong - weak):
            session = (await self._graded(instance, instance.patch, sandboxes, timeout_s, {name})).session
            strong |= session.twinned - session.passed_twins
            weak |= session.passed_twins
        return frozenset(names) & strong

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Returns the verdict that a proof needs.

        For the gold patch it is on a sandbox in which the solution alone acted; for any other patch it is on one in
        which nobody acted. Raises InstanceError without a solution, GradeError, SandboxError.
        """
        if not patch:
            raise InstanceError(f"{instance.instance_id} has no solution/solve.sh, so nothing can prove it")
        names = poisonable(self._tasks[instance.instance_id].folder / "tests")
        return await self._graded(instance, patch, sandboxes, timeout_s, names)

    async def _graded(
        self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float, names: Collection[str]
    ) -> Grade:
        """Returns the verdict of `grade`, whose second run has one of `names` expect something else."""
        task = self._tasks[instance.instance_id]
        sandbox = await sandboxes.create(self.workspace(instance), owner=f"grade-{instance.instance_id}")
        limits = self.limits(instance)
        try:
            if patch.startswith(SCRIPT):
                await sandbox.write_file(_GOLD, patch.encode())
                done = await sandbox.exec(f"bash {_GOLD}", timeout_s=limits.agent_s)
                await sandbox.exec(f"rm -f {_GOLD}", timeout_s=timeout_s)
                if done.exit_code:
                    raise GradeError(f"its solution ends with status {done.exit_code}: {last_words(done.output)}")
            return await grade_in_twice(task, sandbox, min(timeout_s, limits.grade_s), names, self._rng)
        finally:
            await sandbox.close()


def task_folders(config: EnvConfig, split: str) -> Sequence[Path]:
    """Returns the task folders of a split, by their names.

    A task is FOLDER/SPLIT/TASK, or FOLDER/TASK in the split train. Raises InstanceError.
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
