"""Rules of `job=mine` check what it looks at and where it writes, before anything is fetched.

Invariants:
- Whether the package index knows a name is found out when the job asks it.
"""

import re
from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, error, rule_about
from swe_rl.config.choices import MinedTasks, SandboxKind
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
# A distribution's name, as PEP 508 has it.
_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?")
_ADDRESS = re.compile(r"\w+://|[\w.-]+@[\w.-]+:")


@rule_about(Part.mining)
def something_is_mined(config: Config, host: Host) -> Iterator[Finding]:
    mine = config.mine
    if [bool(mine.projects), mine.repository is not None, mine.lock is not None].count(True) != 1:
        words = "job=mine needs names of distributions, or one git repository, or a list of tasks, and only one of them"
        yield error("mining", "mine.projects", words, "mine.projects=[xmltodict]")
    if mine.repository is not None and mine.tasks is MinedTasks.bugs:
        words = "bugs are put into releases, and mine.repository has commits"
        yield error("mining", "mine.tasks", words, "mine.projects=[xmltodict]")
    is_file = mine.lock is not None and ("/" in mine.lock or mine.lock.endswith(".json"))
    if mine.lock is not None and is_file and not host.elsewhere and not host.file_exists(mine.lock):
        words = f"{mine.lock} does not exist (relative paths start where you start)"
        yield error("file", "mine.lock", words, "mine.lock=small, or a file that job=mine wrote")
    for name in mine.projects:
        if not _NAME.fullmatch(name):
            words = f"{name!r} is no name of a distribution; versions are found by job=mine"
            yield error("mining", "mine.projects", words, "mine.projects=[xmltodict]")
    folder = mine.repository or ""
    if folder and not host.elsewhere and not _ADDRESS.match(folder) and not host.exists(f"{folder}/.git"):
        words = f"{folder} is no git repository: it has no .git (relative paths start where you start)"
        yield error("file", "mine.repository", words, "mine.repository=FOLDER, or its address")
    if mine.since is not None and not _DATE.fullmatch(mine.since):
        yield error("mining", "mine.since", f"{mine.since} is no date", "mine.since=2025-06-30")


@rule_about(Part.mining)
def mined_rows_have_a_place(config: Config, _: Host) -> Iterator[Finding]:
    if config.env.name != "mined":
        words = f"env={config.env.name} is read from elsewhere; job=mine writes the file that env=mined reads"
        yield error("mining", "env.name", words, "env=mined")
    elif not config.env.dataset.endswith(".jsonl"):
        words = f"job=mine writes a file whose name ends with .jsonl, and {config.env.dataset} does not"
        yield error("mining", "env.dataset", words, "env.dataset=mined.jsonl")
    if config.sandbox.kind is not SandboxKind.process:
        words = f"job=mine builds folders and proves in processes; sandbox.kind={config.sandbox.kind} has images"
        yield error("mining", "sandbox.kind", words, "sandbox=process_swe")
