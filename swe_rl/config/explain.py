"""This module explains composition errors of Hydra and OmegaConf in one paragraph: the key, the reason, the nearest
legal spelling.

Invariants:
- Every error of Hydra, OmegaConf and YAML leaves as a ConfigError; anything else passes through untouched.
- The original error stays as the cause.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import EnumMeta
from pathlib import Path
from typing import Any, get_args

from swe_rl.config.folders import extension_names, list_options, option_names
from swe_rl.config.keys import (
    describe_type,
    is_legal,
    is_text,
    item_type,
    key_types,
    keys_spelled_like,
    nearest_keys,
    nearest_words,
    row_table,
    type_of,
)
from swe_rl.config.launcher import no_such_setting
from swe_rl.config.secrets import mask_text
from swe_rl.config.spelling.foreign_keys import SAME, describe_unit, listed_key, misspelt_key, our_key
from swe_rl.config.spelling.key_words import keys_with_words
from swe_rl.errors import UserError
from swe_rl.host.packages import install_command, own_requirements, pip_command

_ANTLR_NOISE = re.compile(r"^\w+Exception: | expecting \{.*?\}(?= See)| See https?://\S+ for details\.?")

# These groups are not in the default composition, so an override needs a `+`.
_OPTIONAL = ("experiment", "sweep")
# No file has a longer name, in characters.
_LONGEST_OPTION = 200
# A shorter word is in too many descriptions.
_SHORTEST_WORD = 4
_FLAGS = ("help", "version")
_NULL_AS_TEXT = " null is no text, unless it has quotes of its own: 'KEY=\"null\"'."
# A part of a mix has tables of its own, to which the command line may add.
_IN_PART_TABLE = re.compile(r"env\.mix\.\w+\.(params|columns|eval_columns)\b")
_ROWS = "The command line changes rows that there are; new ones belong into a file of conf/."


class ConfigError(UserError):
    """The overrides or the files of conf/ do not compose."""


@contextmanager
def explain_errors(overrides: Sequence[str], config_dir: Path | None = None) -> Iterator[None]:
    """Turns errors of composition raised inside into ConfigError."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from swe_rl.config.yaml_text import YamlError

    check_overrides(overrides, config_dir)
    try:
        yield
    except (HydraException, OmegaConfBaseException, YamlError, ValueError) as error:
        # ValueError is what OmegaConf raises for `rollout=5`.
        raise ConfigError(mask_text(explain_error(error, overrides, config_dir))) from error


def explain_error(error: BaseException, overrides: Sequence[str], config_dir: Path | None = None) -> str:
    """Returns one paragraph for an error that composing `overrides` raised."""
    from hydra.errors import MissingConfigException, OverrideParseException

    if isinstance(error, OverrideParseException):
        return _bad_grammar(error.override, str(error.message))
    if isinstance(error, MissingConfigException):
        return _missing_option(error, overrides, config_dir)
    text = _one_line(str(error))
    if several := re.match(r"Ambiguous value for argument '(.*?)' 1\. ", text):
        return f"{several.group(1)} lists several values: add --multirun to run each, or write a list as KEY=[a,b]."
    if absent := re.match(r"Could not override '(.*?)'\. (To append|No match)", text):
        if absent.group(1).partition("=")[0] == "env.mix":
            return "env.mix: its parts are added one by one: +env@env.mix.NAME=OPTION, then env.mix.NAME.KEY=VALUE."
        if table := row_table(absent.group(1)):
            return f"{absent.group(1)}: {table} has no such row. {_ROWS}"
        if absent.group(1).startswith("hydra.launcher."):
            return no_such_setting(absent.group(1).removeprefix("hydra.launcher."))
        return f"{absent.group(1)} is not there to be overridden. Does +{absent.group(1)}=... add what you mean?"
    return _bad_value(error, overrides) or f"The configuration does not compose: {text}{_state_reason(error)}"


def check_overrides(overrides: Sequence[str], config_dir: Path | None = None) -> None:
    """Refuses what Hydra would accept in silence or explain badly. Raises ConfigError for the first such override."""
    groups = groups_of(config_dir)
    foreign = [text for text in overrides if "=" in text and _is_foreign(_split_override(text)[0])]
    if len(foreign) > 1:
        raise ConfigError(mask_text(_explain_foreign(foreign)))
    for override in overrides:
        problem = _find_problem(override, groups)
        if problem:
            raise ConfigError(mask_text(problem))


