"""Memory that a rank and a server's worker share, and the worker's end as vLLM loads it, above a stand-in for vLLM."""

import importlib
import json
import multiprocessing
import os
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest
import torch

from swe_rl.engine.transfer import ipc_handle, staged_layers
from swe_rl.engine.transfer.ipc_handle import device_key, forget_shared, make_shared, open_shared
from swe_rl.engine.transfer.sent_weights import update_info
from swe_rl.trainer.send.wire import StagingEnd

CPU = torch.device("cpu")
WEIGHTS = {
    "model.embed_tokens.weight": torch.arange(120, dtype=torch.float32).reshape(40, 3),
    "turned": torch.arange(6, dtype=torch.float32).reshape(2, 3).T,  # not contiguous
    "empty": torch.empty(0, 3),
    **{f"layer{number}": torch.full((50,), float(number)) for number in range(9)},
}


def _reads(handle, pipe):
    pipe.send(open_shared(handle, CPU)[:4].tolist())
    pipe.recv()
    pipe.send(open_shared(handle, CPU)[:4].tolist())


def test_memory_is_shared_between_processes():
    tensor, handle = make_shared(1000, CPU)
    tensor[:4] = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
    handle = json.loads(json.dumps(handle))
    assert handle["file"].startswith(f"/proc/{os.getpid()}/fd/"), "a file with a name outlives a kill"
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_reads, args=(handle, theirs), daemon=True)
    process.start()
    assert ours.recv() == [1, 2, 3, 4]
    tensor[0] = 9
    ours.send("again")
    assert ours.recv() == [9, 2, 3, 4]
    process.join(20)
    forget_shared(handle)
    forget_shared(handle)
    assert device_key(CPU) == "cpu"
    with pytest.raises(RuntimeError):
        open_shared(handle, CPU)


def _reads_gpu(handle, key, pipe):
    device = torch.device("cuda", 0)
    assert device_key(device) == key
    opened = open_shared(handle, device)
    pipe.send(opened[:4].tolist())
    pipe.recv()
    pipe.send(opened[:4].tolist())
    del opened
    pipe.recv()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_memory_of_a_gpu_is_shared_and_ends_with_its_maker():
    """Also where the other process never says that it is done with it."""
    device = torch.device("cuda", 0)
    before = torch.cuda.memory_allocated(device)
    tensor, handle = make_shared(64 * 2**20, device)
    tensor[:4] = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
    torch.cuda.synchronize()
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    given = (json.loads(json.dumps(handle)), device_key(device), theirs)
    process = multiprocessing.get_context("spawn").Process(target=_reads_gpu, args=given, daemon=True)
    process.start()
    theirs.close()
    assert ours.recv() == [1, 2, 3, 4]
    tensor[0] = 9
    torch.cuda.synchronize()
    ours.send("again")
    assert ours.recv() == [9, 2, 3, 4]
    process.kill()
    process.join(20)
    del tensor
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated(device) == before


@pytest.mark.parametrize(
    ("settings", "backend", "names"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "native", "expandable_segments:True"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:true"}, "native", "expandable_segments:true"),
        ({}, "cudaMallocAsync", "weight_sync=disk"),
    ],
)
def test_an_allocator_whose_memory_cannot_be_shared_is_named(monkeypatch, settings, backend, names):
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: backend)
    with pytest.raises(RuntimeError, match=names):
        make_shared(10, torch.device("cuda", 0))


@pytest.mark.parametrize("text", ["GPU-8f0c-AB", "8f0c-ab", "MIG-8f0c-ab"])
def test_a_gpu_has_one_name_everywhere(monkeypatch, text):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=text))
    assert device_key(torch.device("cuda", 3)) == "8f0c-ab"


def test_a_handle_of_a_gpu_travels_as_json_and_opens_on_the_number_that_it_has_there(monkeypatch):
    released, opened = [], []
    sent = (0, b"memory\x00\xff", 64, 512, b"counter", 7, b"event", True)
    storage = SimpleNamespace(_share_cuda_=lambda: sent)
    monkeypatch.setattr(ipc_handle, "_require_shareable", lambda: None)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: SimpleNamespace(untyped_storage=lambda: storage, set_=id))
    monkeypatch.setattr(
        torch.UntypedStorage, "_release_ipc_counter", lambda *given, device: released.append(given), raising=False
    )
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", lambda *given: opened.append(given), raising=False)
    _, handle = make_shared(64, torch.device("cuda", 0))
    open_shared(json.loads(json.dumps(handle)), torch.device("cuda", 5))
    assert released == [(b"counter", 7)] and opened == [(5, *sent[1:])]


