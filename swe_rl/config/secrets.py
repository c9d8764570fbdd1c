"""This module keeps secrets out of whatever is printed or written.

Invariants:
- A secret given as an override never reaches Hydra: it moves to this process's environment, and the override keeps a
  reference to it. So no file that Hydra or a launcher writes can hold it.
- A key is secret by its last part: `api_key`, `token`, `password`, ...; `max_prompt_tokens` is not. In `env_vars`,
  whose names the user chooses, a name that merely contains such a word is secret as well.
"""

import os
import re
import zlib
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

from swe_rl.errors import UserError
from swe_rl.files.redactor import MASK, Redactor, could_be_secret, is_secret_variable

_SECRET_KEY = re.compile(r"(^|[_.-])(api_?key|key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)
# Finds what a line of a shell assigns to a name.
_ASSIGNED = re.compile(r"(?<![\w$])([A-Za-z_]\w*)=[\"']?([^\s\"';&|,\]]+)")
# These words go before a secret in a header, and are none.
_SCHEMES = frozenset({"basic", "bearer", "token"})
# Finds what a reference stands for where its variable is not set.
_DEFAULT = re.compile(r"\$\{oc\.env:[^,{}]*,\s*['\"]?([^{}'\"]*)")
_IN_BRACES = re.compile(r"[{,]\s*['\"]?([A-Za-z0-9_.-]+)['\"]?\s*:")


class SecretError(UserError):
    """A secret was given in a form that cannot be kept out of files."""


def is_secret_key(key: str) -> bool:
    """Tells whether a full key, such as `hardware.env_vars.WANDB_API_KEY`, holds a secret."""
    if ".env_vars." in f".{key}":
        return is_secret_variable(key.rsplit(".env_vars.", 1)[-1])
    return bool(_SECRET_KEY.search(key.rsplit(".", 1)[-1]))


def mask_value(key: str, value: Any) -> Any:
    """Returns the value as it may be shown: `***` under a secret key, addresses without their user and password."""
    if value is None or isinstance(value, bool):
        return value
    if is_secret_key(key):
        return MASK
    if key.endswith(".setup") and type(value) is str and spelled_secrets(value):
        return MASK
    if type(value) is str:
        return mask_text(value)
    return value


def mask_text(text: str) -> str:
    """Returns the text without users and passwords of addresses, and without any secret of this process's
    environment."""
    return Redactor.from_environ().text(text)


def hide_secrets(overrides: Iterable[str], environment: MutableMapping[str, str] | None = None) -> list[str]:
    """Replaces each secret value of the overrides by `${oc.env:...}`, and moves the value to `environment`.

    References stay, as does what cannot be a secret. Raises SecretError for a secret inside of a table, a list or a
    reference, where it cannot be replaced.
    """
    if environment is None:
        environment = os.environ
    return [_hide_secret(override, environment) for override in overrides]


def spelled_secrets(line: str) -> list[str]:
    """Returns names of the secrets whose values a line of a shell spells out; a variable, a command or a file is
    none."""
    return [
        name
        for name, value in _ASSIGNED.findall(line)
        if _SECRET_KEY.search(name) and not value.startswith(("$", "`", "/", "~", "."))
    ]


def _hide_secret(override: str, environment: MutableMapping[str, str]) -> str:
    key, equals, value = override.partition("=")
    plain = key.lstrip("+~").partition("@")[0]
    # The sweeper escapes the references of what was hidden before.
    if not equals or not value or "$\\{" in value:
        return override
    if "${" in value:
        if is_secret_key(plain) and not value.lstrip().startswith(("[", "{")):
            return f"{key}={_hide_beside_references(plain, value, environment)}"
        return override
    if plain.endswith(".setup") and (names := spelled_secrets(value)):
        raise SecretError(
            f"A line of {plain} spells out {names[0]}, and the batch script that it goes into is a file. Export "
            f"{names[0]} where you submit, or read it there: {names[0]}=$(cat ~/FILE)."
        )
    if "{" in value and not value.lstrip().startswith(("'", '"')):
        _refuse_in_braces(plain, value)
        return override
    if not is_secret_key(plain):
        return override
    if value.lstrip().startswith("["):
        _refuse_in_list(plain, value)
        return override
    # `null` empties a key, and a short number is a number.
    secret = _strip_quotes(value)
    if not could_be_secret(secret):
        return override
    variable = _variable_of(plain)
    environment[variable] = secret
    return f"{key}=${{oc.env:{variable}}}"


def _hide_beside_references(key: str, value: str, environment: MutableMapping[str, str]) -> str:
    """Returns the value with a reference in the place of each literal part that may be a secret."""
    text = _strip_quotes(value)
    quote = value[0] if text != value else ""
    parts = list(_split_references(text))
    if any(could_be_secret(default) for part in parts for default in _DEFAULT.findall(part) if part.startswith("${")):
        raise SecretError(
            f"The override of {key} holds a secret inside of a reference, where it cannot be kept out of files. Set "
            "the variable in the environment, and leave out what stands for it."
        )
    if not quote:  # A comma of a sweep is between two values.
        parts = [piece for part in parts for piece in ([part] if part.startswith("${") else re.split("(,)", part))]
    for number, part in enumerate(parts):
        if part.startswith("${"):
            continue
        if could_be_secret(part) and part.strip().lower() not in _SCHEMES:
            variable = _variable_of(f"{key}[{number}]")
            environment[variable] = part
            parts[number] = f"${{oc.env:{variable}}}"
        elif quote:
            parts[number] = part.replace(quote, f"\\{quote}")
    return f"{quote}{''.join(parts)}{quote}"


def _split_references(text: str) -> Iterator[str]:
    """Yields the parts of a text in their order: whole references, and what is between them."""
    depth = 0
    start = 0
    for place, character in enumerate(text):
        if text.startswith("${", place):
            if depth == 0:
                yield text[start:place]
                start = place
            depth += 1
        elif character == "}" and depth:
            depth -= 1
            if depth == 0:
                yield text[start : place + 1]
                start = place + 1
    yield text[start:]


def _variable_of(key: str) -> str:
    """Returns the name of the variable that a secret moves to. Two keys never share one."""
    name = "SWE_RL_SECRET_" + re.sub(r"\W", "_", key).upper()
    # The upper-cased name is the same for `a.b`, `a_b` and `A.B`.
    return f"{name}_{zlib.crc32(key.encode()):08X}"


def _refuse_in_braces(key: str, value: str) -> None:
    for name in _IN_BRACES.findall(value):
        if is_secret_key(f"{key}.{name}"):
            raise SecretError(
                f"The override of {key} holds the secret {name} inside braces, where it cannot be kept out of files. "
                f"Give it an override of its own: +{key}.{name}=..., or set it in the environment."
            )


def _refuse_in_list(key: str, value: str) -> None:
    items = value.strip().removeprefix("[").removesuffix("]").split(",")
    if any(could_be_secret(_strip_quotes(item.strip())) for item in items):
        raise SecretError(
            f"The override of {key} holds secrets in a list, where they cannot be kept out of files. Set a variable in "
            f"the environment for each, and refer to it: {key}=[${{oc.env:NAME}}]."
        )


def _strip_quotes(value: str) -> str:
    """Returns a value as Hydra reads it: without its quotes, and with the quotes inside of it that were escaped."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1].replace(f"\\{value[0]}", value[0])
    return value


def mask_tree(node: Any, key: str = "") -> Any:
    """Copies nested dicts and lists with every secret masked."""
    if isinstance(node, dict):
        return {name: mask_tree(value, f"{key}.{name}" if key else str(name)) for name, value in node.items()}
    if isinstance(node, list | tuple):
        return [mask_tree(value, key) for value in node]
    return mask_value(key, node)