def _is_foreign(key: str) -> bool:
    return not is_legal(key) and not key.startswith("hydra") and our_key(key) is not None


def _explain_foreign(overrides: Sequence[str]) -> str:
    """Answers a command line of another system: what of it can be taken, as one line, and what has to be looked at."""
    names = {_split_override(text)[0]: text.partition("=")[2] for text in overrides}
    taken = [f"{SAME[name]}={value}" for name, value in names.items() if name in SAME]
    others = [f"{name} ({our_key(name)})" for name in names if name not in SAME]
    said = f"{len(names)} keys are called otherwise here."
    if taken:
        said = f"{said} As they are: {' '.join(taken)}."
    if others:
        said = f"{said} In another unit or form, or under another meaning: {', '.join(others)}."
    return f"{said} docs/migration.md says more."


def _bad_grammar(override: str, message: str) -> str:
    reason = _ANTLR_NOISE.sub("", _one_line(message)).removeprefix(f"Error parsing override '{override}' ").strip()
    said = f"Cannot read the override {override!r} ({reason})."
    key, sign, value = override.partition("=")
    if sign and is_text(type_of(key)) and value and not re.search(r"['\"\\]", value):
        return f"{said} A value with such signs needs quotes of its own: '{key}=\"{value}\"'."
    return (
        f"{said} Write KEY=VALUE, as in rollout.n=4 or router=tr; a value with spaces, commas, brackets, braces or "
        "quotes needs quotes of its own: 'KEY=\"a, b\"'."
    )


def _missing_option(error: Any, overrides: Sequence[str], config_dir: Path | None) -> str:
    missing = str(error.missing_cfg_file or "").removesuffix(".yaml")
    group, _, option = missing.rpartition("/")
    groups = groups_of(config_dir)
    known = list(error.options or groups.get(group, []))
    if not group:
        return f"There is no file or group {missing!r} in conf/.{_did_you_mean(nearest_words(missing, groups))}"
    named = any(_split_override(text)[0] == group for text in overrides)
    if named:
        where = f"{group}={option}"
    else:
        where = f"{missing} in a defaults list"
    if not known and group not in groups and group != "hydra/launcher":
        return f"{where}: there is no group {group!r}.{_did_you_mean(nearest_words(group, groups))}"
    return (
        f"{where}: the group {group} has no option {option!r}.{_did_you_mean(_near_options(group, option, known))} "
        f"Options: {', '.join(known)}.{_plugin_hint(group, option)}"
    )


def _near_options(group: str, option: str, known: Sequence[str]) -> list[str]:
    """Returns the options that are spelled alike, or else those whose own description has the word."""
    near = nearest_words(option, known)
    if near or len(option) < _SHORTEST_WORD:
        return near
    return [member.name for member in list_options().get(group, ()) if option.lower() in member.summary.lower()][:3]


def _plugin_hint(group: str, option: str) -> str:
    if group == "hydra/launcher" and option.startswith("submitit"):
        return " The SLURM launcher is a package of its own: install hydra-submitit-launcher."
    if (group, option) == ("hydra/sweeper", "optuna"):
        return f" It is not installed here: {install_command(['optuna'], pip_command(), own_requirements())}."
    if group.startswith("hydra/"):
        return " Launchers and sweepers other than the basic ones are packages of their own: is it installed?"
    return ""


