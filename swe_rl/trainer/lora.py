"""LoRA by way of peft: a pair of small matrices beside each linear map of attention and MLP, and nothing else learns.

Of a mixture of experts the maps of attention alone get a pair: neither experts nor routers learn.

Source: LoRA, arXiv:2106.09685, section 4.1: y = W x + (alpha / rank) B A x, with B zero at the start.
Invariants:
- The base is never changed; with the adapter off the model is the base, which is the reference that a KL needs.
- A comes from the seed and the layer's name alone: every rank, any number of ranks, and one process have the same.
- The adapter is float32, whatever type the base has.
- An optimizer that is made afterwards sees the adapter only.
- `X.weight` of transformers is `X.base_layer.weight` once X carries an adapter, beside `X.lora_A.default.weight` and
  `X.lora_B.default.weight`; peft's files have `base_model.model.X.lora_A.weight`.
- Which base an adapter is of, samples of its weights' bytes tell, whatever the model's size: they notice other weights,
  and training that went on, not a single changed value.
- W + (alpha / rank) B A in float32; while B is zero that is W itself. Names are transformers' own, tied weights once;
  `EngineWeights` has the hub's.
- One weight at a time exists merged; base and adapter are never changed.
- Of sharded parameters the result is sharded as the base is. Reading such a value is a collective: every rank reads
  the same names in the same order.
"""

import copy
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from swe_rl.config.schema import ModelConfig, TrainerConfig
from swe_rl.engine.transfer.protocol import WritesFiles
from swe_rl.errors import UserError
from swe_rl.model.adapter import alpha_of
from swe_rl.model.experts import HubNamed
from swe_rl.trainer.checkpoint.tensor_file import SINGLE_FILE, write_tensors
from swe_rl.trainer.protocol import TrainerError
from swe_rl.trainer.sharded.mesh import is_sharded, local_shard, shard_range, whole

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
TARGETS = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
ADAPTER = "default"
_A, _B = f".lora_A.{ADAPTER}.weight", f".lora_B.{ADAPTER}.weight"
_WEIGHT, _CARRIED, _IN_FILES = ".weight", ".base_layer.", "base_model.model."
_BLOCKS, _BLOCK_BYTES = 256, 4096
AnyModel = TypeVar("AnyModel", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Adapter:
    """Of one model. `base`: what identifies the model below it, as JSON data; None where that has no files."""

    rank: int
    alpha: int
    base: Mapping[str, Any] | None = None
    layers: tuple[Any, ...] = field(default=(), repr=False)  # those of peft

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def described(self) -> dict[str, Any]:
        """For a checkpoint, as JSON data."""
        return {"rank": self.rank, "alpha": self.alpha, "base": dict(self.base) if self.base else None}

    @contextmanager
    def off(self) -> Iterator[None]:
        """The model is the base inside of the block."""
        # peft's own switch also takes the gradient from the parameters, which sharded ones would not get back.
        for layer in self.layers:
            layer._disable_adapters = True
        try:
            yield
        finally:
            for layer in self.layers:
                layer._disable_adapters = False


def require_peft(config: TrainerConfig) -> None:
    """Raises UserError where an adapter is wanted and its library is not there."""
    if config.lora_rank > 0 and find_spec("peft") is None:
        raise UserError(
            f"trainer.lora_rank={config.lora_rank} needs peft, which is not installed: pip install 'swe_rl[lora]', or "
            "train all weights with trainer.lora_rank=0"
        )


def attach(causal_lm: nn.Module, config: TrainerConfig, base: Mapping[str, Any] | None = None) -> Adapter:
    """Puts an adapter of `trainer.lora_rank` into a model, in place; on the meta device it stays without memory.

    Elsewhere it has the values of `trainer.seed`. Raises TrainerError where the model has no layer to carry one, and
    UserError without peft.
    """
    require_peft(config)
    from peft import inject_adapter_in_model
    from peft.tuners.lora import LoraLayer

    alpha = alpha_of(config.lora_rank, config.lora_alpha)
    targets = ATTENTION if any(hasattr(module, "experts") for module in causal_lm.modules()) else TARGETS
    empty = any(parameter.is_meta for parameter in causal_lm.parameters())
    try:
        with torch.random.fork_rng(devices=[]):  # whose values are replaced below, so they must not cost any numbers
            inject_adapter_in_model(_peft_config(config.lora_rank, alpha, targets), causal_lm, ADAPTER, empty)
    except ValueError as error:
        raise TrainerError(
            f"trainer.lora_rank={config.lora_rank}: this model has none of the layers {', '.join(targets)} ({error}). "
            "Set trainer.lora_rank=0."
        ) from error
    for name, parameter in causal_lm.named_parameters():
        parameter.requires_grad_(is_adapter(name))
        if is_adapter(name):
            parameter.data = parameter.data.float()
    layers = tuple(module for module in causal_lm.modules() if isinstance(module, LoraLayer))
    if not empty:
        start_values(causal_lm, config.seed)
    return Adapter(config.lora_rank, alpha, base, layers)


def with_adapter(
    model: AnyModel, config: TrainerConfig, base: Mapping[str, Any] | None = None
) -> tuple[AnyModel, Adapter]:
    """A model that carries an adapter above the very parameters of `model`, which stays as it is but is frozen.

    `base` is `fingerprint.base_of`. Raises TrainerError.
    """
    shared = {id(tensor): tensor for tensors in (model.parameters(), model.buffers()) for tensor in tensors}
    policy = copy.deepcopy(model, shared)
    return policy, attach(policy, config, base)


def adapter_problem(saved: Mapping[str, Any] | None, here: Adapter | None) -> str | None:
    """Half a sentence where a checkpoint's `Adapter.described` (None: a whole model) is not of the same kind."""
    if not saved or here is None:
        kinds = ("a whole model", "an adapter")
        same = bool(saved) == (here is not None)
        return None if same else f"it holds {kinds[bool(saved)]}, this run trains {kinds[here is not None]}"
    if (saved["rank"], saved["alpha"]) != (here.rank, here.alpha):
        return f"its adapter has rank {saved['rank']} and alpha {saved['alpha']}, here {here.rank} and {here.alpha}"
    return base_problem(saved["base"], here.base)


def _peft_config(rank: int, alpha: int, targets: Sequence[str]) -> Any:
    """peft's own description of the adapter."""
    from peft import LoraConfig

    return LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=list(targets),
        lora_dropout=0.0,  # the policy that is trained would not be the one that sampled
        bias="none",
        task_type="CAUSAL_LM",
    )


