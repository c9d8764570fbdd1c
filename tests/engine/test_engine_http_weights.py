"""Weights by way of a folder: what is written, what is kept, what the server is told."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from swe_rl.engine.engine import EngineError, SamplingParams
from swe_rl.engine.server.client import HttpClient
from swe_rl.engine.server.engine import HttpEngine
from swe_rl.engine.server.features import Needs
from swe_rl.engine.server.weights import WeightFolders, untied_copy
from swe_rl.files.disk import DiskError
from swe_rl.model.adapter import AdapterShape
from tests.support.fake_vllm.server import FakeSettings, FakeVllm


@pytest.fixture
def source(tmp_path, model):
    """A tied model's folder."""
    folder = tmp_path / "source"
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "optimizer.pt").write_text("not for a server")
    return folder


def weights_of(model, shift=0.0):
    return {name: tensor + shift for name, tensor in model.state_dict().items()}


async def test_a_folder_is_a_model(tmp_path, source, model):
    folders = WeightFolders(tmp_path / "root", source)
    folder = await folders.write(weights_of(model, 1.0), 7)
    found = load_file(folder / "model.safetensors")
    assert set(found) == set(model.state_dict()) - {"lm_head.weight"}
    assert torch.equal(found["model.norm.weight"], model.state_dict()["model.norm.weight"] + 1)
    assert {path.name for path in folder.iterdir()} >= {"config.json", "tokenizer.json", "model.safetensors"}
    assert not (folder / "optimizer.pt").exists()
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight + 1)


async def test_an_untied_folder_has_both_tensors(tmp_path, source, model):
    folder = await WeightFolders(tmp_path / "root", source, untied=True).write(weights_of(model), 1)
    found = load_file(folder / "model.safetensors")
    assert torch.equal(found["lm_head.weight"], found["model.embed_tokens.weight"])
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False


def test_an_untied_copy(tmp_path, source, build_model):
    copy = untied_copy(source, tmp_path / "copy")
    assert copy == tmp_path / "copy" and "lm_head.weight" in load_file(copy / "model.safetensors")
    other = tmp_path / "untied"
    build_model(0, tied=False).save_pretrained(other)
    assert untied_copy(other, tmp_path / "never") == other and not (tmp_path / "never").exists()


async def test_one_write_for_all_engines_and_two_versions_kept(tmp_path, source, model):
    folders = WeightFolders(tmp_path / "root", source)
    first = await folders.write(weights_of(model), 1)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert await folders.write({}, 1) == first and (first / "model.safetensors").stat().st_mtime_ns == stamp
    await folders.write(weights_of(model), 2)
    await folders.write(weights_of(model), 3)
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["weights_00000002", "weights_00000003"]
    assert folders.find(1) is None and folders.find(3) == tmp_path / "root" / "weights_00000003"


async def test_a_disk_that_takes_nothing(tmp_path, source, model):
    (tmp_path / "root").write_text("a file")
    with pytest.raises(DiskError, match="weights_00000001"):
        await WeightFolders(tmp_path / "root", source).write(weights_of(model), 1)


async def test_an_update_empties_the_tier_in_the_hosts_memory(tmp_path, source, model):
    prompt = list(range(40))
    async with FakeVllm(FakeSettings(host_capacity_tokens=4096)) as fake:
        folders = WeightFolders(tmp_path / "root", source)
        engine = HttpEngine(HttpClient(fake.url), Needs("policy", 64), name="engine0", max_num_seqs=1, weights=folders)
        await engine.start()
        await engine.update_weights(weights_of(model), 3)
        assert (await engine.generate(prompt, SamplingParams(1), request_id="a")).cached_tokens == 0
        await engine.client.post("/reset_prefix_cache")
        assert (await engine.generate(prompt, SamplingParams(1), request_id="b")).cached_tokens == 32
        # The same version has the same salt, so that only the reset keeps old keys and values away.
        await engine.update_weights(weights_of(model), 3)
        assert (await engine.generate(prompt, SamplingParams(1), request_id="c")).cached_tokens == 0
        await engine.close()