def _find_problem(override: str, groups: dict[str, list[str]]) -> str:
    key, sign = _split_override(override)
    if "=" not in override and sign != "~":
        if our_key(key) and key not in _names_of_options(groups):
            return _unknown_key(key, override, groups)
        return _explain_word(override, key, groups)
    optional = key in _OPTIONAL
    if key in groups and (package := placed_at(override)):
        if sign == "+":
            return _bad_option(key, override.partition("=")[2].strip(), groups[key])
        return _no_place(override, key, package)
    if key in groups:
        if optional and not sign:
            return f"{override}: the group {key} is not part of the default composition; write +{override}."
        if not optional and sign.startswith("+"):
            return f"{override}: the group {key} is always part of the composition; write {override.lstrip('+')}."
        if not optional and sign == "~":
            return f"{override}: the group {key} cannot be left out. Options: {', '.join(groups[key])}."
        return _bad_option(key, override.partition("=")[2].strip(), groups[key])
    if "/" in key or key.partition(".")[0] == "hydra" or not re.fullmatch(r"[\w.]+", key):
        return ""
    if not is_legal(key):
        return _unknown_key(key, f"command line: {override}", groups)
    if sign == "+" and (table := row_table(key)) == "env.mix" and not _IN_PART_TABLE.match(key):
        return f"{override}: a part of a mix is added with an option of env: +env@env.mix.NAME=OPTION."
    if sign == "+" and table not in ("", "env.mix"):
        return f"{override}: rows cannot be added to {table} here. {_ROWS}"
    if sign == "~" and key in key_types():
        return (
            f"{override}: a key of the schema cannot be removed; set it to another value, or to null where it may be."
        )
    return ""


def placed_at(override: str) -> str:
    """Returns the keys that an option is put at: `env.mix.bugs` of `+env@env.mix.bugs=bugs`; else an empty text."""
    return override.partition("=")[0].partition("@")[2]


def _no_place(override: str, group: str, package: str) -> str:
    """Answers an option for a place that the composition does not have without a `+`."""
    if re.fullmatch(r"env\.mix\.\w+", package) and group == "env":
        return f"{override}: a part is added to a mix; write +{override.lstrip('~')}."
    return (
        f"{override}: nothing of the composition is at {package}. Parts of a mix are added by +env@env.mix.NAME=OPTION."
    )


def _bad_option(group: str, value: str, known: Sequence[str]) -> str:
    """Finds what Hydra fails on: a list with something else than names, a table, a name that no file can have."""
    if value.startswith("["):
        listed = [name.strip("'\" ") for name in value.strip("[]").split(",")]
    else:
        listed = []
    if all(name in known for name in listed) and not value.startswith("{") and len(value) < _LONGEST_OPTION:
        return ""
    return f"{group}={value:.60} names no option of the group {group}. Options: {', '.join(known)}."


def _explain_word(override: str, key: str, groups: dict[str, list[str]]) -> str:
    """Answers a word without a value, as other programs take them: `train`, `help`."""
    if key in _FLAGS:
        return f"{override} is no override. Did you mean `python -m swe_rl --{key}`?"
    spelled = _names_of_options(groups)
    known = key not in spelled and (key in groups or is_legal(key))
    if key in spelled:
        near = [key]
    else:
        near = nearest_words(key, spelled, 1)
    if known:
        meant = [f"{key}=VALUE"]
    else:
        meant = [f"`python -m swe_rl {spelled[name]}`" for name in near]
    return f"{override} has no value: an override is KEY=VALUE.{_did_you_mean(meant)} `--help` lists what there is."


def _names_of_options(groups: dict[str, list[str]]) -> dict[str, str]:
    """Maps the name of each option to how it is chosen: `router=tr`. A job comes before an option of its name."""
    return {
        name: f"{'+' if group in _OPTIONAL else ''}{group}={name}"
        for group in [*groups, "job"]
        for name in groups.get(group, ())
    }


def _bad_value(error: BaseException, overrides: Sequence[str]) -> str:
    """Explains a wrong type, or an unknown key inside a file. Returns an empty text for anything else."""
    from omegaconf.errors import (
        ConfigAttributeError,
        ConfigKeyError,
        InterpolationResolutionError,
        KeyValidationError,
    )

    cause = _omegaconf_cause(error)
    if cause is None:
        return ""
    key = str(getattr(cause, "full_key", None) or "")
    reason = _one_line(str(getattr(cause, "msg", None) or cause)).partition(" full_key:")[0]
    whole_key, is_item = re.subn(r"\[\d+\]$", "", key)
    where = _find_override(error, whole_key, overrides)
    if variable := _variable_of(reason):
        hint = key_types().get(key)
        return f"{variable} in the environment decides {key}, which must be {describe_type(hint)} ({reason})."
    if isinstance(cause, InterpolationResolutionError):
        return f"{key} cannot be resolved: {reason} ({where})."
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and key and not is_legal(key):
        return _unknown_key(key, where, {})
    if isinstance(cause, KeyValidationError):
        table, _, name = key.rpartition(".")
        return f'{table} has names that are text, and {name} there is none ({where}). Write it in quotes: "{name}".'
    if is_item:
        hint = item_type(type_of(whole_key))
    else:
        hint = type_of(key)
    if not key or hint is None or hint is Any:
        return ""
    given = re.search(r"Value '(.*?)' of type", reason) or re.search(r"Invalid value '(.*?)'", reason)
    value = ""
    if given:
        value = f", not {given.group(1)!r}"
    quoted = ""
    if is_text(hint) and re.search(r"\bNone|Optional", reason):
        quoted = _NULL_AS_TEXT
    return f"{key} must be {describe_type(hint)}{value} ({where}).{quoted}{_near_member(hint, given)}"


