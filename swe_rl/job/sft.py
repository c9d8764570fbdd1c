"""`job=sft`: the warm start. First right demonstrations only (the skill), then a beginner's (the habits).

Invariants:
- Same configuration on the same machine: the same weights, bit for bit.
- Only training packages are read; the result is a folder that `model.path` takes.
"""

import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.agent.observation import NO_OUTPUT
from swe_rl.agent.prompts import system_prompt
from swe_rl.config.schema import Config
from swe_rl.env.bugs.demonstration import Demonstration, Demonstrator
from swe_rl.env.bugs.workspace import PACKAGES
from swe_rl.errors import UserError
from swe_rl.logger.disk import write_json_atomic
from swe_rl.model.tiny import IdsAndMask, Messages, batches, build_model, build_tokenizer, upcycled
from swe_rl.run.session import session

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from swe_rl.model.chat import ChatRenderer

Log = Callable[[Mapping[str, Any], int], None]  # of a record and its step

_TOKENIZER_CONVERSATIONS = 4000
_REPORT_EVERY_STEPS = 50
_WEIGHTS = "model.safetensors"


def run(config: Config, folder: Path | None) -> int:
    assert folder is not None
    total_steps = config.sft.steps + config.sft.beginner_steps
    with session(config, folder, total_steps=total_steps, reports=False) as run_session:
        output = Path(config.sft.output)
        _put_back(output)
        _check_output(output)
        tokenizer, model, losses = _warm_start(config, run_session.progress.line, run_session.mirrors.log)
        figures = {"seed": config.sft.seed, "loss_skill": losses[0], "loss_beginner": losses[1]}
        _save(output, model, tokenizer, figures)
        run_session.events.write("warm_start", output=str(output), **figures)
        run_session.mirrors.summarize(figures)
    print(f"warm start: {output} (use it with model.path={output})", flush=True)
    return 0


def conversation(demonstration: Demonstration, prompt: str) -> Messages:
    """As `agent=bash` would have had it."""
    messages = [{"role": "system", "content": prompt}, {"role": "user", "content": demonstration.statement}]
    for number, command in enumerate(demonstration.replies):
        messages.append({"role": "assistant", "content": f"```bash\n{command}\n```"})
        if number < len(demonstration.observations):
            messages.append({"role": "user", "content": demonstration.observations[number] or NO_OUTPUT})
    return messages


def _warm_start(
    config: Config, say: Any, log: Log
) -> tuple["PreTrainedTokenizerFast", "PreTrainedModel", tuple[float, float]]:
    from swe_rl.model.chat import ChatRenderer
    from swe_rl.trainer.supervised import SupervisedTrainer

    sft, prompt = config.sft, system_prompt(config.agent.system_prompt)
    expert, beginner = (Demonstrator(PACKAGES / "train", right) for right in (1.0, sft.right_fraction))
    model, tokenizer = _start(config) if sft.start else _nothing(config, beginner, prompt)
    model = model.to(_device(sft.device))
    renderer = ChatRenderer(tokenizer, template=config.model.chat_template, thinking=config.model.thinking)
    losses = []
    stages = ((expert, sft.steps, sft.lr, sft.warmup_steps), (beginner, sft.beginner_steps, sft.beginner_lr, 0))
    for stage, (demonstrator, steps, lr, warmup_steps) in enumerate(stages):
        trainer = SupervisedTrainer(
            model,
            lr=lr,
            warmup_steps=warmup_steps,
            total_steps=steps,
            grad_clip=config.trainer.grad_clip,
            pad_token_id=int(tokenizer.pad_token_id),
            max_tokens_per_micro_batch=config.trainer.max_tokens_per_micro_batch,
            num_threads=config.trainer.num_threads,
        )
        rows = _rows(demonstrator, renderer, prompt, sft.seed + stage, sft.tokens_per_batch)
        before = sft.steps if stage else 0
        losses.append(_train(trainer, rows, steps, f"stage {stage + 1} of 2", say, log, before))
    return tokenizer, model.cpu(), (losses[0], losses[1])


