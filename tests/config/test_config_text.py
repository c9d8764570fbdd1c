"""Keys of text keep the characters that were typed, wherever they were typed; a file that loses them is refused."""

import os
from pathlib import Path
from typing import Any

import pytest

from swe_rl.cli import dispatch
from swe_rl.cli.hydra_main import through_hydra
from swe_rl.config.compose import compose, compose_all, compose_fixed, expand_sweep
from swe_rl.config.composition.values import flatten_config
from swe_rl.config.explain import ConfigError
from swe_rl.config.keys import is_text, key_types
from swe_rl.config.store import register_schema
from swe_rl.submission.freeze import freeze_jobs, verify_frozen

WORDS = [
    *("2_3", "2025_07_01", "3.40", "4e6", "9e400", "0042", "0xff", "1_000.5", "-0", "+7", ".25", "8.", "1E3"),
    *("true", "FALSE", "yes", "off", "None", "nan", "INF", "12:30:00", "2025-07-01", "a b", "v1.0", "12345"),
]
WITHOUT_QUOTES = ["'null'", '"null"', "' a '", '"2_3"', "'ключ'", "'~/x'", "'a, b'"]  # and what they are: between them


def parsed(override):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    register_schema()
    return OverridesParser.create().parse_override(override).value()


@pytest.mark.parametrize("key", [key for key, hint in key_types().items() if is_text(hint)])
def test_every_key_of_text_keeps_what_was_typed(key):
    assert [str(parsed(f"{key}={word}")) for word in WORDS] == WORDS  # as the schema makes text of it
    assert [parsed(f"{key}={quoted}") for quoted in WITHOUT_QUOTES] == [quoted[1:-1] for quoted in WITHOUT_QUOTES]


@pytest.mark.parametrize("key", [key for key, hint in key_types().items() if hint == tuple[str, ...]])
def test_every_list_of_text_keeps_what_was_typed(key):
    kept = parsed(f"{key}=[{','.join([*WORDS, *WITHOUT_QUOTES])}]")
    assert [str(item) for item in kept] == [*WORDS, *(quoted[1:-1] for quoted in WITHOUT_QUOTES)]


@pytest.mark.parametrize("word", WORDS)
def test_what_was_typed_is_in_the_configuration(word):
    given = [f"name={word}", f"hardware.setup=[{word}, x ]", f"+hardware.env_vars={{A: {word}}}"]
    config = compose([*given, f"++hardware.env_vars.B={word}", f"+agent.exit_codes={{1_1: {word}}}"]).config
    assert config.name == word
    assert config.hardware.setup == (word, "x")
    assert config.hardware.env_vars == {"A": word, "B": word}
    assert config.agent.exit_codes == {"1_1": word}


def test_what_is_no_text_is_read_as_before():
    config = compose(["+agent.params.x=1_0", "+agent.params.y=[true,2e3,null]", "trainer.steps=1_0", "trainer.lr=1e-3"])
    assert config.config.agent.params == {"x": 10, "y": (True, 2000.0, None)}
    assert (config.config.trainer.steps, config.config.trainer.lr) == (10, 0.001)
    assert flatten_config(compose(["job.baseline=null"]).config)["job.baseline"] is None


@pytest.mark.parametrize("override", ["paths.outputs=null", "hardware.setup=[null]", "+hardware.env_vars={A: null}"])
def test_null_is_text_in_quotes_alone(override):
    with pytest.raises(ConfigError, match=r"must be text .*KEY=\"null\""):
        compose([override])
    compose([override.replace("null", "'null'")])


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_hydras_own_folders_keep_their_names_and_its_numbers_are_numbers(sign):
    assert parsed(f"{sign}hydra.sweep.dir=2025_07_01") == "2025_07_01"
    assert parsed(f"{sign}hydra.job.num=1_0") == 10
    assert parsed(f"{sign}hydra.sweeper.params.name=1_0") == "1_0"
    assert parsed("hydra.launcher.timeout_min=1_0") == 10


