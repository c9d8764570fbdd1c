"""The trainer's end of a weight transfer, with receivers as vLLM's workers are, in threads of this process."""

import re
import threading
from datetime import timedelta
from types import MappingProxyType

import pytest
import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

from swe_rl.config.schema import AlgoConfig, ModelConfig, TrainerConfig
from swe_rl.engine.transfer.ipc_handle import open_shared
from swe_rl.facts.weight_sync import GLOO, NCCL
from swe_rl.model.tiny import build_model
from swe_rl.trainer.ranks.group import TrainerGroup
from swe_rl.trainer.ranks.rank import RankSetup
from swe_rl.trainer.send.wire import WireEnd, on_device
from swe_rl.trainer.trainer import TrainerError

WEIGHTS = {
    "model.embed_tokens.weight": torch.arange(12, dtype=torch.float32).reshape(4, 3),
    "model.norm.weight": torch.ones(3),
    "turned": torch.arange(6, dtype=torch.float32).reshape(2, 3).T,  # not contiguous
    "empty": torch.empty(0, 3),
}
TWICE = {"lm_head.weight": "model.embed_tokens.weight"}
NOBODY = MappingProxyType[int, int]({})


class Receiver(threading.Thread):
    """Takes what was announced, as engine/transfer/vllm_worker does, up to `leaves_after` or `waits_after` tensors."""

    def __init__(self, where, rank, world, announced, leaves_after=None, waits_after=None):
        super().__init__(daemon=True)
        self._where, self._rank, self._world = where, rank, world
        self._announced, self._leaves_after, self._waits_after = announced, leaves_after, waits_after
        self.waits = threading.Event()
        self.found = {}

    def run(self):
        limit = timedelta(seconds=20)
        store = TCPStore(*self._where, self._world, False, limit)
        group = ProcessGroupGloo(PrefixStore("weights", store), self._rank, self._world, limit)
        for number, one in enumerate(self._announced):
            if number == self._leaves_after:
                return
            if number == self._waits_after:
                self.waits.wait(20)
                return
            tensor = torch.empty(one.shape, dtype=getattr(torch, one.dtype))
            try:
                group.recv([tensor], 0, 0).wait()
            except RuntimeError:
                return
            self.found[one.name] = tensor


def opened(receivers=1, dtype=torch.float32, leaves_after=NOBODY, waits_after=NOBODY, timeout_s=20.0):
    end = WireEnd(0, dtype, timeout_s)
    announced, where = end.announce(WEIGHTS, TWICE), end.address(loopback=True)
    found = [
        Receiver(where, 1 + index, 1 + receivers, announced, leaves_after.get(index), waits_after.get(index))
        for index in range(receivers)
    ]
    for one in found:
        one.start()
    assert end.open(GLOO, *where, 1 + receivers) is None
    return end, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_everybody_gets_everything(dtype):
    end, receivers = opened(2, dtype)
    sent = end.send(WEIGHTS, TWICE)
    end.close()
    assert sent.problem is None and sent.wire_s > 0 and sent.gather_s > 0
    expected = WEIGHTS | {"lm_head.weight": WEIGHTS["model.embed_tokens.weight"]}
    for one in receivers:
        one.join(20)
        assert list(one.found) == [each.name for each in end.announce(WEIGHTS, TWICE)]
        assert one.found.keys() == expected.keys()
        assert all(torch.equal(tensor, expected[name].to(dtype)) for name, tensor in one.found.items())


@pytest.mark.parametrize("gone", [0, 1])
def test_a_receiver_that_leaves_holds_up_none_of_the_others(gone, capsys):
    end, receivers = opened(2, leaves_after={gone: 1})
    assert end.send(WEIGHTS, TWICE).problem is None
    assert re.fullmatch(f"receiver {gone + 1} gets no more weights: .+\n", capsys.readouterr().err)
    for number, one in enumerate(receivers):
        one.join(20)
        assert len(one.found) == (1 if number == gone else len(WEIGHTS) + 1)
    end.close()


def test_of_a_receiver_that_takes_nothing_the_timeout_is_said_and_not_what_followed_from_it():
    end, (first, other) = opened(2, timeout_s=2.0, waits_after={0: 1})
    problem = end.send(WEIGHTS, TWICE).problem
    first.waits.set()
    other.join(20)
    assert "Timed out" in problem and len(other.found) == 1, problem


def test_what_is_announced_names_the_second_after_the_first():
    found = WireEnd(3, torch.bfloat16).announce(WEIGHTS, TWICE)
    assert [one.name for one in found][:2] == ["model.embed_tokens.weight", "lm_head.weight"]
    assert found[1].shape == (4, 3) and {one.dtype for one in found} == {"bfloat16"}


