"""A mix offers what its parts offer, and each instance is asked of its own part, under the part's own id."""

import asyncio
import dataclasses
import json

import pytest

from swe_rl.config.compose import compose
from swe_rl.config.schema import EnvConfig, MixPartConfig
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.env import ComparesWithFix, Grade, GradesInPlace, InstanceLimits
from swe_rl.env.make import make_env
from swe_rl.env.mix import EnvPart, MixedEnv, env_of, part_of, parts_of
from swe_rl.facts.mix import part_configs, part_envs
from swe_rl.run.parts import NothingToDoError, run_for_parts
from swe_rl.sandbox.sandbox import Workspace
from tests.env.harbor.test_harbor import write_task

PARTS = ("env=mix", "+env@env.mix.bugs=bugs", "+env@env.mix.tasks=harbor", "rollout=default")


class Part:
    """An environment that knows only the ids that it gave."""

    name = "part"

    def __init__(self, train, heldout, broken=""):
        self.ids = {"train": train, "heldout": heldout}
        self.asked = []

    def instances(self, split):
        return [Instance(name, "a/b", "abc", f"fix {name}", "gold", "", ("t",), ()) for name in self.ids[split]]

    def split_instances(self, split):
        return len(self.ids[split]) + 1

    def left_out(self, split):
        return {f"gone-{split}": "it fails"}

    def workspace(self, instance):
        assert instance.instance_id in sum(self.ids.values(), [])
        return Workspace(path=None, image=instance.instance_id)

    def prompt(self, instance):
        self.asked.append(instance.instance_id)
        return f"solve {instance.instance_id}"

    async def grade(self, instance, patch, sandboxes, timeout_s):
        self.asked.append(instance.instance_id)
        return Grade(resolved=True, patch_applied=True)


class InPlace(Part):
    def limits(self, instance):
        self.asked.append(instance.instance_id)
        return InstanceLimits(1.0, 2.0)

    async def grade_in(self, instance, sandbox, timeout_s):
        self.asked.append(instance.instance_id)
        return Grade(resolved=False, patch_applied=True)


def mix_of(**parts):
    made = [EnvPart(name, EnvConfig(), env, trained=name != "measured") for name, env in parts.items()]
    return MixedEnv(EnvConfig(name="mix"), made)


def ids_of(env, split):
    return [instance.instance_id for instance in env.instances(split)]


def test_ids_of_several_parts_get_the_name_of_each_and_others_stay():
    first, second = Part(["x", "y"], ["h"]), Part(["X", "z"], ["k"])
    env = mix_of(a=first, b=second)
    assert ids_of(env, "train") == ["a.x", "y", "b.X", "z"] and ids_of(env, "heldout") == ["h", "k"]
    shown = {instance.instance_id: instance for instance in env.instances("train")}
    assert env.prompt(shown["b.X"]) == "solve X" and env.prompt(shown["a.x"]) == "solve x"
    assert env.workspace(shown["b.X"]).image == "X"
    assert first.asked == ["x"] and second.asked == ["X"]
    assert [part_of(env, EnvConfig(), shown[name]).name for name in ("a.x", "z")] == ["a", "b"]
    assert asyncio.run(env.grade(shown["b.X"], "", None, 1.0)).resolved and second.asked[-1] == "X"


def test_an_id_that_one_part_trains_and_another_evaluates_is_refused():
    env = mix_of(a=Part(["x"], ["h"]), b=Part(["y"], ["x"]))
    env.instances("train")
    with pytest.raises(InstanceError, match=r"env\.mix\.b: its instance x .* env\.mix\.a"):
        env.instances("heldout")


def test_one_part_may_have_an_instance_in_both_splits():
    env = mix_of(a=Part(["x"], ["x"]), b=Part(["y"], ["z"]))
    assert ids_of(env, "train") == ["x", "y"] and ids_of(env, "heldout") == ["x", "z"]


def test_a_part_without_weight_is_evaluated_only():
    env = mix_of(a=Part(["x"], ["h"]), measured=Part(["y"], ["z"]))
    assert ids_of(env, "train") == ["x"] and ids_of(env, "heldout") == ["h", "z"]
    assert env.split_instances("train") == 2 and env.split_instances("heldout") == 4
    assert set(env.left_out("heldout")) == {"a.gone-heldout", "measured.gone-heldout"}
    with pytest.raises(InstanceError, match="train and heldout"):
        env.instances("test")


