"""Text whose tokens can be counted: one word, one token.

Invariants:
- Encoding and decoding are each other's inverse, word by word: text of N words has N tokens, in a gateway and in a
  server with the same folder.
- Chat markup is prefix-stable: what a message renders to does not depend on what follows it.
"""

import json
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from swe_rl.model.chat import template_text
from swe_rl.templates.qwen import IM_END, IM_START

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TEMPLATE = "qwen_plain"
END_OF_TEXT = "<|endoftext|>"
SPECIAL = (END_OF_TEXT, str(IM_START), str(IM_END))
_UNKNOWN = "<unk>"
_FIXED = (*SPECIAL, _UNKNOWN, "system", "user", "assistant")
MIN_VOCABULARY = 256

# Tokens of the markup: a message's marker, role and end marker; the marker and the role that ask for a reply.
MESSAGE_TOKENS = 3
PROMPT_TOKENS = 2
REPLY_END_TOKENS = 1


def vocabulary(size: int) -> dict[str, int]:
    """`size` words with their ids: markup and roles first, then w0, w1, ..."""
    if size < MIN_VOCABULARY:
        raise ValueError(f"a vocabulary of {size} words is too small: at least {MIN_VOCABULARY}")
    words = [*_FIXED, *(f"w{number}" for number in range(size - len(_FIXED)))]
    return {word: index for index, word in enumerate(words)}


def plain_words(size: int) -> int:
    """How many of the `size` words are w0, w1, ..."""
    return size - len(_FIXED)


def text(seed: str, words: int, vocabulary_size: int) -> str:
    """`words` words: always the same for a seed."""
    rng, plain = Random(seed), plain_words(vocabulary_size)
    return " ".join(f"w{int(rng.random() * plain)}" for _ in range(words))


def write_tokenizer(folder: Path, size: int) -> None:
    """tokenizer.json and tokenizer_config.json of `size` words, as transformers and vLLM read them."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    tokenizer = Tokenizer(WordLevel(vocabulary(size), unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in SPECIAL])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": END_OF_TEXT,
        "eos_token": str(IM_END),
        "unk_token": _UNKNOWN,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
        "chat_template": template_text(TEMPLATE),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def load_tokenizer(folder: Path) -> "PreTrainedTokenizerFast":
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)  # type: ignore[no-any-return]