def test_an_option_may_be_called_like_a_number(tmp_path):
    (tmp_path / "hardware").mkdir()
    names = ["007", "1_0", "12"]
    for name in names:
        (tmp_path / "hardware" / f"{name}.yaml").write_text(f'defaults: [cpu, _self_]\nname: "{name}"\n')
    jobs = compose_all(expand_sweep(["hardware=007,1_0,12"], tmp_path), tmp_path)
    assert [job.config.hardware.name for job in jobs] == [job.choices["hardware"] for job in jobs] == names


SWEEPS = {
    "name=2_3,'4_5',1e5": ["2_3", "4_5", "1e5"],
    "name=choice(2_3,'null','a b',true)": ["2_3", "null", "a b", "true"],
    "name=sort(2_2,2_1,reverse=true)": ["2_2", "2_1"],
    "name=tag(t,choice(2_3,4_5))": ["2_3", "4_5"],
    "name=str(2_3,4_5)": ["2_3", "4_5"],
    "name=range(1,3)": ["1", "2"],
    "name=int(2_3),float(1e2)": ["23", "100.0"],  # who writes a function of numbers means numbers
}


@pytest.mark.parametrize("override", SWEEPS)
def test_each_value_of_a_sweep_keeps_what_was_typed(override):
    assert [job.config.name for job in compose_all(expand_sweep([override]))] == SWEEPS[override]


def test_what_was_frozen_for_slurm_is_read_again_as_it_was(tmp_path):
    given = ["hydra/launcher=submitit_slurm", "name=2_3,1e5", "hardware.account=00123", "hardware.setup=[1_0]"]
    jobs = compose_all(expand_sweep(given))
    freeze_jobs(tmp_path / "sweep", jobs, None, code=False)
    for number, job in enumerate(jobs):
        again = compose([text for text in job.overrides if not text.startswith("hydra.")])
        verify_frozen(tmp_path / "sweep" / str(number), number, again)
        assert (again.config.hardware.account, again.config.hardware.setup) == ("00123", ("1_0",))
    assert [job.config.name for job in jobs] == ["2_3", "1e5"]


def test_hydras_own_sweep_is_the_one_that_was_checked(tmp_path, capfd):
    """`expand_sweep` names the jobs that are checked; Hydra makes its own list of them, and composes each again."""
    given = ["name=2_3,1e5", "+hardware.env_vars={A: 1_0}", "+hardware.env_vars={B: x},{B: 0_0}"]
    trees: list[Any] = []
    through_hydra(trees.append, ["--multirun"], [*given, f"hydra.sweep.dir={tmp_path / '2025_07_01'}"], None)
    ran = [(tree.name, dict(tree.hardware.env_vars)) for tree in trees]
    assert ran == [(job.config.name, job.config.hardware.env_vars) for job in compose_all(expand_sweep(given))]
    assert ran[0] == ("2_3", {"A": "1_0", "B": "x"}) and len(ran) == 4


def test_a_sweep_merges_tables_as_a_single_run_does():
    several = ["+hardware.env_vars={A: x}", "+hardware.env_vars={B: y}"]
    (job,) = compose_all(expand_sweep(several))
    assert job.config.hardware.env_vars == compose(several).config.hardware.env_vars == {"A": "x", "B": "y"}
    jobs = compose_all(expand_sweep(["+hardware.env_vars={A: x},{A: z}", several[1], "trainer.seed=1,2"]))
    assert [(job.config.hardware.env_vars["A"], job.config.trainer.seed) for job in jobs] == [
        *(("x", 1), ("x", 2), ("z", 1), ("z", 2))
    ]
    assert {job.config.hardware.env_vars["B"] for job in jobs} == {"y"}


@pytest.mark.parametrize("later", ["trainer.seed=3,4", "trainer.seed=5", "++trainer.seed=5", "trainer.seed=range(3)"])
def test_a_sweep_that_a_later_override_would_hide_is_refused(later):
    with pytest.raises(ConfigError) as caught:
        expand_sweep(["trainer.seed=1,2", later])
    assert f"trainer.seed=1,2 and {later} both set trainer.seed" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("router=glob(zz*)", "router has cap, default"),
        ("name=glob(*)", "at least one value"),
        ("trainer.seed=range(3,1)", "at least one value"),
    ],
)
def test_a_sweep_over_nothing_is_refused(override, says):
    with pytest.raises(ConfigError) as caught:
        expand_sweep(["trainer.lr=1,2", override])
    assert f"{override} stands for no value, so there is no job" in str(caught.value) and says in str(caught.value)


