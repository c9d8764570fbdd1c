"""Exports a checkpoint as a Hugging Face folder: weights, config.json, tokenizer and chat template.

Invariants:
- It is written aside, then renamed: the folder is whole or not there; an existing one is never overwritten.
- One file's tensors at a time are in memory, whichever number of ranks wrote the checkpoint; no model is built.
- Names are the hub's; each expert of a mixture is read alone.
- Tensors that the model's own files hold more exactly than the rest (the bias of a router's choice) stay as exact.
- `transformers`, vLLM and this trainer load the result; nothing of it has to be unpickled.
- An adapter is exported as the merged model, and `adapter/` has the adapter alone.
- The base is read from its own folder, which must be the one that the adapter was trained on.
- One weight at a time is merged; no model is built, and peft is not needed.
"""

import glob
import json
import os
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from swe_rl.config.known_models import STATE_FILE
from swe_rl.errors import UserError
from swe_rl.files.disk import placed_by
from swe_rl.model.adapter import CONFIG_FILE, WEIGHTS_FILE, AdapterShape, adapter_config
from swe_rl.model.experts import StoredLayout, StoredPart, expert_parts, hub_shapes
from swe_rl.model.stored_names import model_without_weights, stored_names, untrained_names
from swe_rl.trainer.checkpoint import folder as checkpoint
from swe_rl.trainer.checkpoint.folder import (
    files_of,
    read_json,
    size_problem,
    sync_folder,
    write_file,
    wrong_hash,
)
from swe_rl.trainer.checkpoint.stored import MODEL, StoredTensors, open_stored
from swe_rl.trainer.checkpoint.tensor_file import (
    DTYPES,
    INDEX_FILE,
    SINGLE_FILE,
    index_content,
    part_name,
    safetensors_chunks,
)
from swe_rl.trainer.lora import adapter_names, base_problem, in_files, merge_weight, weights_fingerprint
from swe_rl.trainer.sharded.materialize import open_files

FOLDER = "adapter"
CARD_FILE = "README.md"
_CHAT_TEMPLATE = "chat_template.jinja"


class MergedFiles:
    """Reads base files and a stored adapter as one merged model, by transformers' names."""

    def __init__(
        self, base: Mapping[str, Any], stored: StoredTensors, scale: float, in_memory: Mapping[str, str] | None = None
    ) -> None:
        """Keeps the open files. `base` has the open safetensors file of each name; `in_memory` has the model's own
        names of those that are called otherwise there.
        """
        self._base = base
        self._in_memory = in_memory or {}
        self._stored = stored
        self._scale = scale
        self._adapted = {name.removeprefix(MODEL) for name in stored.names()}
        self.shapes = {name: tuple(base[name].get_slice(name).get_shape()) for name in base}

    def read(self, name: str) -> Tensor:
        weight: Tensor = self._base[name].get_tensor(name)
        first, second = adapter_names(self._in_memory.get(name, name))
        if first not in self._adapted:
            return weight
        return merge_weight(weight, self._stored.whole(MODEL + first), self._stored.whole(MODEL + second), self._scale)


@contextmanager
def merged_files(
    base: Path, stored: StoredTensors, adapter: Mapping[str, Any], in_memory: Mapping[str, str] | None = None
) -> Iterator[MergedFiles]:
    """Yields the merged weights. `adapter` is what `Adapter.described` gave.

    Raises ValueError, OSError and SafetensorError as they come.
    """
    with ExitStack() as stack:
        yield MergedFiles(open_files(base, stack), stored, adapter["alpha"] / adapter["rank"], in_memory)


def write_adapter(stored: StoredTensors, adapter: Mapping[str, Any], folder: Path) -> None:
    """Writes adapter_config.json and adapter_model.safetensors, float32, as `peft.PeftModel.from_pretrained` reads
    them.
    """
    folder.mkdir()
    names = [name for name in stored.names() if name.startswith(MODEL)]
    tensors = {in_files(name.removeprefix(MODEL)): stored.whole(name) for name in names}
    write_file(folder / WEIGHTS_FILE, safetensors_chunks(tensors))
    base = adapter["base"] or {}
    shape = AdapterShape(adapter["rank"], adapter["alpha"])
    config = adapter_config(shape, tensors, base.get("path"), base.get("revision"))
    write_file(folder / CONFIG_FILE, [json.dumps(config, indent=2, sort_keys=True).encode()])
    sync_folder(folder)


# A part of 4 GiB is what readers of the hub expect, and it bounds the memory of an export: one part at a time is held.
MAX_FILE_BYTES = 4 * 2**30
_SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
# What describes a model beside its weights; code (*.py) and pickles are left behind.
_COPIED = ("*.json", "*.txt", "*.jinja", "*.model")


class ExportError(UserError):
    """The target is taken, or what should be exported is not there."""


@dataclass(frozen=True, slots=True)
class _Source:
    """The names and shapes of weights, and a function that reads one of them whole."""

    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], Tensor]
    # These tensors have other types than the rest.
    types: Mapping[str, torch.dtype] = field(default_factory=dict)