async def test_a_server_takes_them(tmp_path, source, model):
    async with FakeVllm(FakeSettings()) as fake:
        folders = WeightFolders(tmp_path / "root", source)
        engine = HttpEngine(HttpClient(fake.url), Needs("policy", 64), name="engine0", max_num_seqs=1, weights=folders)
        await engine.start()
        fake.requests.clear()
        await engine.update_weights(weights_of(model), 3)
        assert [path for path, _ in fake.requests] == [
            "/pause",
            "/collective_rpc",
            "/reset_prefix_cache",
            "/update_weight_version",
            "/resume",
        ]
        assert Path(fake.requests[1][1]["kwargs"]["weights_path"]) == folders.find(3)
        assert engine.weight_version == 3 and fake.model.weights == "3" and not fake.paused
        assert (await engine.generate([1], SamplingParams(1), request_id="a")).weight_version == 3
        await engine.pause()
        fake.resets_to_refuse = 2
        await engine.update_weights(weights_of(model), 4)
        assert fake.resets_to_refuse == 0
        assert fake.paused and engine.weight_version == 4  # whoever paused resumes
        await engine.close()


def adapter_weights(model):
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    width = model.config.hidden_size
    return {f"{layer}.lora_A.weight": torch.ones(2, width), f"{layer}.lora_B.weight": torch.ones(width, 2)}


async def test_a_folder_of_an_adapter(tmp_path, source, model):
    pytest.importorskip("peft")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = await WeightFolders(tmp_path / "root", source, adapter=AdapterShape(2, 8)).write(adapter_weights(model), 1)
    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(source), folder).merge_and_unload()
    changed = loaded.model.layers[0].self_attn.q_proj.weight - model.model.layers[0].self_attn.q_proj.weight
    assert torch.allclose(changed, torch.full_like(changed, 8.0), atol=1e-5)  # alpha / rank times 2 ones


async def test_a_server_takes_adapters_under_new_names(tmp_path, source, model):
    async with FakeVllm(FakeSettings(adapters=True)) as fake:
        folders = WeightFolders(tmp_path / "root", source, adapter=AdapterShape(2, 8))
        needs = Needs("policy", 64)
        engine = HttpEngine(HttpClient(fake.url), needs, name="engine0", max_num_seqs=1, weights=folders)
        await engine.start()
        fake.requests.clear()
        await engine.update_weights(adapter_weights(model), 3)
        assert [path for path, _ in fake.requests] == [
            "/pause", "/v1/load_lora_adapter", "/reset_prefix_cache", "/update_weight_version", "/resume",
        ]  # fmt: skip
        assert list(fake.adapters.values()) == [str(folders.find(3))]
        assert (await engine.generate([1], SamplingParams(1), request_id="a")).weight_version == 3
        assert fake.requests[-1][1]["model"] == list(fake.adapters)[0]
        await engine.update_weights(adapter_weights(model), 4)
        assert list(fake.adapters.values()) == [str(folders.find(4))]  # the one before is gone
        assert (await engine.generate([1], SamplingParams(1), request_id="b")).weight_version == 4
        await engine.close()


async def test_a_server_without_adapters_is_named(tmp_path, source, model):
    async with FakeVllm(FakeSettings()) as fake:
        folders = WeightFolders(tmp_path / "root", source, adapter=AdapterShape(2, 8))
        needs = Needs("policy", 64)
        engine = HttpEngine(HttpClient(fake.url), needs, name="engine0", max_num_seqs=1, weights=folders)
        await engine.start()
        with pytest.raises(EngineError, match=r"takes no adapters: start the server with --enable-lora"):
            await engine.update_weights(adapter_weights(model), 3)
        assert (await engine.generate([1], SamplingParams(1), request_id="a")).weight_version == 0  # nothing was lost
        await engine.close()


async def test_half_an_update_is_a_lost_server(tmp_path, source, model):
    async with FakeVllm(FakeSettings()) as fake:
        engine = HttpEngine(
            HttpClient(fake.url),
            Needs("policy", 64),
            name="engine0",
            max_num_seqs=1,
            weights=WeightFolders(tmp_path / "root", source),
            stats_period_s=60.0,
        )
        await engine.start()
        fake.broken_paths.add("/reset_prefix_cache")
        with pytest.raises(EngineError, match=r"/reset_prefix_cache\S* answered 500"):
            await engine.update_weights(weights_of(model), 3)
        with pytest.raises(EngineError, match="half-way"):
            await engine.generate([1], SamplingParams(1), request_id="a")
        await engine.close()
