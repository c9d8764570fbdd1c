"""Adds LoRA by way of peft: small pairs of matrices beside linear maps, and nothing else learns.

Each linear map of attention and MLP gets a pair. In a mixture of experts the maps of attention alone get one: neither
experts nor routers learn.

The source is LoRA, arXiv:2106.09685, section 4.1: y = W x + (alpha / rank) B A x, with B zero at the start.

Invariants:
- The base is never changed; with the adapter off the model is the base, which is the reference that a KL needs.
- A comes from the seed and the layer's name alone: every rank, any number of ranks, and one process have the same.
- The adapter is float32, whatever type the base has.
- An optimizer that is made afterwards sees the adapter only.
- `X.weight` of transformers is `X.base_layer.weight` once X carries an adapter, beside `X.lora_A.default.weight` and
  `X.lora_B.default.weight`; peft's files have `base_model.model.X.lora_A.weight`.
- Samples of the weights' bytes tell which base an adapter is of, whatever the model's size: they notice other weights,
  and training that went on, not a single changed value.
- A merged weight is W + (alpha / rank) B A in float32; while B is zero that is W itself. Names are transformers' own,
  tied weights once; `EngineWeights` has the hub's.
- One weight at a time exists merged; base and adapter are never changed.
- Merged weights of sharded parameters are sharded as the base is. Reading such a value is a collective: every rank
  reads the same names in the same order.
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

from swe_rl.config.choices import FAST_ARCHITECTURES
from swe_rl.config.schema import ModelConfig, TrainerConfig
from swe_rl.engine.transfer.sent_weights import WritesFiles
from swe_rl.errors import UserError
from swe_rl.model.adapter import alpha_of
from swe_rl.model.experts import HubNamed
from swe_rl.trainer.checkpoint.tensor_file import SINGLE_FILE, write_tensors
from swe_rl.trainer.sharded.mesh import gather_whole, is_sharded, local_shard, shard_range
from swe_rl.trainer.trainer import TrainerError

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
TARGETS = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
# Where a model has fused experts, peft takes a map of these names for a part of them, wherever it is.
_EXPERT_MAPS = ("gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
ADAPTER = "default"
_A = f".lora_A.{ADAPTER}.weight"
_B = f".lora_B.{ADAPTER}.weight"
_WEIGHT = ".weight"
_CARRIED = ".base_layer."
_IN_FILES = "base_model.model."
# A fingerprint reads this many blocks of this many bytes of each file: 1 MiB, whatever the file's size, so that a start
# does not read a whole model.
_BLOCKS = 256
_BLOCK_BYTES = 4096
AnyModel = TypeVar("AnyModel", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Adapter:
    """The adapter of one model. `base` is JSON data that identifies the model below it, or None without files."""

    rank: int
    alpha: int
    base: Mapping[str, Any] | None = None
    # These are peft's layers.
    layers: tuple[Any, ...] = field(default=(), repr=False)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def described(self) -> dict[str, Any]:
        """Returns the adapter's description for a checkpoint, as JSON data."""
        return {"rank": self.rank, "alpha": self.alpha, "base": dict(self.base) if self.base else None}

    @contextmanager
    def off(self) -> Iterator[None]:
        """Makes the model the base inside of the block."""
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