def test_a_receiver_that_leaves_is_a_problem_and_all_is_gathered_all_the_same():
    end, _ = opened(1, leaves_after={0: 1})
    gathered = []

    class Weights(dict):
        def items(self):
            for name, tensor in super().items():
                gathered.append(name)
                yield name, tensor

    problems = [end.send(Weights(WEIGHTS), TWICE).problem for _ in range(2)]
    assert problems[0] and gathered == [*WEIGHTS, *WEIGHTS]
    assert "not open" in problems[1]  # it was closed with the failure


def test_without_a_wire_other_ranks_gather_and_rank_0_says_so():
    assert WireEnd(1, torch.float32).send(WEIGHTS, TWICE).problem is None
    assert "not open" in WireEnd(0, torch.float32).send(WEIGHTS, TWICE).problem
    assert WireEnd(1, torch.float32).open(GLOO, "127.0.0.1", 1, 2) is None


def test_nobody_comes():
    end = WireEnd(0, torch.float32, timeout_s=1.0)
    assert "Error" in end.open(GLOO, *end.address(loopback=True), 2)


def test_nccl_needs_vllm_beside_the_trainer(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    assert "vllm" in WireEnd(0, torch.float32).open(NCCL, "127.0.0.1", 1, 2)


def test_an_address_that_others_reach():
    host, port = WireEnd(0, torch.float32).address(loopback=False)
    assert host.count(".") == 3 and 0 < port < 65536


@pytest.mark.slow
def test_two_ranks_send_what_they_share(tmp_path):
    model = ModelConfig(
        path=str(tmp_path), num_layers=2, hidden_size=32, intermediate_size=48, vocab_size=64, head_dim=8
    )
    build_model(model, 0).save_pretrained(tmp_path)
    trainer = TrainerConfig(lr=1e-3, num_threads=1, collective_timeout_s=60.0)
    group = TrainerGroup(RankSetup(model, trainer, AlgoConfig(), 0, 1.0, 0, 2, 1, "", "cpu", logs=tmp_path / "logs"))
    group.start()
    try:
        announced, where = group.announce_weights(TWICE), group.wire_address(loopback=True)
        receiver = Receiver(where, 1, 2, announced)
        receiver.start()
        assert group.open_wire(GLOO, *where, 2) is None
        sent = group.transfer_weights(TWICE)
        receiver.join(20)
        assert sent.problem is None and sent.sent_bytes == sum(4 * t.numel() for t in group.weights().values())
        assert torch.equal(receiver.found["lm_head.weight"], receiver.found["model.embed_tokens.weight"])
        assert all(torch.equal(receiver.found[name], tensor) for name, tensor in group.weights().items())
        assert "not open" not in (
            group.transfer_weights({}).problem or ""
        )  # the wire is still there, its other end not
        assert group.failure() is None  # no rank was lost by that
    finally:
        group.close()


@pytest.mark.slow
def test_two_ranks_stage_what_they_share(tmp_path):
    """Each into memory of its own; a server that reads one rank's memory finds all of every tensor."""
    model = ModelConfig(
        path=str(tmp_path), num_layers=2, hidden_size=32, intermediate_size=48, vocab_size=64, head_dim=8
    )
    build_model(model, 0).save_pretrained(tmp_path)
    trainer = TrainerConfig(lr=1e-3, num_threads=1, collective_timeout_s=60.0)
    group = TrainerGroup(RankSetup(model, trainer, AlgoConfig(), 0, 1.0, 0, 2, 1, "", "cpu", logs=tmp_path / "logs"))
    group.start()
    try:
        weights = dict(group.weights())
        for wanted in (None, 0):  # to the end, and given up after the first bucket
            staging = group.open_staging({})
            assert staging.problem is None and list(staging.handles) == ["cpu"]
            buffers = [open_shared(one, torch.device("cpu")) for one in staging.handles["cpu"]]
            found = {}
            for number, bucket in enumerate(staging.buckets):
                sent = group.stage(number)
                assert sent.sent_bytes == sum(one.size_bytes for one in bucket)
                for one in bucket:
                    room = buffers[number % 2][one.offset : one.offset + one.size_bytes]
                    found[one.tensor.name] = room.view(torch.float32).view(one.tensor.shape).clone()
                if number == wanted:
                    break
            group.close_staging()
            assert all(torch.equal(tensor, weights[name]) for name, tensor in found.items())
            assert wanted is not None or found.keys() == weights.keys()
        with pytest.raises(TrainerError, match="there are no buffers for it"):
            group.stage(0)
    finally:
        group.close()


def test_nccl_gets_weights_of_the_host_on_its_gpu():
    """NCCL refuses the host's memory, where trainer.offload_optimizer keeps the weights."""
    there = torch.device("meta")  # stands for a GPU: a device that is not the tensors' own
    moved = dict(on_device(iter([("a", torch.ones(2, 3)), ("b", torch.zeros(4))]), there))
    assert {name: (tensor.device, tuple(tensor.shape)) for name, tensor in moved.items()} == {
        "a": (there, (2, 3)),
        "b": (there, (4,)),
    }
