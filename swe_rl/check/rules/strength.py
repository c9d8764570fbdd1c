"""Rules of the strength of tests check what env.min_strength needs before a job starts.

Invariants:
- Whether anything was measured is decided from the file of proofs alone. Which instances are too weak is known when
  they are read.
"""

from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, error, rule_about
from swe_rl.config.choices import ExtensionKind
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config
from swe_rl.extension.find import is_foreign

# They have no gold patch, or no proofs.
_UNMEASURED_ENVS = ("kodcode", "humaneval", "harbor", "nemo_gym", "openenv", "verifiers")


@rule_about(Part.steps, Part.evaluation)
def strength_is_measured(config: Config, host: Host) -> Iterator[Finding]:
    if config.env.min_strength <= 0.0:
        return
    if config.env.name in _UNMEASURED_ENVS or is_foreign(config, ExtensionKind.env):
        words = f"job=validate does not measure the tests of env={config.env.name}: nothing would be left"
        yield error("strength", "env.min_strength", words, "env.min_strength=0")
        return
    if host.elsewhere:
        return  # the file is on another machine
    path = _proofs_path(config, host)
    if '"strength"' not in (host.read_text(path) or ""):
        words = f"no instance's tests were measured ({path} says nothing of them): nothing would be left"
        yield error(
            "strength", "env.min_strength", words, "the same command with job=validate first, or env.min_strength=0"
        )


@rule_about(Part.data)
def siblings_are_there(config: Config, host: Host) -> Iterator[Finding]:
    folder = config.env.siblings
    if folder and (not host.exists(folder) or host.file_exists(folder)):
        words = "is no folder (relative paths start where you start)"
        yield error("file", "env.siblings", words, "env.siblings=FOLDER of an earlier run, or of several")


def _proofs_path(config: Config, host: Host) -> str:
    """Returns the file that the job reads. Tests hold it together with `env/proof/record.book_path`."""
    if config.env.proofs:
        return config.env.proofs
    caches = host.environment.get("XDG_CACHE_HOME") or f"{host.environment.get('HOME', '~')}/.cache"
    return f"{config.paths.cache or f'{caches}/swe_rl'}/workspaces/proofs.jsonl"
