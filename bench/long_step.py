"""A step that is longer than the ranks' patience, and the checkpoint after it: time, host memory, and what comes back.

    python -m bench.long_step --layers 20 --hidden 2560 --rows 300 --patience-s 12      # as many ranks as GPUs

Needs torch, transformers, safetensors, orjson and psutil; no network, no Hydra. The model's weights are random.
"""

import argparse
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import psutil
import torch

from bench.train_bench import synthetic_rows
from swe_rl.config.schema import AlgoConfig, ModelConfig, TrainerConfig
from swe_rl.model.tiny import build_model
from swe_rl.trainer.ranks.group import TrainerGroup
from swe_rl.trainer.ranks.rank import RankSetup

_SAVED = {"step": 1, "weight_version": 1, "data_order": {"next": 1}, "config": {}}
_VOCAB, _TOKENS = 32_000, 8192


class HostMemory:
    """By how many MB the resident memory of this process's children rises while it is watched, the most of any."""

    def __enter__(self) -> "HostMemory":
        self._before = {child.pid: child.memory_info().rss for child in psutil.Process().children(recursive=True)}
        self.risen_mb, self._stop = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            for pid, before in self._before.items():
                self.risen_mb = max(self.risen_mb, (psutil.Process(pid).memory_info().rss - before) / 2**20)


def model_in(folder: Path, layers: int, hidden: int) -> ModelConfig:
    shape = {"num_heads": hidden // 128, "num_kv_heads": max(1, hidden // 256), "head_dim": 128}
    sizes = {"num_layers": layers, "hidden_size": hidden, "intermediate_size": 3 * hidden, "vocab_size": _VOCAB}
    config = ModelConfig(path=str(folder), max_position_embeddings=40_960, **shape, **sizes)
    model = build_model(config, 0)
    print(f"{sum(parameter.numel() for parameter in model.parameters()) / 1e9:.2f} billion parameters", flush=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    return config


def measure(options: argparse.Namespace, root: Path) -> None:
    model = model_in(root / "model", options.layers, options.hidden)
    trainer = TrainerConfig(
        lr=1e-5, num_threads=4, collective_timeout_s=options.patience_s, max_tokens_per_micro_batch=_TOKENS
    )
    setup = RankSetup(
        model, trainer, AlgoConfig(), 0, 1.0, 0, torch.cuda.device_count(), 1, "", "cuda", logs=root / "l"
    )
    rows = synthetic_rows(SimpleNamespace(rows=options.rows, tokens=_TOKENS), _VOCAB)  # type: ignore[arg-type]
    first = TrainerGroup(setup)
    first.start()
    began_s = time.monotonic()
    first.train_step(rows, 1)
    say(f"a step of {len(rows)} rows, patience {options.patience_s:.0f} s", time.monotonic() - began_s, "s")
    began_s = time.monotonic()
    with HostMemory() as memory:
        saved = first.save(root, **_SAVED)
        first.wait()
    say("its checkpoint", time.monotonic() - began_s, "s")
    say("its files", sum(file.stat().st_size for file in Path(saved).rglob("*")) / 1e9, "GB")
    say("host memory of a rank meanwhile, at most", memory.risen_mb, "MB more")
    logprobs, after = first.row_logprobs(rows[:2]), first.train_step(rows[:4], 2)
    first.close()
    second = TrainerGroup(setup)
    second.start()
    began_s = time.monotonic()
    second.load(saved)
    say("reading it", time.monotonic() - began_s, "s")
    pairs = zip(logprobs, second.row_logprobs(rows[:2]), strict=True)
    say("largest difference of log-probabilities", max(abs(a - b) for x, y in pairs for a, b in zip(x, y, strict=True)))
    again = second.train_step(rows[:4], 2)
    say("difference of the next step's loss", abs(again.loss - after.loss))
    say("difference of its gradient's norm", abs(again.grad_norm - after.grad_norm))
    second.close()


def say(what: str, value: float, unit: str = "") -> None:
    print(f"{what:52} {value:12.4f} {unit}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=2560)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--patience-s", type=float, default=12.0)
    with TemporaryDirectory() as folder:
        measure(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    main()
