"""What a fake vLLM server answers and remembers: a function of the request, and a prefix cache of blocks.

Invariants:
- Deterministic: equal prompt, seed, weights and parameters give equal tokens and log-probabilities, in any company.
- Log-probabilities are valid for the parameters: 0 where one token is left, made up otherwise, exact in float32.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Reply = Callable[[Sequence[int]], Sequence[int]]


@dataclass(slots=True)
class FakeModel:
    """`reply(prompt_ids)` gives the first tokens, made-up ones follow up to a stop token or the limit.

    `processed` False: log-probabilities are raw.
    """

    vocab_size: int = 1000
    processed: bool = True
    reply: Reply | None = None
    weights: str = "default"

    def sample(self, prompt: Sequence[int], sampling: dict[str, Any], room: int) -> tuple[list[int], str]:
        """The tokens, and why they end there: stop or length."""
        limit = min(int(sampling.get("max_tokens") or 16), room)
        stops = set(sampling.get("stop_token_ids") or ())
        scripted = list(self.reply(prompt)) if self.reply else []
        seed = sampling.get("seed") if sampling.get("temperature", 1.0) else None
        start = f"{self.weights}/{seed}/{list(prompt)}".encode()
        start = hashlib.blake2b(start, digest_size=16).digest()
        ids: list[int] = []
        while len(ids) < limit:
            ids.append(scripted[len(ids)] if len(ids) < len(scripted) else self._draw(start, ids))
            if ids[-1] in stops:
                return ids, "stop"
        return ids, "length"

    def logprob(self, position: int, token: int, sampling: dict[str, Any]) -> float:
        if self.processed and sampling.get("top_k") == 1:
            return 0.0
        return -((token * 2654435761 + position * 40503) % 1023 + 1) / 256

    def _draw(self, start: bytes, ids: Sequence[int]) -> int:
        last = f"{len(ids)}/{ids[-1] if ids else None}".encode()
        return int.from_bytes(hashlib.blake2b(start + last, digest_size=8).digest(), "little") % self.vocab_size


@dataclass(slots=True)
class BlockCache:
    """Prefix blocks in LRU order; running requests are not counted apart."""

    capacity_tokens: int
    block_size: int
    queries_tokens: int = 0
    hits_tokens: int = 0
    _blocks: "OrderedDict[bytes, None]" = field(default_factory=OrderedDict)

    def use(self, prompt: Sequence[int], salt: str) -> int:
        """How many tokens of `prompt` were cached, in whole blocks and never all of them."""
        cached, chain = 0, salt.encode()
        for start in range(0, (len(prompt) - 1) // self.block_size * self.block_size, self.block_size):
            chain = self._key(chain, prompt[start : start + self.block_size])
            if chain not in self._blocks:
                break
            self._blocks.move_to_end(chain)
            cached += self.block_size
        self.queries_tokens += len(prompt)
        self.hits_tokens += cached
        return cached

    def keep(self, tokens: Sequence[int], salt: str) -> None:
        chain = salt.encode()
        for start in range(0, len(tokens) // self.block_size * self.block_size, self.block_size):
            chain = self._key(chain, tokens[start : start + self.block_size])
            self._blocks[chain] = None
            self._blocks.move_to_end(chain)
        while len(self._blocks) > self.capacity_tokens // self.block_size:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        self._blocks.clear()

    @staticmethod
    def _key(chain: bytes, block: Sequence[int]) -> bytes:
        return hashlib.blake2b(chain + str(list(block)).encode(), digest_size=16).digest()