def test_what_the_command_line_says_of_a_shipped_sweeps_key_counts():
    assert [job.config.trainer.seed for job in compose_all(expand_sweep(["+sweep=seeds", "trainer.seed=7,8"]))] == [
        7,
        8,
    ]


@pytest.mark.slow
def test_a_sweeper_that_keeps_one_table_alone_gets_one():
    pytest.importorskip("optuna")
    with pytest.raises(ConfigError, match="both set hardware.env_vars"):
        compose_fixed(["hydra/sweeper=optuna", "+hardware.env_vars={A: x}", "+hardware.env_vars={B: y}"])


FILES = {  # what stands in a file, and what YAML makes of it
    "account: 00123": "hardware.account is text, and YAML reads 00123 as the number 83",
    "account: 4e6": "hardware.account is text, and YAML reads 4e6 as the number 4000000.0",
    "account: 1_000": "reads 1_000 as the number 1000",
    "account: 3.40": "reads 3.40 as the number 3.4",
    "account: 0xff": "reads 0xff as the number 255",
    "account: 12:30:00": "reads 12:30:00 as the number 45000",
    "account: off": "reads off as true or false",
    "account: .5": "reads .5 as the number 0.5",
    "setup: [echo a, 1_0]": "hardware.setup.1 is text, and YAML reads 1_0 as the number 10",
    "env_vars: {A: yes}": "hardware.env_vars.A is text, and YAML reads yes as true or false",
    "env_vars: {<<: {A: 1_0}}": "hardware.env_vars.A is text, and YAML reads 1_0 as the number 10",
    "env_vars: {<<: [{B: 5}, {A: 1_0}]}": "hardware.env_vars.A is text, and YAML reads 1_0 as the number 10",
    "env_vars: {<<: [{<<: {A: 1_0}}, {A: 5}]}": "hardware.env_vars.A is text, and YAML reads 1_0 as the number 10",
}


