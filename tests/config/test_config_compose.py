"""Composition: the frozen tree, hash, YAML with origins, sweeps, and what is spared."""

import copy
import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from swe_rl.cli.help import default_choices, help_text
from swe_rl.config.choices import EngineKind, JobName, OutcomeReward
from swe_rl.config.compose import compose, expand_sweep, from_tree, resolved_yaml
from swe_rl.config.composition import merged, trees
from swe_rl.config.composition.omegaconf_internals import plain_values
from swe_rl.config.composition.trees import _compose_by_hydra, compose_tree
from swe_rl.config.composition.values import config_hash, flatten_config
from swe_rl.config.explain import ConfigError
from swe_rl.config.folders import list_options
from swe_rl.config.schema import Config, OutcomeConfig

GOLDEN = Path(__file__).parent / "golden" / "default.json"
GROUPS = frozenset(list_options())
OPTIONS = [(group, option.name) for group, members in list_options().items() for option in members]


@pytest.fixture(scope="module")
def default():
    return compose()


def test_default_composition_is_as_published(default):
    """SWE_RL_WRITE_GOLDEN=1 rewrites the file; its diff is then part of the change."""
    text = json.dumps(flatten_config(default.config), indent=1) + "\n"
    if os.environ.get("SWE_RL_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert json.loads(GOLDEN.read_text()) == json.loads(text)


def test_tree_is_frozen_and_plain(default):
    def visit(node):
        assert not type(node).__module__.startswith("omegaconf")
        if dataclasses.is_dataclass(node):
            assert node.__dataclass_params__.frozen
            for field in dataclasses.fields(node):
                visit(getattr(node, field.name))
        elif isinstance(node, dict):
            for value in node.values():
                visit(value)
        else:
            assert isinstance(node, str | int | float | bool | tuple | None)

    visit(default.config)
    assert default.config.job.name is JobName.train
    assert default.config.engine.kind is EngineKind.embedded
    assert default.config.rollout.outcomes["infra_error"] == OutcomeConfig(OutcomeReward.none, False, False, 2)


def test_lists_become_tuples():
    config = compose(["engine.urls=[http://a:1/v1,http://b:2/v1]"]).config
    assert config.engine.urls == ("http://a:1/v1", "http://b:2/v1")


def test_layout_brings_its_engine_unless_told_otherwise():
    assert compose(["layout=dp4"]).config.engine.kind is EngineKind.vllm
    assert compose(["layout=dp4", "engine=embedded"]).config.engine.kind is EngineKind.embedded


def test_the_published_run_composes():
    config = compose(["+experiment=dp4_tr_atw01"]).config
    facts = (config.model.num_layers, config.model.hidden_size, config.model.num_kv_heads, config.model.vocab_size)
    assert facts == (40, 5120, 8, 151936)
    assert (config.name, config.router.name, config.router.acting_token_weight) == ("dp4_tr_atw01", "tr", 0.1)
    assert config.rollout.prompts_per_step * config.rollout.n == 396
    assert config.trainer.lr == 1e-6


def test_one_fact_has_one_key():
    config = compose(["rollout.n=3", "rollout.max_trajectory_tokens=900", "rollout.prompts_per_step=6"]).config
    assert config.env.num_trajectories == 3
    assert config.engine.max_model_len == config.algo.loss_norm_tokens == 900
    assert config.trainer.prompts_per_mini_batch == 6


def test_hash_knows_what_changes_a_run(default):
    estimates = ["rollout.typical_trajectory_s=9", "rollout.workload.turns=[5,1]"]
    ranks = ["layout=local2", "layout.expert_parallel=2"]  # the same sums in another order
    elsewhere = ["logger.project=other", "paths.outputs=/elsewhere"]
    same = compose(["job=eval", "trainer.resume=auto", *elsewhere, *estimates, *ranks])
    assert config_hash(same.config) == config_hash(default.config)
    for override in ("trainer.seed=1", "rollout.n=4", "rollout.outcomes.grade_error.retries=2", "algo=rloo"):
        assert config_hash(compose([override]).config) != config_hash(default.config)


def test_resolved_yaml_reads_back_and_names_origins():
    composed = compose(["rollout.n=4", "algo=rloo", "engine.urls=[a,b]", "+hardware.env_vars.B=2", "name=no"])
    text = resolved_yaml(composed)
    nested = {}
    for key, value in flatten_config(composed.config).items():
        *path, leaf = key.split(".")
        node = nested
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = value
    assert yaml.safe_load(text) == nested
    lines = {line.split(":")[0].strip(): line for line in text.splitlines()}
    assert "# command line: rollout.n=4" in text
    assert "# conf/env/bugs.yaml: ${rollout.n}" in lines["num_trajectories"]
    assert "  advantage: rloo  # conf/algo/rloo.yaml" in text
    assert "# conf/algo/grpo.yaml" in lines["loss_norm_tokens"] and "# schema" in lines["clip_low"]


def test_expand_lists_the_jobs_of_a_sweep():
    assert expand_sweep(["rollout.n=2,4", "algo=grpo,rloo"]) == [
        ["rollout.n=2", "algo=grpo"],
        ["rollout.n=2", "algo=rloo"],
        ["rollout.n=4", "algo=grpo"],
        ["rollout.n=4", "algo=rloo"],
    ]
    seeds = [compose(job).config.trainer.seed for job in expand_sweep(["+sweep=seeds"])]
    assert seeds == [0, 1, 2]
    assert compose(["+sweep=seeds"]).multirun


def test_a_folder_of_the_users_own(tmp_path):
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "mine.yaml").write_text("name: mine\ncpus_per_node: 64\n")
    composed = compose(["hardware=mine"], tmp_path)
    assert composed.config.hardware.cpus_per_node == 64
    assert composed.origins.of("hardware.cpus_per_node").endswith("hardware/mine.yaml")
    assert composed.config.hardware.memory_gb == 4.0
    assert composed.origins.of("hardware.memory_gb") == "schema"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("nmae: x\n", "hardware.nmae"),
        ("cpus_per_node: many\n", "hardware.cpus_per_node must be a whole number, not 'many'"),
        ("name: [\n", "does not compose"),
    ],
)
def test_mistakes_in_a_file_are_explained(tmp_path, text, part):
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        compose(["hardware=mine"], tmp_path)
    assert part in str(caught.value)


