"""What we add to vLLM's sampler, above a stand-in for it; a real one is in test_engine_vllm_real."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

NAME = "swe_rl.engine.vllm.whole_logprobs"


class PlainSampler:
    """As vLLM's: scales the logits in place, cuts all but the likeliest token, and reports by its own mode."""

    @staticmethod
    def compute_logprobs(logits):
        return logits.log_softmax(-1, dtype=torch.float32)

    def sample(self, logits, metadata, logprobs_mode_override=None):
        if metadata.temperature is not None:
            logits.div_(metadata.temperature.clamp(min=1e-5)[:, None])
        cut = logits.masked_fill(logits < logits.max(-1, keepdim=True).values, -torch.inf)
        return logits.argmax(-1), None if logprobs_mode_override == "raw" else self.compute_logprobs(cut)


@pytest.fixture
def load(monkeypatch):
    """Imports the extension beside modules of vLLM's names, and gives the sampler that it changed."""

    def load():
        made = type("Sampler", (PlainSampler,), {})
        for name in ("vllm", "vllm.v1", "vllm.v1.sample"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, "vllm.v1.sample.sampler", SimpleNamespace(Sampler=made))
        monkeypatch.delitem(sys.modules, NAME, raising=False)
        importlib.import_module(NAME)
        return made()

    yield load
    sys.modules.pop(NAME, None)


def metadata(temperatures, logprobs=0):
    temperature = None if temperatures is None else torch.tensor(temperatures)
    return SimpleNamespace(temperature=temperature, max_num_logprobs=logprobs)


@pytest.mark.parametrize("temperatures", [[0.5, 1.0, 2.0], [0.0, 0.7, 0.7], None])
@pytest.mark.parametrize("override", [(), ("raw",)])
def test_the_whole_vocabulary_is_reported_at_each_requests_temperature(load, temperatures, override):
    logits = torch.randn(3, 9, generator=torch.Generator().manual_seed(0))
    divisors = torch.tensor([one or 1.0 for one in temperatures or [1.0] * 3])
    expected = (logits / divisors[:, None]).log_softmax(-1)
    tokens, logprobs = load().sample(logits.clone(), metadata(temperatures), *override)
    assert tokens.tolist() == logits.argmax(-1).tolist()
    assert torch.equal(logprobs, expected)


def test_what_nobody_asks_for_is_not_computed(load):
    sampler = load()
    sampler.compute_logprobs = pytest.fail
    assert sampler.sample(torch.zeros(2, 3), metadata([1.0, 1.0], None), "raw")[1] is None


def test_it_brings_the_way_of_weights_along_where_that_lies_beside_it(load, monkeypatch, tmp_path):
    """vLLM imports one extension."""
    load()
    assert "swe_rl_worker" not in sys.modules
    (tmp_path / "swe_rl_worker.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    load()
    assert sys.modules.pop("swe_rl_worker").__file__ == str(tmp_path / "swe_rl_worker.py")
