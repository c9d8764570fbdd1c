"""Decides which runs make an arm, and what the arms are called.

Invariants:
- Labels are distinct. Those that nobody gave say what differs: the overrides that are not the same in all runs.
- Runs of a multirun that differ in trainer.seed or job.repeat only are repeats of one arm. Two spellings of one value,
  as 1e-5 and 0.00001, are no difference.
- A label names a path by as much of its end as tells it from the others.
- The baseline of a multirun is its arm labelled default, else its first.
"""

import re
from collections.abc import Sequence
from pathlib import PurePath

from swe_rl.config.choices import ROUTERS
from swe_rl.report.compare.compare import Arm, MeasuredRun

# The published comparison calls its two logs so.
PUBLISHED = ("dp4_default", "dp4_tr_atw01")
_SEED = "trainer.seed"
# These keys tell repeats of one arm apart; their names are beside them.
_REPEATS = {"job.repeat": "repeat", _SEED: "seed"}
# Its option names the whole set-up: `dp4_default`, not `experiment=dp4_default`.
_BARE = frozenset({"experiment"})
# So an override says that a key has no value.
_NOTHING = ("", "null", "None", "~")
_NO_DIFFERENCE = re.compile(r"(?:hydra|paths|logger|job)(?:[./].*)?|name|trainer\.resume")
_ROUTER = re.compile(rf"(?:router=)?(?:dp\d+_)?({'|'.join(ROUTERS)})(?![a-z0-9])")
# A column of the tables has room for so many characters.
_LONGEST_LABEL = 60
_DATA_PARALLEL = re.compile(r"(?<![a-z0-9])dp(\d+)(?![a-z0-9])")


def make_pair(runs: tuple[MeasuredRun, MeasuredRun], given: tuple[str | None, str | None]) -> list[Arm]:
    """Returns baseline and candidate; a label that is None is chosen here."""
    first, second = (label or chosen for label, chosen in zip(given, _pair_labels(runs), strict=True))
    labels = first, second if second != first else f"{second} (2)"
    return _make_arms([(label, {"": run}) for label, run in zip(labels, runs, strict=True)])


def make_arms(runs: Sequence[MeasuredRun], fallback: str) -> list[Arm]:
    """Returns the arms of a multirun, the baseline first; `fallback` names an arm that differs in nothing."""
    groups: dict[str, list[MeasuredRun]] = {}
    for label, run in zip(differing_overrides(runs, ignored=frozenset({_SEED})), runs, strict=True):
        groups.setdefault(label or fallback, []).append(run)
    names = _repeat_names(list(groups.values()))
    repeats = [dict(zip(given, group, strict=True)) for given, group in zip(names, groups.values(), strict=True)]
    arms = _make_arms(list(zip(groups, repeats, strict=True)))
    return with_baseline(arms, next((arm for arm in arms if _router_name(arm.label) == "default"), arms[0]))


def with_baseline(arms: Sequence[Arm], baseline: Arm) -> list[Arm]:
    return [baseline, *(arm for arm in arms if arm is not baseline)]


def engines_of(arms: Sequence[Arm]) -> int | None:
    """Returns how many engines (data-parallel replicas) each of them had; a log says it in its label (`dp4_default`)
    only.
    """
    counts = {_count_engines(arm.label, run) for arm in arms for run in arm.runs.values()}
    if len(counts) == 1:
        return counts.pop()
    return None


def differing_overrides(runs: Sequence[MeasuredRun], ignored: frozenset[str] = frozenset()) -> list[str]:
    """Returns for each run the overrides in which the runs differ, `router=tr layout=dp4`; '' where they do in none.

    A run has from its configuration what it did not override.
    """
    keys = dict.fromkeys(key for run in runs for key in run.overrides)
    wanted = [key for key in keys if key not in ignored and not _NO_DIFFERENCE.fullmatch(key)]
    values = {key: _distinct_ends(_spell_alike(runs, key)) for key in wanted}
    differing = [key for key in wanted if len(set(values[key])) > 1]
    return [
        " ".join(_override_text(key, values[key][index]) for key in differing).strip() for index in range(len(runs))
    ]