def export_checkpoint(
    folder: Path,
    described_by: Path,
    target: Path,
    *,
    dtype: torch.dtype | None = torch.bfloat16,
    chat_template: str | None = None,
    facts: Mapping[str, Any] | None = None,
    card: str = "",
    key: str = "job.output",
) -> list[Path]:
    """Writes the weights of the checkpoint `folder` to `target` and returns the files.

    `described_by` is the model's own folder, which has config.json, the tokenizer, and the weights below an adapter.
    `dtype` None stands for the type that it has there. `chat_template` is Jinja, for a model without one. `facts` go
    into config.json, `card` is the text of README.md, and `key` is the key that says where `target` is. Raises
    ExportError, DiskError, and CorruptCheckpointError where the checkpoint is not whole.
    """
    if target.exists():
        raise ExportError(f"{target} is there already and is not overwritten: name another folder, or remove it.")
    if not (described_by / "config.json").is_file():
        raise ExportError(f"{described_by} has no config.json: give the folder of the model that was trained.")
    problem = size_problem(folder) or wrong_hash(folder, files_of(folder))
    if problem:
        raise checkpoint.corrupt_error(folder, problem)
    dtype = dtype or _type_of(described_by)
    adapter = _adapter_of(folder, described_by)
    _remove_left(target)
    aside = target.with_name(f"{_aside_of(target)}{os.getpid()}")
    try:
        with placed_by(key, target):
            aside.mkdir(parents=True)
            with _open_source(folder, described_by, adapter) as source:
                _write_weights(source, aside, dtype)
            if adapter:
                with open_stored(folder) as stored:
                    write_adapter(stored, adapter, aside / FOLDER)
            _write_description(
                described_by, aside, chat_template, {**(facts or {}), "dtype": str(dtype).removeprefix("torch.")}
            )
            if card:
                write_file(aside / CARD_FILE, [card.encode()])
            sync_folder(aside)
            aside.rename(target)
    except (ValueError, SafetensorError) as error:
        raise checkpoint.corrupt_error(folder, f"a tensor cannot be read ({error})") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return sorted(path for path in target.rglob("*") if path.is_file())


def _aside_of(target: Path) -> str:
    """Returns what this host's names beside `target` begin with; a process's number follows."""
    return f".{target.name}.aside-{socket.gethostname()}-"


def _remove_left(target: Path) -> None:
    """Removes what exports of this host left that were killed, or whose disk took no change any more."""
    for left in target.parent.glob(f"{glob.escape(_aside_of(target))}*"):
        # A process that still runs may still be writing there.
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)


def _adapter_of(folder: Path, described_by: Path) -> dict[str, Any] | None:
    """Returns the `Adapter.described` of a checkpoint, or None where it is a whole model. Raises ExportError."""
    adapter: dict[str, Any] | None = read_json(folder / STATE_FILE).get("adapter")
    if not adapter:
        return None
    here = {"path": str(described_by), "fingerprint": weights_fingerprint(described_by)}
    problem = base_problem(adapter["base"], here)
    if problem:
        raise ExportError(f"{folder} cannot be merged: {problem}. Give the folder of that model as model.path.")
    return adapter


@contextmanager
def _open_source(folder: Path, described_by: Path, adapter: Mapping[str, Any] | None) -> Iterator[_Source]:
    model = model_without_weights(described_by)
    with open_stored(folder) as stored, ExitStack() as stack:
        layout: StoredLayout = expert_parts
        base: Mapping[str, Any] = {}
        if model is not None:
            base = open_files(described_by, stack)
            layout = stored_names(model, base)
        types = _exact_types(base)
        if adapter:
            with merged_files(described_by, stored, adapter, _names_in_memory(model, layout)) as files:
                yield _Source(files.shapes, files.read, types)
            return
        source = _stored_source(stored, layout)
        if model is None:
            untrained = {}
        else:
            untrained = _untrained(model, layout, base, described_by)
        for name in untrained:
            source.shapes.setdefault(name, tuple(untrained[name].get_slice(name).get_shape()))
        yield _Source(
            source.shapes,
            lambda name: untrained[name].get_tensor(name) if name in untrained else source.read(name),
            types,
        )


def _exact_types(base: Mapping[str, Any]) -> dict[str, torch.dtype]:
    """Returns the types of the tensors that open files hold in float32, where most numbers are less exact."""
    slices = {name: file.get_slice(name) for name, file in base.items()}
    sizes = Counter[str]()
    for part in slices.values():
        sizes[part.get_dtype()] += prod(part.get_shape())
    exact = DTYPES[torch.float32]
    if not sizes or sizes.most_common(1)[0][0] == exact:
        return {}
    return {name: torch.float32 for name, part in slices.items() if part.get_dtype() == exact}


