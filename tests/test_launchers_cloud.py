"""Images and manifests of launchers/: their form, what they name, and that their runs are accepted by `job=check`."""

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import psutil
import pytest
import yaml

from swe_rl.cli import launch
from tests.sandbox import engines, host_image
from tests.support.waiting import until

BASE = "localhost/swe_rl-test:base"
ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "launchers"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
APPTAINER = (FOLDER / "apptainer.def").read_text()
IMAGE_SH = (FOLDER / "image.sh").read_text()
MANIFESTS = {
    (document["kind"], document["metadata"]["name"]): document
    for path in sorted(FOLDER.glob("kubernetes*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
}
SKY = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
PODS = {
    name: manifest["spec"]["template"]["spec"] for name, manifest in MANIFESTS.items() if "template" in manifest["spec"]
}
ARGUMENTS = {name: shlex.join(pod["containers"][0]["args"]) for name, pod in PODS.items()}
TYPED = sorted(
    {
        line.partition(" #")[0].strip()
        for path in (*FOLDER.glob("*.yaml"), FOLDER / "Dockerfile", FOLDER / "apptainer.def")
        for line in re.findall(
            r"(?:python -m swe_rl|swe_rl:gpu|swe_rl_gpu\.sif) (\w.*=.*)", path.read_text().replace("\\\n", " ")
        )
    }
    | set(ARGUMENTS.values())
)


def copied_by_docker():
    return [name for line in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE) for name in line.split()]


def copied_by_apptainer():
    section = APPTAINER.partition("%files\n")[2].partition("\n\n")[0]
    return [line.split() for line in section.splitlines()]


def test_an_image_copies_what_a_wheel_is_made_of():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", *wheel["packages"], *wheel["force-include"]}
    assert set(copied_by_docker()) == needed and all((ROOT / name).exists() for name in needed)
    assert {source for source, _ in copied_by_apptainer()} == needed
    assert all(target == f"/opt/source/{source}" for source, target in copied_by_apptainer())
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert kept == needed and "*" in (ROOT / ".dockerignore").read_text().splitlines()


def test_an_image_is_made_by_one_script_from_extras_that_exist():
    for text in (DOCKERFILE, APPTAINER):
        scripts = re.findall(r"bash (\S+\.sh)", text)
        assert scripts == ["launchers/image.sh"] and (ROOT / scripts[0]).is_file()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"EXTRAS(?:=|:-)([\w,]+)", DOCKERFILE + APPTAINER + IMAGE_SH)
    named += re.findall(r"'\.\[([\w,]+)\]'", SKY["setup"])
    assert len(named) >= 5 and {extra for line in named for extra in line.split(",")} <= set(extras)


