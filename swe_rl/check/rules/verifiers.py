"""Rules of env=verifiers: its agent, its traces, and an environment that is installed.

Invariants:
- Nothing is imported: whether a package is there, the folders of Python's path say.
"""

import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder

from swe_rl.check.findings import Finding, Host, about, between, error
from swe_rl.config.choices import Capture
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config
from swe_rl.extension.code import search_folders

ENV = "swe_rl.env.verifiers.VerifiersEnv"
AGENT = "swe_rl.agent.verifiers.VerifiersAgent"


@between(Part.data, Part.rollouts)
def verifiers_pair(config: Config, _: Host) -> Iterator[Finding]:
    env, agent = config.env._target_ == ENV, config.agent._target_ == AGENT
    if env and not agent:
        words = "env=verifiers leads the conversation itself and scores it, and only agent=verifiers lets it"
        yield error("verifiers_pair", "agent.name", words, "agent=verifiers")
    if agent and not env:
        words = "plays the rollouts of a verifiers environment, and env is another one"
        yield error("verifiers_pair", "agent.name", words, "env=verifiers env.dataset=PACKAGE")


@about(Part.rollouts)
def verifiers_capture(config: Config, _: Host) -> Iterator[Finding]:
    if config.agent._target_ == AGENT and config.rollout.capture is Capture.retokenize:
        words = "agent=verifiers leaves the conversation to its environment, which may change it: only traces are exact"
        yield error("agent_capture", "rollout.capture", words, "rollout.capture=traced")


@about(Part.data)
def verifiers_package(config: Config, host: Host) -> Iterator[Finding]:
    """Not where the job runs on another machine: what is installed there is not known."""
    if config.env._target_ != ENV or host.elsewhere or host.submitted:
        return
    if config.env.dataset == "none":
        words = "env=verifiers needs the name of an environment's package"
        yield error("verifiers_package", "env.dataset", words, "env.dataset=PACKAGE")
        return
    module = config.env.dataset.replace("-", "_").split("/")[-1]
    if PathFinder.find_spec(module.partition(".")[0], [*search_folders(config.job.code), *sys.path]) is None:
        words = f"there is no installed package with the module {module}, which an environment of that name is"
        fix = f"pip install {config.env.dataset.split('/')[-1]}, or job.code=[FOLDER] that has it"
        yield error("verifiers_package", "env.dataset", words, fix)
