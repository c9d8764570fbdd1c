"""Run by vLLM's own interpreter: prints as JSON what `check/rules/engine.py` says of the installed version.

Drafted tokens go through vLLM's sampler on this machine's GPU, or on its CPU where it has none: `REQUESTS` equal
requests, each with the same two drafted tokens, over a vocabulary of five. On a CPU `mended` stands in for the copy
that the CPU build loses.
"""

import json
import sys
from pathlib import Path
from typing import get_args

import torch
from vllm.config.quantization import ONLINE_QUANT_SHORTHAND_NAMES
from vllm.config.speculative import RejectionSampleMethod
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

REQUESTS, VOCABULARY, TEMPERATURE, TOP_K = 20_000, 5, 0.7, 4
DRAFTS = [1, 3]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LOGITS = torch.tensor([[0.1, 0.9, -0.4, 0.5, 0.2], [0.7, -0.2, 0.3, 0.0, 0.6], [0.4, 0.1, 1.1, -0.3, 0.0]])


def expanded(values):
    """What each of the three drafted tokens of two requests gets of `values`, one a request."""
    counts = torch.tensor([1, 3], dtype=torch.int32)
    return rejection_sampler.expand_batch_to_tokens(values, counts, 3).tolist()


def without_drafts():
    """What top_k makes of a step in which nothing was drafted."""
    try:
        rejection_sampler.apply_top_k_top_p(torch.zeros(0, VOCABULARY), torch.zeros(0, dtype=torch.int32), None)
    except RuntimeError as error:
        return str(error)
    return ""


def without_routes():
    """Why this build does not report the experts of tokens; empty: it does."""
    model = str(Path(__file__).parents[2] / "swe_rl/model/checkpoints/tiny_moe")
    try:
        EngineArgs(model=model, enable_return_routed_experts=True).create_engine_config()
    except ValueError as error:
        return str(error)
    return ""


def mended(values, ends, num_tokens, replace_from=0, replace_to=0):
    values = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
    return values.repeat_interleave(torch.diff(ends, prepend=ends.new_zeros(1)).long(), output_size=num_tokens)


def sampled():
    """Tokens [requests, 3], -1 after the first rejected one, and their log-probabilities."""
    rows, drafts = len(LOGITS), len(DRAFTS)
    each = torch.arange(REQUESTS, device=DEVICE)
    draft = SpecDecodeMetadata(
        draft_token_ids=torch.tensor(DRAFTS, dtype=torch.int32, device=DEVICE).repeat(REQUESTS),
        num_draft_tokens=[drafts] * REQUESTS,
        cu_num_draft_tokens=((each + 1) * drafts).int(),
        cu_num_sampled_tokens=((each + 1) * rows).int(),
        target_logits_indices=(each[:, None] * rows + torch.arange(drafts, device=DEVICE)).flatten().int(),
        bonus_logits_indices=(each * rows + drafts).int(),
        logits_indices=torch.arange(REQUESTS * rows, dtype=torch.int32, device=DEVICE),
    )
    none = torch.zeros(REQUESTS, device=DEVICE)
    params = SamplingMetadata(
        temperature=torch.full((REQUESTS,), TEMPERATURE, device=DEVICE),
        all_greedy=False,
        all_random=True,
        top_p=None,
        top_k=torch.full((REQUESTS,), TOP_K, dtype=torch.int32, device=DEVICE),
        generators={},
        max_num_logprobs=0,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=none,
        presence_penalties=none,
        repetition_penalties=none,
        output_token_ids=[[] for _ in range(REQUESTS)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )
    sampler = rejection_sampler.RejectionSampler(Sampler("processed_logprobs"))
    done = sampler(draft, None, LOGITS.to(DEVICE).repeat(REQUESTS, 1), params)
    return done.sampled_token_ids.cpu(), done.logprobs_tensors.logprobs[:, 0].view(REQUESTS, rows).cpu()


def figures():
    """By the tokens of a reply, `1,3,2`: how often it was sampled, and its log-probabilities, furthest apart ones."""
    tokens, logprobs = sampled()
    found = {}
    for ids in tokens.unique(dim=0):
        here = (tokens == ids).all(-1)
        length = int((ids >= 0).sum())
        told = logprobs[here][:, :length]
        name = ",".join(str(int(token)) for token in ids[:length])
        found[name] = {"count": int(here.sum()), "low": told.amin(0).tolist(), "high": told.amax(0).tolist()}
    return found


def main():
    torch.manual_seed(0)
    if DEVICE == "cpu":
        current_platform.import_kernels()
        current_platform.register_triton_kernel_overrides()
    facts = {
        "on_arrival": ONLINE_QUANT_SHORTHAND_NAMES,
        "methods": QUANTIZATION_METHODS,
        "loaders": {name: hasattr(made, "get_all_weights") for name, made in _LOAD_FORMAT_TO_MODEL_LOADER.items()},
        "acceptance": get_args(RejectionSampleMethod),
        "logits": LOGITS.tolist(),
        "drafts": DRAFTS,
        "without_routes": without_routes(),
        "temperature": TEMPERATURE,
        "kept": TOP_K,
        "device": DEVICE,
    }
    if DEVICE == "cpu":
        facts["temperatures"] = expanded(torch.tensor([0.5, 2.0]))
        facts["top_k"] = expanded(torch.tensor([7, 9], dtype=torch.int32))
        facts["without_drafts"] = without_drafts()
        rejection_sampler.expand_batch_to_tokens = mended
    facts["exact"] = figures()
    rejection_sampler.generate_uniform_probs = lambda count, *_: torch.zeros(count, dtype=torch.float64, device=DEVICE)
    facts["all_accepted"] = figures()  # as `synthetic` with a rate of 1
    json.dump(facts, sys.stdout)


main()
