"""Makes the pages of the reference that are read from the code: keys, rules, keys of other systems, the API.

The values of published experiments are read from the comments of `conf/experiment`.

Each function returns the lines of one page in Markdown. `docs/site.py` puts the pages into the site, and
`tests/test_docs_reference.py` holds that nothing on them is left without a description.

Invariants:
- Nothing is written twice: a description stands beside what it describes, as a comment or in a docstring.
- mkdocs is not imported, so that tests need no site.
"""

import dataclasses
import enum
import inspect
import io
import json
import re
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from swe_rl import api
from swe_rl.config.keys import comment_of, describe_type, fields_of, schema_comments
from swe_rl.config.schema import Config
from swe_rl.config.spelling.foreign_keys import COMMON, NEAR, SAME, our_key

ROOT = Path(__file__).resolve().parent.parent
MESSAGES = ROOT / "tests" / "config" / "golden" / "rule_messages.txt"
EXPERIMENTS = ROOT / "conf" / "experiment"
_ENTRY = re.compile(r"^(?P<indent> *)(?P<chosen>- override /)?(?P<key>\w+):(?P<value>.*?)(?:\s+#\s*(?P<comment>.*))?$")
_FIELD = re.compile(r"^    (\w+)\s*:")
# Keys of TRL, OpenRLHF, NeMo-RL and others that are answered word by word (swe_rl/config/spelling/key_words.py).
_READ_BY_WORDS = """
batch_size train_batch_size mini_batch_size micro_batch_size learning_rate epochs num_epochs num_train_epochs
num_steps warmup max_grad_norm gradient_checkpointing save_steps eval_steps num_generations max_seq_len max_seq_length
max_new_tokens max_prompt_length num_nodes n_epochs model_path context_length num_samples n_rollouts kl_beta tp_size
num_workers max_completion_length epsilon_high vllm_tensor_parallel_size vllm_gpu_memory_utilization lr_scheduler_type
lora_r actor_learning_rate critic_learning_rate prompt_max_len num_episodes vllm_num_engines lambd gamma flash_attn
num_prompts_per_step num_generations_per_prompt max_num_steps max_rollout_turns val_period save_period
train_micro_batch_size max_total_sequence_length tensor_parallel_size wandb_enabled
""".split()  # noqa: SIM905
_TITLES = {
    "protocol": "What your class has to offer",
    "data": "What it is given, and what it gives",
    "options": "Groups of options that a class may ask for",
    "choice": "Names of choices",
    "error": "Errors",
    "class": "Parts for agents",
    "function": "Functions",
}


def write_keys() -> Iterator[str]:
    """Yields the page of all keys: a table for each group with key, default and meaning."""
    yield "# Every key\n"
    yield "Made of the schema. An option's file may set another default: `python -m swe_rl help KEY` says which value a"
    yield "key has, and where it comes from.\n"
    for group, hint in fields_of(Config).items():
        if not (isinstance(hint, type) and is_dataclass(hint)):
            continue
        yield f"## {group}\n\n{(hint.__doc__ or '').strip()}\n\n| key | default | what it is for |\n|---|---|---|"
        for field in fields(hint):
            kind = describe_type(fields_of(hint)[field.name])
            meaning = f"{comment_of(f'{group}.{field.name}')}<br>*{kind}*"
            yield _row(f"`{group}.{field.name}`", _write_default(field), meaning)
        yield ""


def write_rules() -> Iterator[str]:
    """Yields the page of all rules: for each name the first example of the tests, and what is said to it."""
    yield "# Every rule\n"
    yield "`python -m swe_rl job=check` applies these rules, and so does every job before it starts. An error"
    yield "refuses the job, a warning does not. Each row has one example of the tests; many rules have more. Rules"
    yield "whose names begin with `preflight_` examine this machine with `job.preflight=true`, and are not listed.\n"
    yield "| rule | what it says |\n|---|---|"
    for rule, command, finding in read_examples():
        severity, message, fix = finding
        yield _row(f"`{rule}` ({severity})", f"{message}<br>said of: `{command}`<br>way out: `{fix}`")


def write_published() -> Iterator[str]:
    """Yields the page of all values of `conf/experiment` that others have published, each with its source."""
    yield "# Published values\n"
    yield "Made of the comments in `conf/experiment/`. [What is published, and"
    yield "where](../engineering/published.md) says what the sources are.\n"
    for path in sorted(EXPERIMENTS.glob("*.yaml")):
        published = read_published(path.read_text(encoding="utf-8"))
        if published:
            yield f"## {path.stem}\n\n| key | value | source |\n|---|---|---|"
            yield from (_row(f"`{key}`", f"`{value}`", source) for key, (value, source) in published.items())
            yield ""


