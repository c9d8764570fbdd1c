"""The container engine: reachable, large enough, and able to limit what runs in it."""

from dataclasses import replace

import pytest

from swe_rl.check.findings import Severity
from swe_rl.check.preflight import container_engine
from swe_rl.config.choices import RuntimeKind, SandboxKind
from swe_rl.config.schema import Config
from swe_rl.host.program import Completed
from tests.support.scripted_machine import ScriptedEngine, ScriptedSystem

SOCKET = "/var/run/docker.sock"
PODMANS = "/run/podman/podman.sock"
DOCKER = SandboxKind.docker
PODMAN = SandboxKind.podman
FACTS = {"DockerRootDir": "/data", "MemoryLimit": True, "PidsLimit": True, "CpuCfsQuota": True}
ROOTLESS = {**FACTS, "SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]}


def configured(**groups):
    base = Config()
    return replace(base, **{name: replace(getattr(base, name), **fields) for name, fields in groups.items()})


def system(facts=FACTS, socket=SOCKET, **options):
    engines = {f"unix://{socket}": ScriptedEngine(facts)}
    return ScriptedSystem(engines=engines, **options)


def rules(probe, config, machine):
    return [(one.rule_id, one.severity) for one in probe.probe_container_engine(config, machine)]


def only(probe, config, machine):
    (found,) = list(probe.probe_container_engine(config, machine))
    return found


def test_an_engine_that_answers_has_nothing_to_say():
    assert rules(container_engine, configured(sandbox={"kind": DOCKER}), system()) == []


@pytest.mark.parametrize("kind", [DOCKER, PODMAN])
def test_an_engine_that_does_not_answer_is_an_error(kind):
    found = only(container_engine, configured(sandbox={"kind": kind}), ScriptedSystem())
    assert (found.severity, found.rule_id, found.key) == (Severity.error, "preflight_engine", "sandbox.kind")
    assert "no engine's socket at" in found.message and ".sock" in found.message
    assert "podman system service" in found.fix if kind is PODMAN else "systemctl start docker" in found.fix


@pytest.mark.parametrize("environment", [{}, {"DOCKER_HOST": f"unix://{SOCKET}"}])
def test_a_socket_of_somebody_else_asks_for_the_group(environment):
    machine = ScriptedSystem(environment, engines={f"unix://{SOCKET}": ScriptedEngine(silent="permission denied")})
    assert "usermod -aG docker" in only(container_engine, configured(sandbox={"kind": DOCKER}), machine).fix


def test_an_address_that_was_given_is_the_only_one_tried():
    machine = system(environment={"DOCKER_HOST": "unix:///elsewhere.sock"})
    found = only(container_engine, configured(sandbox={"kind": DOCKER}), machine)
    assert machine.asked == ["unix:///elsewhere.sock"]
    assert "unix:///elsewhere.sock: connection refused" in found.message and "unset DOCKER_HOST" in found.fix


def test_the_address_may_come_from_the_configuration_and_be_remote():
    config = configured(sandbox={"kind": DOCKER}, hardware={"env_vars": {"DOCKER_HOST": "tcp://node7:2375"}})
    machine = ScriptedSystem(engines={"tcp://node7:2375": ScriptedEngine(FACTS)}, free_gb=0.0)
    assert rules(container_engine, config, machine) == []  # the disk is not this machine's


@pytest.mark.parametrize(
    "environment", [{"DOCKER_HOST": "tcp://node7:2376", "DOCKER_TLS_VERIFY": "1"}, {"DOCKER_HOST": "ssh://node7"}]
)
def test_an_address_that_the_run_refuses_is_refused_here(environment):
    found = only(container_engine, configured(sandbox={"kind": DOCKER}), ScriptedSystem(environment))
    assert found.severity is Severity.error and "ssh -L" in found.message


def test_podman_is_found_where_its_user_service_listens():
    machine = system(socket="/run/user/7/podman/podman.sock", environment={"XDG_RUNTIME_DIR": "/run/user/7"})
    assert rules(container_engine, configured(sandbox={"kind": PODMAN}), machine) == []


@pytest.mark.parametrize(
    ("subuid", "bad"),
    [
        ("", 2),
        ("ann:100000:65536", 0),
        ("ann:100000:1000\nann:200000:64536", 0),
        ("ann:100000:65535", 2),
        ("bob:100000:65536", 2),
        ("1000:100000:65536", 0),
        ("# ann\nann:x:y", 2),
    ],
)
def test_rootless_containers_need_subordinate_ids(subuid, bad):
    machine = system(ROOTLESS, files={"/etc/subuid": subuid, "/etc/subgid": subuid})
    found = list(container_engine.probe_container_engine(configured(sandbox={"kind": DOCKER}), machine))
    assert [one.rule_id for one in found] == ["preflight_subuid"] * bad
    assert all("usermod --add-sub" in one.fix and one.severity is Severity.error for one in found)


def test_podman_tells_in_other_words_that_it_is_rootless():
    config, machine = configured(sandbox={"kind": PODMAN}), system({**FACTS, "Rootless": True}, PODMANS)
    assert rules(container_engine, config, machine) == [("preflight_subuid", Severity.error)] * 2


@pytest.mark.parametrize(
    "options", [{"user": ("root", 0)}, {"files": {"/etc/nsswitch.conf": "passwd: files\nsubid: sss\n"}}]
)
def test_root_and_directory_services_need_no_file_of_ids(options):
    assert rules(container_engine, configured(sandbox={"kind": DOCKER}), system(ROOTLESS, **options)) == []


def test_a_full_disk_of_the_engine_is_a_warning():
    found = only(container_engine, configured(sandbox={"kind": DOCKER}), system(free_gb=9.9))
    assert (found.rule_id, found.severity) == ("preflight_engine_disk", Severity.warning)
    assert "9.9 GB are free in /data" in found.message


def test_limits_that_the_engine_cannot_enforce_are_named():
    found = only(container_engine, configured(sandbox={"kind": DOCKER}), system({**FACTS, "MemoryLimit": False}))
    assert found.rule_id == "preflight_engine_limits"
    assert "memory" in found.message and "processes" not in found.message


@pytest.mark.parametrize(
    ("facts", "limited"),
    [
        ({"Rootless": True, "CgroupVersion": "1"}, False),
        ({"Rootless": True, "CgroupVersion": "2"}, True),
        ({"Rootless": False, "CgroupVersion": "1"}, True),
    ],
)
def test_a_rootless_engine_has_limits_with_control_groups_2_only(facts, limited):
    machine = system({**FACTS, **facts}, user=("root", 0))
    expected = [] if limited else [("preflight_engine_limits", Severity.warning)]
    assert rules(container_engine, configured(sandbox={"kind": DOCKER}), machine) == expected


def test_apptainer_is_a_program():
    config = configured(sandbox={"kind": SandboxKind.apptainer})
    assert rules(container_engine, config, ScriptedSystem()) == [("preflight_engine", Severity.error)]
    assert rules(container_engine, config, ScriptedSystem(programs={"singularity": Completed(0, "")})) == []


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        configured(sandbox={"kind": SandboxKind.remote}),
        configured(sandbox={"kind": DOCKER}, runtime={"kind": RuntimeKind.external}),
    ],
)
def test_no_engine_is_asked_where_none_is_used(config):
    machine = ScriptedSystem()
    assert rules(container_engine, config, machine) == []
    assert machine.asked == []