def _names_in_memory(model: Any, layout: StoredLayout) -> dict[str, str]:
    """Maps the stored names of whole tensors to those in memory."""
    if model is None:
        names = {}
    else:
        names = {name: tensor.shape for name, tensor in model.state_dict().items()}
    return {stored: name for name, shape in names.items() for stored, _ in hub_shapes(name, shape, layout)}


def _untrained(model: Any, layout: StoredLayout, base: Mapping[str, Any], described_by: Path) -> dict[str, Any]:
    """Returns the open files of the tensors that the trainer has not: buffers, and all that is not the text model's."""
    trained = {
        name
        for key, parameter in model.named_parameters(remove_duplicate=False)
        for name, _ in hub_shapes(key, parameter.shape, layout)
    }
    config = read_json(described_by / "config.json")
    if "text_config" in config and "quantization_config" not in config:
        others = base.keys() - trained
    else:
        others = set()
    return {name: base[name] for name in others | untrained_names(model, layout) if name in base}


def _stored_source(stored: StoredTensors, layout: StoredLayout) -> _Source:
    shapes: dict[str, tuple[int, ...]] = {}
    readers: dict[str, Callable[[], Tensor]] = {}
    for key in stored.names():
        if not key.startswith(MODEL):
            continue
        name = key.removeprefix(MODEL)
        shape = stored.shape(key)
        parts = layout(name, shape)
        for part in parts:
            shapes[part.name] = part.shape(shape)
            readers[part.name] = partial(_read_part, stored, key, part)
        if not parts:
            shapes[name] = shape
            readers[name] = partial(stored.whole, key)
    return _Source(shapes, lambda name: readers[name]())


def _read_part(stored: StoredTensors, key: str, part: StoredPart) -> Tensor:
    if part.expert is None:
        return stored.rows(key, part.start, part.stop)
    return stored.rows(key, part.expert, part.expert + 1)[0, part.start : part.stop]


def _write_weights(source: _Source, aside: Path, dtype: torch.dtype) -> None:
    sizes = {name: prod(shape) * source.types.get(name, dtype).itemsize for name, shape in source.shapes.items()}
    parts = _split_by_size(sizes)
    if len(parts) == 1:
        _write_part(source, parts[0], aside / SINGLE_FILE, dtype)
        return
    where: dict[str, str] = {}
    for number, names in enumerate(parts, start=1):
        file = part_name(number, len(parts))
        _write_part(source, names, aside / file, dtype)
        where |= dict.fromkeys(names, file)
    write_file(aside / INDEX_FILE, [index_content(where, sum(sizes.values()))])


def _write_part(source: _Source, names: list[str], path: Path, dtype: torch.dtype) -> None:
    write_file(path, safetensors_chunks({name: source.read(name).to(source.types.get(name, dtype)) for name in names}))


def _split_by_size(sizes: Mapping[str, int]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    room = MAX_FILE_BYTES
    for name, size in sizes.items():
        if size > room and parts[-1]:
            parts.append([])
            room = MAX_FILE_BYTES
        parts[-1].append(name)
        room -= size
    return parts


def _write_description(described_by: Path, aside: Path, chat_template: str | None, facts: Mapping[str, Any]) -> None:
    for pattern in _COPIED:
        for path in described_by.glob(pattern):
            if path.name not in (INDEX_FILE, "config.json"):
                shutil.copyfile(path, aside / path.name)
    config: dict[str, Any] = json.loads((described_by / "config.json").read_text(encoding="utf-8"))
    for described in (config, _text_config(config)):
        described.pop("torch_dtype", None)
    if "dtype" in facts and _text_config(config):
        config["text_config"]["dtype"] = facts["dtype"]
    # The weights are written as they were trained, in no quantized form.
    config.pop("quantization_config", None)
    config |= facts
    write_file(aside / "config.json", [json.dumps(config, indent=2, sort_keys=True).encode()])
    if not (aside / "generation_config.json").exists():
        tokens = {key: config[key] for key in _SPECIAL_TOKENS if config.get(key) is not None}
        write_file(aside / "generation_config.json", [json.dumps({"_from_model_config": True} | tokens).encode()])
    if chat_template is not None and not _has_chat_template(aside):
        write_file(aside / _CHAT_TEMPLATE, [chat_template.encode()])


def _has_chat_template(folder: Path) -> bool:
    path = folder / "tokenizer_config.json"
    if path.is_file():
        settings = json.loads(path.read_text(encoding="utf-8"))
    else:
        settings = {}
    return (folder / _CHAT_TEMPLATE).is_file() or bool(settings.get("chat_template"))


def _type_of(described_by: Path) -> torch.dtype:
    config = json.loads((described_by / "config.json").read_text(encoding="utf-8"))
    names = (part.get(key) for part in (config, _text_config(config)) for key in ("dtype", "torch_dtype"))
    dtype = getattr(torch, str(next(filter(None, names), "float32")), None)
    if isinstance(dtype, torch.dtype):
        return dtype
    return torch.float32


def _text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a multimodal model's configuration that is about text, which may have the type of its own."""
    part = config.get("text_config")
    if isinstance(part, dict):
        return part
    return {}