def test_each_instance_is_graded_in_the_way_of_its_part():
    env = mix_of(a=Part(["x"], ["h"]), b=InPlace(["x"], ["k"]))
    of_a, of_b = env.instances("train")
    assert not isinstance(env_of(env, of_a), GradesInPlace)
    in_place = env_of(env, of_b)
    assert isinstance(in_place, GradesInPlace) and isinstance(in_place, ComparesWithFix)
    assert in_place.limits(of_b) == InstanceLimits(1.0, 2.0)
    assert asyncio.run(in_place.grade_in(of_b, None, 1.0)).resolved is False
    assert asyncio.run(in_place.failing_with_fix(of_b, ["t"], None, 1.0)) == frozenset()
    assert set(env.parts[1].env.asked) == {"x"}


def test_the_env_of_one_environment_is_itself():
    part = Part(["x"], ["h"])
    [instance] = part.instances("train")
    assert env_of(part, instance) is part and part_of(part, EnvConfig(), instance).name == ""
    assert [each.env for each in parts_of(part, EnvConfig())] == [part]


@pytest.fixture
def mixed(tmp_path):
    for split, names in (("train", "abc"), ("test", "de")):
        for name in names:
            write_task(tmp_path / "tasks" / split / name)
    return compose([*PARTS, f"env.mix.tasks.dataset={tmp_path}/tasks", "env.mix.tasks.unproven=keep"]).config


def test_a_composed_mix_reads_what_each_part_reads_alone(mixed, tmp_path):
    env = make_env(mixed.env, tmp_path / "cache")
    alone = {name: make_env(part, tmp_path / "cache") for name, part in part_envs(mixed.env).items()}
    for split in ("train", "heldout"):
        expected = []
        for name, part in part_envs(mixed.env).items():
            own = part.split if split == "train" else part.eval_split
            expected += alone[name].instances(own)
        assert list(env.instances(split)) == expected
    by_part = {"bugs": 0, "tasks": 0}
    for instance in env.instances("heldout"):
        part = part_of(env, mixed.env, instance)
        by_part[part.name] += 1
        assert env.prompt(instance) == alone[part.name].prompt(instance)
        assert env.workspace(instance) == alone[part.name].workspace(instance)
        assert isinstance(part.env, GradesInPlace) is (part.name == "tasks")
    assert by_part == {"bugs": 32, "tasks": 2}


def test_a_part_is_the_environment_that_its_option_makes(mixed):
    alone = compose(["env=bugs", "rollout=default"]).config
    assert part_configs(mixed)["bugs"].env == alone.env
    assert {field.name for field in dataclasses.fields(MixPartConfig)} - {
        field.name for field in dataclasses.fields(EnvConfig)
    } == {"weight"}


def test_a_job_for_data_sets_runs_for_each_part_and_names_it(mixed, capsys):
    asked = []

    def run(config):
        asked.append(config.env.name)
        if config.env.name == "harbor":
            raise NothingToDoError("there is nothing to prepare")
        return 1

    assert run_for_parts(mixed, run) == 1 and asked == ["bugs", "harbor"]
    said = capsys.readouterr().out
    assert "part bugs (env=bugs):" in said and "tasks: there is nothing to prepare" in said

    def fail(config):
        raise InstanceError("there is no such file")

    assert run_for_parts(mixed, fail) == 2 and "bugs: there is no such file" in capsys.readouterr().out
    with pytest.raises(InstanceError):
        run_for_parts(compose(["env=bugs"]).config, fail)


def test_the_same_rows_in_two_parts_are_two_instances(tmp_path):
    rows = [json.dumps(instance.to_record()) for instance in make_env(EnvConfig(), tmp_path).instances("train")[:2]]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    words = [f"+env@env.mix.{name}=bugs" for name in ("one", "two")]
    words += [f"env.mix.{name}.dataset={tmp_path}/rows.jsonl" for name in ("one", "two")]
    env = make_env(compose(["env=mix", *words]).config.env, tmp_path)
    ids = ids_of(env, "train")
    assert {name.partition(".")[0] for name in ids} == {"one", "two"} and len(ids) == 4