def _override_value(run: MeasuredRun, key: str) -> str:
    if key in run.overrides:
        return run.overrides[key]
    value = run.value(key.replace("/", ".").partition("@")[0])
    if value is None:
        return ""
    return str(value)


def _spell_alike(runs: Sequence[MeasuredRun], key: str) -> list[str]:
    """Returns a key's value of each run. Equal values have one spelling: that of the first run that overrides it."""
    meant = [_meant_value(run, key) for run in runs]
    spellings: dict[str, str] = {}
    for run, value in sorted(zip(runs, meant, strict=True), key=lambda pair: key not in pair[0].overrides):
        spellings.setdefault(value, _override_value(run, key))
    return [spellings[value] for value in meant]


def _meant_value(run: MeasuredRun, key: str) -> str:
    """Returns what tells whether two runs have the same value: the configuration's, where the key is of one value.

    Two options of a group may have one name, so that a group's override is told apart by its text.
    """
    text = _override_value(run, key)
    if "." not in key:
        return text
    if text in _NOTHING:
        return ""
    value = run.value(key)
    if value is None:
        return text
    return str(value)


def _override_text(key: str, value: str) -> str:
    if key in _BARE:
        return value
    if value:
        return f"{key}={value}"
    return ""


def _pair_labels(runs: tuple[MeasuredRun, MeasuredRun]) -> Sequence[str]:
    """Returns the first way of naming that tells them apart in few words."""
    if all(run.is_log for run in runs):
        return PUBLISHED
    names = [run.job or str(run.value("name") or PurePath(run.source).name) for run in runs]
    folders = _distinct_ends([run.source for run in runs])
    if any(run.is_log for run in runs):
        ways = [names, folders]
    else:
        ways = [differing_overrides(runs), names, folders]
    telling = (way for way in ways if all(way) and len(set(way)) == len(way))
    return next((way for way in telling if max(map(len, way)) <= _LONGEST_LABEL), folders)


def _distinct_ends(values: list[str]) -> list[str]:
    """Returns the last parts of paths, as many as tell them apart; other values as they are."""
    if len(set(values)) < 2 or not all("/" in value for value in values):
        return values
    parts = [PurePath(value).parts for value in values]
    for count in range(1, max(map(len, parts))):
        ends = ["/".join(path_parts[-count:]) for path_parts in parts]
        if len(set(ends)) == len(set(values)):
            return ends
    return values


def _make_arms(labelled: Sequence[tuple[str, dict[str, MeasuredRun]]]) -> list[Arm]:
    """Returns arms. Routers are short names where they tell the arms apart."""
    routers = [_router_name(label, *runs.values()) for label, runs in labelled]
    telling = None not in routers and len(set(routers)) == len(routers) > 1
    return [
        Arm(label, router if telling and router else label, runs)
        for (label, runs), router in zip(labelled, routers, strict=True)
    ]


def _router_name(label: str, *runs: MeasuredRun) -> str | None:
    for run in runs[:1]:
        if name := run.value("router"):
            return str(name)
    match = next((match for word in label.split() if (match := _ROUTER.match(word))), None)
    if match:
        return match[1]
    return None


def _count_engines(label: str, run: MeasuredRun) -> int | None:
    if run.is_log:
        match = _DATA_PARALLEL.search(label.replace("_", " "))
        if match:
            return int(match[1])
        return None
    engines = run.value("layout.engines")
    if type(engines) is int:
        return engines
    return None


def _repeat_names(groups: Sequence[Sequence[MeasuredRun]]) -> list[list[str]]:
    """Returns names by repeat and seed where that pairs the arms' runs, else by order; '' where every arm
    has one run.
    """
    if all(len(group) == 1 for group in groups):
        return [[""] for _ in groups]
    telling = [key for key in _REPEATS if len({_override_value(run, key) for group in groups for run in group}) > 1]
    names = [
        [" ".join(f"{_REPEATS[key]}={_override_value(run, key)}" for key in telling) for run in group]
        for group in groups
    ]
    unique = all(len(set(group_names)) == len(group_names) for group_names in names)
    if unique and set.intersection(*(set(group_names) for group_names in names)):
        return names
    return [[f"run {index}" for index in range(len(group))] for group in groups]
