"""`job=sft` imitates: recorded conversations (`sft.data`), or scripted demonstrations, which make the warm start.

Invariants:
- The same configuration on the same machine, with the same ranks, gives the same weights, bit for bit.
- Wrong data are refused before a model is loaded.
- Of the scripted demonstrations only training packages are read; the result is a folder that `model.path` takes.
- Trainer, ranks, checkpoints and restarts are those of `job=train`; the model that it begins with is a folder.
"""

import asyncio
import json
import random
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.agent.prompts import system_prompt
from swe_rl.config.composition.values import config_hash
from swe_rl.config.known_models import mixture_facts
from swe_rl.config.schema import Config
from swe_rl.env.bugs.demonstration import Demonstrator
from swe_rl.env.bugs.workspace import PACKAGES
from swe_rl.errors import RunError, UserError
from swe_rl.facts.warm_start import imitates_data, longest_example_tokens, trainer_config, updates_of
from swe_rl.files.disk import DiskError, as_os_errors, disk_error, placed_by, write_json_atomic
from swe_rl.imitation.data import (
    LOW_REWARD,
    MORE_OF_INSTANCE,
    TOO_LONG,
    Data,
    Survey,
    closes_reasoning,
    load_data,
    survey_data,
)
from swe_rl.imitation.demonstrations import Demonstrations, demonstrate_conversation
from swe_rl.imitation.passes import Passes
from swe_rl.imitation.run_folder import require_same_tokens
from swe_rl.imitation.source import Imitated
from swe_rl.model.tiny import build_model, build_tokenizer, upcycle_dense
from swe_rl.run import event_loop
from swe_rl.run.imitation import Imitation
from swe_rl.run.session import RunSession, open_session
from swe_rl.run.training import (
    Restarts,
    go_on,
    in_this_process,
    pad_token_id,
    raise_lost,
    rank_group,
    repeat_with_restarts,
    require_peft,
    start_trainer,
    trainer_ranks,
)
from swe_rl.trainer.trainer import TrainsPolicy

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from swe_rl.model.chat import ChatRenderer

_TOKENIZER_CONVERSATIONS = 4000
_WEIGHTS = "model*.safetensors"


def run(config: Config, folder: Path | None) -> int:
    assert folder is not None
    survey = survey_data(config.sft) if imitates_data(config.sft) else None
    with open_session(config, folder, total_steps=updates_of(config).total_steps) as run_session:
        output = Path(config.sft.output)
        _put_back(output)
        _check_output(output)
        event_loop.run_job(_imitate(config, run_session, survey))
    run_session.print_end()
    what = "warm start" if survey is None else "imitation"
    print(f"{what}: {output} (use it with model.path={output})", flush=True)
    return 0


@dataclass(frozen=True, slots=True)
class _LoadedImitation:
    """What every start of the trainer begins with. `data` is None for scripted demonstrations."""

    of_trainer: Config
    tokenizer: "PreTrainedTokenizerFast"
    renderer: "ChatRenderer"
    data: Data | None

    def imitated(self) -> Imitated:
        if self.data is None:
            return Demonstrations(self.of_trainer, self.renderer)
        return Passes(self.of_trainer, self.data)


async def _imitate(config: Config, session: RunSession, survey: Survey | None) -> None:
    with session.progress.phase("load"):
        if not trainer_ranks(config):
            _check_device(config.sft.device)
        require_peft(config)
        loaded = await asyncio.to_thread(_load, config, session, survey)
    restarts = Restarts(config.trainer.max_restarts)
    await repeat_with_restarts(restarts, session, lambda: _train_once(config, loaded, session, restarts))


def _load(config: Config, session: RunSession, survey: Survey | None) -> _LoadedImitation:
    """Returns the tokenizer, and the examples where files are imitated. Raises UserError."""
    from swe_rl.model.load import load_tokenizer
    from swe_rl.model.make_renderer import make_renderer

    start = _start_folder(config, session.folder.path.absolute() / "start")
    model = replace(config.model, path=str(start), revision=None)
    tokenizer = load_tokenizer(model)
    renderer = make_renderer(model, tokenizer)
    data = None
    examples = None
    if survey is not None:
        data = load_data(config.sft, renderer, longest_example_tokens(config))
        examples = len(data.trained)
        require_same_tokens(config.sft.data, start, tokenizer.vocab_size + len(tokenizer.get_added_vocab()))
        _tell_of_data(config, session, survey, data)
        if survey.with_reasoning and closes_reasoning(renderer):
            session.warn(
                f"warning: {survey.with_reasoning} conversations have reasoning, but with model.thinking=false a "
                "prompt closes the think block, so the policy learns to open a second one; model.thinking=true leaves "
                "it open"
            )
    of_trainer = replace(trainer_config(config, examples), model=model)
    session.progress.state.total_steps = of_trainer.trainer.steps
    return _LoadedImitation(of_trainer, tokenizer, renderer, data)