def read_published(text: str) -> dict[str, tuple[str, str]]:
    """Returns value and source of each full key of an experiment whose comment begins with `published:`."""
    found: dict[str, tuple[str, str]] = {}
    around: list[tuple[int, str]] = []  # the tables that the line is in: their indent and name
    for line in text.splitlines():
        entry = _ENTRY.match(line)
        if entry is None:
            continue
        while around and around[-1][0] >= len(entry["indent"]):
            around.pop()
        value = entry["value"].strip()
        said, _, source = (entry["comment"] or "").partition(": ")
        if not value:
            around.append((len(entry["indent"]), entry["key"]))
        elif said == "published":
            names = [] if entry["chosen"] else [name for _, name in around]
            for key, one in _leaves(".".join([*names, entry["key"]]), value):
                found[key] = (one, source)
    return found


def _leaves(key: str, value: str) -> Iterator[tuple[str, str]]:
    """Yields the entries of a table in one line as keys of their own."""
    if not value.startswith("{"):
        yield key, value
        return
    for part in value.strip("{}").split(","):
        name, _, one = part.partition(":")
        yield f"{key}.{name.strip()}", one.strip()


def read_examples() -> list[tuple[str, str, tuple[str, str, str]]]:
    """Returns for each rule its name, a command line, and the severity, the message and the way out of its finding."""
    examples: dict[str, tuple[str, str, tuple[str, str, str]]] = {}
    for block in re.split(r"^(?=\S)", MESSAGES.read_text(encoding="utf-8"), flags=re.MULTILINE):
        found = re.match(r"(\w+)(?:/\w+)?: (.*)\n  (\w+) [^\n]*\n((?:    (?!->).*\n)+)    -> (.*)", block)
        if found and found[1] not in examples:
            message = " ".join(line.strip() for line in found[4].splitlines())
            examples[found[1]] = (found[1], found[2], (found[3], message, found[5]))
    return sorted(examples.values())


def write_foreign_keys() -> Iterator[str]:
    """Yields the page of keys of other systems and scripts."""
    yield "# Keys of other systems\n"
    yield "`job=check` answers such a key with ours. *As it is* means that the value can be taken. Otherwise the two"
    yield "keys have the same purpose, but another unit or form. See [moving from another system](../migration.md).\n"
    yield "| theirs | ours | value | what ours counts |\n|---|---|---|---|"
    by_words = {theirs: ours for theirs in _READ_BY_WORDS if (ours := our_key(theirs))}
    for theirs, ours in sorted({**by_words, **COMMON, **NEAR, **SAME}.items()):
        value = "look at it"
        if theirs in SAME:
            value = "as it is"
        yield _row(f"`{theirs}`", f"`{ours}`", value, comment_of(ours))


def write_api() -> Iterator[str]:
    """Yields the page of `swe_rl.api`."""
    yield "# The API for code of your own\n"
    yield f"These are the names of `swe_rl.api`, version {api.API_VERSION}. A class of your own needs no base class: it"
    yield "only has to have the methods. [Code of your own](../extending.md) shows a whole package, and"
    yield "`swe_rl.testing` has a test for each kind of class.\n"
    members = {name: getattr(api, name) for name in api.__all__}
    for kind, title in _TITLES.items():
        chosen = {name: member for name, member in members.items() if kind_of(member) == kind}
        if chosen:
            yield f"## {title}\n"
        for name, member in chosen.items():
            yield from _write_member(name, member, kind)


def kind_of(member: Any) -> str:
    """Returns which part of the page a name of the API belongs to, or an empty text for what is no part of it."""
    if inspect.isfunction(member):
        return "function"
    if not isinstance(member, type):
        return ""
    if issubclass(member, BaseException):
        return "error"
    if issubclass(member, enum.Enum):
        return "choice"
    if getattr(member, "_is_protocol", False):
        return "protocol"
    if not is_dataclass(member):
        return "class"
    if member.__module__ == Config.__module__:
        return "options"
    return "data"


def describe_attributes(member: type) -> dict[str, str]:
    """Returns the annotated attributes of a class, each with the comment beside or above it.

    An attribute that only the docstring of the class describes has the text "see above". One that nothing describes has
    an empty text. Attributes that begin with an underscore are left out.
    """
    comments = _read_comments(member)
    described = {}
    for owner in reversed(member.__mro__):
        for name in getattr(owner, "__annotations__", {}):
            if not name.startswith("_"):
                described[name] = comments.get(name, "")
    docstring = member.__doc__ or ""
    return {name: text or _see_above(name, docstring) for name, text in described.items()}


