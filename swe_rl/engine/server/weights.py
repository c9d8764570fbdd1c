"""Gives new weights to a running server by way of a folder: written once, read by every engine.

Invariants:
- A folder under its final name is complete; the newest two versions are kept, so that a server that dies can be started
  with the weights that it had.
- What a server loads is a plain Hugging Face folder: config.json, safetensors and the tokenizer of the source.
- Weights that can write themselves (`WritesFiles`, those of many ranks) never pass through this process.
- With an adapter's shape the folder holds adapters alone, as peft writes them, in the trainer's own precision: servers
  keep the base, and serve each version under a name of its own, which also keeps what they cached apart.
- With `untied` the output layer gets a tensor of its own: vLLM's CPU build keeps a packed copy of tied embeddings that
  a reload does not renew (seen in 0.32).
"""

import asyncio
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rl.engine.engine import EngineError
from swe_rl.engine.server.client import HttpClient, ServerAnswer, ServerFailingError
from swe_rl.engine.server.wire import ADAPTER_ROUTE, weight_version
from swe_rl.engine.transfer.sent_weights import WritesFiles
from swe_rl.files.disk import as_os_errors, disk_error, placed_by, write_json_atomic, write_text_atomic
from swe_rl.files.kill_point import kill_point
from swe_rl.model.adapter import CONFIG_FILE, WEIGHTS_FILE, AdapterShape, adapter_config

if TYPE_CHECKING:
    import torch

    from swe_rl.engine.server.features import Features

# Reading a large model from a cold shared disk takes many minutes, so this patience is half an hour.
_LOAD_TIMEOUT_S = 1800.0
# vLLM refuses while it moves blocks, which is over within a moment; two seconds of tries outlast it.
_RESET_TRIES = 20
_RESET_PAUSE_S = 0.1
_KEPT = 2
_COPIED = ("tokenizer", "vocab", "merges", "special_tokens", "chat_template", "added_tokens", "generation_config")
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class WeightFolders:
    """The folders of weights. Servers were started with `source`; they and this process see `root`."""

    def __init__(self, root: Path, source: Path, *, untied: bool = False, adapter: AdapterShape | None = None) -> None:
        self.root = root
        self.adapter = adapter
        self._source = source
        self._untied = untied
        self._lock = asyncio.Lock()
        self._written: dict[int, Path] = {}

    async def write(self, weights: "Mapping[str, torch.Tensor]", version: int) -> Path:
        """Returns the folder of `version`; engines that ask for the same one share it. Raises DiskError,
        EngineError.
        """
        async with self._lock:
            if version not in self._written:
                self._written[version] = await asyncio.to_thread(self._write, weights, version)
                await asyncio.to_thread(self._forget_old)
            return self._written[version]

    def find(self, version: int) -> Path | None:
        return self._written.get(version)

    def _write(self, weights: "Mapping[str, torch.Tensor]", version: int) -> Path:
        target = self.root / f"weights_{version:08d}"
        aside = self.root / f".{target.name}.{os.getpid()}"
        try:
            with placed_by("paths.scratch", target):
                shutil.rmtree(aside, ignore_errors=True)
                aside.mkdir(parents=True)
                if self.adapter is not None:
                    write_adapter(aside, weights, self.adapter)
                else:
                    export_weights(self._source, aside, weights, untied=self._untied)
                kill_point("weights_written")
                shutil.rmtree(target, ignore_errors=True)
                aside.rename(target)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        return target

    def _forget_old(self) -> None:
        for version in sorted(self._written)[:-_KEPT]:
            shutil.rmtree(self._written.pop(version), ignore_errors=True)


