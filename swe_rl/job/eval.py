"""`job=eval`: one pass over the evaluation split; resolved rate, trajectories and SWE-bench predictions."""

import asyncio
from pathlib import Path

from swe_rl.config.schema import Config
from swe_rl.job.components import components, load_sampled
from swe_rl.job.loop import Loop
from swe_rl.job.session import Session, session
from swe_rl.logger.disk import write_text_atomic
from swe_rl.logger.jsonl import read_jsonl


def run(config: Config, folder: Path | None) -> int:
    assert folder is not None
    with session(config, folder, total_steps=0) as one:
        asyncio.run(_evaluate(config, one))
        predictions = _write_predictions(one)
    numbers = one.evals()[-1]
    rate = "unknown" if numbers["resolved_rate"] is None else f"{numbers['resolved_rate']:.1%}"
    print(f"resolved rate {rate} ({numbers['num_samples']} samples of {numbers['num_instances']})")
    print(f"predictions: {predictions}")
    one.print_end()
    return 0


async def _evaluate(config: Config, one: Session) -> None:
    with one.progress.phase("load"):
        model, tokenizer = load_sampled(config)
    async with components(config, one, model, tokenizer) as parts:
        loop = Loop(config, one, parts, None)
        if one.resumed:
            loop.resume()
        if not loop.is_evaluated():
            await loop.evaluate()


def _write_predictions(one: Session) -> Path:
    """One line an instance (its first sample), in the format that SWE-bench's harness reads."""
    import json

    lines = [
        json.dumps(
            {
                "instance_id": record["instance_id"],
                "model_name_or_path": one.config.model.name,
                "model_patch": record["patch"],
            }
        )
        for record in read_jsonl(one.folder.eval_trajectories(0))
        if record["sample"] == 0
    ]
    path = one.folder.predictions_jsonl
    write_text_atomic(path, "".join(line + "\n" for line in lines))
    return path