def test_unknown_top_level_key_in_an_experiment(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nrolout:\n  n: 2\n")
    with pytest.raises(ConfigError, match="rolout"):
        compose(["+experiment=mine"], tmp_path)


def test_help_lists_every_option_and_the_default_first():
    text = help_text()
    for group, name in OPTIONS:
        assert name in text, (group, name)
    assert default_choices()["router"] == "default"
    assert "  router          default, cap, sticky_least_loaded, tr, tr_atw01" in text
    assert default_choices().keys() == {group for group, _ in OPTIONS} - {"experiment", "sweep", "hydra/launcher"}


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_fits_the_terminal_and_loses_nothing(columns):
    text = help_text(columns=columns)
    assert max(map(len, text.splitlines())) <= max(columns, 82)  # the longest command of an example stays whole
    assert sum(len(line) > columns for line in text.splitlines()) <= 1
    assert text.split() == help_text().split()


def test_conf_is_found_beside_the_package_and_inside_it(tmp_path, monkeypatch):
    from swe_rl.config import folders

    assert folders.conf_dir().parent == folders.PACKAGE.parent or folders.conf_dir().parent == folders.PACKAGE
    (tmp_path / "swe_rl" / "conf").mkdir(parents=True)
    (tmp_path / "conf").mkdir()
    monkeypatch.setattr(folders, "PACKAGE", tmp_path / "swe_rl")
    assert folders.conf_dir() == tmp_path / "swe_rl" / "conf"
    (tmp_path / "swe_rl" / "conf").rmdir()
    assert folders.conf_dir() == tmp_path / "conf"
    with pytest.raises(folders.InstallationError, match="sweeps/"):
        folders.sweeps_dir()


def test_what_is_spared_changes_no_result(monkeypatch):
    """Each quickened part against Hydra's and OmegaConf's own one: same trees, and what each node knows."""
    import hydra.version
    import omegaconf.base
    from hydra._internal import defaults_list
    from hydra.core.config_store import ConfigStore
    from omegaconf import DictConfig, ListConfig

    overrides = ["+experiment=fasrc_prod", "hardware=h100x8"]
    quick, quick_tree = compose(overrides), copy.deepcopy(_compose_by_hydra(overrides, None))
    monkeypatch.delattr(ConfigStore, "__deepcopy__")
    monkeypatch.delattr(omegaconf.base.Metadata, "__deepcopy__")
    for holder, name in (
        (omegaconf._utils, "get_yaml_loader"),
        (omegaconf.base, "parse"),
        (omegaconf.base.Box, "_re_parent"),
        (DictConfig, "__deepcopy__"),
        (ListConfig, "__deepcopy__"),
        (defaults_list, "_create_interpolation_map"),
        (hydra.version, "_get_version"),
    ):
        monkeypatch.setattr(holder, name, getattr(holder, name).__wrapped__)
    monkeypatch.setattr(OmegaConf, "load", staticmethod(OmegaConf.load.__wrapped__))
    real = _compose_by_hydra(overrides, None)
    assert flatten_config(from_tree(real, real.hydra, overrides).config) == flatten_config(quick.config)
    assert known(quick_tree) == known(copy.deepcopy(real))


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Config)])
def test_plain_values_are_those_of_omegaconf(name):
    """All values of a tree with tables, lists, references, and units that hold one of two kinds."""
    for overrides in (["layout=dp4", "+hardware.env_vars.B=2"], ["+experiment=fasrc_prod", "engine.urls=[a,b]"]):
        node = compose_tree(overrides, None, GROUPS)[name]
        if OmegaConf.is_config(node):
            real = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
            assert plain_values(node) == real and repr(plain_values(node)) == repr(real)


