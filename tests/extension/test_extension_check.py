"""What the check says of somebody's own code, from its source alone; and that the start says the same."""

import os
import subprocess
import sys

import pytest

from swe_rl.check.check import check_config
from swe_rl.config.choices import ExtensionKind
from swe_rl.config.compose import compose
from swe_rl.extension.code import use_code
from swe_rl.extension.kinds import CONTRACTS
from swe_rl.extension.make import ExtensionError, require_importable
from swe_rl.extension.outline import OutlineError, read_outline
from tests.support.command import LIGHT, ROOT, warm

GOOD = '''
from swe_rl.api import Agent

class Mine(Agent):
    """Acts carefully."""

    def __init__(self, client, tries: int, *, words: str = "Go."):
        self.tries = tries

    async def run(self, work):
        raise NotImplementedError
'''


def findings(folder, *overrides):
    config = compose(["agent._target_=theirs.Mine", f"job.code=[{folder}]", *overrides]).config
    return config, [
        finding for finding in check_config(config) if finding.rule_id in ("extension", "unknown_name", "code")
    ]


def refused(folder, *overrides):
    """The one finding that refuses it; the start refuses it with the same words."""
    config, [finding] = findings(folder, *overrides)
    use_code([folder])
    with pytest.raises(ExtensionError) as raised:
        require_importable(config)
    assert finding.message in str(raised.value) and "\n" not in str(raised.value)
    assert raised.value.exit_status == 2
    return finding


def test_a_good_one_passes(package):
    folder = package("theirs", GOOD)
    config, none = findings(folder, "+agent.params.tries=3")
    assert none == [] and config.agent.name == "Mine"
    use_code([folder])
    require_importable(config)


def test_folders_need_no_init_file(package):
    folder = package("unused", "") / "deep"
    (folder / "within" / "another").mkdir(parents=True)
    (folder / "within" / "another" / "theirs.py").write_text(GOOD)
    named = "agent._target_=within.another.theirs.Mine"
    _, none = findings(folder, named, "+agent.params.tries=3")
    assert none == []
    assert refused(folder, named).message == "within.another.theirs.Mine (Acts carefully) needs tries"


def test_what_is_missing_and_what_is_too_much_is_named_with_its_docstring(package):
    folder = package("theirs", GOOD)
    missing = refused(folder)
    assert missing.key == "agent.params" and missing.message == "theirs.Mine (Acts carefully) needs tries"
    unknown = refused(folder, "+agent.params={tries: 3, word: Stop}")
    assert unknown.key == "agent.params.word" and unknown.fix.startswith("agent.params.words=Stop")
    given = refused(folder, "+agent.params={tries: 3, client: 4}")
    assert "gets client from swe_rl" in given.message
    wrong = refused(folder, "+agent.params.tries=many")
    assert wrong.message == "theirs.Mine (Acts carefully) takes int for tries, not 'many'"


def test_a_class_that_uses_a_sandbox_is_still_read(package):
    """`exec` and `vars` of an object are no names that the module makes."""
    folder = package("theirs", GOOD.replace("raise NotImplementedError", "await work.sandbox.exec('ls', timeout_s=1)"))
    assert "needs tries" in refused(folder).message
    folder = package("theirs", "from swe_rl.agent.bash import BashAgent\n\nclass Mine(BashAgent):\n    pass\n")
    assert "takes no tempo" in refused(folder, "+agent.params.tempo=3").message


def test_a_name_that_is_imported_as_another_is_not_bound(package):
    package("other", "class Mine: ...\n")
    folder = package("theirs", GOOD + "\nfrom other import Mine as Theirs\nimport xml.dom as Dom\n")
    assert "needs tries" in refused(folder).message
    folder = package("theirs", "from other import Mine as Theirs\n")
    assert "has no Mine" in refused(folder).message


def test_a_missing_or_wrong_method_is_named(package):
    missing = refused(package("theirs", "class Mine:\n    pass\n"))
    assert missing.message == "theirs.Mine has no method run(work)" and "docs/extending.md" in missing.fix
    wrong = refused(package("theirs", "class Mine:\n    async def run(self, work, more):\n        pass\n"))
    assert "its method run cannot be called as run(work)" in wrong.message