@torch.no_grad()
def start_values(causal_lm: nn.Module, seed: int) -> None:
    """A uniform within 1/sqrt(inputs), as peft and torch begin a linear layer; B zero. Each rank its own rows."""
    for name, parameter in causal_lm.named_parameters():
        if is_a(name):
            start, stop = shard_range(parameter)
            local_shard(parameter).copy_(_uniform(name, tuple(parameter.shape), seed)[start:stop])
        elif is_adapter(name):
            local_shard(parameter).zero_()


def _uniform(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """On the CPU, so that every kind of device has the same."""
    own_seed = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "big")
    bound = 1.0 / math.sqrt(shape[1])
    return torch.empty(shape).uniform_(-bound, bound, generator=torch.Generator().manual_seed(own_seed))


def is_adapter(name: str) -> bool:
    return name.endswith((_A, _B))


def is_a(name: str) -> bool:
    """The one that reads the layer's input; the other begins as zero."""
    return name.endswith(_A)


def plain(name: str) -> str:
    """transformers' own name of a parameter that is not the adapter's."""
    return name.replace(_CARRIED, ".")


def pair(name: str) -> tuple[str, str]:
    """A and B of a weight by transformers' name; whether there are such is for the caller to see."""
    layer = name.removesuffix(_WEIGHT)
    return f"{layer}{_A}", f"{layer}{_B}"


def in_files(name: str) -> str:
    """peft's name, in its files, of a parameter of the adapter."""
    return _IN_FILES + name.replace(f".{ADAPTER}.", ".")


def base_of(model: ModelConfig, folder: Path) -> dict[str, Any]:
    """What identifies the weights of `folder`, as JSON data. Raises OSError."""
    return {"path": model.path, "revision": model.revision, "fingerprint": fingerprint(folder)}


def base_problem(saved: Mapping[str, Any] | None, here: Mapping[str, Any] | None) -> str | None:
    """Half a sentence where two of `base_of` are of different weights; what is not known is not compared."""
    if not saved or not here or saved["fingerprint"] == here["fingerprint"]:
        return None
    return f"its adapter is of other weights than {here['path']} has now (it was trained on {saved['path']})"


def fingerprint(folder: Path) -> str:
    """sha256 of each safetensors file's name, size, and evenly spaced blocks. Raises OSError."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}/{size}/".encode())
        step = max(_BLOCK_BYTES, size // _BLOCKS)
        with path.open("rb") as file:
            for start in range(0, size, step):
                file.seek(start)
                digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


class MergedWeights(Mapping[str, Tensor]):
    """Of a model with an adapter."""

    def __init__(self, parameters: Mapping[str, Tensor], scale: float) -> None:
        """`parameters` by the names that they have in the model; read when a value is asked for."""
        self._parameters, self._scale = parameters, scale
        self._names = {plain(name): name for name in parameters if not is_adapter(name)}

    def __getitem__(self, name: str) -> Tensor:
        base = self._parameters[self._names[name]]
        first, second = pair(name)
        if first not in self._parameters:
            return base
        return _sharded_as(base, self._parameters[first], self._parameters[second], self._scale)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def adapter_alone(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Under peft's names, as they are: what engines get that hold the base."""
    return {in_files(name): tensor for name, tensor in parameters.items() if is_adapter(name)}


class EngineWeights(HubNamed, WritesFiles):
    """Of one process, under the names that engines know, with an adapter or without; tied weights once."""

    def write_files(self, folder: Path, twice: Mapping[str, str]) -> None:
        """One file of an existing folder; `twice`: second names, with the first ones. Raises OSError."""
        write_tensors(folder / SINGLE_FILE, _Doubled(self, twice))


class _Doubled(Mapping[str, Tensor]):
    """The same under more names."""

    def __init__(self, weights: Mapping[str, Tensor], twice: Mapping[str, str]) -> None:
        self._weights, self._twice = weights, dict(twice)

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[self._twice.get(name, name)]

    def __iter__(self) -> Iterator[str]:
        yield from self._weights
        yield from self._twice

    def __len__(self) -> int:
        return len(self._weights) + len(self._twice)


@torch.no_grad()
def merged(base: Tensor, first: Tensor, second: Tensor, scale: float) -> Tensor:
    """`base` [rows, inputs] + scale * `second` [rows, rank] @ `first` [rank, inputs], float32."""
    return torch.addmm(base.detach().float(), second.detach().float(), first.detach().float(), alpha=scale)


def _sharded_as(base: Tensor, first: Tensor, second: Tensor, scale: float) -> Tensor:
    """B has as many rows as the base and is sharded as it is, so each rank's product needs the whole of A alone."""
    rows = merged(local_shard(base), whole(first), local_shard(second), scale)
    if not is_sharded(base):
        return rows
    from torch.distributed.tensor import DTensor

    like: Any = base
    return DTensor.from_local(
        rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
