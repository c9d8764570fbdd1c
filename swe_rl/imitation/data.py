"""This module makes of `sft.data` the examples that are trained, and those that are held out.

Invariants:
- Only what the policy said is learned: the assistant's messages with their end markers, or the tokens that were
  sampled.
- The same files, keys and tokenizer give the same examples in the same order.
- All examples of one instance are on the same side: trained or held out.
- Whatever is left out is counted by its reason.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swe_rl.config.schema import SftConfig
from swe_rl.imitation.files import iter_records, list_files
from swe_rl.imitation.formats import read_record
from swe_rl.imitation.messages import parse_json, read_tools
from swe_rl.imitation.record import (
    KEY,
    DataError,
    Example,
    Message,
    Record,
    RecordedConversation,
    SampledTokens,
    wrong_field,
)
from swe_rl.imitation.run_folder import files_of_run, is_run, read_run
from swe_rl.templates.own.sandbox import ChatTemplateError

if TYPE_CHECKING:
    from swe_rl.model.chat import ChatRenderer

NO_REWARD = "no reward (masked, or broken by infrastructure)"
LOW_REWARD = "a lower reward"
NO_PROMPT = "no prompt (a reply comes first)"
TOO_LONG = "more tokens"
NOTHING_LEARNED = "nothing to learn"
MORE_OF_INSTANCE = "more of their instance"
_THINK_END = "</think>"


@dataclass(frozen=True, slots=True)
class Survey:
    """Says what the files hold, before anything is encoded."""

    records: int
    with_reward: int
    with_exits: int
    calls_without_tools: int
    with_reasoning: int


@dataclass(slots=True)
class Data:
    """Holds the examples. `left_out` counts records by the reason why they are not among them."""

    trained: list[Example] = field(default_factory=list)
    held_out: list[Example] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def sha256(self) -> str:
        """Returns a hash of all tokens and masks in their order."""
        digest = hashlib.sha256()
        for side in (self.trained, self.held_out):
            for example in side:
                digest.update(len(example.token_ids).to_bytes(8, "little"))
                digest.update(np.ascontiguousarray(example.token_ids, "<i4").tobytes())
                digest.update(np.packbits(example.loss_mask).tobytes())
        return digest.hexdigest()


def files_of(entries: Sequence[str]) -> list[Path]:
    """Returns the files that are read. Raises DataError."""
    files: list[Path] = []
    for entry in entries:
        path = Path(entry).expanduser()
        files += files_of_run(path) if is_run(path) else list_files(entry)
    return files


def iter_data(entries: Sequence[str]) -> Iterator[Record]:
    """Yields the records of all files in order. Raises DataError."""
    for entry in entries:
        path = Path(entry).expanduser()
        if is_run(path):
            yield from read_run(path)
            continue
        for file in list_files(entry):
            for where, record in iter_records(file):
                yield read_record(record, where)


def survey_data(sft: SftConfig) -> Survey:
    """Reads all files once, without a model. Raises DataError for the first wrong row, and where there is none."""
    tools = read_offered_tools(sft)
    records = with_reward = with_exits = without_tools = with_reasoning = 0
    for record in iter_data(sft.data):
        records += 1
        with_reward += record.reward is not None
        with_exits += record.tells_exits
        if isinstance(record, SampledTokens):
            continue
        with_reasoning += any(map(_has_reasoning, record.messages))
        if not record.tools and not tools:
            without_tools += any(message.get("tool_calls") for message in record.messages)
    if not records:
        raise DataError(f"{KEY}={list(sft.data)}: there is no row in these files.")
    return Survey(records, with_reward, with_exits, without_tools, with_reasoning)


def _has_reasoning(message: Message) -> bool:
    """Tells whether a reply has reasoning: a field of its own, or the end of a think block in its text."""
    return message["role"] == "assistant" and bool(
        message.get("reasoning_content") or _THINK_END in str(message["content"])
    )


def closes_reasoning(renderer: "ChatRenderer") -> bool:
    """Tells whether a prompt ends with a closed think block, so that a reply is to have no reasoning."""
    prompt = renderer.start([{"role": "user", "content": "hi"}])
    return renderer.decode(prompt).rstrip().endswith(_THINK_END)


def read_offered_tools(sft: SftConfig) -> tuple[Any, ...]:
    """Returns the tools of `sft.tools`, for conversations that list none. Raises DataError."""
    if sft.tools is None:
        return ()
    path = Path(sft.tools)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"sft.tools={sft.tools} cannot be read: {error}.") from error
    tools = read_tools(parse_json(text, sft.tools, "sft.tools"), sft.tools, "sft.tools")
    if not tools:
        raise wrong_field(sft.tools, "sft.tools", "has no tool", "It is a list of tools in OpenAI's form")
    return tools


def load_data(sft: SftConfig, renderer: "ChatRenderer", max_tokens: int) -> Data:
    """Returns the examples that the keys of `sft` choose. `max_tokens` is the length of the longest one.

    Raises DataError where none is left.
    """
    data = Data()
    tools = read_offered_tools(sft)
    chosen: list[Example] = []
    for record in iter_data(sft.data):
        reason = find_fault(record, sft.min_reward) or find_gap(record)
        if reason is not None:
            data.left_out[reason] += 1
            continue
        example = encode_record(record, renderer, tools, mask_errors=sft.mask_errors)
        if len(example.token_ids) > max_tokens:
            data.left_out[TOO_LONG] += 1
        elif not example.learned_tokens:
            data.left_out[NOTHING_LEARNED] += 1
        else:
            chosen.append(example)
    kept = keep_shortest(chosen, sft.max_per_instance)
    data.left_out[MORE_OF_INSTANCE] += len(chosen) - len(kept)
    data.left_out = +data.left_out
    held_out = held_out_names(kept, sft.heldout_share, sft.seed)
    for example in kept:
        (data.held_out if _name_of(example) in held_out else data.trained).append(example)
    if not data.trained:
        raise DataError(_nothing_left(sft, data, max_tokens))
    return data


def find_fault(record: Record, min_reward: float | None) -> str | None:
    """Returns why an attempt with this outcome is not imitated; None where it is."""
    if record.is_worthless:
        return NO_REWARD
    if min_reward is None or record.reward is None:
        return None
    # A reward that is no number is no sufficient one.
    if not record.reward >= min_reward:
        return LOW_REWARD
    return None


def find_gap(record: Record) -> str | None:
    """Returns what a conversation lacks so that nothing can be learned of it; None where it lacks nothing.

    A reply without a prompt answers nobody knows what, as in the ATIF of a training's attempts.
    """
    if isinstance(record, RecordedConversation) and record.messages[0]["role"] == "assistant":
        return NO_PROMPT
    return None


def encode_record(
    record: Record, renderer: "ChatRenderer", tools: Sequence[Any] = (), *, mask_errors: bool = False
) -> Example:
    """Returns the example of a record. With `mask_errors` replies whose command failed are not learned.

    Raises DataError where the chat template refuses the conversation.
    """
    if isinstance(record, SampledTokens):
        if mask_errors:
            mask = record.loss_mask & ~record.failed_mask
        else:
            mask = record.loss_mask
        return Example(record.where, record.instance_id, record.token_ids, mask)
    try:
        ids, spans = renderer.whole(record.messages, record.tools or tools)
    except ChatTemplateError as error:
        raise DataError(f"{KEY}: {record.where}: the chat format of the model refuses it: {error}") from error
    skipped = record.context | record.failed if mask_errors else record.context
    mask = np.zeros(len(ids), np.bool_)
    for number, (start, end) in zip(record.replies, spans, strict=True):
        mask[start:end] = number not in skipped
    return Example(record.where, record.instance_id, np.asarray(ids, np.int32), mask)


def keep_shortest(examples: Sequence[Example], most: int | None) -> list[Example]:
    """Returns the `most` shortest examples of each instance, in the order in which they came; all with None."""
    if most is None:
        return list(examples)
    by_instance: dict[str, list[int]] = {}
    for place, example in enumerate(examples):
        by_instance.setdefault(_name_of(example), []).append(place)
    kept: set[int] = set()
    for places in by_instance.values():
        kept.update(sorted(places, key=lambda place: (len(examples[place].token_ids), place))[:most])
    return [example for place, example in enumerate(examples) if place in kept]


def held_out_names(examples: Sequence[Example], share: float, seed: int) -> frozenset[str]:
    """Returns the names of the instances that are held out: `share` of the examples, but never all instances.

    The choice depends on the names and the seed alone.
    """
    sizes = Counter(_name_of(example) for example in examples)
    wanted = round(share * len(examples))
    if share > 0:
        wanted = max(1, wanted)
    shuffled = sorted(sizes, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
    names: set[str] = set()
    held = 0
    for name in shuffled[:-1]:
        if held >= wanted:
            break
        names.add(name)
        held += sizes[name]
    return frozenset(names)


def _name_of(example: Example) -> str:
    """Returns the instance of an example. One that names no instance is an instance of its own."""
    return example.instance_id or example.where


def _nothing_left(sft: SftConfig, data: Data, max_tokens: int) -> str:
    reasons = ", ".join(f"{count} have {reason}" for reason, count in data.left_out.items())
    ways = {
        LOW_REWARD: f"sft.min_reward (now {sft.min_reward})",
        TOO_LONG: f"sft.max_tokens (at most {max_tokens} tokens now)",
        NOTHING_LEARNED: "sft.mask_errors",
        NO_PROMPT: f"{KEY} (the folder of a run has its prompts)",
    }
    keys = " or ".join(way for reason, way in ways.items() if data.left_out[reason])
    return f"{KEY}={list(sft.data)}: no record is left to train on: {reasons}. Change {keys or 'the files'}."