def public_methods(member: type) -> dict[str, Any]:
    """Returns the methods and properties that a class itself defines and that users call."""
    found = {}
    for name, value in vars(member).items():
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | classmethod)):
            found[name] = value
    return found


def _see_above(name: str, docstring: str) -> str:
    if f"`{name}`" in docstring:
        return "see above"
    return ""


def _read_comments(member: type) -> dict[str, str]:
    if member.__module__ == Config.__module__:
        classes = [owner.__name__ for owner in member.__mro__]
        return {field: text for (owner, field), text in schema_comments().items() if owner in classes}
    comments: dict[str, str] = {}
    for owner in reversed(member.__mro__):
        if owner.__module__.startswith("swe_rl"):
            comments |= _comments_in(textwrap.dedent(inspect.getsource(owner)))
    return comments


def _comments_in(source: str) -> dict[str, str]:
    """Returns the comments of the fields of one class: those on the field's own line, and whole lines above it."""
    comments: dict[str, str] = {}
    above: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
            above.append(token.string.lstrip("# "))
        elif (name := _FIELD.match(token.line)) and token.type == tokenize.NAME and token.string == name[1]:
            comments[name[1]] = " ".join(above)
            above = []
        elif token.type == tokenize.COMMENT and (name := _FIELD.match(token.line)):
            comments[name[1]] = f"{comments.get(name[1], '')} {token.string.lstrip('# ')}".strip()
        elif token.type == tokenize.NAME:
            above = []
    return comments


def _write_member(name: str, member: Any, kind: str) -> Iterator[str]:
    yield f"### {name}\n"
    if kind == "function":
        yield f"`{_write_signature(name, member)}`\n"
        yield f"{inspect.getdoc(member)}\n"
        return
    documented = inspect.cleandoc(member.__doc__ or "")
    if documented and not documented.startswith(f"{member.__name__}("):
        yield f"{documented}\n"
    if kind == "options":
        yield f"[Its keys](keys.md) are those of the group `{member.__name__.removesuffix('Config').lower()}`.\n"
        return
    if kind == "choice":
        yield f"One of {', '.join(f'`{choice.value}`' for choice in member)}.\n"
        return
    attributes = describe_attributes(member)
    if attributes:
        yield "| attribute | type | default | what it is |\n|---|---|---|---|"
        yield from (_attribute_row(member, attribute, text) for attribute, text in attributes.items())
        yield ""
    for method, value in public_methods(member).items():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        yield f"`{_write_signature(method, function)}`\n"
        yield textwrap.indent(inspect.getdoc(function) or "", "> ", lambda _: True) + "\n"


def _attribute_row(member: type, attribute: str, text: str) -> str:
    annotations = [getattr(owner, "__annotations__", {}).get(attribute) for owner in member.__mro__]
    hint = next(hint for hint in annotations if hint is not None)
    default = ""
    if is_dataclass(member):
        [field] = [field for field in dataclasses.fields(member) if field.name == attribute]
        if field.default is not MISSING:
            default = f"`{_without_modules(repr(field.default))}`"
        elif field.default_factory is not MISSING:
            default = "empty"
    elif hasattr(member, attribute):
        default = f"`{getattr(member, attribute)!r}`"
    return _row(f"`{attribute}`", f"`{_write_type(hint)}`", default, text)


def _write_signature(name: str, function: Any) -> str:
    prefix = ""
    if inspect.iscoroutinefunction(function):
        prefix = "async "
    return _without_modules(f"{prefix}{name}{inspect.signature(function)}".replace("'", ""))


def _write_type(hint: Any) -> str:
    if isinstance(hint, str):
        return hint.strip("\"'")
    if isinstance(hint, type) and not hasattr(hint, "__args__"):
        return hint.__name__
    return _without_modules(str(hint))


def _without_modules(text: str) -> str:
    """Returns a signature or a type with the last names alone: `Sequence[Turn]`, and functions by their names."""
    named = re.sub(r"<function (\w+) at \w+>", r"\1", text).replace("~", "")
    named = re.sub(r"<object object at \w+>", "...", named)
    return re.sub(r"\b(?:[a-z_]\w*\.)+", "", named)


def _write_default(field: "dataclasses.Field[Any]") -> str:
    """Returns a default as an override writes it."""
    value = field.default
    if value is MISSING and field.default_factory is not MISSING:
        value = field.default_factory()
    if is_dataclass(value) or isinstance(value, dict):
        return "a table"
    if isinstance(value, tuple):
        return f"`[{', '.join(str(getattr(item, 'value', item)) for item in value)}]`"
    if value is None or isinstance(value, bool):
        return f"`{json.dumps(value)}`"
    return f"`{getattr(value, 'value', value)}`"


def _row(*cells: str) -> str:
    escaped = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"
