"""A mixture of experts in the trainer on this machine's GPUs, against a dense model of equal active size.

    python -m bench.moe_gpu                      # as many GPUs as there are, one group of experts over all of them
    python -m bench.moe_gpu --gpus 2 --layers 6 --rows 32 --tokens 8192

Both have the shape of Qwen3-30B-A3B, with `--layers` of its 48 layers and as small a part of its words: the dense one's
MLP is as wide as the experts together that a token passes. Weights are random, so that tokens spread evenly.

Invariants:
- The cases run in turns, `--repeat` times, in processes of their own (`train_bench`); MFU counts active parameters.
- Before the steps, packed log-probabilities are compared with transformers' own (one GPU: its own experts, too), and
  gradients of grouped products with those of a loop, among them an expert without tokens.
"""

import argparse
import statistics
import time
from multiprocessing import get_context
from typing import Any

from bench.train_bench import Result, run_group, table


def cases(gpus: int, layers: int, rows: int, tokens: int, micro_tokens: int, tiny: bool, compiled: bool) -> list[str]:
    """The check, then dense and mixture; on several GPUs also the mixture whose experts FSDP alone shards."""
    mixture, dense = ("tiny-moe", "tiny") if tiny else ("30b-a3b", "3b-dense")
    ranks = f"dp{gpus}"
    work = f"{rows * gpus}x{tokens}:layers{layers}:mb{micro_tokens}" + ":compile" * compiled
    timed = [f"{dense}:{ranks}:{work}", f"{mixture}:{ranks}:ep{gpus}:{work}"]
    timed += [f"{mixture}:{ranks}:{work}"] if gpus > 1 else []
    return [f"{mixture}:{ranks}:ep{gpus}:check:3x{min(tokens, 2048)}:layers{layers}", *timed]


def products_problem(device: str) -> str | None:
    """Where gradients of `experts._products` are not those of a loop in float32; None: nowhere."""
    import torch

    from swe_rl.trainer.sharded.experts import _products

    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    sizes = [100, 0, 37, 1, 0, 118]
    rows, weights = torch.randn(256, 64, generator=generator), torch.randn(6, 96, 64, generator=generator)
    pull = torch.randn(256, 96, generator=generator)
    ends = torch.tensor(sizes).cumsum(0).int().to(device)
    results = []
    for kind in (torch.float32, dtype):
        leaves = [values.to(device, dtype).to(kind).requires_grad_() for values in (rows, weights)]
        if kind is dtype:
            out = _products(*leaves, ends)
        else:
            parts = zip(leaves[0].split(sizes), leaves[1], strict=True)
            out = torch.cat([part @ weight.T for part, weight in parts])
        (out.float() * pull.to(device)).sum().backward()
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for name, exact, values in zip(("product", "rows", "weights"), *results, strict=True):
        assert exact is not None and values is not None
        error = float((values.float() - exact).abs().max() / exact.abs().max())
        if not error < 0.02:
            return f"{name}: off by {error:.3g} of the largest value"
    return None


def _report_products(device: str) -> None:
    print(f"grouped products on {device}: {products_problem(device) or 'ok'}", flush=True)


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=max(1, torch.cuda.device_count()))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=16, help="of a step, on each GPU")
    parser.add_argument("--tokens", type=int, default=8192, help="of a row")
    parser.add_argument("--micro-tokens", type=int, default=32768, help="of a micro-batch, on each GPU")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a case, at most")
    parser.add_argument("--budget-s", type=float, default=40.0, help="of one case's steps")
    parser.add_argument("--start-s", type=float, default=120.0, help="for imports and the model, on top of it")
    parser.add_argument("--total-s", type=float, default=540.0, help="no further case is begun after this")
    parser.add_argument("--compile", action="store_true", help="all cases, as `trainer.compile` does it")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape, for a CPU")
    arguments = parser.parse_args()
    arguments.stop_at = time.time() + arguments.total_s
    on_gpu = torch.cuda.is_available()
    first = get_context("spawn").Process(target=_report_products, args=("cuda" if on_gpu else "cpu",))
    first.start()
    first.join()  # a process of its own: this one holds no GPU
    work = (arguments.rows, arguments.tokens, arguments.micro_tokens)
    check, *timed = cases(arguments.gpus, arguments.layers, *work, arguments.tiny, arguments.compile)
    done: list[Result] = []

    def keep(result: Result) -> None:
        done.append(result)
        print(table(done[-1:]).splitlines()[-1], flush=True)

    for texts in [[check], *[timed] * arguments.repeat]:
        run_group(arguments.gpus, list(texts), arguments, keep)
    print(table(done))
    print(summary(done, timed))


def summary(done: list[Result], timed: list[str]) -> str:
    """Medians over the repetitions, and each MFU over the dense one's; on a CPU tokens per second in its place."""
    lines, base = [], 0.0
    for text in timed:
        results: list[Any] = [result for result in done if result.case == text and result.steps]
        if not results:
            lines.append(f"{text}: not measured")
            continue
        seconds = [result.step_s for result in results]
        rate = statistics.median(result.mfu or result.tokens_per_s_gpu for result in results)
        base = base or rate
        lines.append(
            f"{text}: step {statistics.median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f}), "
            f"{rate / base:.2f} of the dense trainer's rate"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
