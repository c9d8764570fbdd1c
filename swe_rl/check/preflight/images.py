"""Container images: which are not on this machine yet, and whether the registry will give that many.

Invariants:
- One listing answers for all images. An engine too slow to list is asked for the first 64 by name, and the finding
  says so.
- An image that cannot be had is an error before the run, not a reward of zero inside it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from swe_rl.check.findings import Finding, error, warning
from swe_rl.check.preflight.container_engine import Answering, EngineSilentError, connect, uses_engine
from swe_rl.check.preflight.image_names import absent_images, from_hub, needed_images
from swe_rl.check.preflight.system import AskedEngine, System, job_environment
from swe_rl.config.choices import PullPolicy
from swe_rl.config.schema import Config
from swe_rl.host.program import Unanswered

MAX_BY_NAME = 64
ANONYMOUS_PULLS = 100  # of Docker Hub, in six hours for one address
PERSONAL_PULLS = 200  # in six hours with a free account
_HUB_LOGIN = "index.docker.io"


@dataclass(frozen=True, slots=True)
class Look:
    """`asked` of `needed` images were looked for; `absent` are not here."""

    needed: list[str]
    asked: list[str]
    absent: list[str]

    @property
    def text(self) -> str:
        """`3 of 99 images are not on this machine: a, b, c`."""
        shown = ", ".join(self.absent[:3]) + (", ..." if len(self.absent) > 3 else "")
        partly = f" (only the first {len(self.asked)} were looked for)" if len(self.asked) < len(self.needed) else ""
        return f"{len(self.absent)} of {len(self.needed)} images are not on this machine{partly}: {shown}"


def ask(config: Config, system: System) -> Iterator[Finding]:
    if not uses_engine(config):
        return
    try:
        engine = connect(config, system)
    except EngineSilentError:
        return  # the engine's own probe says so
    needed = needed_images(config, system.read_text)
    if needed is None:
        yield warning(
            "preflight_unknown",
            "env.image_template",
            f"which images are needed is known only when {config.env.dataset} is read",
            "env.instances=FILE with one instance id a line",
        )
        return
    look = _look(engine.engine, needed)
    yield from _absent(config, look)
    if config.sandbox.pull is not PullPolicy.never:
        pulled = needed if config.sandbox.pull is PullPolicy.always else look.absent
        yield from _quota(config, system, engine, pulled)
        yield from _room(config, system, engine, look.absent)


def _look(engine: AskedEngine, needed: list[str]) -> Look:
    try:
        return Look(needed, needed, absent_images(needed, engine.images()))
    except Unanswered:
        asked = needed[:MAX_BY_NAME]
        return Look(needed, asked, [name for name in asked if not engine.has_image(name)])


def _absent(config: Config, look: Look) -> Iterator[Finding]:
    if not look.absent:
        return
    pull = config.sandbox.pull
    if pull is PullPolicy.never or not config.hardware.internet:
        why = "sandbox.pull=never forbids to pull them" if pull is PullPolicy.never else "hardware.internet=false"
        fix = _pull(config, look) + (
            ", or sandbox.pull=missing" if config.hardware.internet else ", from a mirror inside"
        )
        yield error("preflight_images", "sandbox.pull", f"{look.text}; {why}", fix)
    else:
        message = f"{look.text}; they are pulled while trajectories wait"
        yield warning("preflight_images", "sandbox.pull", message, _pull(config, look))


def _pull(config: Config, look: Look) -> str:
    return f"{config.sandbox.kind} pull {look.absent[0]}" + (", and so on" if len(look.absent) > 1 else "")


def _quota(config: Config, system: System, engine: Answering, pulled: list[str]) -> Iterator[Finding]:
    from_docker_hub = 0 if engine.mirrors else len(from_hub(pulled))
    login = _logged_in(config, system)
    quota = PERSONAL_PULLS if login else ANONYMOUS_PULLS
    if from_docker_hub > quota:
        who = "a free account" if login else "an anonymous user"
        mirror = "use a registry mirror, or pull them over several days"
        yield warning(
            "preflight_image_quota",
            "sandbox.pull",
            f"{from_docker_hub} images come from Docker Hub, which gives {who} {quota} in six hours",
            mirror if login else f"{config.sandbox.kind} login docker.io ({PERSONAL_PULLS} in six hours), or {mirror}",
        )


def _logged_in(config: Config, system: System) -> bool:
    """True if a login for Docker Hub, or a program that keeps logins, is in one of the engines' files."""
    environment = job_environment(config, system)
    home, runtime = environment.get("HOME", "~"), environment.get("XDG_RUNTIME_DIR", "/run")
    files = (
        environment.get("REGISTRY_AUTH_FILE"),
        f"{runtime}/containers/auth.json",
        f"{environment.get('DOCKER_CONFIG', f'{home}/.docker')}/config.json",
    )
    return any(_has_login(system.read_text(file)) for file in files if file)


def _has_login(text: str | None) -> bool:
    try:
        content = json.loads(text or "{}")
    except ValueError:
        return False
    if not isinstance(content, dict):
        return False
    servers = [*(content.get("auths") or ()), *(content.get("credHelpers") or ())]
    return bool(content.get("credsStore")) or any(_HUB_LOGIN in name or name == "docker.io" for name in servers)


def _room(config: Config, system: System, engine: Answering, absent: list[str]) -> Iterator[Finding]:
    needed_gb = len(absent) * config.env.image_gb
    if needed_gb == 0 or not engine.local or engine.root is None:
        return
    free_gb = system.disk_free_bytes(engine.root) / 1e9
    if needed_gb > free_gb:
        yield warning(
            "preflight_image_disk",
            "env.image_gb",
            f"{len(absent)} images to pull take up to {needed_gb:.0f} GB (less where they share layers); "
            f"{free_gb:.0f} GB are free in {engine.root}",
            f"{config.sandbox.kind} system prune, or env.instances=FILE with fewer instances",
        )
