"""Finds out whether rows may be packed for a family that transformers computes.

Two questions are asked, each where rounding cannot hide the answer:
- Is our attention the family's own? A small random model of the same architecture answers in float32. In bfloat16 the
  routers of a mixture choose otherwise for nearly equal experts, and that is more than an error of attention.
- Does a row look into another one? The model itself answers, in the type that it computes in. Packed rows are compared
  with single ones, and both have our attention, which computes a row alike wherever it lies.

Invariants:
- All ranks come to the same verdict: they compute the same, and one that sees a problem tells the others.
- A family of which nothing is proven is computed by its own attention, a row at a time.
"""

import inspect

import torch

from swe_rl.model.load import ModelError
from swe_rl.model.twin import smallest_shape
from swe_rl.trainer.output_head import layers_of
from swe_rl.trainer.sharded.materialize import empty_model, fill_random
from swe_rl.trainer.sharded.mesh import Mesh
from swe_rl.trainer.sharded.model import TOLERANCE, LogprobDifference, ShardedModel, compare_packed
from swe_rl.trainer.sharded.packing import pack_sequences
from swe_rl.trainer.sharded.row_attention import (
    has_changing_frequencies,
    mixes_by_attention_alone,
    use_row_attention,
)

# Longer than the windows of small models (`model/twin.py`), so that a window that is not kept is seen.
_PROBED_TOKENS = 512


def pack_if_proven(model: ShardedModel) -> str | None:
    """Lets a model take packed rows, where they are seen to equal single rows.

    Returns None, or why its rows are computed one at a time, in words.
    """
    with torch.no_grad():
        # The first pass looks at the model's own head, whose code has to run with its own attention.
        model(pack_sequences([([0, 0], [0, 1])], (0,), 0, model.mesh.device), 1.0)
    problem = _agree(_problem_of_layers(model) or _problem_of_small_model(model), model.mesh)
    if problem is None:
        problem = _agree(_problem_of_rows(model, by_own_code=False), model.mesh)
    model.packs_rows = problem is None
    if problem:
        model.causal_lm.config._attn_implementation = model.own_attention
    return problem


def _problem_of_layers(model: ShardedModel) -> str | None:
    """Returns what the modules alone say against packing, or None."""
    if not mixes_by_attention_alone(model.layers):
        return "its layers have convolutions or states, which would run on from row to row"
    takes = inspect.signature(layers_of(model.causal_lm).forward).parameters.values()
    if not any(argument.kind is inspect.Parameter.VAR_KEYWORD for argument in takes):
        return "its layers cannot be told where rows end"
    if has_changing_frequencies(model.causal_lm):
        return "its rotary frequencies are those of the longest row"
    return None


def _problem_of_small_model(model: ShardedModel) -> str | None:
    """Returns how our attention differs from the family's own in a small model of its architecture, or None."""
    problem = None
    try:
        shape = smallest_shape(model.causal_lm.config.get_text_config().to_dict())
    except ModelError as error:
        problem = str(error)
    # Memory of one host may not be enough for it, and then the others would wait for that rank in the small model.
    if problem := _agree(problem, model.mesh):
        return problem
    small = ShardedModel(empty_model(shape), model.mesh, None, compute_dtype=torch.float32)
    fill_random(small, model.mesh.device)
    try:
        with torch.no_grad():
            small(pack_sequences([([0, 0], [0, 1])], (0,), 0, model.mesh.device), 1.0)
        return _problem_of_rows(small, by_own_code=True)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        # A family's code raises whatever it likes where it needs a mask that it is not given. The small model alone is
        # in a bad state then, and it is done with.
        return f"its code does not run with our attention ({error})"


def _problem_of_rows(model: ShardedModel, *, by_own_code: bool) -> str | None:
    """Returns how packed rows differ from single ones, or why they cannot be compared, or None."""
    use_row_attention(model.causal_lm)
    difference = compare_packed(model, tokens=_PROBED_TOKENS, by_own_code=by_own_code)
    if model.rows is None or model.rows.calls != len(model.layers):
        return "not every layer calls transformers' attention interface"
    if model.rows.problem:
        return model.rows.problem
    return _problem_of_difference(difference, model.compute_dtype)


def _problem_of_difference(difference: LogprobDifference, dtype: torch.dtype) -> str | None:
    # The negation also catches a mean that is not a number.
    if not difference.mean <= TOLERANCE[dtype]:
        return f"packed rows differ from single ones by {difference.mean:.3g} nats"
    return None


def _agree(problem: str | None, mesh: Mesh) -> str | None:
    """Returns this rank's problem, or that another rank has one, or None where none has."""
    num_problems = mesh.sum(torch.tensor(float(problem is not None), device=mesh.device))
    if problem is None and num_problems.item() > 0:
        return "another rank saw a difference, which its log names"
    return problem