def test_what_a_class_declares_asks_for_its_method(package):
    source = "class Mine:\n    pays_turns = {}\n    def reward(self, attempt): ...\n"
    words = ["reward._target_=theirs.Mine", f"job.code=[{package.folder}]"]
    package("theirs", source.format(False))
    assert "extension" not in {finding.rule_id for finding in check_config(compose(words).config)}
    package("theirs", source.format(True))
    [said] = [finding for finding in check_config(compose(words).config) if finding.rule_id == "extension"]
    assert said.message == "theirs.Mine has no method turn_rewards(attempt)"


def test_a_protocol_that_is_only_promised_is_missing(package):
    missing = refused(package("theirs", "from swe_rl.api import Agent\n\nclass Mine(Agent):\n    name = 'x'\n"))
    assert missing.message == "theirs.Mine has no method run(work)"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import nothing_of_that_name\n", "imports nothing_of_that_name, which is not installed"),
        ("def broken(:\n", "is not Python"),
        ("class Other:\n    pass\n", "has no Mine; it has Other"),
    ],
)
def test_what_cannot_be_imported_is_known_without_importing(package, source, words):
    assert words in refused(package("theirs", source)).message


def test_a_package_that_is_nowhere(package):
    package("else", "")
    finding = refused(package.folder)
    assert "there is no package theirs here" in finding.message and "job.code=[FOLDER]" in finding.message


def test_a_folder_that_is_nowhere(package):
    package("theirs", GOOD)
    _, [folder] = findings("/nowhere", "agent._target_=swe_rl.agent.scripted.NoopAgent")
    assert (folder.rule_id, folder.key) == ("code", "job.code")


def test_names_that_are_re_exported_are_followed(package):
    package("inner", GOOD.replace("Mine", "Deep"))
    folder = package("theirs", "from inner import Deep as Mine\n")
    assert "needs tries" in refused(folder).message


def test_a_dataclass_has_its_fields_as_parameters(package):
    source = """
from dataclasses import dataclass

@dataclass
class Mine:
    "Acts."
    tries: int
    words: str = "Go."

    async def run(self, work):
        pass
"""
    assert "needs tries" in refused(package("theirs", source)).message
    assert findings(package.folder, "+agent.params.tries=3")[1] == []


