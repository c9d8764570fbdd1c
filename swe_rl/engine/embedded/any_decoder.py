"""Every causal language model that transformers computes, by its own code and its own cache: slow, and exact.

It is there so that a tiny model of any family goes through the whole loop on two cores.
Invariants:
- Each request is computed alone, its prompt in one pass and then token by token. So its bits do not depend on what
  else runs, whatever mixes tokens in the model: attention, windows, convolutions or a recurrent state.
- Nothing is reused between requests: a recurrent state cannot be cut back to a prefix.
- The model's own `forward` makes the logits, so that scaled, capped and biased heads need no word here.
- A cache is only used where a probe shows that it changes no log-probability. Elsewhere each token computes its whole
  context again: of Bamba, transformers 5.19 decodes with a cache what differs by 1e-3 from its own whole pass.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from swe_rl.engine.embedded.decoder import PrefillSpan, Slot
from swe_rl.engine.engine import EngineError

# Largest difference of two log-probabilities in nats that rounding explains: 32 families showed at most 1e-6.
_EXACT_NATS = 2e-5
_PROBE = tuple(range(3, 15))
_PROBED_STEPS = 4


class RequestCaches:
    """Slots whose content is a cache of transformers, or the ids of the context where no cache is used."""

    def __init__(self, slots: int) -> None:
        self.slots = [Slot(index) for index in range(slots)]
        self.states: list[Any] = [None] * slots

    def acquire(self, prompt: npt.NDArray[np.int64], session_id: str | None) -> tuple[Slot, int] | None:
        slot = next((slot for slot in self.slots if not slot.running), None)
        if slot is None:
            return None
        slot.running = True
        slot.session_id = session_id
        slot.length = 0
        return slot, 0

    def append(self, slot: Slot, token: int) -> None:
        """The token comes with the next `decode`."""

    def prefilled(self, slot: Slot, end: int) -> None:
        slot.length = end

    def finish(self, slot: Slot) -> None:
        slot.running = False
        slot.session_id = None
        slot.length = 0
        self.states[slot.index] = None

    def release_session(self, session_id: str) -> None:
        """Nothing outlives a request."""

    def invalidate(self) -> None:
        """The scheduler begins running requests anew, and nothing outlives a request."""

    def routed(self, slot: Slot) -> None:
        return None

    def held_tokens(self) -> int:
        return sum(slot.length for slot in self.slots if slot.running)


class AnyDecoder:
    cuts_prompts = False

    def __init__(self, model: Any, max_model_len: int) -> None:
        """Raises EngineError where the model has fewer positions than `max_model_len`."""
        config = model.config.get_text_config()
        positions = getattr(config, "max_position_embeddings", None)
        if positions is not None and max_model_len > positions:
            raise EngineError(
                f"The embedded engine does not compute engine.max_model_len={max_model_len} above the model's "
                f"{positions} positions; lower engine.max_model_len."
            )
        self._model = model
        self.vocab_size: int = config.vocab_size
        self._uses_cache = True
        with torch.inference_mode():
            self._uses_cache = self._cache_is_exact()

    def make_cache(self, slots: int, max_tokens: int) -> RequestCaches:
        return RequestCaches(slots)

    def pack(self) -> None:
        """The model is read at each pass."""

    def prefill(self, spans: Sequence[PrefillSpan], cache: RequestCaches) -> torch.Tensor:
        return torch.stack([self._forward(span.slot, span.start, span.ids, cache) for span in spans])

    def decode(
        self, slots: Sequence[int], positions: Sequence[int], ids: Sequence[int], cache: RequestCaches
    ) -> torch.Tensor:
        tokens = zip(slots, positions, ids, strict=True)
        return torch.stack([self._forward(slot, position, [token], cache) for slot, position, token in tokens])

    def _forward(self, slot: int, start: int, ids: Sequence[int], cache: RequestCaches) -> torch.Tensor:
        """Returns the logits [vocab] after the last of `ids`, which begin at position `start`."""
        if start == 0:
            state = None
        else:
            state = cache.states[slot]
        if not self._uses_cache:
            cache.states[slot] = [*(state or ()), *ids]
            return self._whole(cache.states[slot])
        output = self._model(input_ids=torch.tensor([ids]), past_key_values=state, use_cache=True, logits_to_keep=1)
        cache.states[slot] = output.past_key_values
        logits: torch.Tensor = output.logits[0, -1]
        return logits.float()

    def _whole(self, ids: Sequence[int]) -> torch.Tensor:
        """Returns the logits [vocab] after the last of `ids`, computed without a cache."""
        output = self._model(input_ids=torch.tensor([ids]), use_cache=False, logits_to_keep=1)
        logits: torch.Tensor = output.logits[0, -1]
        return logits.float()

    def _cache_is_exact(self) -> bool:
        """Returns whether a probe's last token has the same log-probabilities with a cache and without."""
        cache = RequestCaches(1)
        first = len(_PROBE) - _PROBED_STEPS
        try:
            logits = self._forward(0, 0, _PROBE[:first], cache)
            for position in range(first, len(_PROBE)):
                logits = self._forward(0, position, _PROBE[position : position + 1], cache)
        except (ValueError, TypeError, RuntimeError, AttributeError):  # this family has no cache of the usual kind
            return False
        difference = logits.log_softmax(-1) - self._whole(_PROBE).log_softmax(-1)
        return bool(difference.abs().max() <= _EXACT_NATS)