@pytest.mark.parametrize("line", FILES)
def test_a_file_in_which_yaml_reads_something_else_is_refused(tmp_path, line):
    file = option(tmp_path, "hardware/mine", f"defaults: [cpu, _self_]\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        compose(["hardware=mine"], tmp_path)
    written = FILES[line].partition("reads ")[2].partition(" as ")[0]
    assert str(caught.value).startswith(f"{file}, line 2: ")
    assert FILES[line] in str(caught.value) and str(caught.value).endswith(f'Write it in quotes: "{written}".')
    file.write_text(file.read_text().replace(written, f'"{written}"'))
    assert written in str(flatten_config(compose(["hardware=mine"], tmp_path).config))


@pytest.mark.parametrize(
    ("line", "account"),
    {
        "account: 12345": "12345",
        "account: 2025-07-01": "2025-07-01",
        "account: '00123'": "00123",
        "account: ~": None,
    }.items(),
)
def test_a_file_in_which_yaml_keeps_the_characters_is_read(tmp_path, line, account):
    option(tmp_path, "hardware/mine", f"defaults: [cpu, _self_]\n{line}\ncpus_per_node: 1_0\n")
    hardware = compose(["hardware=mine"], tmp_path).config.hardware
    assert (hardware.account, hardware.cpus_per_node) == (account, 10)


EXPERIMENTS = {
    "name: 2025_07_01": 2,
    "job:\n  candidate: 1_1": 3,
    "hydra:\n  sweep:\n    dir: 2025_07_01": 4,
    "hydra:\n  sweeper:\n    params:\n      trainer.seed: 1\n      name: 1_0": 6,
}


@pytest.mark.parametrize("text", EXPERIMENTS)
def test_a_file_of_any_package_is_looked_into(tmp_path, text):
    file = option(tmp_path, "experiment/mine", f"# @package _global_\n{text}\n")
    with pytest.raises(ConfigError, match=rf"{file}, line {EXPERIMENTS[text]}: .* is text, and YAML reads"):
        compose(["+experiment=mine"], tmp_path)


@pytest.mark.parametrize(
    ("line", "variables"),
    {
        "{<<: [{A: 5}, {B: 6}], C: 7}": {"A": "5", "B": "6", "C": "7"},
        "{<<: [{A: 5}, {A: 010}]}": {"A": "5"},
        "{A: '0', <<: {A: 010}}": {"A": "0"},
        "{2020-01-01: 5, 'yes': 6}": {"2020-01-01": "5", "yes": "6"},
    }.items(),
)
def test_values_of_merged_tables_are_found_where_they_are_written(tmp_path, line, variables):
    option(tmp_path, "hardware/mine", f"defaults: [cpu, _self_]\nenv_vars: {line}\n")
    assert compose(["hardware=mine"], tmp_path).config.hardware.env_vars.items() >= variables.items()


@pytest.mark.parametrize("name", ["yes", "1"])
def test_a_name_that_is_no_text_is_refused_as_a_name(tmp_path, name):
    option(tmp_path, "hardware/mine", f"defaults: [cpu, _self_]\nenv_vars: {{{name}: 5}}\n")
    with pytest.raises(ConfigError, match=r"hardware.env_vars has names that are text"):
        compose(["hardware=mine"], tmp_path)


def test_a_secret_in_a_file_is_not_shown(tmp_path):
    option(tmp_path, "hardware/mine", "defaults: [cpu, _self_]\nenv_vars: {SITE_TOKEN: 0017_7}\n")
    with pytest.raises(ConfigError, match=r"line 2: hardware.env_vars.SITE_TOKEN is text") as caught:
        compose(["hardware=mine"], tmp_path)
    assert "17_7" not in str(caught.value)


def test_names_of_a_table_of_text_are_text_in_files_too(tmp_path):
    option(tmp_path, "agent/mine", "defaults: [command, _self_]\nexit_codes: {3: submitted}\n")
    with pytest.raises(ConfigError, match=r'agent.exit_codes has names that are text.* in quotes: "3"'):
        compose(["agent=mine"], tmp_path)


def option(root: Path, name: str, text: str) -> Path:
    path = root / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_what_another_process_has_in_its_environment_is_no_difference(tmp_path, monkeypatch):
    """The record of a job is masked by the secrets of who submitted; the job's node has others, or none."""
    job = compose(["model.name=qwen-model", "+agent.params.words=[qwen-model,other]"])
    monkeypatch.setenv("SOME_TOKEN", "qwen-model")
    freeze_jobs(tmp_path / "masked", [job], None, code=False)
    monkeypatch.delenv("SOME_TOKEN")
    freeze_jobs(tmp_path / "plain", [job], None, code=False)
    assert "***" in (tmp_path / "masked" / "frozen" / "jobs" / "0.json").read_text()
    for variable in (None, "SOME_TOKEN"):
        if variable is not None:
            monkeypatch.setenv(variable, "qwen-model")
        for folder in ("masked", "plain"):
            verify_frozen(tmp_path / folder / "0", 0, job)
    with pytest.raises(ConfigError, match="agent.params.words"):
        verify_frozen(tmp_path / "masked" / "0", 0, compose(["model.name=qwen-model", "+agent.params.words=[other]"]))


def test_the_variables_of_a_job_are_not_those_of_the_next(tmp_path, monkeypatch):
    """A local sweep runs its jobs in one process, and their configurations say which variables each has."""
    seen = []

    def look(composed, *_):
        seen.append((composed.config.hardware.env_vars, os.environ.get("FOO_MODE"), os.environ.get("KEPT")))
        return 0, composed.config

    monkeypatch.setenv("KEPT", "outer")
    monkeypatch.setattr(dispatch, "may_start", lambda *_, **__: True)
    monkeypatch.setattr(dispatch, "_start_job", look)
    monkeypatch.setattr(dispatch, "read_objective", lambda *_: None)
    given = ["+hardware.env_vars={FOO_MODE: fast, KEPT: inner},{}", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    through_hydra(dispatch.run_in_folder, ["--multirun"], given, None)
    assert seen == [({"FOO_MODE": "fast", "KEPT": "inner"}, "fast", "inner"), ({}, None, "outer")]
    assert "FOO_MODE" not in os.environ and os.environ["KEPT"] == "outer"