def _tell_of_data(config: Config, session: RunSession, survey: Survey, data: Data) -> None:
    """Says what is imitated and what is not, and records it."""
    learned = sum(example.learned_tokens for example in data.trained)
    tokens = sum(len(example.token_ids) for example in data.trained)
    updates = updates_of(config, len(data.trained))
    session.progress.message(
        f"data: {survey.records} records, {len(data.trained)} conversations of {tokens:,} tokens ({learned:,} learned) "
        f"in {updates.steps} updates, {len(data.held_out)} held out"
    )
    for reason, count in data.left_out.items():
        session.progress.message(f"data: {count} left out: {reason}{_limit_of(config, reason)}")
    silent = survey.records - survey.with_exits
    if config.sft.mask_errors and silent:
        session.warn(
            f"warning: sft.mask_errors=true masks nothing of {silent} of the {survey.records} records: they do not "
            "tell how their commands ended"
        )
    if survey.calls_without_tools:
        session.warn(
            f"warning: {survey.calls_without_tools} conversations call tools that they do not list, so the model "
            "learns to call what its prompt does not offer; sft.tools=FILE names the tools"
        )
    session.events.write(
        "data",
        records=survey.records,
        trained=len(data.trained),
        held_out=len(data.held_out),
        left_out=dict(data.left_out),
        tokens=tokens,
        learned_tokens=learned,
        sha256=data.sha256(),
    )


def _limit_of(config: Config, reason: str) -> str:
    limits = {
        LOW_REWARD: f" than sft.min_reward={config.sft.min_reward}",
        TOO_LONG: f" than {longest_example_tokens(config)} (sft.max_tokens, or what the model reads)",
        MORE_OF_INSTANCE: f" than sft.max_per_instance={config.sft.max_per_instance}",
    }
    return limits.get(reason, "")


async def _train_once(config: Config, loaded: _LoadedImitation, session: RunSession, restarts: Restarts) -> None:
    """Runs to the end of the run. Raises RankLost, whatever else failed because of it."""
    of_trainer = loaded.of_trainer
    with closing(_make_trainer(config, of_trainer, session, loaded.tokenizer, restarts)) as trainer:
        await start_trainer(of_trainer, session, trainer)
        steps = Imitation(of_trainer, session, loaded.imitated(), trainer, config_hash(config))
        await go_on(steps, session, restarts)
        await _run_to_the_end(steps, trainer, session)
    figures = steps.figures()
    checkpoint = session.folder.checkpoints / f"step_{steps.step:06d}"
    output = Path(config.sft.output)
    await asyncio.to_thread(
        _save_aside, output, lambda aside: _export_checkpoint(checkpoint, of_trainer, aside), figures
    )
    session.events.write("warm_start", output=str(output), **figures)
    session.mirrors.summarize(figures)


def _make_trainer(
    config: Config, of_trainer: Config, session: RunSession, tokenizer: "PreTrainedTokenizerFast", restarts: Restarts
) -> TrainsPolicy:
    """Returns the trainer, not started. Raises UserError."""
    if trainer_ranks(config):
        return rank_group(of_trainer, session, pad_token_id(tokenizer), restarts.used)
    return in_this_process(of_trainer, config.sft.device)[2]


async def _run_to_the_end(steps: Imitation, trainer: TrainsPolicy, session: RunSession) -> None:
    try:
        await steps.run()
    except RunError as error:
        raise_lost(trainer, error)
        raise
    except asyncio.CancelledError:
        await asyncio.to_thread(steps.save)
        await asyncio.to_thread(trainer.wait)
        await asyncio.to_thread(session.state_is_saved)
        session.progress.message(f"interrupted after step {steps.step}; trainer.resume=auto goes on from there")
        raise