@pytest.mark.parametrize(
    "text",
    [
        "{a: {b: '???'}}",
        "{a: ['${c.d}']}",
        "{a: '${c}', c: '${d}', d: {e: '???'}}",
        "{a: '${c}', c: [1, '${d}', {}], d: null}",
        "{a: '???'}",
        "{a: '\\${b}', c: 'x${d}', d: [1]}",
        "{a: '${oc.env:NO_SUCH_VARIABLE}'}",
    ],
)
def test_plain_values_fail_as_omegaconf_does(text):
    answers = []
    for read in (plain_values, lambda node: OmegaConf.to_container(node, resolve=True, throw_on_missing=True)):
        try:
            answers.append(read(OmegaConf.create(text)))
        except OmegaConfBaseException as error:
            answers.append((type(error), str(error)))
    assert answers[0] == answers[1]


def test_files_are_read_once_for_the_lists_of_defaults(monkeypatch):
    """Only the file of an option that was never chosen before is read, for the list and for the merge of its table."""
    from hydra._internal.core_plugins.file_config_source import FileConfigSource

    compose(["layout=dp4", "router=tr"])
    read = []
    load = FileConfigSource.load_config
    monkeypatch.setattr(
        FileConfigSource,
        "load_config",
        lambda source, config_path: read.append(config_path) or load(source, config_path),
    )
    compose(["layout=dp4", "router=tr", "hardware=h200x8"])
    assert sorted(set(read) - {"config"}) == ["hardware/h200x8"]


def known(node):
    """What each node of a tree knows, itself and below, but for the time; its parent is the one that holds it."""
    content = vars(node)["_content"] if "_content" in vars(node) else vars(node)["_val"]
    notes = {name: value for name, value in vars(node._metadata).items() if name != "resolver_cache"}
    flags = [node._get_flag(name) for name in ("struct", "readonly", "allow_objects")]
    rows = [(type(node), notes, flags, type(content))]
    if not isinstance(content, dict | list):
        rows.append(content)
    else:
        below = content.values() if isinstance(content, dict) else content
        assert all(child._parent is node for child in below)
        rows += [row for child in below for row in known(child)]
    return rows


