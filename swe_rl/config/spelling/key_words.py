"""This module reads a wrong key word by word, and finds the keys of ours that say the same.

Invariants:
- No key of another system is listed here, only words: `ckpt_interval` and `save_every` are both `checkpoint every`.
- A key of ours is found only if each word that counts is one of its own words, of its group's, or stands for one.
- The table only answers a key that does not exist.
"""

import difflib
import re
from collections.abc import Iterator
from functools import cache

from swe_rl.config.keys import NEAR_SPELLING, key_types

# What several words together mean here. They are looked for before single words, in this order.
_PHRASES = {
    "learning_rate": "lr",
    "grad_norm": "grad_clip",
    "gradient_norm": "grad_clip",
    "clip_norm": "clip",
    "gradient_checkpointing": "activation_checkpointing",
    "tensor_parallel": "tp",
    "tensor_parallelism": "tp",
    "tensor_model_parallel": "tp",
    "mini_batch_size": "mini_batch",
    "micro_batch_size": "micro_batch",
    "batch_size": "prompts_step",
    "sequence_length": "trajectory_tokens",
    "seq_length": "trajectory_tokens",
    "seq_len": "trajectory_tokens",
    "context_length": "trajectory_tokens",
    "completion_length": "trajectory_tokens",
    "response_length": "trajectory_tokens",
    "new_tokens": "turn_tokens",
    "response_tokens": "turn_tokens",
    "per_prompt": "",
    "per_episode": "",
}
# One word elsewhere, and what it may be here.
_WORDS = {
    "attn": ("attention",),
    "beta": ("kl_coef",),
    "bonus": ("coef",),
    "ckpt": ("checkpoint",),
    "ckpts": ("checkpoints",),
    "coeff": ("coef",),
    "colocate": ("colocated",),
    "decay": ("schedule",),
    "episodes": ("steps",),
    "epochs": ("steps",),
    "eps": ("clip",),
    "epsilon": ("clip",),
    "freq": ("every",),
    "frequency": ("every",),
    "gamma": ("discount",),
    "generations": ("n",),
    "gradient": ("grad",),
    "inference": ("engine",),
    "interval": ("every",),
    "iterations": ("steps",),
    "iters": ("steps",),
    "lambd": ("gae_lambda",),
    "lam": ("gae_lambda",),
    "learning": ("lr",),
    "len": ("tokens",),
    "length": ("tokens",),
    "machine": ("node",),
    "parallel": ("concurrency",),
    "parallelism": ("concurrency",),
    "penalty": ("coef",),
    "period": ("every",),
    "r": ("rank",),
    "range": ("clip",),
    "replicas": ("engines",),
    "rollouts": ("n",),
    "samples": ("n",),
    "save": ("checkpoint",),
    "saving": ("checkpoint",),
    "scheduler": ("schedule",),
    "temp": ("temperature",),
    "test": ("eval",),
    "val": ("eval",),
    "validation": ("eval",),
    "vllm": ("engine",),
    "workers": ("concurrency",),
}
# They say little: a key that lacks them is found all the same.
_LIGHT = frozenset(
    """
    a actor agents algorithm at default device enable enabled flash for global implementation max maximum min mode n num
    number of per policy ppo s size the to total train trainer training type use using value with
    """.split()  # noqa: SIM905
)
# Of keys that fit alike, those of the groups that most people set come first.
_FIRST_GROUPS = ("rollout", "trainer", "algo", "engine", "layout", "sandbox", "hardware", "model", "env", "logger")


def keys_with_words(typed: str, count: int = 3) -> list[str]:
    """Returns the keys that say what a wrong key says, the best first; none where no key has all its words.

    Keys with further words are left out where one says just the same.
    """
    parent, _, leaf = typed.lower().lstrip("+~-").replace("-", "_").rpartition(".")
    spelled = f"_{'_'.join(_spelled_right(word) for word in re.findall('[a-z]+', leaf))}_"
    for phrase, ours in _PHRASES.items():
        spelled = spelled.replace(f"_{phrase}_", f"_{ours}_")
    wanted = [_alternatives(word) for word in re.findall(r"[a-z]+", spelled) if word not in _LIGHT]
    if not wanted:
        return []
    ranked = []
    for place, (key, (of_leaf, of_group)) in enumerate(_words_of_keys().items()):
        if not all(any(words <= of_leaf | of_group for words in alternatives) for alternatives in wanted):
            continue
        in_leaf = sum(any(words & of_leaf for words in alternatives) for alternatives in wanted)
        if not in_leaf:
            continue
        group = key.partition(".")[0]
        order = _FIRST_GROUPS.index(group) if group in _FIRST_GROUPS else len(_FIRST_GROUPS)
        further = of_leaf - _split(leaf) - set().union(*(words for alternatives in wanted for words in alternatives))
        in_parent = len(_split(parent) & (of_leaf | of_group))
        ranked.append((-in_leaf, -in_parent, len(further - _LIGHT), len(further), order, place, key))
    ranked.sort()
    if ranked and not ranked[0][3]:
        ranked = [row for row in ranked if row[:4] == ranked[0][:4]]
    return [key for *_, key in ranked[:count]]


def _spelled_right(word: str) -> str:
    """Returns the word that a misspelt one is nearest to, or the word itself."""
    vocabulary = _vocabulary()
    if word in vocabulary or _singular(word) in vocabulary:
        return word
    return next(iter(difflib.get_close_matches(word, vocabulary, n=1, cutoff=NEAR_SPELLING)), word)


@cache
def _vocabulary() -> tuple[str, ...]:
    ours = frozenset[str]().union(*(of_leaf | of_group for of_leaf, of_group in _words_of_keys().values()))
    return tuple(sorted(ours.union(_LIGHT, _WORDS, *(phrase.split("_") for phrase in _PHRASES))))


def _alternatives(word: str) -> list[frozenset[str]]:
    """Returns the sets of words of ours that a word may stand for."""
    return [frozenset({_singular(word)}), *(_split(meant) for meant in _WORDS.get(word, ()))]


@cache
def _words_of_keys() -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """Maps each key to the words of its last part, and of its group."""
    return dict(_walk_keys())


def _walk_keys() -> Iterator[tuple[str, tuple[frozenset[str], frozenset[str]]]]:
    for key in key_types():
        group, _, leaf = key.rpartition(".")
        if group:
            yield key, (_split(leaf), _split(group))


def _split(name: str) -> frozenset[str]:
    return frozenset(map(_singular, re.findall(r"[a-z]+", name)))


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") else word
