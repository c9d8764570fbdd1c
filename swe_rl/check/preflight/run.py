"""All probes side by side, each with a time limit.

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
from swe_rl.check.preflight import container_engine, gpus, hub, images, machine, servers, slurm, vllm
from swe_rl.check.preflight.system import System, job_environment
from swe_rl.config.schema import Config
from swe_rl.config.secrets import MASK, is_secret_key, mask_text, mask_value
from swe_rl.host.program import Unanswered

PROBE_S = 10.0
_SHORTEST_SECRET = 8  # characters


@dataclass(frozen=True, slots=True)
class Probe:
    """One small question about the machine, never without an answer: where there is none, a warning names `key`.

    `where_it_runs`: asks about the machine that runs the job; pointless on one that only submits it.
    """

    name: str
    key: str
    ask: Callable[[Config, System], Iterator[Finding]]
    where_it_runs: bool = False


def answered(probe: Probe, config: Config, system: System) -> list[Finding]:
    """The probe's findings so far and, if it broke off, one that says why."""
    findings: list[Finding] = []
    try:
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
    Probe("vLLM", "engine.kind", vllm.ask, where_it_runs=True),
    Probe("container engine", "sandbox.kind", container_engine.ask, where_it_runs=True),
    Probe("container images", "env.image_template", images.ask, where_it_runs=True),
    Probe("disk", "paths.outputs", machine.outputs),
    Probe("shared memory", "layout.name", machine.shared_memory, where_it_runs=True),
    Probe("scratch folder", "paths.scratch", machine.scratch, where_it_runs=True),
    Probe("CPUs and memory", "hardware.cpus_per_node", machine.cpus_and_memory, where_it_runs=True),
    Probe("GPUs", "hardware.gpus_per_node", gpus.ask, where_it_runs=True),
    Probe("Ray cluster", "hardware.ray_address", servers.ray, where_it_runs=True),
    Probe("gateway port", "gateway.port", machine.port, where_it_runs=True),
    Probe("SLURM partition", "hardware.partition", slurm.partitions),
    Probe("SLURM account", "hardware.account", slurm.account),
    Probe("Weights & Biases", "logger.wandb", servers.weights_and_biases),
    Probe("Hugging Face hub", "model.path", hub.ask),
    Probe("length of the issues", "rollout.max_prompt_tokens", hub.prompts),
    Probe("engine servers", "engine.urls", servers.engines),
    Probe("sandbox server", "sandbox.runtime_url", servers.runtime),
)

_Result = tuple[int, list[Finding]]


def preflight(
    config: Config,
    system: System | None = None,
    progress: Callable[[str], None] | None = None,
    *,
    elsewhere: bool = False,
    limit_s: float = PROBE_S,
    probes: tuple[Probe, ...] = PROBES,
) -> list[Finding]:
    """Every finding of the probes. Takes as long as the slowest, at most `limit_s` seconds.

    `elsewhere`: the job would run on another machine, so that nothing is asked about this one.
    """
    system, say = system or System(), progress or (lambda _: None)
    elsewhere = elsewhere or slurm.runs_elsewhere(config, system)
    asked = dict(_chosen(probes, elsewhere, say))
    answers: dict[int, list[Finding]] = {}
    for index, findings in _answers(asked, config, system, limit_s):
        answers[index] = findings
        say(f"{asked[index].name}: {_outcome(findings)}")
    for index in asked.keys() - answers.keys():
        answers[index] = [_broke_off(asked[index], config, f"no answer in {limit_s:.0f} s")]
        say(f"{asked[index].name}: {_outcome(answers[index])}")
    hidden = _secrets(job_environment(config, system))
    return [_masked(finding, hidden) for index in sorted(answers) for finding in answers[index]]


def _chosen(probes: tuple[Probe, ...], elsewhere: bool, say: Callable[[str], None]) -> Iterator[tuple[int, Probe]]:
    for index, probe in enumerate(probes):
        if elsewhere and probe.where_it_runs:
            say(f"{probe.name}: not asked, the job runs elsewhere")
        else:
            yield index, probe


def _answers(asked: Mapping[int, Probe], config: Config, system: System, limit_s: float) -> Iterator[_Result]:
    """As they come, until the time is up; a thread that still waits then is left behind as a daemon."""
    results: SimpleQueue[_Result] = SimpleQueue()

    def ask(index: int, probe: Probe) -> None:
        results.put((index, answered(probe, config, system)))

    for index, probe in asked.items():
        Thread(target=ask, args=(index, probe), name=f"preflight {probe.name}", daemon=True).start()
    end = time.monotonic() + limit_s
    for _ in asked:
        try:
            yield results.get(timeout=max(0.0, end - time.monotonic()))
        except Empty:
            return


def _outcome(findings: list[Finding]) -> str:
    if not findings:
        return "ok"
    return f"{findings[0].severity}: {findings[0].rule_id}" if len(findings) == 1 else f"{len(findings)} findings"


def _secrets(environment: Mapping[str, str]) -> list[str]:
    """Values of the job's environment that must not be shown; short ones are words that occur by chance."""
    return [
        value
        for name, value in environment.items()
        if len(value) >= _SHORTEST_SECRET and is_secret_key(f"env_vars.{name}")
    ]


def _masked(finding: Finding, hidden: list[str]) -> Finding:
    return replace(
        finding,
        value=mask_value(finding.key, finding.value),
        message=_hide(finding.message, hidden),
        fix=_hide(finding.fix, hidden),
    )


def _hide(text: str, hidden: list[str]) -> str:
    for secret in hidden:
        text = text.replace(secret, MASK)
    return mask_text(text)
