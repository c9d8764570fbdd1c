"""The container engine and its images: reachable, large enough, and nothing missing that cannot be had."""

import json
from dataclasses import replace

import pytest

from swe_rl.check.findings import Severity
from swe_rl.check.preflight import container_engine, images
from swe_rl.check.preflight.image_names import absent_images, from_hub, full_name, image_of, needed_images
from swe_rl.config.choices import PullPolicy, RuntimeKind, SandboxKind
from swe_rl.config.schema import Config
from swe_rl.host.program import Completed
from tests.support.scripted_machine import ScriptedEngine, ScriptedSystem

SOCKET = "/var/run/docker.sock"
PODMANS = "/run/podman/podman.sock"
DOCKER = SandboxKind.docker
PODMAN = SandboxKind.podman
FACTS = {"DockerRootDir": "/data", "MemoryLimit": True, "PidsLimit": True, "CpuCfsQuota": True}
ROOTLESS = {**FACTS, "SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]}
TEMPLATE = "docker.io/swebench/x.{instance_id_1776}:latest"


def configured(**groups):
    base = Config()
    return replace(base, **{name: replace(getattr(base, name), **fields) for name, fields in groups.items()})


def system(facts=FACTS, local=(), socket=SOCKET, slow="", **options):
    engines = {f"unix://{socket}": ScriptedEngine(facts, frozenset(local), slow=slow)}
    return ScriptedSystem(engines=engines, **options)


def rules(probe, config, machine):
    return [(one.rule_id, one.severity) for one in probe.ask(config, machine)]


def only(probe, config, machine):
    (found,) = list(probe.ask(config, machine))
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
    found = list(container_engine.ask(configured(sandbox={"kind": DOCKER}), machine))
    assert [one.rule_id for one in found] == ["preflight_subuid"] * bad
    assert all("usermod --add-sub" in one.fix and one.severity is Severity.error for one in found)


def test_podman_tells_in_other_words_that_it_is_rootless():
    config, machine = configured(sandbox={"kind": PODMAN}), system({**FACTS, "Rootless": True}, (), PODMANS)
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
@pytest.mark.parametrize("probe", [container_engine, images])
def test_no_engine_is_asked_where_none_is_used(probe, config):
    machine = ScriptedSystem()
    assert rules(probe, config, machine) == []
    assert machine.asked == []


# Images


def listed(count, pull=PullPolicy.missing, **groups):
    """A configuration with `count` instances in a file, and that file."""
    files = {"ids.txt": "".join(f"a__b-{number}\n" for number in range(count))}
    env = {"image_template": TEMPLATE, "instances": "ids.txt", **groups.pop("env", {})}
    return configured(sandbox={"kind": DOCKER, "pull": pull}, env=env, **groups), files


def names(count):
    return [f"swebench/x.a_1776_b-{number}:latest" for number in range(count)]


@pytest.mark.parametrize("pull", [PullPolicy.missing, PullPolicy.never])
def test_images_that_are_here_are_no_finding(pull):
    config, files = listed(5, pull)
    assert rules(images, config, system(local=names(5), files=files)) == []


def test_absent_images_are_counted_and_the_first_named():
    config, files = listed(9)
    found = only(images, config, system(local=names(2), files=files))
    assert (found.rule_id, found.severity) == ("preflight_images", Severity.warning)
    assert "7 of 9" in found.message and "a_1776_b-4" in found.message and "a_1776_b-5" not in found.message
    assert found.fix.startswith("docker pull docker.io/swebench/x.a_1776_b-2:latest")


@pytest.mark.parametrize(
    ("pull", "internet", "way_out"),
    [(PullPolicy.never, True, "sandbox.pull=missing"), (PullPolicy.missing, False, "mirror")],
)
def test_absent_images_that_cannot_be_pulled_are_an_error(pull, internet, way_out):
    config, files = listed(3, pull, hardware={"internet": internet})
    found = only(images, config, system(local=names(2), files=files))
    assert (found.rule_id, found.severity) == ("preflight_images", Severity.error)
    assert "1 of 3" in found.message and way_out in found.fix


LOGIN = json.dumps({"auths": {"https://index.docker.io/v1/": {"auth": "aaaa"}}})


@pytest.mark.parametrize(
    ("count", "login", "warned"),
    [(100, None, False), (101, None, True), (200, LOGIN, False), (201, LOGIN, True), (101, "{broken", True)],
)
def test_docker_hub_gives_so_many_images_in_six_hours(count, login, warned):
    config, files = listed(count)
    machine = system(files={**files, "/users/ann/.docker/config.json": login or ""}, environment={"HOME": "/users/ann"})
    found = [one for one in images.ask(config, machine) if one.rule_id == "preflight_image_quota"]
    assert bool(found) == warned
    assert all("aaaa" not in f"{one}" for one in found)


def test_a_mirror_and_other_registries_have_no_quota():
    config, files = listed(150)
    mirrored = system({**FACTS, "RegistryConfig": {"Mirrors": ["https://mirror"]}}, files=files)
    elsewhere = replace(config, env=replace(config.env, image_template="quay.io/x/{instance_id}"))
    assert rules(images, config, mirrored) == [("preflight_images", Severity.warning)]
    assert rules(images, elsewhere, system(files=files)) == [("preflight_images", Severity.warning)]


def test_pulling_always_counts_all_images():
    config, files = listed(101, PullPolicy.always)
    machine = system(local=names(101), files=files)
    assert rules(images, config, machine) == [("preflight_image_quota", Severity.warning)]


def test_images_that_do_not_fit_are_a_warning():
    config, files = listed(50, env={"image_gb": 3.0})
    found = {one.rule_id: one for one in images.ask(config, system(files=files, free_gb=100.0))}
    assert "150 GB" in found["preflight_image_disk"].message
    assert "preflight_image_disk" not in {one.rule_id for one in images.ask(config, system(files=files, free_gb=200.0))}


def test_an_engine_too_slow_to_list_is_asked_for_the_first_by_name():
    config, files = listed(70, PullPolicy.never)
    machine = system(local=[f"docker.io/{name}" for name in names(60)], slow="no answer in time", files=files)
    found = only(images, config, machine)
    assert "4 of 70" in found.message and "only the first 64 were looked for" in found.message


def test_images_of_a_data_set_of_the_hub_are_unknown():
    config = configured(sandbox={"kind": DOCKER}, env={"dataset": "a/b", "image_template": TEMPLATE})
    found = only(images, config, system())
    assert (found.rule_id, found.severity) == ("preflight_unknown", Severity.warning)
    assert "env.instances" in found.fix


def test_an_engine_that_is_not_there_is_told_once():
    config, files = listed(3)
    assert rules(images, config, ScriptedSystem(files=files)) == []


ROWS = "\n".join(
    [
        json.dumps({"instance_id": "django__django-1"}),
        json.dumps({"instance_id": "a__b-2", "docker_image": "own/image"}),
        "not json",
        "3",
    ]
)


@pytest.mark.parametrize(
    ("env", "needed"),
    [
        ({}, ["t.django_s_django-1", "own/image"]),
        ({"instances": "django__*"}, ["t.django_s_django-1"]),
        ({"instances": "ids"}, ["own/image"]),
        ({"image_template": None}, ["own/image"]),
        ({"image_template": "one"}, ["one", "own/image"]),
        ({"dataset": "a/b", "image_template": "one"}, ["one"]),
        ({"dataset": "a/b", "instances": "ids"}, ["t.a_s_b-2"]),
        ({"dataset": "a/b", "instances": "django__*"}, None),
        ({"dataset": "a/b", "image_template": None, "instances": "ids"}, None),
        ({"eval_dataset": "rows.jsonl", "eval_image_template": "e"}, ["t.django_s_django-1", "own/image", "e"]),
        ({"eval_dataset": "c/d"}, ["t.django_s_django-1", "own/image"]),
    ],
)
def test_needed_images(env, needed):
    machine = ScriptedSystem(files={"rows.jsonl": ROWS, "ids": "a__b-2  # the second\n\n"})
    fields = {"dataset": "rows.jsonl", "image_template": "t.{instance_id_s}", **env}
    assert needed_images(configured(env=fields), machine.read_text) == needed


def test_an_image_s_name_is_lower_case():
    assert image_of("x/{instance_id}", "Foo__Bar-1") == "x/foo__bar-1"
    assert image_of("x/{instance_id_s}", "Foo__Bar-1") == "x/foo_s_bar-1"
    assert image_of("x/{instance_id_1776}", "Foo__Bar-1") == "x/foo_1776_bar-1"


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.11", "docker.io/library/python:3.11"),
        ("a/b", "docker.io/a/b:latest"),
        ("docker.io/a/b:latest", "docker.io/a/b:latest"),
        ("ghcr.io/a/b", "ghcr.io/a/b:latest"),
        ("localhost:5000/a", "localhost:5000/a:latest"),
        ("localhost/a:1", "localhost/a:1"),
        ("a/b@sha256:00", "docker.io/a/b@sha256:00"),
    ],
)
def test_full_names(name, full):
    assert full_name(name) == full
    assert full_name(full) == full


def test_names_are_compared_in_full():
    local = ["docker.io/a/b:latest", "localhost/mine:latest", "c@sha256:1"]
    assert absent_images(["a/b", "mine", "c@sha256:1", "a/b:2", "d"], local) == ["a/b:2", "d"]
    assert from_hub(["a/b", "ghcr.io/a/b", "docker.io/c", "localhost/d"]) == ["a/b", "docker.io/c"]