def attach_adapter(causal_lm: nn.Module, config: TrainerConfig, base: Mapping[str, Any] | None = None) -> Adapter:
    """Puts an adapter of `trainer.lora_rank` into a model, in place; on the meta device it stays without memory.

    Elsewhere it has the values of `trainer.seed`. Raises TrainerError where the model has no layer to carry one, and
    UserError without peft.
    """
    require_peft(config)
    from peft import inject_adapter_in_model
    from peft.tuners.lora import LoraLayer

    alpha = alpha_of(config.lora_rank, config.lora_alpha)
    targets = targets_of(causal_lm)
    empty = any(parameter.is_meta for parameter in causal_lm.parameters())
    try:
        # Its values are replaced below, so they must not cost any numbers of the global generator.
        with torch.random.fork_rng(devices=[]):
            inject_adapter_in_model(_peft_config(config.lora_rank, alpha, targets), causal_lm, ADAPTER, empty)
    except ValueError as error:
        looked_for = "that carry one"
        if len(targets) <= len(TARGETS):
            looked_for = ", ".join(targets)
        raise TrainerError(
            f"trainer.lora_rank={config.lora_rank}: this model has none of the layers {looked_for} ({error}). "
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


def targets_of(causal_lm: nn.Module) -> list[str]:
    """Returns the names of the linear maps that carry a pair, as peft takes them: ends of names, or whole names.

    Of other families than the fast ones these are all linear maps of the layers, as for peft's "all-linear", without
    those that a pair would do nothing for: experts and routers, as above, and the last map of a state-space mixer,
    whose kernel reads that weight itself and would not see its pair.
    """
    kind = getattr(getattr(causal_lm, "config", None), "model_type", FAST_ARCHITECTURES[0])
    if kind in FAST_ARCHITECTURES:
        return list(ATTENTION if any(hasattr(module, "experts") for module in causal_lm.modules()) else TARGETS)
    modules = dict(causal_lm.named_modules())
    mixtures = tuple(f"{name}." for name, module in modules.items() if hasattr(module, "experts"))
    of_experts: tuple[str, ...] = ()
    if mixtures:
        of_experts = _EXPERT_MAPS
    kernels = {
        f"{name}.out_proj" for name, module in modules.items() if hasattr(module, "A_log") and hasattr(module, "D")
    }
    head = getattr(causal_lm, "lm_head", None)
    return [
        name
        for name, module in modules.items()
        if isinstance(module, nn.Linear)
        and module is not head
        and name not in kernels
        and not name.startswith((*mixtures, "value_head"))
        and name.rpartition(".")[2] not in of_experts
    ]


def with_adapter(
    model: AnyModel, config: TrainerConfig, base: Mapping[str, Any] | None = None
) -> tuple[AnyModel, Adapter]:
    """Returns a model that carries an adapter above the very parameters of `model`, which stays but is frozen.

    `base` is `fingerprint.base_of`. Raises TrainerError.
    """
    shared = {id(tensor): tensor for tensors in (model.parameters(), model.buffers()) for tensor in tensors}
    policy = copy.deepcopy(model, shared)
    return policy, attach_adapter(policy, config, base)


def adapter_problem(saved: Mapping[str, Any] | None, here: Adapter | None) -> str | None:
    """Returns half a sentence where a checkpoint's `Adapter.described` (None: a whole model) is of another kind than
    `here`.
    """
    if not saved or here is None:
        kinds = ("a whole model", "an adapter")
        same = bool(saved) == (here is not None)
        if same:
            return None
        return f"it holds {kinds[bool(saved)]}, this run trains {kinds[here is not None]}"
    if (saved["rank"], saved["alpha"]) != (here.rank, here.alpha):
        return f"its adapter has rank {saved['rank']} and alpha {saved['alpha']}, here {here.rank} and {here.alpha}"
    return base_problem(saved["base"], here.base)


def _peft_config(rank: int, alpha: int, targets: Sequence[str]) -> Any:
    """Returns peft's own description of the adapter."""
    from peft import LoraConfig

    return LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=list(targets),
        # With dropout, the policy that is trained would not be the one that sampled.
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


@torch.no_grad()
def start_values(causal_lm: nn.Module, seed: int) -> None:
    """Fills A with a uniform within 1/sqrt(inputs), as peft and torch begin a linear layer, and B with zero.

    Each rank fills its own rows.
    """
    for name, parameter in causal_lm.named_parameters():
        if is_a(name):
            start, stop = shard_range(parameter)
            local_shard(parameter).copy_(_uniform_start(name, tuple(parameter.shape), seed)[start:stop])
        elif is_adapter(name):
            local_shard(parameter).zero_()


def _uniform_start(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Returns the start of a whole A. It is drawn on the CPU, so that every kind of device has the same."""
    own_seed = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "big")
    bound = 1.0 / math.sqrt(shape[1])
    return torch.empty(shape).uniform_(-bound, bound, generator=torch.Generator().manual_seed(own_seed))


def is_adapter(name: str) -> bool:
    return name.endswith((_A, _B))


def is_a(name: str) -> bool:
    """Tells whether a parameter is the A that reads the layer's input; the other, B, begins as zero."""
    return name.endswith(_A)


def plain_name(name: str) -> str:
    """Returns transformers' own name of a parameter that is not the adapter's."""
    return name.replace(_CARRIED, ".")


def adapter_names(name: str) -> tuple[str, str]:
    """Returns the names of A and B of a weight by transformers' name; the caller has to see whether there are such."""
    layer = name.removesuffix(_WEIGHT)
    return f"{layer}{_A}", f"{layer}{_B}"


def in_files(name: str) -> str:
    """Returns the name that peft's files give to a parameter of the adapter."""
    return _IN_FILES + name.replace(f".{ADAPTER}.", ".")


def base_of(model: ModelConfig, folder: Path) -> dict[str, Any]:
    """Returns JSON data that identifies the weights of `folder`. Raises OSError."""
    return {"path": model.path, "revision": model.revision, "fingerprint": weights_fingerprint(folder)}


def base_problem(saved: Mapping[str, Any] | None, here: Mapping[str, Any] | None) -> str | None:
    """Returns half a sentence where two of `base_of` are of different weights; what is not known is not compared."""
    if not saved or not here or saved["fingerprint"] == here["fingerprint"]:
        return None
    return f"its adapter is of other weights than {here['path']} has now (it was trained on {saved['path']})"


def weights_fingerprint(folder: Path) -> str:
    """Returns the sha256 of each safetensors file's name, size, and evenly spaced blocks. Raises OSError."""
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
    """The weights of a model with its adapter merged into them."""

    def __init__(self, parameters: Mapping[str, Tensor], scale: float) -> None:
        """Keeps `parameters`, by the names that they have in the model; each is read when a value is asked for."""
        self._parameters = parameters
        self._scale = scale
        self._names = {plain_name(name): name for name in parameters if not is_adapter(name)}

    def __getitem__(self, name: str) -> Tensor:
        base = self._parameters[self._names[name]]
        first, second = adapter_names(name)
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
    """Returns the adapter's parameters under peft's names, as they are: engines that hold the base get these."""
    return {in_files(name): tensor for name, tensor in parameters.items() if is_adapter(name)}


class EngineWeights(HubNamed, WritesFiles):
    """The weights of one process under the names that engines know, with an adapter or without; tied weights once."""

    def write_files(self, folder: Path, twice: Mapping[str, str]) -> None:
        """Writes one file into an existing folder. `twice` has second names, with the first ones. Raises OSError."""
        write_tensors(folder / SINGLE_FILE, _Doubled(self, twice))


class _Doubled(Mapping[str, Tensor]):
    """The weights of another mapping under more names."""

    def __init__(self, weights: Mapping[str, Tensor], twice: Mapping[str, str]) -> None:
        self._weights = weights
        self._twice = dict(twice)

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[self._twice.get(name, name)]

    def __iter__(self) -> Iterator[str]:
        yield from self._weights
        yield from self._twice

    def __len__(self) -> int:
        return len(self._weights) + len(self._twice)


@torch.no_grad()
def merge_weight(base: Tensor, first: Tensor, second: Tensor, scale: float) -> Tensor:
    """Returns `base` [rows, inputs] + scale * `second` [rows, rank] @ `first` [rank, inputs], float32."""
    return torch.addmm(base.detach().float(), second.detach().float(), first.detach().float(), alpha=scale)


def _sharded_as(base: Tensor, first: Tensor, second: Tensor, scale: float) -> Tensor:
    """Returns the merged weight, sharded as the base is.

    B has as many rows as the base, so each rank's product needs the whole of A alone.
    """
    rows = merge_weight(local_shard(base), gather_whole(first), local_shard(second), scale)
    if not is_sharded(base):
        return rows
    from torch.distributed.tensor import DTensor

    like: Any = base
    return DTensor.from_local(
        rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
