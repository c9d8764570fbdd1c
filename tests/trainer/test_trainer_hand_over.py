"""What the ranks send and write, seen from one rank; and how a rank's end is told."""

import json
import multiprocessing
import threading
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from swe_rl.engine.server.weights import export_weights
from swe_rl.trainer.ranks.group import GroupWeights
from swe_rl.trainer.ranks.link import RankEnd, first_of
from swe_rl.trainer.send import hand_over
from swe_rl.trainer.send.hand_over import receive_bucket, send_weights, write_weights

CPU = torch.device("cpu")
WEIGHTS = {
    "a.weight": torch.randn(40, 3),
    "b.weight": torch.randn(7),
    "empty": torch.zeros(0, 2),
    "c": torch.randn(9, 9),
}


def mesh(rank=0, world=1):
    return SimpleNamespace(rank=rank, world=world, device=CPU)


@pytest.mark.parametrize("bucket_bytes", [1, 200, 10**9])
def test_buckets_bring_every_tensor_bit_for_bit(monkeypatch, bucket_bytes):
    monkeypatch.setattr(hand_over, "BUCKET_BYTES", bucket_bytes)
    ours, theirs = multiprocessing.Pipe()

    def rank():
        send_weights(WEIGHTS, mesh(), theirs)
        theirs.send(("done", None))

    thread = threading.Thread(target=rank)
    thread.start()
    got, buckets = {}, 0
    while (message := ours.recv())[0] == "bucket":
        got.update(receive_bucket(message[1], ours))
        buckets += 1
    thread.join()
    assert list(got) == list(WEIGHTS) and all(torch.equal(got[name], WEIGHTS[name]) for name in WEIGHTS)
    assert buckets == {1: 4, 200: 3, 10**9: 1}[bucket_bytes]


def test_other_ranks_send_nothing():
    ours, theirs = multiprocessing.Pipe()
    send_weights(WEIGHTS, mesh(rank=1, world=2), theirs)
    assert not ours.poll()


@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_the_files_of_all_ranks_hold_each_tensor_once(tmp_path, world):
    for rank in range(world):
        write_weights(WEIGHTS, mesh(rank, world), tmp_path, {"second": "a.weight", "other": "absent"})
    index = json.loads((tmp_path / hand_over.INDEX_FILE).read_text())
    held = {path.name: load_file(path) for path in tmp_path.glob("*.safetensors")}
    assert {name: file for file, tensors in held.items() for name in tensors} == index["weight_map"]
    found = {name: tensor for tensors in held.values() for name, tensor in tensors.items()}
    assert sum(len(tensors) for tensors in held.values()) == len(found) == len(WEIGHTS) + 1
    assert all(torch.equal(found[name], tensor) for name, tensor in WEIGHTS.items())
    assert torch.equal(found["second"], WEIGHTS["a.weight"])
    assert index["metadata"]["total_size"] == 4 * sum(tensor.numel() for tensor in found.values())


def test_weights_that_write_themselves_are_put_beside_config_and_tokenizer(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    (source / "tokenizer.json").write_text("{}")
    asked = []
    weights = GroupWeights(SimpleNamespace(ask=lambda *request: asked.append(request)))
    export_weights(source, target, weights)
    export_weights(source, target, weights, untied=True)
    twice = {"lm_head.weight": "model.embed_tokens.weight"}
    assert asked == [("write_weights", target, {}), ("write_weights", target, twice)]
    assert json.loads((target / "config.json").read_text()) == {"tie_word_embeddings": False}
    assert (target / "tokenizer.json").read_text() == "{}"


def process(code):
    return SimpleNamespace(exitcode=code, is_alive=lambda: code is None, join=lambda timeout: None)


def end(rank, code, log=None):
    ours, theirs = multiprocessing.Pipe()
    theirs.close()
    return RankEnd.of(rank, process(code), ours, "during `train_step`", log)


def test_the_first_end_is_the_reason():
    late, early = (RankEnd.reported(rank, ("RuntimeError", "x", when, False)) for rank, when in ((0, 7.0), (1, 6.5)))
    assert first_of([late, early]) is early
    killed = end(2, -9)
    assert first_of([late, early, killed]) is killed and "by SIGKILL (the system does that" in killed.reason
    aborted = end(2, -6)  # what libraries do when another rank is gone
    assert first_of([late, early, aborted]) is early and "by SIGABRT" in aborted.reason
    assert "with status 3, without a word" in end(0, 3).reason
    assert end(0, None) is None


def test_a_report_that_is_still_in_the_pipe_counts():
    ours, theirs = multiprocessing.Pipe()
    theirs.send(("done", None))
    theirs.send(("failed", "TrainerError", "bad row.", 3.0, True))
    assert RankEnd.of(1, process(1), ours, "now", None) == RankEnd(1, "TrainerError: bad row", 3.0, repeats=True)


def test_the_last_lines_of_the_log_are_told(tmp_path):
    log = tmp_path / "rank1.log"
    log.write_text("one\n\ntwo\nthree\nCUDA out of memory\n")
    assert end(1, 1, log).reason.endswith(f"the end of {log}: two | three | CUDA out of memory")
    assert end(1, 1, tmp_path / "none").reason.endswith("without a word")
