"""This module makes the renderer that `model.chat_template` names, and the parser of the replies in its format."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.config.known_models import folders_of
from swe_rl.config.schema import ModelConfig
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.load import locate_model
from swe_rl.model.own_chat import OwnRenderer, own_renderer
from swe_rl.model.tool_parser import ToolParser, make_tool_parser
from swe_rl.templates.names import OWN, OWN_PARSERS
from swe_rl.templates.own.files import read_stop_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def make_renderer(model: ModelConfig, tokenizer: "PreTrainedTokenizerFast") -> ChatRenderer:
    """Returns the renderer of the model's chats. Raises ChatTemplateError."""
    if model.chat_template != OWN:
        return ChatRenderer(tokenizer, template=model.chat_template, thinking=model.thinking)
    folders = [Path(locate_model(model)), *folders_of(model.path, model.revision)]
    stop_ids = next((ids for folder in folders if (ids := read_stop_ids(folder))), [])
    return own_renderer(tokenizer, stop_ids, thinking=model.thinking, keep_sampled=model.keep_sampled)


def renderer_of(settings: Mapping[str, Any], tokenizer: str) -> ChatRenderer:
    """Makes a renderer from what another one `described`, in a process without transformers."""
    kind: type[ChatRenderer] | type[OwnRenderer] = ChatRenderer
    if settings["template"] == OWN:
        kind = OwnRenderer
    return kind.restored(settings, tokenizer)


def parser_of(name: str, renderer: ChatRenderer) -> ToolParser:
    """Returns the parser that `model.tool_parser` names; `own` is that of the renderer's format. Raises
    ToolParserError."""
    if name != OWN:
        return make_tool_parser(name)
    if isinstance(renderer, OwnRenderer):
        return renderer.parse
    return make_tool_parser(OWN_PARSERS[renderer.name])
