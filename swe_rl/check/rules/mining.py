"""Rules of `job=mine` check what it looks at and where it writes, before anything is fetched.

Invariants:
- Whether the package index knows a name is found out when the job asks it.
"""

import re
from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, error, rule_about
from swe_rl.config.choices import MinedTasks, SandboxKind
from swe_rl.config.keys import nearest_words
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config
from swe_rl.dataset.mined_lists import is_list_path, shipped_lists

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
# A distribution's name, as PEP 508 has it.
_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?")
_ADDRESS = re.compile(r"\w+://|[\w.-]+@[\w.-]+:")


@rule_about(Part.mining)
def something_is_mined(config: Config, host: Host) -> Iterator[Finding]:
    mine = config.mine
    is_of_releases = bool(mine.projects) or mine.lock is not None
    if is_of_releases == (mine.repository is not None):
        fix = "mine.projects=[xmltodict]"
        if is_of_releases:
            fix = "leave mine.repository out"
        words = "job=mine needs names of distributions or a list of tasks, or in their place one git repository"
        yield error("mining", "mine.projects", words, fix)
    if mine.repository is not None and mine.tasks is MinedTasks.bugs:
        words = "bugs are put into releases, and mine.repository has commits"
        yield error("mining", "mine.tasks", words, "mine.repository=null mine.projects=[xmltodict]")
    if mine.lock is not None:
        yield from _finds_list(mine.lock, host)
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


def _finds_list(name: str, host: Host) -> Iterator[Finding]:
    """Yields an error where `mine.lock` names neither a file nor a list that ships with swe_rl."""
    if is_list_path(name):
        if not host.elsewhere and not host.file_exists(name):
            words = f"{name} does not exist (relative paths start where you start)"
            yield error("file", "mine.lock", words, "mine.lock=small, or a file that job=mine wrote")
        return
    shipped = shipped_lists()
    if name not in shipped:
        words = f"no list called {name} ships with swe_rl, and a file's name ends with .json"
        nearest = nearest_words(name, shipped, count=1) or shipped[:1]
        yield error("unknown_name", "mine.lock", words, f"mine.lock={nearest[0]}, or a file that job=mine wrote")


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
