"""Rules of files, names, addresses and accounts around a run.

Invariants:
- What is asked of this machine goes through the injected Host.
"""

import re
from collections.abc import Iterator
from ipaddress import ip_address

from swe_rl.config.findings import Finding, Host, error, warning
from swe_rl.config.schema import Config, SandboxKind, WandbMode
from swe_rl.config.secrets import is_secret_key

LARGEST_PORT = 65535


def files_exist(config: Config, host: Host) -> Iterator[Finding]:
    files = {"env.instances": config.env.instances}
    if config.env.dataset.endswith((".jsonl", ".json", ".parquet")):
        files["env.dataset"] = config.env.dataset
    for key, path in files.items():
        if path is not None and not host.file_exists(path):
            yield error(
                "file",
                key,
                path,
                "there is no such file (relative paths start where you start)",
                f"{key}=PATH of the file",
            )


def splits_differ(config: Config, _: Host) -> Iterator[Finding]:
    if config.env.split == config.env.eval_split:
        yield warning(
            "splits",
            "env.eval_split",
            config.env.eval_split,
            "the split that is trained on: its score says nothing about unseen instances",
            "env.eval_split=heldout",
        )


def run_name(config: Config, _: Host) -> Iterator[Finding]:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", config.name):
        yield error(
            "name", "name", config.name, "names a folder: letters, digits, '.', '_' and '-', no '/'", "name=my_run"
        )


def outputs_writable(config: Config, host: Host) -> Iterator[Finding]:
    if not host.folder_writable(config.paths.outputs):
        yield error(
            "outputs",
            "paths.outputs",
            config.paths.outputs,
            "cannot be made or written to by this user",
            "paths.outputs=FOLDER that you may write to",
        )


def resume(config: Config, host: Host) -> Iterator[Finding]:
    value = config.trainer.resume
    if value not in ("auto", "none") and not host.file_exists(f"{value.rstrip('/')}/status.json"):
        yield error(
            "resume",
            "trainer.resume",
            value,
            "is neither auto nor none, nor the folder of a run (no status.json there)",
            "trainer.resume=auto, or the path of a run's folder",
        )


def wandb(config: Config, host: Host) -> Iterator[Finding]:
    known = "WANDB_API_KEY" in host.environment or "WANDB_API_KEY" in config.hardware.env_vars
    if config.logger.wandb == WandbMode.online and not known and not host.file_exists("~/.netrc"):
        yield error(
            "wandb",
            "logger.wandb",
            "online",
            "WANDB_API_KEY is not set",
            "logger.wandb=offline, or export WANDB_API_KEY",
        )


def port(config: Config, _: Host) -> Iterator[Finding]:
    if not 0 <= config.gateway.port <= LARGEST_PORT:
        yield error(
            "port", "gateway.port", config.gateway.port, f"is 0 (any free port) to {LARGEST_PORT}", "gateway.port=0"
        )


def loopback(config: Config, _: Host) -> Iterator[Finding]:
    if not is_loopback(config.gateway.host):
        yield warning(
            "loopback",
            "gateway.host",
            config.gateway.host,
            "whoever reaches this address can use the engines; there is no login",
            "gateway.host=127.0.0.1",
        )


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def runtime_url(config: Config, _: Host) -> Iterator[Finding]:
    if config.sandbox.kind == SandboxKind.remote and not config.sandbox.runtime_url:
        yield error(
            "runtime_url",
            "sandbox.runtime_url",
            None,
            "sandbox.kind=remote needs the address of a sandbox server",
            "sandbox.runtime_url=http://HOST:PORT",
        )


def secrets_in_files(config: Config, host: Host) -> Iterator[Finding]:
    hidden = {value for name, value in host.environment.items() if is_secret_key(f"env_vars.{name}")}
    for name, value in config.hardware.env_vars.items():
        key = f"hardware.env_vars.{name}"
        if is_secret_key(key) and value not in hidden:
            yield warning(
                "secret_in_file",
                key,
                "***",
                "a secret is written in a file of conf/",
                f"{key}: ${{oc.env:{name}}} in that file, and export {name}",
            )


RULES = (
    files_exist,
    splits_differ,
    run_name,
    outputs_writable,
    resume,
    wandb,
    port,
    loopback,
    runtime_url,
    secrets_in_files,
)
