"""Weights & Biases: a key is there, and its server answers.

Invariants:
- The key is looked for, never read into a finding and never sent.
"""

import re
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from swe_rl.check.findings import Finding, error
from swe_rl.check.preflight.system import Question, System, job_environment
from swe_rl.config.choices import WandbMode
from swe_rl.config.schema import Config
from swe_rl.host.program import Unanswered

API = "https://api.wandb.ai"


def ask(config: Config, system: System) -> Iterator[Finding]:
    if config.logger.wandb is not WandbMode.online:
        return
    environment = job_environment(config, system)
    url = environment.get("WANDB_BASE_URL", API)
    host = urlsplit(url).hostname or url
    if not environment.get("WANDB_API_KEY") and not _in_netrc(host, environment, system):
        yield error(
            "preflight_wandb",
            "logger.wandb",
            config.logger.wandb,
            f"there is no key: WANDB_API_KEY is not set, and ~/.netrc has no entry for {host}",
            "wandb login, or logger.wandb=offline",
        )
    try:
        system.http(Question(url, method="HEAD"))
    except Unanswered as reason:
        yield error(
            "preflight_wandb",
            "logger.wandb",
            config.logger.wandb,
            f"{host} cannot be reached from here: {reason}",
            "logger.wandb=offline, and `wandb sync` afterwards",
        )


def _in_netrc(host: str, environment: Mapping[str, str], system: System) -> bool:
    path = environment.get("NETRC") or f"{environment.get('HOME', '~')}/.netrc"
    return bool(re.search(rf"(?m)^[^#\n]*\bmachine\s+{re.escape(host)}\s", f"{system.read_text(path) or ''}\n"))