@pytest.mark.parametrize(
    "overrides",
    [
        ["+experiment=fasrc_prod", "hardware=h100x8"],
        ["rollout.n=4", "+sweep=seeds", "trainer.lr=1e-3", "engine.urls=[a,b]"],
        ["layout=dp4", "+hardware.env_vars.B=2", "~rollout.outcomes.infra_error", "hydra.sweep.dir=here"],
        ["rollout.n=4", "rollout.n=5", "name=1_0", "algo=rloo"],
    ],
)
def test_a_tree_that_is_kept_is_what_hydra_composes(overrides):
    real = known(_compose_by_hydra(overrides, None))
    for _ in range(2):
        tree = compose_tree(overrides, None, GROUPS)
        assert known(tree) == real
        OmegaConf.set_readonly(tree, True)  # Nothing that is done to one changes the next.
        tree.hydra._content.clear()
        tree._metadata.resolver_cache["swe_rl.words"]["x"] = [1]


def test_options_that_were_chosen_before_are_not_composed_again(monkeypatch):
    compose(["layout=dp4"])
    monkeypatch.setattr(trees, "_compose_by_hydra", None)
    assert compose(["layout=dp4", "rollout.n=5"]).config.rollout.n == 5


def test_groups_that_were_merged_before_are_what_hydra_merges():
    """Options that were chosen before, each beside others: none of their files is merged again."""
    for overrides in (["layout=dp4", "agent=openhands"], ["model=qwen3_8b", "env=swe_gym"], ["hydra.job.chdir=true"]):
        compose_tree(overrides, None, GROUPS)
    tables = len(merged._KEPT.tables)
    for overrides in (["layout=dp4", "env=swe_gym"], ["agent=openhands", "model=qwen3_8b", "env=swe_gym"]):
        assert known(compose_tree(overrides, None, GROUPS)) == known(_compose_by_hydra(overrides, None))
    assert len(merged._KEPT.tables) == tables > 20
    wrong = ["layout=dp4", "+layout.no_such_key=1", "env=swe_gym"]
    with pytest.raises(ConfigError, match="no_such_key"):
        compose(wrong)


BROKEN = {"type": "cpus_per_node: many\n", "key": "cpus: 3\n", "text": "account: 010\n"}


@pytest.mark.parametrize("name", BROKEN)
def test_a_composition_that_failed_changes_no_later_one(tmp_path, name):
    """The first composition of a process is the one that fails, so that nothing was kept before."""
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "broken.yaml").write_text(BROKEN[name])
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "broken.yaml").write_text("# @package _global_\nrollout: {nn: 3}\n")
    alone = _compose_by_hydra([], tmp_path)
    for failing in (["rollout=swe", "algo=rloo", "hardware=broken"], ["rollout=swe", "+experiment=broken"]):
        merged._KEPT.__init__()
        trees._kept_tree.cache_clear()
        with pytest.raises(ConfigError) as first:
            compose(failing, tmp_path)
        with pytest.raises(ConfigError) as again:
            compose(failing, tmp_path)
        assert str(first.value) == str(again.value)
        tree = compose_tree([], tmp_path, GROUPS)
        assert known(tree) == known(alone)


def test_kept_merges_share_no_node_with_what_was_read(monkeypatch):
    loaded = []
    load = ConfigLoaderImpl._load_single_config

    def noted(loader, default, repo):
        result = load(loader, default, repo)
        loaded.append(result.config)
        return result

    monkeypatch.setattr(ConfigLoaderImpl, "_load_single_config", noted)
    merged._KEPT.__init__()
    trees._kept_tree.cache_clear()
    compose_tree(["algo=rloo", "layout=dp4"], None, GROUPS)
    kept = merged._KEPT
    trees_kept = [tree for head in kept.heads.values() for tree in (head.root, *head.children.values())]
    owned = {id(node) for tree in (*trees_kept, *kept.tables.values()) for node in nodes(tree)}
    assert loaded
    assert not owned & {id(node) for tree in loaded for node in nodes(tree)}