def test_nothing_of_it_is_imported(package):
    """Neither it nor torch, which it wants."""
    folder = package("theirs", f"import torch\nraise SystemExit('imported')\n{GOOD}")
    code = (
        "import sys; from swe_rl.cli.launch import run_command;"
        f"status = run_command(['job=check', 'agent._target_=theirs.Mine', '+agent.params.tries=1', "
        f"'job.code=[{folder}]']);"
        "print(status, sorted({'torch', 'theirs'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []", done.stdout + done.stderr


# What setuptools writes for `pip install -e` of a package whose folders are not called as it is.
FINDER = """
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path

class Finder:
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname in MAPPING:
            for file in (Path(MAPPING[fullname], "__init__.py"), Path(MAPPING[fullname] + ".py")):
                if file.exists():
                    return spec_from_file_location(fullname, file)
        elif (parent := fullname.rpartition(".")[0]) in MAPPING:
            return PathFinder.find_spec(fullname, path=[MAPPING[parent]])

class Namespaces:
    @classmethod
    def hook(cls, path):
        if path == PLACE:
            return cls
        raise ImportError

    @classmethod
    def find_spec(cls, fullname, target=None):
        if fullname in NAMESPACES:
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [PLACE]
            return spec

sys.meta_path.append(Finder)
sys.path_hooks.append(Namespaces.hook)
sys.path.append(PLACE)
"""


@pytest.mark.parametrize(
    ("mapped", "namespaces", "target"),
    [
        ("ns.pkg", ["ns"], "ns.pkg.theirs"),
        pytest.param("ns.deep.pkg", ["ns", "ns.deep"], "ns.deep.pkg.theirs", marks=pytest.mark.slow),
        pytest.param("ns.theirs", ["ns"], "ns.theirs", marks=pytest.mark.slow),
        pytest.param("pkg", [], "pkg.theirs", marks=pytest.mark.slow),
    ],
)
def test_an_editable_installation_of_a_namespace_is_read_and_not_imported(
    package, tmp_path, mapped, namespaces, target
):
    source = package("theirs", GOOD)
    (source / "__init__.py").touch()
    place = source / "theirs" if target == mapped else source
    site = tmp_path / "site"
    site.mkdir()
    facts = (
        f"MAPPING = {{{mapped!r}: {str(place)!r}}}\nNAMESPACES = {namespaces}\nPLACE = '__editable__.x.__path_hook__'\n"
    )
    (site / "__editable___x_finder.py").write_text(facts + FINDER)
    (site / "__editable__.x.pth").write_text("import __editable___x_finder\n")
    code = (
        f"import importlib, site, sys; site.addsitedir({str(site)!r}); from swe_rl.cli.launch import run_command;"
        f"status = run_command(['job=check', 'agent._target_={target}.Mine', '+agent.params.tries=1']);"
        "from swe_rl.check.check import check_config; from swe_rl.config.compose import compose;"
        f"config = compose(['env=verifiers', 'env.dataset={target.partition('.')[0]}']).config;"
        "refused = [finding.rule_id for finding in check_config(config) if finding.rule_id == 'verifiers_package'];"
        "print(status, refused, sorted({'ns', 'pkg'} & set(sys.modules)));"
        f"importlib.import_module({target!r}).Mine"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = warm(LIGHT).start([], tmp_path, environ, code).completed(60)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "0 [] []"), done.stdout + done.stderr


class _Raising:
    @staticmethod
    def find_spec(*_):
        raise RuntimeError("of somebody else")


def test_finders_that_cannot_be_asked_find_nothing(tmp_path, monkeypatch):
    def hook(place):
        raise RuntimeError(place)

    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "__init__.py").touch()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, object(), _Raising])
    monkeypatch.setattr(sys, "path_hooks", [*sys.path_hooks, hook])
    monkeypatch.syspath_prepend("no folder")
    with pytest.raises(OutlineError, match="theirs has no module nowhere"):
        read_outline("theirs.nowhere.Mine", [str(tmp_path)])
    with pytest.raises(OutlineError, match="there is no package not_here here"):
        read_outline("not_here.Mine")


@pytest.mark.parametrize(
    ("group", "declared", "overrides", "rule"),
    [
        ("advantage", "needs_group = True", ["rollout.n=1"], "group_size"),
        ("advantage", "needs_group = False", ["algo.dynamic_sampling=filter"], "resample"),
        ("loss", "needs_rollout_logprobs = True", ["rollout.capture=retokenize"], "own_loss"),
        ("loss", "needs_reference_logprobs = True", ["algo.kl_coef=0"], "own_loss"),
        ("env", "needs_container = True", [], "own_env"),
    ],
)
def test_rules_read_what_a_class_declares(package, group, declared, overrides, rule):
    methods = "\n".join(
        f"    def {name}(self, {', '.join(names)}):\n        pass" for name, names in CONTRACTS[group].methods.items()
    )
    folder = package("theirs", f"class Mine:\n    {declared}\n{methods}\n")
    other = declared.replace("True", "x").replace("False", "True").replace("x", "False")
    words = [f"{group}._target_=theirs.Mine", f"job.code=[{folder}]", *overrides]
    assert rule in {finding.rule_id for finding in check_config(compose(words).config)}
    package("theirs", f"class Mine:\n    {other}\n{methods}\n\n")
    assert rule not in {finding.rule_id for finding in check_config(compose(words).config)}


def test_a_job_is_refused_for_nothing_that_it_does_not_start(package):
    config = compose(["loss._target_=nowhere.Loss", "job=serve"]).config
    assert [finding for finding in check_config(config) if finding.rule_id == "extension"] == []


@pytest.mark.parametrize("kind", list(ExtensionKind))
def test_an_unknown_name_has_the_nearest_one(kind):
    if kind is ExtensionKind.logger:
        return  # a name that nothing reads
    config = compose([f"{kind}.name=defaul"]).config
    assert "unknown_name" in {finding.rule_id for finding in check_config(config)}


def test_a_secret_is_in_no_finding(package):
    folder = package("theirs", GOOD)
    _, said = findings(folder, "+agent.params.tries=1", "+agent.params.api_key=planted-5c1f")
    assert len(said) == 1 and "planted" not in str(said)
