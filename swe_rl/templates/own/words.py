"""This module has the sentences about a checkpoint's own chat template that the check and the start both say."""

from collections.abc import Sequence

from swe_rl.templates.own.sandbox import ChatTemplateError

# So many kinds of conversation are named; most others of a template are like them.
_NAMED_KINDS = 3
NO_TEMPLATE = "the model has none"
WAY_OUT = "model.chat_template=qwen_plain, or a model.path whose tokenizer has a chat template"
KEEP = "model.keep_sampled=true"
UNREAD_CALLS = (
    "calls of tools are not read in the form in which the chat template of model.path writes them, so they stay text: "
    "choose an agent whose commands are text, or a model.tool_parser that reads this form"
)


def useless(reason: str) -> str:
    """Says why a template cannot be used."""
    return f"the chat template of model.path is of no use here: {reason}"


def refusal(reason: str) -> ChatTemplateError:
    """Returns the error of a start for a template that cannot be used."""
    return ChatTemplateError(f"model.chat_template=own: {useless(reason)}; {WAY_OUT}")


def breaking_text(kinds: Sequence[str]) -> str:
    """Says in which conversations a template changes earlier turns."""
    named = ", ".join(kinds[:_NAMED_KINDS])
    others = ""
    if len(kinds) > _NAMED_KINDS:
        others = f" and {len(kinds) - _NAMED_KINDS} more"
    return (
        "the chat template of model.path writes earlier turns otherwise as the conversation goes on "
        f"({named}{others}); such a turn begins a new row, and is counted as prefix_changed"
    )