def test_a_search_path_of_the_users_own_is_composed_each_time(tmp_path):
    """Nobody looks whether files there changed."""
    (tmp_path / "hardware").mkdir()
    mine = tmp_path / "hardware" / "mine.yaml"
    for cpus in (6, 7):
        mine.write_text(f"name: mine\ncpus_per_node: {cpus}\n")
        os.utime(mine, (1, 1))
        composed = compose(["hardware=mine", f"hydra.searchpath=[{tmp_path}]"])
        assert composed.config.hardware.cpus_per_node == cpus


def test_copies_of_a_tree_share_no_node():
    tree = compose_tree(["layout=dp4"], None, GROUPS)
    whole = copy.deepcopy(tree)
    assert known(whole) == known(tree) and not set(map(id, nodes(whole))) & set(map(id, nodes(tree)))
    part = copy.deepcopy(tree.rollout)
    assert part._parent is tree and known(part) == known(tree.rollout)


def test_a_changed_file_is_composed_anew(tmp_path):
    """Whether one was changed, added or taken away; in conf/ as in the user's own folder."""
    (tmp_path / "hardware").mkdir()
    mine = tmp_path / "hardware" / "mine.yaml"
    mine.write_text("name: mine\ncpus_per_node: 6\n")
    overrides = ["hardware=mine", "rollout.n=4"]
    assert compose(overrides, tmp_path).config.hardware.cpus_per_node == 6
    mine.write_text("name: mine\ncpus_per_node: 16\n")
    assert compose(overrides, tmp_path).config.hardware.cpus_per_node == 16
    mine.unlink()
    with pytest.raises(ConfigError, match="mine"):
        compose(overrides, tmp_path)


@pytest.mark.parametrize("by", ["file", "command line", "group"])
def test_what_the_environment_chooses_is_chosen_each_time(tmp_path, monkeypatch, by):
    (tmp_path / "experiment").mkdir()
    chosen = "${oc.env:HW,cpu}"
    given = {
        "file": ["+experiment=mine"],
        "command line": [f"hardware={chosen}"],
        "group": ["+experiment=${oc.env:HW,cpu}"],
    }
    text = f"# @package _global_\ndefaults:\n  - _self_\n  - override /hardware: {chosen}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    for name in ("h100x8", "a100x8"):
        text = f"# @package _global_\nhardware: {{name: {name}}}\n"
        (tmp_path / "experiment" / f"{name}.yaml").write_text(text)
    for name in ("h100x8", "a100x8", "h100x8"):
        monkeypatch.setenv("HW", name)
        for _ in range(2):
            assert compose([*given[by], "rollout.n=4"], tmp_path).config.hardware.name == name


def test_a_variable_that_hydra_copies_is_as_it_is_now(monkeypatch):
    for value in ("1", "2"):
        monkeypatch.setenv("COPIED", value)
        tree = compose_tree(["hydra.job.env_copy=[COPIED]", "rollout.n=4"], None, GROUPS)
        assert tree.hydra.job.env_set == {"COPIED": value}
        assert known(tree) == known(_compose_by_hydra(["hydra.job.env_copy=[COPIED]", "rollout.n=4"], None))


def test_what_is_no_option_is_not_looked_at(tmp_path, monkeypatch):
    """As where the options are in the folder of a project, whose outputs change all the time."""
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "mine.yaml").write_text("cpus_per_node: 6\n")
    compose(["hardware=mine"], tmp_path)
    (tmp_path / "outputs" / "train" / "now").mkdir(parents=True)
    (tmp_path / "outputs" / "train" / "now" / "config.yaml").write_text("name: x\n")
    (tmp_path / "hardware" / "notes.txt").write_text("text")
    monkeypatch.setattr(trees, "_compose_by_hydra", None)
    assert compose(["hardware=mine", "rollout.n=4"], tmp_path).config.hardware.cpus_per_node == 6
    (tmp_path / "loop").symlink_to(tmp_path)
    assert compose(["hardware=mine", "rollout.n=4"], tmp_path).config.hardware.cpus_per_node == 6


