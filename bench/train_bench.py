"""Training steps of the parallel trainer on GPUs, with random weights and synthetic rows.

    python -m bench.train_bench --preset one            # 1 GPU; two, four: 2 and 4 GPUs; tiny: this machine's CPU
    python -m bench.train_bench 14b:sp4:2x32768 14b:dp4:8x8192:compile --budget-s 90

A case is MODEL[:dpN][:spN][:epN]:ROWSxTOKENS[:OPTION...]; dp * sp GPUs train ROWS rows of TOKENS tokens in one step, ep
of them share the experts of a mixture. Options: `layersN` (of all layers the first N, and as small a part of the
words), `plain` (transformers with autocast, padded rows, whole logits; one GPU), `compile`, `norecompute`,
`recomputeattn` (attention too is computed twice, as usual), `mbN` (tokens of a micro-batch on each GPU), `attn=NAME`,
`profile`, `alltrained` (no prompt and no observations), `offload` (weights, gradients and moments in the host's
memory), `check` (packed against plain log-probabilities).

Invariants:
- Cases of one number of GPUs share their processes; a case that fails or hangs ends them, and the next ones get new
  processes. What was measured is printed at once and kept in `--out`.
- MFU is model FLOPs (`train_flops`, nothing for recomputation) over the rate of a bfloat16 product of
  8192 x 8192 matrices, measured in the same processes.
- Needs torch, transformers, safetensors and numpy; no network, no Hydra.
"""

import argparse
import json
import multiprocessing
import os
import queue
import socket
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from bench.train_models import MODELS, config_of, train_flops

PRESETS = {
    "tiny": ["tiny:check:2x64", "tiny:2x64", "tiny:2x64:plain", "tiny:sp2:2x64", "tiny:dp2:4x64"],
    "one": [
        "0.6b:check:3x4096",
        "4b:1x32768",
        "4b:1x32768:compile",
        "4b:1x32768:plain",
        "4b:4x8192",
        "4b:4x8192:plain",
        "4b:1x65536",
        "8b:1x8192",
    ],
    "two": ["0.6b:sp2:check:3x4096", "8b:sp2:1x32768", "8b:dp2:4x16384", "14b:sp2:1x16384"],
    "four": [
        "0.6b:dp2:sp2:check:3x4096",
        "14b:sp4:2x32768",
        "14b:sp4:2x32768:compile",
        "14b:sp4:2x32768:recomputeattn",
        "14b:dp4:4x16384",
        "14b:sp4:1x65536",
        "14b:dp2:sp2:4x32768",
        "14b:dp4:16x8192",
    ],
}
TRAINED_SHARE = 0.25  # of a row's tokens are sampled; the rest is prompt and observations
MICRO_BATCH_TOKENS = 16384
MATRIX = 8192
CHECK_TOLERANCE = 0.05  # nats, mean over tokens, bfloat16 against bfloat16