def write_adapter(target: Path, weights: "Mapping[str, torch.Tensor]", shape: AdapterShape) -> None:
    """Writes `weights`, which have the names of an adapter's files. Raises OSError."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    _save_tensors(tensors, target / WEIGHTS_FILE)
    write_json_atomic(target / CONFIG_FILE, adapter_config(shape, tensors, None, None))


def export_weights(source: Path, target: Path, weights: "Mapping[str, torch.Tensor]", *, untied: bool = False) -> None:
    """Writes `weights` (names as in the model's `state_dict`) beside config and tokenizer of `source`.
    Raises OSError.
    """
    tied = _write_description(source, target, untied=untied)
    if isinstance(weights, WritesFiles):
        weights.write_files(target, {HEAD: EMBEDDING} if tied and untied else {})
        return
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    if tied and untied:
        tensors[HEAD] = tensors[EMBEDDING].clone()
    elif tied:
        tensors.pop(HEAD, None)
    _save_tensors(tensors, target / "model.safetensors")


def _save_tensors(tensors: "Mapping[str, torch.Tensor]", path: Path) -> None:
    """Writes tensors into a file. Raises OSError."""
    from safetensors.torch import save_file

    with as_os_errors(path):
        save_file(dict(tensors), path, metadata={"format": "pt"})


def _write_description(source: Path, target: Path, *, untied: bool) -> bool:
    """Writes config and tokenizer. Returns whether the output layer of `source` is its embedding."""
    config = json.loads((source / "config.json").read_text())
    tied = bool(config.get("tie_word_embeddings"))
    if tied and untied:
        config["tie_word_embeddings"] = False
    write_text_atomic(target / "config.json", json.dumps(config, indent=2))
    for file in source.iterdir():
        if file.name.startswith(_COPIED):
            shutil.copyfile(file, target / file.name)
    return tied


def untied_copy(source: Path, target: Path) -> Path:
    """Returns the model of `source` with an output layer of its own, where it has none. Raises DiskError."""
    from safetensors.torch import load_file

    if not json.loads((source / "config.json").read_text()).get("tie_word_embeddings"):
        return source
    try:
        target.mkdir(parents=True, exist_ok=True)
        export_weights(source, target, load_file(source / "model.safetensors"), untied=True)
    except OSError as error:
        raise disk_error(target, error, key="paths.scratch") from error
    return target


async def load_from_folder(client: HttpClient, folder: Path) -> None:
    """Makes the server, which must be paused, load the weights of `folder`. Raises EngineError."""
    await ask_http(client, "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})


async def load_adapter(client: HttpClient, name: str, folder: Path) -> None:
    """Makes the server serve the adapter of `folder` as model `name`. Raises EngineError."""
    await ask_http(client, ADAPTER_ROUTE, {"lora_name": name, "lora_path": str(folder)})


async def unload_adapter(client: HttpClient, name: str) -> None:
    """Makes the server forget an adapter. Raises EngineError."""
    await ask_http(client, "/v1/unload_lora_adapter", {"lora_name": name})


async def set_version(client: HttpClient, features: "Features", version: int) -> None:
    if features.version_stamp:
        await ask_http(client, "/update_weight_version", {"new_version": str(version)})


async def told_version(client: HttpClient, features: "Features") -> int | None:
    """Returns the version that the server says it holds; None where it cannot say."""
    if not features.version_stamp:
        return None
    answer = await client.get("/weight_info")
    if answer.ok:
        return weight_version(str(answer.json().get("weight_version")))
    return None


async def forget_prefixes(client: HttpClient) -> None:
    """Makes the server forget cached prefixes in all tiers, also those of frozen requests, which it computes anew.

    A block in the host's memory has a key of its tokens and the request's salt, and none of the weights: whoever asked
    with an old salt would get old keys and values. Dead blocks would also take room until they leave by age. The server
    refuses while blocks are being moved.
    """
    for _ in range(_RESET_TRIES):
        answer = await ask_http(client, "/reset_prefix_cache?reset_running_requests=true&reset_external=true")
        if not answer.body or answer.json().get("success", True):
            return
        await asyncio.sleep(_RESET_PAUSE_S)
    raise EngineError(f"{client.url} does not give up the prefixes that it cached with the old weights")


async def ask_http(client: HttpClient, path: str, body: Mapping[str, object] | None = None) -> ServerAnswer:
    """Asks with the patience that weights need. Raises ServerFailingError, EngineError."""
    answer = await client.post(path, body, timeout_s=_LOAD_TIMEOUT_S)
    if not answer.ok:
        kind = EngineError
        if answer.status >= 500:
            kind = ServerFailingError
        raise kind(f"{client.url}{path} answered {answer.status}: {answer.reason()}")
    return answer