@pytest.mark.parametrize("replaced", ["renamed", "written"])
def test_a_file_of_the_same_size_and_time_is_composed_anew(tmp_path, replaced):
    (tmp_path / "hardware").mkdir()
    mine, other = tmp_path / "hardware" / "mine.yaml", tmp_path / "other.yaml"
    for cpus in (6, 7):
        other.write_text(f"name: mine\ncpus_per_node: {cpus}\n")
        os.utime(other, (1, 1))
        if replaced == "renamed":
            other.replace(mine)
        else:
            shutil.copy2(other, mine)
        assert compose(["hardware=mine"], tmp_path).config.hardware.cpus_per_node == cpus


def test_the_folder_of_a_composition_is_where_it_was_made(tmp_path, monkeypatch):
    overrides = ["hydra.sweep.dir=${hydra.runtime.cwd}/${hydra.job.override_dirname}", "rollout.n=4"]
    compose(overrides)
    monkeypatch.chdir(tmp_path)
    assert compose(overrides).sweep_dir == f"{tmp_path}/rollout.n=4"


def nodes(node):
    content = vars(node).get("_content")
    below = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return [node, *(found for child in below for found in nodes(child))]


def test_a_note_that_is_copied_shares_nothing_that_changes():
    tree = OmegaConf.create({"a": {"b": 1}}, flags={"struct": True})
    tree._metadata.resolver_cache["swe_rl.words"]["x"] = [1]
    copied = copy.deepcopy(tree)
    OmegaConf.set_struct(copied, False)
    copied._metadata.resolver_cache["swe_rl.words"]["x"].append(2)
    copied._metadata.resolver_cache["another"]["y"] = 3
    assert OmegaConf.is_struct(tree) and tree._metadata.resolver_cache == {"swe_rl.words": {"x": [1]}}
    assert copied._metadata.resolver_cache == {"swe_rl.words": {"x": [1, 2]}, "another": {"y": 3}}


def test_files_are_parsed_by_libyaml_and_once(tmp_path, monkeypatch):
    if not yaml.__with_libyaml__:
        pytest.skip("PyYAML was built without libyaml")
    (tmp_path / "hardware").mkdir()
    for number in range(2):
        (tmp_path / "hardware" / f"mine{number}.yaml").write_text(f"name: mine{number}\ncpus_per_node: 6{number}\n")
    compose(["hardware=mine0"], tmp_path)
    for slow, name in ((yaml.scanner.Scanner, "fetch_more_tokens"), (yaml.composer.Composer, "get_single_node")):
        monkeypatch.setattr(slow, name, None)
    assert compose(["hardware=mine1"], tmp_path).config.hardware.cpus_per_node == 61
    monkeypatch.setattr(yaml.constructor.BaseConstructor, "get_single_data", None)
    (tmp_path / "hardware" / "mine1.yaml").write_text((tmp_path / "hardware" / "mine0.yaml").read_text())
    assert compose(["hardware=mine1"], tmp_path).config.hardware.cpus_per_node == 60


def test_a_defaults_list_may_refer_to_what_is_chosen(tmp_path):
    """Hydra's table of choices is made where it is read."""
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults:\n  - override /router: tr\n  - /router@env_router: ${router}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match="env_router"):  # it was found, and put where no key is
        compose(["+experiment=mine"], tmp_path)


@pytest.mark.parametrize(
    "text", ["a: 1\na: 2\n", "a: [1,\n", "a: 1e3\nb: 2001-01-01\nc: .5\nd: 1_000\ne: on\n", "", "- 1\n"]
)
def test_files_are_read_as_omegaconf_reads_them(tmp_path, text):
    import omegaconf._utils

    def answer(loader):
        with path.open() as stream:
            try:
                return yaml.load(stream, Loader=loader)  # noqa: S506
            except yaml.YAMLError as error:
                return str(error)

    compose()
    path = tmp_path / "some.yaml"
    path.write_text(text)
    quick = omegaconf._utils.get_yaml_loader
    assert answer(quick()) == answer(quick.__wrapped__()) == answer(quick())
