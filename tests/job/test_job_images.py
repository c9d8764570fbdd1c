"""`job=images`: each image once, where it is, and an exit status that a script can use."""

import json

import pytest

from swe_rl.config.compose import compose
from swe_rl.errors import UserError
from swe_rl.job import images as job


class Engine:
    address = "unix:///run/engine.sock"

    def __init__(self, here, registry):
        self.here, self.registry = here, registry

    def size_bytes(self, name):
        return self.here.get(name)

    def in_registry(self, name):
        return "" if name in self.registry else "manifest unknown"


@pytest.fixture
def config(tmp_path):
    record = {
        "repo": "a/b",
        "base_commit": "0",
        "problem_statement": "It fails.",
        "patch": "p",
        "test_patch": "diff --git a/t.py b/t.py\n",
        "FAIL_TO_PASS": ["t.py::x"],
        "PASS_TO_PASS": [],
    }
    rows = [
        record | {"instance_id": name, "base_commit": name, "image": f"r.io/{image}:1"}
        for name, image in zip("abc", "xxy", strict=True)
    ]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def composed(*overrides):
        words = [f"env.dataset={tmp_path}/mine.jsonl", f"paths.cache={tmp_path}/cache", "sandbox=docker"]
        slices = ['env.split="train[:2]"', 'env.eval_split="train[2:]"']
        return compose(["job=images", "env=jsonl", *words, *slices, *overrides]).config

    return composed


@pytest.fixture
def engine(monkeypatch):
    made = Engine({"r.io/x:1": 2_500_000_000}, set())
    monkeypatch.setattr(job, "_connect_engine", lambda config, required: made)
    return made


def run(capsys, config):
    status = job.run(config, None, {})
    return status, capsys.readouterr().out


def test_each_image_is_listed_once_with_its_size(capsys, config, engine):
    status, said = run(capsys, config("job.format=json"))
    record = json.loads(said)
    assert status == 0 and record["here"] == 1 and record["size_gb"] == 2.5
    assert [(one["image"], one["instances"], one["here"]) for one in record["images"]] == [
        ("r.io/x:1", ["a", "b"], True),
        ("r.io/y:1", ["c"], False),
    ]


def test_a_check_asks_the_registry_for_what_is_missing_only(capsys, config, engine):
    status, said = run(capsys, config("job.images_action=check"))
    assert status == 1 and "manifest unknown" in said and "1 on the engine at unix:///run/engine.sock" in said
    engine.registry.add("r.io/y:1")
    status, said = run(capsys, config("job.images_action=check"))
    assert status == 0 and "in its registry" in said


def test_a_pull_keeps_going_and_names_what_failed(capsys, config, engine, monkeypatch):
    async def pull(config, states, address):
        assert [state.image for state in states] == ["r.io/y:1"]
        states[0].problem = "the registry is full"

    monkeypatch.setattr(job, "_pull_images", pull)
    status, said = run(capsys, config("job.images_action=pull"))
    assert status == 1 and "the registry is full" in said.replace("\n", " ").replace("│", "")


def test_a_listing_needs_no_engine(capsys, config, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/engine.sock")
    status, said = run(capsys, config("job.format=json"))
    assert status == 0 and json.loads(said)["engine"] is None
    pytest.importorskip("docker")
    with pytest.raises(Exception, match="does not answer"):
        job.run(config("job.images_action=check"), None, {})


def test_environments_without_images_say_so():
    with pytest.raises(UserError, match="env=bugs has no images"):
        job.run(compose(["job=images"]).config, None, {})