def _start_folder(config: Config, fresh: Path) -> Path:
    """Returns the model to begin with and its tokenizer, made in `fresh` where `sft.start` has none such.

    Raises UserError.
    """
    from swe_rl.model.load import model_folder

    given = config.sft.start
    if given is None and imitates_data(config.sft):
        given = config.model.path
    if given is not None:
        folder = model_folder(replace(config.model, path=given, revision=None))
        try:
            facts = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"sft.start={given} cannot be read: {error}. Give the folder of a model") from error
        if not config.model.num_experts or mixture_facts(facts)["num_experts"][1]:
            return folder
    # Otherwise it is a resumed run's own.
    if not (fresh / "config.json").is_file():
        aside = fresh.with_name(f".{fresh.name}.aside")
        shutil.rmtree(aside, ignore_errors=True)
        parts = _mixture_model(config) if config.sft.start else _random_model(config)
        try:
            with as_os_errors(aside):
                for part in parts:
                    part.save_pretrained(aside)
            aside.rename(fresh)
        except OSError as error:
            raise disk_error(fresh, error) from error
    return fresh


def _random_model(config: Config) -> "tuple[PreTrainedModel, PreTrainedTokenizerFast]":
    """Returns random weights, and a tokenizer of the demonstrations."""
    rng = random.Random(f"tokenizer/{config.sft.seed}")
    beginner = Demonstrator(PACKAGES / "train", config.sft.right_fraction)
    prompt = system_prompt(config.agent.system_prompt)
    texts = [
        message["content"]
        for _ in range(_TOKENIZER_CONVERSATIONS)
        for message in demonstrate_conversation(beginner.demonstrate(rng), prompt)
    ]
    return build_model(config.model, config.sft.seed), build_tokenizer(texts, config.model.vocab_size)


def _mixture_model(config: Config) -> "tuple[PreTrainedModel, PreTrainedTokenizerFast]":
    """Returns experts made of the MLPs of the dense model `sft.start`, with its tokenizer. Raises UserError."""
    from swe_rl.model.load import load_model, load_tokenizer

    assert config.sft.start is not None
    wanted = replace(config.model, path=config.sft.start)
    facts = replace(wanted, num_experts=0, active_experts=0, expert_intermediate_size=0)
    return upcycle_dense(load_model(facts), wanted, config.sft.seed), load_tokenizer(facts)


def _check_device(name: str) -> None:
    """Raises UserError for a device that torch does not see here."""
    import torch

    if name != "cpu" and not (name.startswith("cuda") and torch.cuda.is_available()):
        raise UserError(f"sft.device={name} is not available on this machine; sft.device=cpu always is")


def _export_checkpoint(checkpoint: Path, of_trainer: Config, target: Path) -> None:
    from swe_rl.trainer.checkpoint.export import export_checkpoint

    export_checkpoint(checkpoint, Path(of_trainer.model.path), target, dtype=None)


def _put_back(output: Path) -> None:
    """Puts back the model that `_save_aside` was about to replace, where it was killed before the new one had the
    name.
    """
    if (old := _old_folder(output)).exists() and not output.exists():
        old.rename(output)


def _old_folder(output: Path) -> Path:
    return output.with_name(f".{output.name}.old")


def _check_output(output: Path) -> None:
    """Checks the output: only a model makes way for a model. Raises UserError."""
    if output.exists() and not (output.is_dir() and (any(output.glob(_WEIGHTS)) or not any(output.iterdir()))):
        raise UserError(f"sft.output={output} is there and holds no model, so it is not replaced; name another folder")


def _save_aside(output: Path, write: Callable[[Path], None], figures: dict[str, Any]) -> None:
    """Writes aside, then renames: half a model is never found, and the old one goes after the new one is there.

    Raises DiskError; then the old one is as it was.
    """
    aside = output.with_name(f".{output.name}.aside")
    old = _old_folder(output)
    for leftover in (aside, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        with placed_by("sft.output", output):
            aside.parent.mkdir(parents=True, exist_ok=True)
            write(aside)
            write_json_atomic(aside / "warm_start.json", figures)
            if output.exists():
                # The old model keeps its name until the new one is complete beside it.
                output.rename(old)
            aside.rename(output)
    except DiskError:
        _put_back(output)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