def test_build_arguments_are_those_that_the_script_reads():
    read = set(re.findall(r"\$\{([A-Z_]+):?-", IMAGE_SH))
    declared = set(re.findall(r"^ARG ([A-Z_]+)", DOCKERFILE, re.MULTILINE))
    assert declared == read | {"BASE"}
    given = set(re.findall(r"--build-arg ([A-Z_]+)=", DOCKERFILE + APPTAINER))
    assert given <= declared
    section = APPTAINER.partition("%arguments\n")[2].partition("\n\n")[0]
    used = set(re.findall(r"\{\{ ([A-Z_]+) \}\}", APPTAINER))
    assert set(re.findall(r"^ +([A-Z_]+)=", section, re.MULTILINE)) == used <= declared
    [base] = re.findall(r"^ARG BASE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert f"BASE={base}" in section


def test_an_image_opens_no_port_has_no_rights_and_fetches_no_model():
    assert "EXPOSE" not in DOCKERFILE and "0.0.0.0" not in DOCKERFILE + APPTAINER
    user = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
    assert user == [("10001", "10001")] and "chown 10001:10001" in IMAGE_SH
    assert "HF_HUB_OFFLINE=1" in DOCKERFILE and "HF_HUB_OFFLINE:-1" in APPTAINER
    steps = re.findall(r"^([A-Z]+) ", DOCKERFILE, re.MULTILINE)
    assert steps.index("USER") > max(place for place, step in enumerate(steps) if step in ("RUN", "COPY"))


KEYS = {
    "metadata": {"name"},
    "Job": {"backoffLimit", "template"},
    "Deployment": {"replicas", "strategy", "selector", "template"},
    "Service": {"selector", "ports"},
    "PersistentVolumeClaim": {"accessModes", "resources"},
    "pod": {
        "restartPolicy", "terminationGracePeriodSeconds", "automountServiceAccountToken", "securityContext",
        "containers", "volumes",
    },
    "container": {
        "name", "image", "args", "ports", "envFrom", "env", "readinessProbe", "resources", "securityContext",
        "volumeMounts",
    },
}  # fmt: skip
VERSIONS = {"Job": "batch/v1", "Deployment": "apps/v1", "Service": "v1", "PersistentVolumeClaim": "v1"}


def test_manifests_have_the_form_of_their_kind():
    """What Kubernetes' API has of these kinds, for the keys that are used here."""
    assert {kind for kind, _ in MANIFESTS} == set(VERSIONS)
    for (kind, _), manifest in MANIFESTS.items():
        assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
        assert manifest["apiVersion"] == VERSIONS[kind]
        assert set(manifest["metadata"]) <= KEYS["metadata"] and set(manifest["spec"]) <= KEYS[kind]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", manifest["metadata"]["name"])


@pytest.mark.parametrize("name", PODS, ids=lambda name: name[0])
def test_a_pod_has_no_rights_its_volumes_and_its_secrets_from_outside(name):
    pod = PODS[name]
    again = "OnFailure" if name[0] == "Job" else "Always"
    assert set(pod) <= KEYS["pod"] and pod.get("restartPolicy", "Always") == again
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    [container] = pod["containers"]
    assert set(container) <= KEYS["container"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    assert variables == {"HF_HOME": "/models", "HF_HUB_OFFLINE": "1"}
    assert all(isinstance(value, str) for value in (*variables.values(), *container["args"]))
    [secret] = container["envFrom"]
    assert secret["secretRef"]["name"].startswith("swe-rl")
    assert container["resources"]["limits"]["nvidia.com/gpu"] >= 1
    claims = {claimed for kind, claimed in MANIFESTS if kind == "PersistentVolumeClaim"}
    volumes = [volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
    asked = {volume["persistentVolumeClaim"]["claimName"] for volume in volumes}
    assert asked <= claims


def test_the_service_leads_to_the_deployment_s_gateway():
    [service] = [manifest for (kind, _), manifest in MANIFESTS.items() if kind == "Service"]
    [deployment] = [manifest for (kind, _), manifest in MANIFESTS.items() if kind == "Deployment"]
    template = deployment["spec"]["template"]
    assert (
        service["spec"]["selector"] == template["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"]
    )
    [container] = template["spec"]["containers"]
    [port], [opened] = service["spec"]["ports"], container["ports"]
    assert port["targetPort"] == opened["name"] == container["readinessProbe"]["httpGet"]["port"]
    assert f"gateway.port={opened['containerPort']}" in container["args"]
    text = (FOLDER / "kubernetes_serve.yaml").read_text()
    assert f"engine.urls=[http://{service['metadata']['name']}:{port['port']}/v1]" in text
    assert "SWE_RL_GATEWAY_KEY" in text


def test_the_task_of_skypilot_has_the_keys_of_a_task():
    """Of SkyPilot's schema of tasks (0.14), those that are used here."""
    assert set(SKY) == {
        "name", "resources", "num_nodes", "workdir", "envs", "secrets", "file_mounts", "setup", "run",
    }  # fmt: skip
    assert set(SKY["resources"]) <= {"accelerators", "cpus", "memory", "disk_size"}
    for group in ("envs", "secrets"):
        assert all(re.fullmatch(r"[A-Z_]+", name) and isinstance(value, str) for name, value in SKY[group].items())
    assert not any(SKY["secrets"].values())
    assert all(set(mount) <= {"name", "mode"} for mount in SKY["file_mounts"].values())
    for script in (SKY["setup"], SKY["run"]):
        assert subprocess.run(["bash", "-n", "-c", script], capture_output=True).returncode == 0


def test_models_and_gpus_agree_with_the_arguments():
    for name, pod in PODS.items():
        gpus = pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        assert f"layout=colocated{gpus}" in ARGUMENTS[name]
    assert SKY["resources"]["accelerators"] == "H100:8" and "hardware=h100x8" in SKY["run"]
    model = yaml.safe_load((ROOT / "conf" / "model" / "qwen3_8b.yaml").read_text())["path"]
    assert SKY["envs"]["MODEL_ID"] == model and "model=qwen3_8b" in SKY["run"]


@pytest.mark.parametrize("line", TYPED)
def test_its_runs_are_accepted(line, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    words = [word for word in shlex.split(line) if not word.startswith("paths.")]  # these are of the pod
    job = next((word.partition("=")[2] for word in words if word.startswith("job=")), "train")
    words = [word for word in words if not word.startswith("job=")]
    assert launch.run_command([*words, "job=check", f"job.of={job}"]) == 0, capsys.readouterr().out


def test_every_run_is_looked_at():
    assert len(TYPED) >= 4 and any("job=serve" in line for line in TYPED) and any("job=eval" in line for line in TYPED)


def commands_running():
    return "\n".join(" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


@pytest.fixture
def podman():
    """podman(words): its output; with storage of its own, in which there is the image of this machine."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip("needs podman, and root")
    root = Path(tempfile.mkdtemp(prefix="swe_rl-test-image-"))
    command, environment = engines.podman(root)

    def run(*words, given=None):
        done = subprocess.run(
            [*command, *words], cwd=ROOT, env=environment, input=given, capture_output=True, timeout=240
        )
        assert done.returncode == 0, (done.stdout[-3000:] + done.stderr[-3000:]).decode()
        return done.stdout.decode()

    try:
        run("import", "--change", f"ENV PATH={host_image.search_path()}", "-", BASE, given=host_image.archive())
        yield run
    finally:
        asyncio.run(until(lambda: str(root) not in commands_running()))  # podman tidies up, and would write again
        engines.clear(root)


@pytest.mark.docker
def test_the_image_is_built_and_answers(podman, tmp_path):
    """From a base image whose /usr and Python are this machine's, with the test's own packages in place of new ones."""
    fetch = [sys.executable, "-m", "pip", "download", "-q", "hatchling", "-d", str(tmp_path)]
    if subprocess.run(fetch, capture_output=True).returncode != 0:
        pytest.skip("the package index does not answer")
    given = {"BASE": BASE, "PACKAGES": "", "EXTRAS": "cpu", "PIP_ARGS": "--no-index --no-deps -f /wheels"}
    arguments = [word for name, value in given.items() for word in ("--build-arg", f"{name}={value}")]
    mounts = [word for mount in host_image.mounts() for word in ("--volume", f"{mount}:ro")]
    options = ("--layers=false", "--file=launchers/Dockerfile", "--tag=swe_rl:test", f"--volume={tmp_path}:/wheels:ro")
    podman("build", *options, *mounts, *arguments, ".")
    packages = Path(yaml.__file__).parents[1]
    inside = ("run", "--rm", "--network=none", *mounts, f"--env=PYTHONPATH={packages}")
    assert "python -m swe_rl" in podman(*inside, "swe_rl:test", "--help")
    assert "0 errors" in podman(*inside, "swe_rl:test", "job=check")
    code = "import os, swe_rl; print(os.getuid(), os.getcwd(), swe_rl.__file__)"
    user, folder, package = podman(*inside, "--entrypoint=python", "swe_rl:test", "-c", code).split()
    assert (user, folder) == ("10001", "/data") and package.startswith("/opt/swe_rl/")