@pytest.fixture
def worker_end(monkeypatch):
    """The module as vLLM's workers import it, above a stand-in for vLLM."""
    base, factory = ModuleType("base"), ModuleType("factory")

    class Engine:
        def __init__(self, model):
            self.model, self.model_config, self.device = model, None, CPU

        def parse_init_info(self, given):
            return self.init_info_cls(**given)

        def parse_update_info(self, given):
            return self.update_info_cls(**given)

    @dataclass
    class Info:
        pass

    base.WeightTransferEngine, base.WeightTransferInitInfo, base.WeightTransferUpdateInfo = Engine, Info, Info
    registered = {}
    factory.WeightTransferEngineFactory = SimpleNamespace(register_engine=registered.__setitem__)
    reload = ModuleType("reload")
    reload.initialize_layerwise_reload = lambda model: model.began.append(True)
    reload.finalize_layerwise_reload = lambda model, config: model.ended.append(True)
    root = "vllm.distributed.weight_transfer"
    for name in ("vllm", "vllm.distributed", root, "vllm.model_executor", "vllm.model_executor.model_loader"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, f"{root}.base", base)
    monkeypatch.setitem(sys.modules, f"{root}.factory", factory)
    monkeypatch.setitem(sys.modules, "vllm.model_executor.model_loader.reload", reload)
    monkeypatch.setitem(sys.modules, "swe_rl_ipc_handle", ipc_handle)
    monkeypatch.setitem(sys.modules, "swe_rl_staged_layers", staged_layers)
    monkeypatch.delitem(sys.modules, "swe_rl.engine.transfer.vllm_worker", raising=False)
    yield importlib.import_module("swe_rl.engine.transfer.vllm_worker"), registered
    sys.modules.pop("swe_rl.engine.transfer.vllm_worker", None)


class Model:
    """Keeps what it is given until the end, as vLLM's layerwise loading does."""

    def __init__(self):
        self.found, self.began, self.ended = {}, [], []

    def modules(self):
        return [self]

    def load_weights(self, weights):
        for name, tensor in weights:
            if name == "broken":
                raise ValueError("there is no parameter `broken`")
            self.found[name] = tensor


def test_a_worker_keeps_what_was_in_a_buffer_before_it_is_filled_again(worker_end):
    module, registered = worker_end
    assert list(registered) == ["gloo", "swe_rl_ipc"] and module.Extension
    end = StagingEnd(torch.bfloat16, CPU, bucket_bytes=300)
    opened = end.open(WEIGHTS, {})
    worker = module.IpcEngine(Model())
    worker.init_transfer_engine(
        worker.parse_init_info({"handles": {key: list(of) for key, of in opened.handles.items()}})
    )
    worker.start_weight_update()
    for number, bucket in enumerate(opened.buckets):
        end.stage(number)
        worker.update_weights(json.loads(json.dumps(update_info(bucket, number))))
    worker.finish_weight_update()
    end.close()
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in WEIGHTS.items()}
    found = worker.model.found
    assert found.keys() == expected.keys() and worker.model.began and worker.model.ended
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    with pytest.raises(RuntimeError, match="no weight transfer was initialised"):
        worker.update_weights(update_info(opened.buckets[0], 0))


def test_a_worker_on_another_gpu_says_which(worker_end):
    module, _ = worker_end
    worker = module.IpcEngine(Model())
    with pytest.raises(RuntimeError, match="this worker's GPU cpu, but of 12-ab"):
        worker.init_transfer_engine(worker.parse_init_info({"handles": {"12-ab": []}}))


def test_a_worker_that_fails_lets_go(worker_end):
    module, _ = worker_end
    end = StagingEnd(torch.float32, CPU)
    opened = end.open({"broken": torch.ones(2)}, {})
    worker = module.IpcEngine(Model())
    worker.init_transfer_engine(
        worker.parse_init_info({"handles": {key: list(of) for key, of in opened.handles.items()}})
    )
    end.stage(0)
    with pytest.raises(ValueError, match="broken"):
        worker.update_weights(update_info(opened.buckets[0], 0))
    assert worker._buffers == ()


def test_after_an_update_that_failed_the_same_memory_is_filled_again(worker_end, monkeypatch):
    module, _ = worker_end
    made, finished = [], []

    class Staged:
        def __init__(self, model):
            made.append(self)

        def finish(self):
            finished.append(self)

    monkeypatch.setattr(module, "copies_past_loaders", lambda model: True)
    monkeypatch.setattr(module, "StagedLayers", Staged)
    worker = module.IpcEngine(Model())
    worker.start_weight_update()
    worker.start_weight_update()
    worker.finish_weight_update()
    assert made == finished and len(made) == 1
    worker.start_weight_update()
    worker.finish_weight_update()
    assert made == finished and len(made) == 2


class Method:
    """Computes experts, as vLLM's does for a layer."""

    moe_kernel = "kernel"


def test_kernels_of_experts_outlast_an_update_that_failed(worker_end):
    module, _ = worker_end
    model = Model()
    model.quant_method = method = Method()
    worker = module.GlooEngine(model)
    worker.start_weight_update()
    worker.start_weight_update()
    assert method.moe_kernel is None
    worker.finish_weight_update()
    assert method.moe_kernel == "kernel"
