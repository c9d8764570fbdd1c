"""This module renders chats by the checkpoint's own template, append-only: what was sampled is never encoded again.

Invariants:
- The first prompt has the ids that transformers gives for the template's text, but for special tokens that messages
  spell out: they stay text.
- `start(m) + sampled + extend(sampled, new)`: a reply is followed by what the template writes between that reply and
  the next one. Where the template would change what was there before, `keeps` says so, and the turn begins anew.
- A reply's calls and its reasoning are read in the form that the template itself writes.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from swe_rl.model.chat import ChatRenderer, PromptTooLongError, TextEncoder, backend_only
from swe_rl.model.own_parser import parse_own_reply, split_reasoning
from swe_rl.model.tool_parser import ParsedReply
from swe_rl.templates.names import OWN
from swe_rl.templates.own.files import chosen_texts
from swe_rl.templates.own.probe import TOOL, probed
from swe_rl.templates.own.reply_form import learn
from swe_rl.templates.own.sandbox import ChatTemplateError
from swe_rl.templates.own.self_test import breaking_kinds
from swe_rl.templates.own.template import ASKED, OwnTemplate, Tokens, call_of
from swe_rl.templates.own.words import KEEP, NO_TEMPLATE, UNREAD_CALLS, breaking_text, refusal
from swe_rl.templates.qwen import Marker, Message, Piece

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_log = logging.getLogger(__name__)


class OwnRenderer(ChatRenderer):
    """Renders conversations with a template of somebody else. With `keep_sampled`, earlier turns stay as they were
    sampled, also where the template would write them otherwise."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerFast", template: OwnTemplate, *, keep_sampled: bool = False
    ) -> None:
        self.template = template.text
        self.name = OWN
        self._own = template
        self._tokenizer: Any = tokenizer.backend_tokenizer
        self._encoder = TextEncoder(tokenizer, template.tokens.special)
        self._keep_sampled = keep_sampled
        self.form = learn(template)
        self.breaking = () if keep_sampled else tuple(breaking_kinds(template, self.form.reasoning))
        self.rewrites = bool(self.breaking)
        ids = (self._tokenizer.token_to_id(token) for token in template.stops)
        self.stop_token_ids = tuple(index for index in ids if index is not None)

    @classmethod
    def restored(cls, settings: Mapping[str, Any], tokenizer: str) -> "OwnRenderer":
        """Makes a renderer from what another one `described`; transformers is not imported for it."""
        tokens = Tokens(settings["special"], settings["variables"], tuple(settings["stops"]))
        template = probed(
            settings["text"],
            tokens,
            thinking=settings["thinking"],
            with_tools=settings["with_tools"],
            now=datetime.fromisoformat(settings["now"]),
        )
        return cls(backend_only(tokenizer), template, keep_sampled=settings["keep_sampled"])

    def described(self) -> tuple[dict[str, Any], str]:
        return self._own.described() | {"template": OWN, "keep_sampled": self._keep_sampled}, self._tokenizer.to_str()

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ParsedReply:
        """Parses a reply's text, given the tools that its request offered."""
        return parse_own_reply(self.form, text, tools)

    @property
    def reads_calls(self) -> bool:
        """Tells whether a call is read in the form in which the template writes it."""
        said = self.reply({"role": "assistant", "content": "", "tool_calls": [call_of(command="ls")]})
        parsed = self.parse(self.decode(said), [TOOL])
        return [(read.name, read.arguments) for read in parsed.tool_calls] == [("bash", '{"command": "ls"}')]

    def keeps(
        self,
        before: Sequence[Message],
        reply: Message,
        sampled_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
    ) -> bool:
        """Tells whether the template leaves all as it was up to the end of a reply when `new_messages` follow."""
        reasoning, _ = split_reasoning(self.form.reasoning, self.decode(sampled_ids))
        said = reply
        if reasoning:
            said = {**reply, "reasoning_content": reasoning}
        try:
            return self._own.keeps(before, said, new_messages, tools)
        except ChatTemplateError:
            # What the whole conversation is refused for is said where it is rendered.
            return False

    def extend(
        self,
        sampled_ids: Sequence[int],
        new_messages: Sequence[Message],
        most_tokens: int | None = None,
        reply: Message | None = None,
    ) -> list[int]:
        closing, pieces = self._following(sampled_ids, new_messages, reply)
        if closing is None:
            return self._encoded(iter([(pieces, False)]), most_tokens)
        if most_tokens is None:
            most = None
        else:
            most = most_tokens + 1
        try:
            return self._encoded(iter([([closing, *pieces], False)]), most)[1:]
        except PromptTooLongError as error:
            raise PromptTooLongError(error.tokens - 1) from None

    def count_extend(
        self, sampled_ids: Sequence[int], new_messages: Sequence[Message], reply: Message | None = None
    ) -> int:
        closing, pieces = self._following(sampled_ids, new_messages, reply)
        return self._encoder.count(pieces if closing is None else [closing, *pieces]) - (closing is not None)

    def whole(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[list[int], list[tuple[int, int]]]:
        replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if not replies:
            return self._encoder.encode(self._own.pieces(messages, tools or (), prompt=False)), []
        ids = self.start(messages[: replies[0]], tools)
        spans: list[tuple[int, int]] = []
        for index, following in zip(replies, [*replies[1:], None], strict=True):
            said = self.reply(messages[index])
            spans.append((len(ids), len(ids) + len(said)))
            ids += said
            new = messages[index + 1 : following]
            if new or following is not None:
                bridge = self._own.bridge(messages[index], new, prompt=following is not None)
                ids += self._encoder.encode(bridge.rest_after(self._closing(said)))
        return ids, spans

    def reply(self, message: Message) -> list[int]:
        pieces = self._own.reply(message)
        form = self.form.reasoning
        if form is not None and form.is_opened and form.after not in pieces:
            # The prompt has begun the reasoning, which the template does not show afterwards.
            pieces = [str(message.get("reasoning_content") or ""), Marker(form.after), "\n\n", *pieces]
        prompt = [piece for piece in self._own.pieces([ASKED]) if piece]
        if isinstance(prompt[-1], Marker):
            before = prompt[-1:]
        else:
            before = []
        return self._encoder.encode([*before, *pieces])[len(before) :]

    def _opened(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
    ) -> Iterator[tuple[list[Piece], bool]]:
        yield self._own.pieces(messages, tools or ()), False

    def _closing(self, sampled_ids: Sequence[int]) -> Marker | None:
        """Returns the token at which a reply ended; None for a reply that was cut off."""
        if not sampled_ids or sampled_ids[-1] not in self.stop_token_ids:
            return None
        return Marker(self._tokenizer.id_to_token(sampled_ids[-1]))

    def _following(
        self, sampled_ids: Sequence[int], new_messages: Sequence[Message], reply: Message | None
    ) -> tuple[Marker | None, list[Piece]]:
        """Returns the token that the reply ended with, and what follows it."""
        closing = self._closing(sampled_ids)
        try:
            bridge = self._own.bridge(reply or _answered_by(new_messages), new_messages)
        except ChatTemplateError:
            # The template refuses calls that have no results.
            bridge = self._own.bridge(_answered_by(new_messages), new_messages)
        return closing, bridge.rest_after(closing)


def _answered_by(new_messages: Sequence[Message]) -> Message:
    """Returns a reply that these messages may follow: with a call for each result."""
    results = [message for message in new_messages if message["role"] == "tool"]
    calls = [call_of(result.get("name") or "bash", str(result.get("tool_call_id"))) for result in results]
    reply: Message = {"role": "assistant", "content": ""}
    if not calls:
        return reply
    return {**reply, "tool_calls": calls}


def own_renderer(
    tokenizer: "PreTrainedTokenizerFast", stop_ids: Collection[int], *, thinking: bool, keep_sampled: bool = False
) -> OwnRenderer:
    """Makes the renderer of the tokenizer's own chat template, and warns of conversations that it breaks. Raises
    ChatTemplateError."""
    texts = chosen_texts(cast("Any", tokenizer).chat_template)
    if texts is None:
        raise refusal(NO_TEMPLATE)
    added = tokenizer.added_tokens_decoder
    variables = {name: value for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    stops = [added[number].content for number in stop_ids if number in added]
    if "eos_token" in variables:
        stops.append(variables["eos_token"])
    special = {token.content: bool(token.special) for token in added.values()}
    tokens = Tokens(special, variables, tuple(dict.fromkeys(stops)))
    try:
        template = probed(texts.text, tokens, thinking=thinking, with_tools=texts.with_tools)
        renderer = OwnRenderer(tokenizer, template, keep_sampled=keep_sampled)
    except ChatTemplateError as error:
        raise refusal(str(error)) from error
    if renderer.breaking:
        _log.warning("%s; %s keeps them as they were sampled", breaking_text(renderer.breaking), KEEP)
    if not renderer.reads_calls:
        _log.warning("%s", UNREAD_CALLS)
    return renderer
