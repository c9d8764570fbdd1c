"""Chat templates of other families: those that installed packages carry, and small ones of our own with their traits.

Invariants:
- Templates of others are read where their package is installed, never copied; `trl` is not imported.
- Ours are written for these tests. Each has the trait that its name says, and marks of its own.
"""

import re
from importlib import metadata
from pathlib import Path
from typing import Any

from swe_rl.model.tiny import build_tokenizer

# Of trl: one of each family that it has.
OF_TRL = (
    "cohere2",
    "deepseekv3",
    "gemma3",
    "gemma4",
    "glm4moe",
    "gptoss",
    "lfm2_2_5_v2",
    "llama3_2",
    "muse_glimmer",
    "nemotron_3_nano",
    "phi3_5",
    "qwen2_5",
    "qwen3_6",
    "smolvlm",
)
_CONTROL = re.compile(
    r"<end_of_utterance>|<\|[^<>|\s]+\|>|<｜[^<>｜\s]+｜>|<(?:start|end)_of_turn>|<\|?turn\|?>|<\|?tool_(?:call|response)\|>"
    r"|<\|tool_(?:call|response)>|<\|?channel\|?>|\[/?[A-Z_]+\]|\[gMASK\]|<sop>|<\|\"\|>"
)
_ROLES = ("<|user|>", "<|assistant|>", "<|model|>", "<|system|>", "<|observation|>")
_MARKS = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>")
_CALLS = '[{% for call in m.tool_calls %}{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}{{ "" if loop.last else ", " }}{% endfor %}]'  # noqa: E501

# Turns of user and assistant alternate, ids of calls have nine characters, tools stand before the first question.
ALTERNATING = (
    "{{ bos_token }}{% set ns = namespace(turn=0, shown=false) %}"
    "{% set start = 1 if messages[0].role == 'system' else 0 %}"
    "{% for m in messages[start:] %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.turn % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.turn = ns.turn + 1 %}{% endif %}"
    "{% if m.role == 'user' %}"
    "{% if tools and not ns.shown %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% set ns.shown = true %}{% endif %}"
    "[INST]{% if loop.first and start %}{{ messages[0].content }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' and m.tool_calls %}[CALLS][{% for call in m.tool_calls %}"
    "{% if call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}'
    "{{ '' if loop.last else ', ' }}{% endfor %}]{{ eos_token }}"
    "{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}"
    "{% elif m.role == 'tool' %}[RESULT]{{ m.content }}[ID]{{ m.tool_call_id }}[/RESULT]"
    "{% else %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}"
)
# It knows neither system messages nor tools.
NO_SYSTEM = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('user and model in turn') }}{% endif %}"
    "{% if m.role not in ('user', 'assistant') %}{{ raise_exception('no such role') }}{% endif %}"
    "<|{{ 'model' if m.role == 'assistant' else 'user' }}|>{{ m.content | trim }}<|stop|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|model|>{% endif %}"
)
_STRIPPED_HEAD = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)
# Results are user turns, and reasoning before the last question is left out.
STRIPPED = (
    _STRIPPED_HEAD + "{% if tools %}<|system|>{{ tools | tojson }}<|stop|>{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|user|><tool_response>{{ m.content }}</tool_response><|stop|>"
    "{% elif m.role == 'assistant' %}<|assistant|>"
    "{% if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for call in m.tool_calls %}<tool_call>{{ call.function.name }}"
    "{% for key, value in call.function.arguments.items() %}<arg_key>{{ key }}</arg_key>"
    "<arg_value>{{ value if value is string else value | tojson }}</arg_value>{% endfor %}</tool_call>"
    "{% endfor %}<|stop|>{% else %}<|{{ m.role }}|>{{ m.content }}<|stop|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Calls are JSON behind their names, in special tokens; arguments are JSON text.
IN_TOKENS = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{% if tools %}\n{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}"
    "{% elif m.role == 'assistant' %}<｜Assistant｜>{{ m.content }}{% if m.tool_calls %}<｜calls▁begin｜>"
    "{% for call in m.tool_calls %}<｜call▁begin｜>{{ call.function.name + '<｜sep｜>' + call.function.arguments }}"
    "<｜call▁end｜>{% endfor %}<｜calls▁end｜>{% endif %}<｜end｜>"
    "{% elif m.role == 'tool' %}<｜result｜>{{ m.content }}<｜result▁end｜>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
)
# Each reply is messages in channels; one call in each, and the name stands beside its result.
CHANNELS = (
    "<|start|>system<|message|>{{ messages[0].content if messages[0].role == 'system' else 'Help.' }}<|end|>"
    "{% if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}{% set ns = namespace(name='') %}"
    "{% for m in messages %}{% if m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>"
    "{% elif m.role == 'assistant' and 'tool_calls' in m %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "{% set ns.name = m.tool_calls[0].function.name %}<|start|>assistant to=functions.{{ ns.name }}"
    "<|channel|>commentary json<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}"
    "{% elif m.role == 'tool' %}<|start|>functions.{{ ns.name }} to=assistant<|channel|>commentary"
    "<|message|>{{ m.content | tojson }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
# A turn has no end of its own: the next one's beginning ends it.
OPEN_ENDED = (
    "[gMASK]<sop>{% if tools %}<|system|>\n{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}"
    "\n<tool_response>{{ m.content }}</tool_response>"
    "{% else %}<|{{ m.role }}|>\n{{ m.content }}{% if m.tool_calls %}{% for call in m.tool_calls %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}{% endif %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
OURS = {
    "alternating": ALTERNATING,
    "no_system": NO_SYSTEM,
    "stripped": STRIPPED,
    "in_tokens": IN_TOKENS,
    "channels": CHANNELS,
    "open_ended": OPEN_ENDED,
}
# The tokens at which the model ends a turn, where its template does not show it.
STOPS = {"open_ended": ("<|user|>", "<|observation|>"), "glm4moe": ("<|user|>", "<|observation|>")}


def template_texts() -> dict[str, str]:
    """Ours, and those of trl that are installed, by name."""
    others = {name: trl_text(name) for name in OF_TRL}
    return OURS | {name: text for name, text in others.items() if text is not None}


def trl_text(name: str) -> str | None:
    """A template that trl carries; None where it is not installed."""
    try:
        path = Path(str(metadata.distribution("trl").locate_file(f"trl/chat_templates/{name}.jinja")))
    except metadata.PackageNotFoundError:
        return None
    return path.read_text(encoding="utf-8") if path.is_file() else None


def tokenizer_of(text: str) -> Any:
    """A small tokenizer that has the template's marks as tokens, and the template as its own."""
    tokenizer = build_tokenizer(["You are an agent. Fix the bug in lib.py: ls -la\n  def größe():\n"] * 3, 400)
    roles = _ROLES if "<|{{" in text else ()
    control = sorted({"<s>", "</s>", *roles, *_CONTROL.findall(text)})
    tokenizer.add_special_tokens({"additional_special_tokens": control, "bos_token": "<s>", "eos_token": "</s>"})
    tokenizer.add_tokens(sorted(set(_MARKS.findall(text))))
    tokenizer.chat_template = text
    return tokenizer


def stop_ids_of(name: str, tokenizer: Any) -> list[int]:
    return [tokenizer.convert_tokens_to_ids(token) for token in STOPS.get(name, ())]
