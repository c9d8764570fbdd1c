"""Rules of sandboxes check how many fit, where they run, and the set-up with two jobs.

Invariants:
- Nothing is asked of a server here; the preflight does that.
- Slots are counted on the machines that run the sandboxes: the runtime job's where there is one.
"""

import re
from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, error, error_if, is_below, rule_about, rule_between, warning
from swe_rl.check.rules.agent import PROGRAMS
from swe_rl.config.choices import Isolation, RolloutMode, RuntimeKind, RuntimeProtocol, SandboxKind
from swe_rl.config.parts import Part, started_parts
from swe_rl.config.schema import Config, SandboxConfig
from swe_rl.facts.concurrency import adapts_concurrency
from swe_rl.facts.sizes import holds_container, most_at_once, sandbox_slots, trajectories_per_step
from swe_rl.host.addresses import base_address, is_loopback
from swe_rl.host.bubblewrap import ABSENT, NEEDED, NEEDED_WAY_OUT, PROGRAM, WAY_OUT, does_not_work

CONTAINERS = ("docker", "podman", "apptainer", "process")
ENGINES = (SandboxKind.docker, SandboxKind.podman)
FOLDERS = ("bugs",)  # the instances of these environments are folders of this machine
# A run may be busy for so long (an update, a checkpoint), and would lose its sandboxes with a shorter lease.
SHORTEST_LEASE_S = 60.0
_DEFAULTS = SandboxConfig()
_ENGINE_KEYS = ("host", "warm_pool")  # only container engines read these
# Sandboxes of these services need keys of the environment. A key of `params` may name another variable.
_SERVICE_KEYS = {
    "e2b": {"key_env": "E2B_API_KEY"},
    "modal": {"id_env": "MODAL_TOKEN_ID", "secret_env": "MODAL_TOKEN_SECRET"},
}
# Sandboxes of others that ship read the sizes of theirs from these keys, but for those named here.
_UNREAD_OF_OTHERS = {
    "e2b": ("cpus", "memory_gb", "disk_gb"),  # A template has sizes of its own.
    "modal": ("disk_gb",),
    "swe_rex": ("disk_gb",),
}
_MOUNT = re.compile(r"/[^:]*:/[^:]*(:r[ow])?")