@dataclass(frozen=True)
class Case:
    text: str
    model: str
    dp: int
    sp: int
    rows: int
    tokens: int
    options: frozenset[str]
    ep: int = 1

    @property
    def world(self) -> int:
        return self.dp * self.sp

    @property
    def layers(self) -> int | None:
        return next((int(o[6:]) for o in self.options if o.startswith("layers")), None)

    @property
    def micro_tokens(self) -> int:
        given = [int(o[2:]) for o in self.options if o.startswith("mb")]
        return given[0] if given else max(MICRO_BATCH_TOKENS, -(-self.tokens // self.sp))

    @property
    def attention(self) -> str | None:
        return next((o[5:] for o in self.options if o.startswith("attn=")), None)


@dataclass
class Result:
    case: str
    attention: str = ""
    step_s: float = 0.0
    first_s: float = 0.0  # of the step before those: compilation, and what torch prepares once
    steps: int = 0
    tokens_per_s_gpu: float = 0.0
    mfu: float = 0.0
    peak_gb: float = 0.0
    reserved_gb: float = 0.0
    matrix_tflops: float = 0.0
    micro_batches: int = 0
    note: str = ""


def parse(text: str) -> Case:
    model, *words = text.split(":")
    ways = {"dp": 1, "sp": 1, "ep": 1}
    size, options = "", set()
    for word in words:
        if word[:2] in ways and word[2:].isdigit():
            ways[word[:2]] = int(word[2:])
        elif word.replace("x", "", 1).isdigit():
            size = word
        else:
            options.add(word)
    if model not in MODELS or not size:
        raise SystemExit(
            f"{text}: a case is MODEL[:dpN][:spN][:epN]:ROWSxTOKENS[:OPTION...], MODEL of {', '.join(MODELS)}"
        )
    rows, tokens = size.split("x")
    return Case(text, model, rows=int(rows), tokens=int(tokens), options=frozenset(options), **ways)


def synthetic_rows(case: Case, vocab: int, seed: int = 0) -> list[Any]:
    """Turns of sampled tokens between observations; the last one ends the row."""
    import numpy as np

    from swe_rl.algo.row import Row

    rng = np.random.default_rng(seed)
    made = []
    for i in range(case.rows):
        mask = np.zeros(case.tokens, dtype=np.bool_)
        turn = max(4, case.tokens // 32)
        sampled = turn if "alltrained" in case.options else max(1, int(turn * TRAINED_SHARE))
        for start in range(turn, case.tokens + 1, turn):
            mask[start - sampled : start] = True
        mask[0] = False  # nothing predicts the first token
        logprobs = np.where(mask, -float(np.log(vocab)), 0.0)
        made.append(
            Row(
                trajectory_id=f"t{i}",
                group_id=f"g{i // 2}",
                token_ids=rng.integers(0, vocab, case.tokens).astype(np.int32),
                loss_mask=mask,
                rollout_logprobs=logprobs.astype(np.float32),
                advantage=1.0 if i % 2 else -1.0,
                weight_versions=np.zeros(np.count_nonzero(mask), np.int32),
            )
        )
    return made


@lru_cache(maxsize=1)
def matrix_rate(device: Any) -> float:
    """TFLOP/s of a bfloat16 product; 0 on a CPU, where MFU means nothing."""
    import torch

    if device.type != "cuda":
        return 0.0
    left, right = (torch.randn(MATRIX, MATRIX, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        left @ right
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(20):
        left @ right
    end.record()
    torch.cuda.synchronize(device)
    return 20 * 2 * MATRIX**3 / (start.elapsed_time(end) * 1e-3) / 1e12


def build(case: Case, mesh: Any, config: Any) -> Any:
    """Returns a sharded model of random weights, and how it attends."""
    import torch

    from swe_rl.trainer.sharded.attention import choose_kernel
    from swe_rl.trainer.sharded.materialize import empty_model, fill_random
    from swe_rl.trainer.sharded.model import ShardedModel, head_shape, is_fast
    from swe_rl.trainer.sharded.pack_proof import pack_if_proven
    from swe_rl.trainer.sharded.ulysses import heads_per_rank

    on_gpu = mesh.device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    offload, compiled = "offload" in case.options, "compile" in case.options
    name, kernel = case.attention or "auto", None
    if is_fast(config):
        heads, kv_heads, head_dim = head_shape(config)
        own_heads, own_kv = heads_per_rank(heads, kv_heads, mesh.sp)
        kernel = choose_kernel(mesh, (own_heads, own_kv, head_dim), dtype, name)
    model = ShardedModel(empty_model(config), mesh, kernel, compute_dtype=dtype, compiled=compiled, offload=offload)
    fill_random(model, torch.device("cpu") if offload else mesh.device)
    if not model.is_fast:
        name = "own, packed" if pack_if_proven(model) is None else "own, a row at a time"
    return model, name


def timed_steps(step: Any, mesh: Any, budget_s: float, most: int) -> list[float]:
    """Seconds of a first step, which warms up, and of each that follows; ends with the budget, on all ranks alike."""
    import torch

    from_s = time.monotonic()
    seconds: list[float] = []
    for number in range(most + 1):
        mesh.barrier()
        start = time.perf_counter()
        step(number)
        mesh.barrier()
        seconds.append(time.perf_counter() - start)
        spent = torch.tensor([time.monotonic() - from_s], device=mesh.device)
        if float(mesh.maximum(spent)) * (number + 2) / (number + 1) > budget_s and number > 0:
            break
    return seconds


def run_sharded(case: Case, mesh: Any, budget_s: float, steps: int) -> Result:
    import torch

    from swe_rl.config.schema import AlgoConfig, TrainerConfig
    from swe_rl.trainer.compute import ShardedCompute
    from swe_rl.trainer.policy import Trainer
    from swe_rl.trainer.sharded.flops import cost_per_token
    from swe_rl.trainer.sharded.model import checkpoint_activations

    config = config_of(case.model, case.layers, case.tokens)
    result = Result(case.text)
    model, result.attention = build(case, mesh, config)
    trainer = Trainer(
        model,
        TrainerConfig(
            lr=1e-6,
            weight_decay=0.01,
            prompts_per_mini_batch=case.rows,
            max_tokens_per_micro_batch=case.micro_tokens,
            activation_checkpointing="norecompute" not in case.options,
            num_threads=4,
            offload_optimizer="offload" in case.options,
        ),
        AlgoConfig(),
        pad_token_id=0,
        compute=ShardedCompute(mesh, cost_per_token(config), packs_rows=model.packs_rows),
    )
    if "recomputeattn" in case.options:
        checkpoint_activations(model, True, keep_attention=False)
    rows = synthetic_rows(case, config.vocab_size)
    metrics: list[Any] = []
    if "profile" in case.options:
        trainer.train_step(rows, 0)
        result.note = profiled(lambda: trainer.train_step(rows, 1), mesh)
    seconds = timed_steps(lambda n: metrics.append(trainer.train_step(rows, n)), mesh, budget_s, steps)
    result.micro_batches = -(-case.rows * case.tokens // (case.micro_tokens * case.sp * case.dp))
    if not all(torch.isfinite(torch.tensor([m.loss, m.grad_norm])).all() for m in metrics):
        result.note += " NOT FINITE"
    first, last = metrics[0], metrics[-1]
    result.note += f" loss {first.loss:.4f}->{last.loss:.4f}, entropy {first.entropy:.3f}, norm {first.grad_norm:.3g}"
    return fill(result, case, mesh, config, seconds, rows)


def run_plain(case: Case, mesh: Any, budget_s: float, steps: int) -> Result:
    """What one writes with transformers and accelerate: float32 weights, autocast, padded rows, whole logits."""
    import torch
    from torch.nn import functional
    from transformers import AutoModelForCausalLM

    from swe_rl.trainer.sharded.model import is_fast

    config = config_of(case.model, case.layers, case.tokens)
    device = mesh.device
    # Other families choose their attention, as not every one of them takes torch's.
    attention = case.attention or ("sdpa" if is_fast(config) else None)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=device.type == "cuda")
    rows = synthetic_rows(case, config.vocab_size)
    trained = sum(row.trained_tokens for row in rows)
    in_batch = max(1, case.micro_tokens // case.tokens)

    def step(_: int) -> None:
        for first in range(0, len(rows), in_batch):
            part = rows[first : first + in_batch]
            ids = torch.tensor([row.token_ids.tolist() for row in part], device=device)
            mask = torch.tensor([row.loss_mask.tolist() for row in part], device=device)[:, 1:]
            sign = torch.tensor([row.advantage[0] for row in part], device=device)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits = model(input_ids=ids).logits
            flat = logits[:, :-1].float().flatten(0, 1)
            logprobs = -functional.cross_entropy(flat, ids[:, 1:].flatten(), reduction="none").view(mask.shape)
            loss = -(logprobs * mask * sign[:, None]).sum() / trained
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds = timed_steps(step, mesh, budget_s, steps)
    result = Result(case.text, attention=config._attn_implementation, micro_batches=-(-len(rows) // in_batch))
    return fill(result, case, mesh, config, seconds, rows)


def run_check(case: Case, mesh: Any, budget_s: float, steps: int) -> Result:
    """The trainer's own start-up probe on random weights."""
    from swe_rl.trainer.sharded.model import compare_packed

    config = config_of(case.model, case.layers, case.tokens)
    result = Result(case.text)
    model, result.attention = build(case, mesh, config)
    found = compare_packed(model, tokens=case.tokens, rows=case.rows)
    ok = found.mean < CHECK_TOLERANCE
    verdict = "ok" if ok else "WRONG"
    figures = f"mean |d logprob| {found.mean:.2e}, max {found.largest:.2e}, spread {found.spread:.2e} nats"
    result.note = f"{verdict}: {figures}"
    return result


def fill(result: Result, case: Case, mesh: Any, config: Any, seconds: list[float], rows: list[Any]) -> Result:
    import statistics

    import torch

    from swe_rl.trainer.batching import input_length

    result.first_s, *timed = seconds
    result.steps, result.step_s = len(timed), statistics.median(timed)
    lengths = [input_length(row.loss_mask) for row in rows]
    result.tokens_per_s_gpu = sum(lengths) / result.step_s / mesh.world
    if mesh.device.type == "cuda":
        memory = [torch.cuda.max_memory_allocated(mesh.device), torch.cuda.max_memory_reserved(mesh.device)]
        peak = mesh.maximum(torch.tensor(memory, device=mesh.device, dtype=torch.float64)).tolist()
        result.peak_gb, result.reserved_gb = peak[0] / 1e9, peak[1] / 1e9
    flops = train_flops(config, lengths, sum(row.trained_tokens for row in rows))
    result.matrix_tflops = matrix_rate(mesh.device)
    if result.matrix_tflops:
        result.mfu = flops / result.step_s / mesh.world / (result.matrix_tflops * 1e12)
    return result


def profiled(step: Any, mesh: Any) -> str:
    """Prints where one step's GPU time went."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if mesh.device.type == "cuda" else [])
    with profile(activities=kinds) as found:
        step()
        if mesh.device.type == "cuda":
            torch.cuda.synchronize()
    if mesh.rank == 0:
        by = "self_cuda_time_total" if mesh.device.type == "cuda" else "self_cpu_time_total"
        print(found.key_averages().table(sort_by=by, row_limit=30, max_name_column_width=70), flush=True)
    return "profiled;"


def one_rank(rank: int, world: int, port: int, cases: Sequence[str], arguments: Any, results: Any) -> None:
    """Runs the cases; what goes wrong is reported, and then all ranks start anew without that case."""
    import gc

    import torch

    from swe_rl.trainer.sharded.mesh import make_mesh, process_group

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    torch.set_num_threads(4 if on_gpu else 1)
    runners = {"plain": run_plain, "check": run_check}
    with process_group(rank, world, device, f"127.0.0.1:{port}", timeout_s=arguments.budget_s + 120.0):
        meshes: dict[tuple[int, int], Any] = {}
        matrix_rate(device)  # while the memory is empty
        for text in cases:
            case = parse(text)
            results.put(("started", text, rank, None))
            try:
                ways = (case.sp, case.ep)
                if ways not in meshes:
                    meshes[ways] = make_mesh(case.sp, device, case.ep)
                late = torch.tensor([time.time() - arguments.stop_at], dtype=torch.float64, device=device)
                if float(meshes[ways].maximum(late)) > 0:
                    skipped = asdict(Result(text, note="not begun: --total-s is over"))
                    results.put(("done", text, rank, skipped if rank == 0 else None))
                    continue
                if on_gpu:
                    torch.cuda.reset_peak_memory_stats(device)
                runner = next((run for word, run in runners.items() if word in case.options), run_sharded)
                result = runner(case, meshes[ways], arguments.budget_s, arguments.steps)
            except Exception as error:  # whatever it is, the next case has its turn
                text_of = (
                    "out of memory" if isinstance(error, torch.OutOfMemoryError) else traceback.format_exc(limit=6)
                )
                results.put(("failed", text, rank, text_of))
                results.close()
                results.join_thread()
                os._exit(3)
            results.put(("done", text, rank, asdict(result) if rank == 0 else None))
            gc.collect()
            if on_gpu:
                torch.cuda.empty_cache()


def run_group(world: int, cases: list[str], arguments: Any, keep: Any) -> None:
    """All cases of one number of GPUs, in as many process groups as failures ask for."""
    context = multiprocessing.get_context("spawn")
    while cases:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        results = context.Queue()
        ranks = [
            context.Process(target=one_rank, args=(rank, world, port, cases, arguments, results))
            for rank in range(world)
        ]
        for rank in ranks:
            rank.start()
        try:
            cases = _follow(ranks, cases, arguments, results, keep)
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()


def _follow(ranks: list[Any], cases: list[str], arguments: Any, results: Any, keep: Any) -> list[str]:
    """Reads reports until a case fails or all are done; returns the cases that are left."""
    left, world = list(cases), len(ranks)
    ended: dict[str, int] = {}
    until = time.monotonic() + arguments.start_s + arguments.budget_s
    while left:
        try:
            kind, text, rank, payload = results.get(timeout=1.0)
        except queue.Empty:
            problem = None
            if time.monotonic() > until:
                problem = f"no result within {arguments.start_s + arguments.budget_s:.0f} s"
            elif any(one.exitcode not in (None, 0) for one in ranks):
                problem = f"a rank ended with status {[one.exitcode for one in ranks]}"
            if problem is None:
                continue
            keep(Result(left[0], note=f"FAILED: {problem}"))
            return left[1:]
        if kind == "failed":
            keep(Result(text, note=f"FAILED on rank {rank}: {payload.strip()[-600:]}"))
            return left[1:]
        if kind == "started" and rank == 0:
            until = time.monotonic() + arguments.start_s + arguments.budget_s
            print(f"... {text}", flush=True)
        elif kind == "done":
            if payload is not None:
                keep(Result(**payload))
            ended[text] = ended.get(text, 0) + 1
            if ended[text] == world:
                left.remove(text)
    return []


def table(results: Sequence[Result]) -> str:
    figures_of = ("first s", "step s", "tokens/s/GPU", "MFU %", "peak GB", "reserved GB", "matmul TFLOP/s")
    head = ("case", "attention", *figures_of, "note")
    lines = [head, tuple("---" for _ in head)]
    for one in results:
        figures = ("",) * 7
        if one.steps:
            figures = (
                f"{one.first_s:.1f}",
                f"{one.step_s:.3f}",
                f"{one.tokens_per_s_gpu:,.0f}",
                f"{100 * one.mfu:.1f}",
                f"{one.peak_gb:.1f}",
                f"{one.reserved_gb:.1f}",
                f"{one.matrix_tflops:.0f}",
            )
        note = " ".join(one.note.split())[:160]
        lines.append((one.case, one.attention, *figures, note))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--preset", choices=sorted(PRESETS))
    parser.add_argument("--budget-s", type=float, default=60.0, help="of one case's steps")
    parser.add_argument("--start-s", type=float, default=90.0, help="for imports and the model, on top of it")
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a case, at most")
    parser.add_argument("--total-s", type=float, default=560.0, help="no further case is begun after this")
    parser.add_argument("--out", type=Path, help="one JSON object a line")
    arguments = parser.parse_args()
    texts = [*(PRESETS[arguments.preset] if arguments.preset else []), *arguments.cases]
    arguments.stop_at = time.time() + arguments.total_s
    by_world: dict[int, list[str]] = {}
    for text in texts:
        by_world.setdefault(parse(text).world, []).append(text)
    done: list[Result] = []

    def keep(result: Result) -> None:
        done.append(result)
        print(table(done[-1:]).splitlines()[-1], flush=True)
        if "FAILED" in result.note:
            print(result.note, flush=True)
        if arguments.out:
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")

    try:
        for world, cases in sorted(by_world.items()):
            run_group(world, cases, arguments, keep)
    finally:
        print(table(done), flush=True)


if __name__ == "__main__":
    main()
