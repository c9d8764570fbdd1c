"""Runs all probes side by side, each with a time limit.

Invariants:
- Findings come in the order of PROBES, whichever probe answers first; `progress` is called from the caller's thread.
- Nothing raises, and no secret is in a finding.
- What asks about the machine that will run the job is left out where SLURM takes the job elsewhere.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Thread

from swe_rl.check.findings import Finding, warning
from swe_rl.check.parts import ask_parts
from swe_rl.check.preflight import container_engine, gpus, hub, isolation, machine, servers, slurm, vllm
from swe_rl.check.preflight.system import System, job_environment
from swe_rl.config.schema import Config
from swe_rl.config.secrets import is_secret_key, mask_text, mask_value
from swe_rl.files.redactor import MASK
from swe_rl.host.program import Unanswered

PROBE_S = 10.0
_SHORTEST_SECRET = 8  # shorter values are words that occur by chance


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks one small question about the machine.

    There is always an answer: where the machine gives none, a warning names `key`. `where_it_runs` marks a question
    about the machine that runs the job, which is pointless on one that only submits it. `of_env` marks a question about
    the environment, which is asked about each part of a mix.
    """

    name: str
    key: str
    ask: Callable[[Config, System], Iterator[Finding]]
    where_it_runs: bool = False
    of_env: bool = False


def run_probe(probe: Probe, config: Config, system: System) -> list[Finding]:
    """Returns the probe's findings so far and, if it broke off, one that says why."""
    findings: list[Finding] = []
    try:
        if probe.of_env:
            findings.extend(ask_parts(config, lambda part: [it.valued(part) for it in probe.ask(part, system)]))
        else:
            findings.extend(finding.valued(config) for finding in probe.ask(config, system))
    except Unanswered as reason:
        findings.append(_broke_off(probe, config, str(reason)))
    except Exception as error:  # a probe's own mistake must not keep the others from being heard
        findings.append(_broke_off(probe, config, f"{type(error).__name__}: {error}"))
    return findings


def _broke_off(probe: Probe, config: Config, reason: str) -> Finding:
    message = f"the preflight probe of the {probe.name} was not answered: {reason}"
    way_out = "look into the reason and run again with job=check job.preflight=true"
    return warning("preflight_unknown", probe.key, message, way_out).valued(config)


PROBES = (
    Probe("vLLM", "engine.kind", vllm.probe_vllm, where_it_runs=True),
    Probe("container engine", "sandbox.kind", container_engine.probe_container_engine, where_it_runs=True),
    Probe("isolation", "sandbox.isolation", isolation.probe_isolation, where_it_runs=True),
    Probe("disk", "paths.outputs", machine.probe_outputs),
    Probe("shared memory", "layout.name", machine.shared_memory, where_it_runs=True),
    Probe("scratch folder", "paths.scratch", machine.probe_scratch, where_it_runs=True),
    Probe("CPUs and memory", "hardware.cpus_per_node", machine.cpus_and_memory, where_it_runs=True),
    Probe("GPUs", "hardware.gpus_per_node", gpus.probe_gpus, where_it_runs=True),
    Probe("Ray cluster", "hardware.ray_address", servers.probe_ray, where_it_runs=True),
    Probe("gateway port", "gateway.port", machine.probe_port, where_it_runs=True),
    Probe("SLURM partition", "hardware.partition", slurm.probe_partitions),
    Probe("SLURM account", "hardware.account", slurm.probe_account),
    Probe("Weights & Biases", "logger.wandb", servers.weights_and_biases),
    Probe("Hugging Face hub", "model.path", hub.probe_hub, of_env=True),
    Probe("length of the issues", "rollout.max_prompt_tokens", hub.probe_prompt_lengths, of_env=True),
    Probe("engine servers", "engine.urls", servers.probe_engines),
    Probe("sandbox server", "sandbox.runtime_url", servers.probe_runtime),
)

_Result = tuple[int, list[Finding]]


def run_preflight(
    config: Config,
    system: System | None = None,
    progress: Callable[[str], None] | None = None,
    *,
    elsewhere: bool = False,
    limit_s: float = PROBE_S,
    probes: tuple[Probe, ...] = PROBES,
) -> list[Finding]:
    """Returns every finding of the probes. It takes as long as the slowest, and at most `limit_s` seconds.

    With `elsewhere` the job would run on another machine, so nothing is asked about this one.
    """
    system, say = system or System(), progress or (lambda _: None)
    elsewhere = elsewhere or slurm.runs_elsewhere(config, system)
    asked = dict(_choose_probes(probes, elsewhere, say))
    answers: dict[int, list[Finding]] = {}
    for index, findings in _collect_answers(asked, config, system, limit_s):
        answers[index] = findings
        say(f"{asked[index].name}: {_describe_outcome(findings)}")
    for index in asked.keys() - answers.keys():
        answers[index] = [_broke_off(asked[index], config, f"no answer in {limit_s:.0f} s")]
        say(f"{asked[index].name}: {_describe_outcome(answers[index])}")
    hidden = _secret_values(job_environment(config, system))
    return [_mask_finding(finding, hidden) for index in sorted(answers) for finding in answers[index]]


def _choose_probes(
    probes: tuple[Probe, ...], elsewhere: bool, say: Callable[[str], None]
) -> Iterator[tuple[int, Probe]]:
    for index, probe in enumerate(probes):
        if elsewhere and probe.where_it_runs:
            say(f"{probe.name}: not asked, the job runs elsewhere")
        else:
            yield index, probe


def _collect_answers(asked: Mapping[int, Probe], config: Config, system: System, limit_s: float) -> Iterator[_Result]:
    """Yields answers as they come, until the time is up. A thread that still waits then is left behind as a daemon."""
    results: SimpleQueue[_Result] = SimpleQueue()

    def ask(index: int, probe: Probe) -> None:
        results.put((index, run_probe(probe, config, system)))

    for index, probe in asked.items():
        Thread(target=ask, args=(index, probe), name=f"preflight {probe.name}", daemon=True).start()
    end = time.monotonic() + limit_s
    for _ in asked:
        try:
            yield results.get(timeout=max(0.0, end - time.monotonic()))
        except Empty:
            return


def _describe_outcome(findings: list[Finding]) -> str:
    if not findings:
        return "ok"
    if len(findings) == 1:
        return f"{findings[0].severity}: {findings[0].rule_id}"
    return f"{len(findings)} findings"


def _secret_values(environment: Mapping[str, str]) -> list[str]:
    """Returns values of the job's environment that must not be shown. Short ones are words that occur by chance."""
    return [
        value
        for name, value in environment.items()
        if len(value) >= _SHORTEST_SECRET and is_secret_key(f"env_vars.{name}")
    ]


def _mask_finding(finding: Finding, hidden: list[str]) -> Finding:
    return replace(
        finding,
        value=mask_value(finding.key, finding.value),
        message=_hide_secrets(finding.message, hidden),
        fix=_hide_secrets(finding.fix, hidden),
    )


def _hide_secrets(text: str, hidden: list[str]) -> str:
    for secret in hidden:
        text = text.replace(secret, MASK)
    return mask_text(text)