def _nothing(config: Config, beginner: Demonstrator, prompt: str) -> tuple[Any, "PreTrainedTokenizerFast"]:
    """Random weights, and a tokenizer of the demonstrations."""
    rng = random.Random(f"tokenizer/{config.sft.seed}")
    texts = [
        message["content"]
        for _ in range(_TOKENIZER_CONVERSATIONS)
        for message in conversation(beginner.demonstrate(rng), prompt)
    ]
    return build_model(config.model, config.sft.seed), build_tokenizer(texts, config.model.vocab_size)


def _start(config: Config) -> tuple[Any, "PreTrainedTokenizerFast"]:
    """The dense model of `sft.start` with its tokenizer; for a mixture, its experts are made of that one's MLPs.

    Raises UserError.
    """
    from swe_rl.model.load import load_model, load_tokenizer

    assert config.sft.start is not None
    wanted = replace(config.model, path=config.sft.start)
    facts = replace(wanted, num_experts=0, active_experts=0, expert_intermediate_size=0)
    dense = load_model(facts)
    model = upcycled(dense, wanted, config.sft.seed) if wanted.num_experts else dense
    return model, load_tokenizer(facts)


def _device(name: str) -> str:
    """Raises UserError for a device that torch does not see here."""
    import torch

    if name != "cpu" and not (name.startswith("cuda") and torch.cuda.is_available()):
        raise UserError(f"sft.device={name} is not available on this machine; sft.device=cpu always is")
    return name


def _rows(
    demonstrator: Demonstrator, renderer: "ChatRenderer", prompt: str, seed: int, tokens: int
) -> Iterator[list[IdsAndMask]]:
    return batches(lambda rng: conversation(demonstrator.demonstrate(rng), prompt), renderer, seed, tokens)


def _train(
    trainer: Any, rows: Iterator[list[IdsAndMask]], steps: int, label: str, say: Any, log: Log, before: int
) -> float:
    """The mean loss of the last reported stretch. `before`: steps of the stages before this one."""
    losses: list[float] = []
    started_s = time.monotonic()
    tokens, mean = 0, float("nan")
    for step in range(1, steps + 1):
        batch = next(rows)
        tokens += sum(len(ids) for ids, _ in batch)
        losses.append(trainer.step(batch))
        if step % _REPORT_EVERY_STEPS == 0 or step == steps:
            mean = sum(losses) / len(losses)
            losses.clear()
            rate = tokens / (time.monotonic() - started_s)
            log({"step": before + step, "loss": mean, "trained_tokens_per_s": rate}, before + step)
            say(
                f"{label}: {step}/{steps}, loss {mean:.4f}, {rate:,.0f} trained tokens/s, "
                f"{(steps - step) * (time.monotonic() - started_s) / step:.0f} s left"
            )
    return mean


def _put_back(output: Path) -> None:
    """The model that `_save` was about to replace, where it was killed before the new one had the name."""
    if (old := _old(output)).exists() and not output.exists():
        old.rename(output)


def _old(output: Path) -> Path:
    return output.with_name(f".{output.name}.old")


def _check_output(output: Path) -> None:
    """Only a model makes way for a model. Raises UserError."""
    if output.exists() and not (output.is_dir() and ((output / _WEIGHTS).is_file() or not any(output.iterdir()))):
        raise UserError(f"sft.output={output} is there and holds no model, so it is not replaced; name another folder")


def _save(
    output: Path, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast", figures: dict[str, Any]
) -> None:
    """Written aside, then renamed: half a model is never found, and the old one goes after the new one is there."""
    aside, old = output.with_name(f".{output.name}.aside"), _old(output)
    for leftover in (aside, old):
        shutil.rmtree(leftover, ignore_errors=True)
    aside.mkdir(parents=True)
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    write_json_atomic(aside / "warm_start.json", figures)
    if output.exists():
        output.rename(old)
    aside.rename(output)
    shutil.rmtree(old, ignore_errors=True)
