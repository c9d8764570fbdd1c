"""`job=new` writes a package of your own to begin with, `job.kind=agent job.output=my_agent`, after that of examples/.

With `job.kind=package` the package has an agent, an environment, a reward, advantages and a loss, and an experiment
that chooses all of them. With `job.kind=task` it writes a record of a change of your own repository, as one line of a
file for `env=jsonl`. With `job.kind=tiny_model` it writes a small random model that has the architecture, the tokenizer
and the chat template of `model.path`, for runs on a laptop.

Invariants:
- What is written works as it is: its own test passes, and a run uses it.
- A folder that is there already is left alone, and so are the lines of a file; none is written twice.
"""

import json
import keyword
import re
import shlex
import sys
from pathlib import Path

from swe_rl.config.folders import examples_dir
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.dataset.instance import Instance, Source
from swe_rl.dataset.records import read_rows
from swe_rl.env.commits import CommitChange, instance_of
from swe_rl.env.patch_files import split_patch
from swe_rl.env.source_build.repository import clone_at, is_address
from swe_rl.env.swe.env import sources_folder
from swe_rl.errors import UserError
from swe_rl.extension.code import is_taken
from swe_rl.files.disk import write_text_atomic
from swe_rl.host.packages import python_command
from swe_rl.run.components import cache_folder

# The commit 12e4567, and 3.10 and 3.20 become these.
_NUMBERS = ("inf", "3.1", "3.2")


class NewError(UserError):
    """There is no folder to write into, or no name to write."""


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    """Writes it. Raises NewError; for a task InstanceError, BuildError, DiskError."""
    del folder, origins
    if config.job.kind == "task":
        return _write_task(config)
    if config.job.kind == "tiny_model":
        return _write_tiny_model(config)
    kind = str(config.job.kind)
    target = Path(config.job.output or f"my_{kind}").absolute()
    name = target.name
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise NewError(f"job.output={target}: its last part names a Python package: write it as my_{kind}.")
    if target.exists():
        raise NewError(f"job.output={target} is there already; name a new folder.")
    try:
        _write_package(target, kind, name)
    except OSError as error:
        raise NewError(f"job.output={target} cannot be written: {error}. Name a folder that can be made.") from error
    print(_next_steps(target, kind, name), flush=True)
    return 0


def _write_package(target: Path, kind: str, name: str) -> None:
    """Writes the files of a package. Raises OSError."""
    source = examples_dir() / kind
    for path in sorted(source.rglob("*")):
        if path.is_file() and all(map(is_taken, path.relative_to(source).parts)):
            file = target / _rename_package(str(path.relative_to(source)), kind, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_rename_package(path.read_text(encoding="utf-8"), kind, name), encoding="utf-8")


def _write_task(config: Config) -> int:
    """Writes one line more into the file of records."""
    job = config.job
    target = Path(config.job.output or "instances.jsonl").absolute()
    if job.commits is None:
        raise NewError(
            "job.commits is not set: name the change that becomes a task, job.commits=BASE..HEAD, or one commit, as "
            "that of a merged pull request: job.commits=4f2a91c."
        )
    for key, value in (("commits", job.commits), ("python", job.python)):
        if value in _NUMBERS:
            raise NewError(
                f"job.{key}={value} was read as a number: write it with two pairs of quotes: \"job.{key}='...'\"."
            )
    if target.suffix != ".jsonl" or target.is_dir():
        raise NewError(f"job.output={target} must be a file whose name ends with .jsonl: one record a line.")
    python = job.python or f"{sys.version_info.major}.{sys.version_info.minor}"
    words = {"python": python, "setup": job.setup, "test_command": job.test_command, "packages": list(job.packages)}
    repository, origin = _find_repository(config)
    source = Source.from_record({"tree": origin, **words}, "job.kind=task")
    change = CommitChange.of(repository, origin, job.commits)
    task = instance_of(change, _read_statement(job.statement), source, job.tests)
    if target.exists() and any(row.record.get("instance_id") == task.instance_id for row in read_rows(target)):
        raise NewError(f"{target} has {task.instance_id} already; remove its line, or name another file: job.output.")
    lines = ""
    if target.exists():
        lines = target.read_text(encoding="utf-8").rstrip("\n") + "\n"
    write_text_atomic(target, lines.lstrip("\n") + json.dumps(task.to_record(), sort_keys=True) + "\n")
    print(_after_task(task, target), flush=True)
    return 0


def _write_tiny_model(config: Config) -> int:
    """Writes the folder of a model."""
    from swe_rl.model.twin import write_twin

    target = Path(config.job.output or "tiny_model").absolute()
    if target.exists():
        raise NewError(f"job.output={target} is there already; name a new folder.")
    parameters = write_twin(config.model, target)
    use = f"python -m swe_rl model=folder model.path={shlex.quote(str(target))} engine=embedded layout=local"
    print(
        f"{target}: a random model of {parameters:,} parameters, after {config.model.path}\nuse it: {use}", flush=True
    )
    return 0


def _find_repository(config: Config) -> tuple[Path, str]:
    """Returns where git finds the repository, and what the record says. Raises NewError, BuildError."""
    name = config.job.repository
    if is_address(name):
        # It refuses what a record may not hold.
        Source.from_record({"tree": name, "python": "3.9"}, "job.repository")
        cache = sources_folder(cache_folder(config) / "workspaces") / "sdists"
        return clone_at(name, "", cache), name
    path = Path(name).resolve()
    if not (path / ".git").exists():
        raise NewError(
            f"job.repository={name} is no git repository ({path} has no .git): name its top folder, or its address, as "
            "https://HOST/OWNER/NAME.git."
        )
    return path, str(path)


def _read_statement(file: str | None) -> str:
    """Returns the statement. Raises NewError."""
    if file is None:
        return ""
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NewError(f"job.statement={file} cannot be read as UTF-8 text: {error}.") from error


def _after_task(task: Instance, target: Path) -> str:
    fixing, judging = (len(split_patch(patch)) for patch in (task.patch, task.test_patch))
    use = f"python -m swe_rl job=prepare env=jsonl env.dataset={shlex.quote(str(target))} sandbox=process_swe"
    return "\n".join(
        [
            f"{task.instance_id}: {fixing} files of the fix, {judging} of its tests, base {task.base_commit[:12]}",
            f"written:    {target}",
            f"measure it: {use}",
        ]
    )


def _rename_package(text: str, kind: str, name: str) -> str:
    """Returns the text with the package's own names for `my_agent` and `MyAgent`."""
    camel = "".join(part.capitalize() for part in name.split("_"))
    return re.sub(rf"\bMy{kind.capitalize()}(?![a-z0-9])", camel, re.sub(rf"my_{kind}(?![a-z0-9])", name, text))


def _next_steps(target: Path, kind: str, name: str) -> str:
    python = python_command()
    choice = f"{kind}={name}"
    yours = f"{name}.py is"
    if kind == "package":
        choice = f"+experiment={name}"
        yours = f"the classes in {name}/ are"
    chosen = f"--config-dir {target}/conf job.code=[{target}] {choice}"
    return "\n".join(
        [
            f"{target}: {yours} yours to change; README.md has every command.",
            f"test it:  {python} -m pytest {target}",
            f"check it: {python} -m swe_rl {chosen} job=check",
        ]
    )