@rule_between(Part.sandboxes, Part.rollouts)
def check_slots(config: Config, _: Host) -> Iterator[Finding]:
    wanted = config.sandbox.concurrency
    if not holds_container(config) or config.runtime.kind == RuntimeKind.external:
        return
    if wanted > (there := sandbox_slots(config)):
        where = "hardware"
        if config.runtime.kind == RuntimeKind.job:
            where = "runtime"
        waves = -(-trajectories_per_step(config) // max(1, there))
        fix = f"smaller sandbox.cpus and sandbox.memory_gb, or more of {where}.*"
        if there:
            fix = f"sandbox.concurrency={there} (a step then takes {waves} waves)"
        yield error_if(where == "runtime")(
            "sandbox_slots",
            "sandbox.concurrency",
            f"{where}.* has room for {there} sandboxes of {config.sandbox.cpus:g} CPUs and "
            f"{config.sandbox.memory_gb:g} GB",
            fix,
        )


@rule_between(Part.sandboxes, Part.rollouts)
def check_places(config: Config, _: Host) -> Iterator[Finding]:
    under_way = most_at_once(config)
    sandboxes = config.sandbox.concurrency
    # It never grows beyond the sandboxes that there are.
    if adapts_concurrency(config):
        return
    used, gradings = (2 * under_way, " and gradings") if config.rollout.mode is RolloutMode.stream else (under_way, "")
    if holds_container(config) and under_way > sandboxes:
        yield warning(
            "sandbox_places",
            "rollout.concurrency",
            f"each trajectory holds a sandbox, and there are {sandboxes} (sandbox.concurrency): the others wait",
            f"rollout.concurrency={sandboxes}",
        )
    elif sandboxes > used:
        yield warning(
            "sandbox_places",
            "sandbox.concurrency",
            f"more sandboxes than trajectories{gradings} under way (rollout.concurrency={under_way}): some are "
            "never used",
            f"sandbox.concurrency={used}",
        )
    elif under_way >= 4 * sandboxes and (room := sandbox_slots(config)) >= 2 * sandboxes:
        yield warning(
            "sandbox_places",
            "sandbox.concurrency",
            f"{sandboxes} commands run at once for {under_way} trajectories (rollout.concurrency), though there is "
            f"room for {room}: trajectories wait for each other's commands",
            f"sandbox.concurrency={min(room, under_way)}",
        )


@rule_between(Part.sandboxes, Part.rollouts)
def runtime_url(config: Config, _: Host) -> Iterator[Finding]:
    url = config.sandbox.runtime_url
    kind = config.runtime.kind
    met = kind == RuntimeKind.job or (kind == RuntimeKind.external and config.runtime.shared_dir)
    if config.sandbox.kind == SandboxKind.remote and not url and not met:
        yield error(
            "runtime_url",
            "sandbox.runtime_url",
            "sandbox.kind=remote needs the address of a sandbox server",
            "sandbox.runtime_url=http://HOST:PORT, or runtime=job",
        )
    elif url and (kind == RuntimeKind.job or config.sandbox.kind != SandboxKind.remote):
        yield error(
            "runtime_url",
            "sandbox.runtime_url",
            f"contradicts runtime.kind={kind} sandbox.kind={config.sandbox.kind}: nothing would ask that server",
            "runtime=external, or leave sandbox.runtime_url out",
        )
    if kind != RuntimeKind.none and config.sandbox.kind != SandboxKind.remote:
        yield error(
            "runtime_kind",
            "runtime.kind",
            f"sandboxes would not be there: sandbox.kind={config.sandbox.kind}",
            "sandbox=remote, or runtime=none",
        )


@rule_about(Part.runtime)
def runtime_job(config: Config, host: Host) -> Iterator[Finding]:
    runtime = config.runtime
    hardware = config.hardware
    if runtime.kind != RuntimeKind.job:
        return
    if 0 < runtime.time_limit_min < hardware.time_limit_min:
        yield error(
            "runtime_time",
            "runtime.time_limit_min",
            f"the sandboxes would end before the training (hardware.time_limit_min={hardware.time_limit_min})",
            "runtime.time_limit_min=0, which follows hardware.time_limit_min",
        )
    if runtime.containers not in CONTAINERS:
        yield error(
            "runtime_containers",
            "runtime.containers",
            f"the sandbox server starts containers by {' or '.join(CONTAINERS)}",
            "runtime.containers=docker",
        )
    shared = runtime.shared_dir or config.paths.outputs
    if hardware.shared_paths and not is_below(host.absolute(shared), hardware.shared_paths):
        yield error(
            "runtime_shared",
            "runtime.shared_dir",
            f"the two jobs meet there, and not every node sees it "
            f"(hardware.shared_paths={list(hardware.shared_paths)})",
            f"runtime.shared_dir={hardware.shared_paths[0]}/...",
            value=shared,
        )
    elif not hardware.shared_paths and shared.startswith("/tmp") and (hardware.partition or runtime.partition):
        yield error(
            "runtime_shared",
            "runtime.shared_dir",
            "the two jobs meet there, and /tmp is each node's own",
            "runtime.shared_dir=FOLDER on a shared disk",
            value=shared,
        )


@rule_about(Part.runtime)
def runtime_times(config: Config, _: Host) -> Iterator[Finding]:
    """Refuses times with which a side that is merely slow would count as gone."""
    runtime = config.runtime
    if runtime.lease_s < 3 * runtime.heartbeat_s:
        yield error(
            "runtime_lease",
            "runtime.lease_s",
            f"must be three signs of life or more (runtime.heartbeat_s={runtime.heartbeat_s:g}): one may be late",
            f"runtime.lease_s={max(40.0, 8 * runtime.heartbeat_s):g}",
        )
    if runtime.node >= runtime.nodes:
        yield error(
            "runtime_node",
            "runtime.node",
            f"servers are counted from 0, and runtime.nodes={runtime.nodes}",
            f"runtime.node={runtime.nodes - 1}",
        )


@rule_between(Part.runtime, Part.rollouts)
def runtime_door(config: Config, _: Host) -> Iterator[Finding]:
    """Refuses programs inside a sandbox that cannot reach the gateway.

    They ask the model through a door to the gateway, which is on another machine here.
    """
    away = config.runtime.kind == RuntimeKind.job and config.hardware.partition is not None
    if away and config.agent.name in PROGRAMS and is_loopback(config.gateway.host):
        yield error(
            "runtime_door",
            "agent.name",
            "runs inside the sandbox and asks the gateway, which listens on the training's node only "
            f"(gateway.host={config.gateway.host}): it cannot be reached from the sandbox server's",
            "gateway.host=0.0.0.0, or agent=mini_swe or agent=bash, which ask from the training's node",
        )


@rule_between(Part.sandboxes, Part.rollouts)
def base_image(config: Config, _: Host) -> Iterator[Finding]:
    sandbox = config.sandbox
    if config.env.name not in FOLDERS or sandbox.kind in (SandboxKind.process, SandboxKind.custom):
        return
    if sandbox.kind == SandboxKind.remote:
        if sandbox.runtime_protocol == RuntimeProtocol.openhands:
            yield error(
                "sandbox_image",
                "sandbox.runtime_protocol",
                f"such a server starts images only, and the instances of env={config.env.name} are folders",
                "sandbox.runtime_protocol=swe_rl, or an env of images",
            )
        elif (
            config.runtime.kind == RuntimeKind.job and sandbox.image is None and config.runtime.containers != "process"
        ):
            yield error(
                "sandbox_image",
                "sandbox.image",
                f"the instances of env={config.env.name} are folders, and the sandbox server "
                f"(runtime.containers={config.runtime.containers}) needs an image to copy them into",
                "sandbox.image=IMAGE with bash, git and the Python of the tests, or runtime.containers=process",
            )
    elif sandbox.image is None:
        yield error(
            "sandbox_image",
            "sandbox.image",
            f"the instances of env={config.env.name} are folders, and sandbox.kind={sandbox.kind} needs an image to "
            "copy them into",
            "sandbox.image=IMAGE with bash, git and the Python of the tests, or sandbox=process",
        )


def isolates_commands(config: Config) -> bool:
    """Tells whether commands are processes that bubblewrap isolates where it works."""
    sandbox = config.sandbox
    here = config.runtime.kind is RuntimeKind.none and sandbox.kind is SandboxKind.process
    return here and sandbox.isolation is not Isolation.none and Part.sandboxes in started_parts(config)


def needs_isolation(config: Config) -> bool:
    """Tells whether a run is refused where bubblewrap does not work.

    Harbor's tasks have folders at places of their own.
    """
    return config.sandbox.isolation is Isolation.bubblewrap or config.env.name == "harbor"


@rule_about(Part.sandboxes)
def isolation_is_here(config: Config, host: Host) -> Iterator[Finding]:
    """Finds that bubblewrap is missing. The preflight finds whether it works as well."""
    if not isolates_commands(config) or not needs_isolation(config) or host.elsewhere or host.submitted:
        return
    if host.find_program(PROGRAM) is None:
        yield broken_isolation("isolation", config, ABSENT)


def broken_isolation(rule_id: str, config: Config, reason: str) -> Finding:
    if config.sandbox.isolation is Isolation.bubblewrap:
        return error(rule_id, "sandbox.isolation", does_not_work(reason), WAY_OUT)
    return error(rule_id, "env.name", f"{NEEDED} {does_not_work(reason)}", NEEDED_WAY_OUT)


@rule_about(Part.sandboxes)
def container_keys(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses keys of containers that cannot mean what they say."""
    sandbox = config.sandbox
    for mount in sandbox.mounts:
        if not _MOUNT.fullmatch(mount):
            yield error(
                "sandbox_mounts",
                "sandbox.mounts",
                "is not FOLDER:PATH or FOLDER:PATH:rw with absolute paths",
                "sandbox.mounts=[/data:/data]",
                value=mount,
            )
        elif sandbox.isolation is Isolation.none and sandbox.kind is SandboxKind.process and not _as_itself(mount):
            yield error(
                "sandbox_mounts",
                "sandbox.mounts",
                "sandbox.isolation=none lets commands see this machine's files where they are, and nowhere else",
                "sandbox.isolation=bubblewrap, or a folder mounted as itself: sandbox.mounts=[/data:/data]",
                value=mount,
            )
        elif sandbox.kind is SandboxKind.process and not (
            host.elsewhere or host.submitted or host.exists(mount.partition(":")[0])
        ):
            words = "there is no such folder on this machine, where commands run"
            yield error("sandbox_mounts", "sandbox.mounts", words, "sandbox.mounts=[FOLDER:PATH]", value=mount)
    if sandbox.host and not sandbox.host.startswith(("unix:///", "tcp://")):
        yield error(
            "sandbox_host",
            "sandbox.host",
            "an engine is spoken to by unix:///PATH or tcp://HOST:PORT",
            "ssh -L /tmp/engine.sock:/var/run/docker.sock HOST, and sandbox.host=unix:///tmp/engine.sock",
        )
    if sandbox.kind not in ENGINES:
        chosen = f"sandbox.kind={sandbox.kind}"
        if sandbox.kind is SandboxKind.custom:
            chosen = f"sandbox={sandbox.name}"
        for name in _list_unread(sandbox):
            if getattr(sandbox, name) != getattr(_DEFAULTS, name):
                fix = f"leave sandbox.{name} out, or sandbox=docker or sandbox=podman"
                yield warning("sandbox_unused", f"sandbox.{name}", f"nothing reads it with {chosen}", fix)
    elif sandbox.warm_pool > sandbox.concurrency:
        yield warning(
            "sandbox_warm_pool",
            "sandbox.warm_pool",
            f"keeps more containers of each image ready than may be used at once "
            f"(sandbox.concurrency={sandbox.concurrency})",
            f"sandbox.warm_pool={min(8, sandbox.concurrency)}",
        )


def _list_unread(sandbox: SandboxConfig) -> tuple[str, ...]:
    """Returns the keys that a kind of sandbox other than the engines' does not read."""
    if sandbox.kind is SandboxKind.process:
        return (*_ENGINE_KEYS, "image")
    if sandbox.kind is SandboxKind.custom:
        return (*_ENGINE_KEYS, *_UNREAD_OF_OTHERS.get(sandbox.name, ()))
    return (*_ENGINE_KEYS, "disk_gb")


def _as_itself(mount: str) -> bool:
    source, target, *_ = mount.split(":")
    return source == target


@rule_about(Part.sandboxes)
def check_lease(config: Config, _: Host) -> Iterator[Finding]:
    if holds_container(config) and config.sandbox.lease_s < SHORTEST_LEASE_S:
        yield error(
            "sandbox_lease",
            "sandbox.lease_s",
            f"a run that is busy for {SHORTEST_LEASE_S:g} s (an update, a checkpoint) would lose its sandboxes",
            "sandbox.lease_s=600; a run that dies loses them at once, whatever the lease",
        )


@rule_about(Part.sandboxes)
def runtime_address(config: Config, host: Host) -> Iterator[Finding]:
    sandbox = config.sandbox
    runtime = config.runtime
    if sandbox.kind == SandboxKind.remote and sandbox.runtime_url:
        try:
            base_address(sandbox.runtime_url)
        except ValueError as problem:
            fix = f"sandbox.runtime_url=http://HOST:PORT, and a key in {sandbox.runtime_key_env}"
            yield error("address", "sandbox.runtime_url", str(problem), fix)
    elif runtime.kind == RuntimeKind.external and runtime.shared_dir and not host.exists(runtime.shared_dir):
        yield error(
            "runtime_folder",
            "runtime.shared_dir",
            "is not there, so no job=runtime serves in it",
            "runtime.shared_dir=FOLDER of a job=runtime, or sandbox.runtime_url=http://HOST:PORT",
        )


@rule_about(Part.sandboxes)
def sandbox_services(config: Config, host: Host) -> Iterator[Finding]:
    """Finds what a service of others needs and this machine lacks, where the job runs here."""
    sandbox = config.sandbox
    if sandbox.mounts and sandbox.name in ("kubernetes", *_SERVICE_KEYS):
        words = f"folders of this machine are in no sandbox of sandbox={sandbox.name}"
        yield error("hosted_mounts", "sandbox.mounts", words, "sandbox.mounts=[], and an image with the programs")
    if host.elsewhere or host.submitted:
        return
    if sandbox.name == "kubernetes" and not _names_cluster(host):
        words = "sandbox=kubernetes needs a cluster: neither KUBECONFIG is set, nor is there a file ~/.kube/config"
        yield error(
            "kubernetes_cluster", "sandbox.name", words, "KUBECONFIG=FILE in the environment, or sandbox=process"
        )
    for parameter, usual in _SERVICE_KEYS.get(sandbox.name, {}).items():
        variable = str(sandbox.params.get(parameter, usual))
        if not host.environment.get(variable, "").strip():
            words = f"needs a key of the service, and {variable} is not in the environment"
            yield error("hosted_key", "sandbox.name", words, f"{variable}=KEY in the environment, or sandbox=process")


def _names_cluster(host: Host) -> bool:
    environment = host.environment
    default = f"{environment.get('HOME', '')}/.kube/config"
    named = "KUBECONFIG" in environment or "KUBERNETES_SERVICE_HOST" in environment
    return named or host.file_exists(default)