def _variable_of(reason: str) -> str | None:
    """Returns the environment's variable whose value does not fit the key that it decides, or None."""
    match = re.search(r"\$\{swe_rl\.env:\s*(\w+)", reason)
    if match and "could not be converted" in reason:
        return match.group(1)
    return None


def _state_reason(error: BaseException) -> str:
    cause = _omegaconf_cause(error)
    if cause is not None and cause is not error:
        return f": {_one_line(str(cause)).partition(' full_key:')[0]}"
    return ""


def _near_member(hint: Any, given: re.Match[str] | None) -> str:
    hints = [kind for kind in (hint, *get_args(hint)) if isinstance(kind, EnumMeta)]
    if given and hints:
        return _did_you_mean(nearest_words(given.group(1), hints[0].__members__))
    return ""


def _find_override(error: BaseException, key: str, overrides: Sequence[str]) -> str:
    named = {_split_override(override)[0]: override for override in overrides}
    near = [name for name in named if name == key or key.startswith(f"{name}.") or name.startswith(f"{key}.")]
    if key and near:
        # `env=jsonl env.instances=[a]`: the key itself is at fault and not the option before it.
        return f"command line: {named[max(near, key=len)]}"
    file = re.search(r"In '([^']+)'", str(error))
    if file:
        return f"conf/{file.group(1)}.yaml"
    return "a file of conf/"


def _unknown_key(key: str, where: str, groups: dict[str, list[str]]) -> str:
    parent = key.partition(".")[0]
    more = ""
    if parent in key_types() and "." in key:
        more = f" `job=describe job.topic={parent}` lists the keys of {parent}."
    if "." in key:
        candidates = nearest_keys(key)
    else:
        tops = [name for name in key_types() if "." not in name]
        candidates = nearest_words(key, [*groups, *tops]) or nearest_keys(key)
    if known := our_key(key) or misspelt_key(key):
        # `trainer.beta` is TRL's word for another thing, or our `beta1` with a letter missing.
        candidates = [known, *keys_spelled_like(key)]
        if listed_key(key) is None:
            candidates += keys_with_words(key)
    unit = "".join(describe_unit(name) for name in candidates[:1])
    return f"Unknown key {key!r} ({where}).{_did_you_mean(list(dict.fromkeys(candidates))[:3])}{unit}{more}"


def _omegaconf_cause(error: BaseException | None) -> BaseException | None:
    from omegaconf.errors import OmegaConfBaseException

    while error is not None and not isinstance(error, OmegaConfBaseException):
        error = error.__cause__ or error.__context__
    return error


def groups_of(config_dir: Path | None) -> dict[str, list[str]]:
    """Returns every group with its options, with those of the user's own folder."""
    groups = option_names()
    for kind, installed in extension_names().items():
        groups.setdefault(kind, []).extend(name for name in installed if name not in groups[kind])
    for group, names in (option_names(config_dir) if config_dir and config_dir.is_dir() else {}).items():
        known = groups.setdefault(group, [])
        known += [name for name in names if name not in known]
    return groups


def _split_override(override: str) -> tuple[str, str]:
    """Returns key and sign: `+a.b@c=1` is (`a.b`, `+`)."""
    name = override.partition("=")[0]
    key = name.lstrip("+~")
    return key.partition("@")[0].strip(), name[: len(name) - len(key)]


def _did_you_mean(names: Sequence[str]) -> str:
    if names:
        return f" Did you mean {' or '.join(names)}?"
    return ""


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
