"""How many instances and images a run really uses, as far as that is known before the data set is read.

Invariants:
- A choice of instances counts, not the data set that it is made from; 0 means that nobody knows yet.
"""

from collections.abc import Callable

from swe_rl.config.schema import Config, EnvConfig

ReadText = Callable[[str], str | None]
# Instances of a repository share its image, which their ids begin with: a__b.0123 of a__b.0123.combine_file__x.
_BY_REPOSITORY = {"swe_smith": 128}  # and the published number of repositories


def listed_ids(env: EnvConfig, read_text: ReadText) -> tuple[str, ...] | None:
    """The ids that env.instance_ids or the file of env.instances name, each once; None where there is no list."""
    if env.instance_ids:
        return tuple(dict.fromkeys(env.instance_ids))
    if env.instances is None or "*" in env.instances or (text := read_text(env.instances)) is None:
        return None
    names = (line.split("#")[0].strip() for line in text.splitlines())
    return tuple(dict.fromkeys(name for name in names if name))


def trained_instances(env: EnvConfig, read_text: ReadText) -> int:
    """Of the split that is trained on, at most."""
    listed = listed_ids(env, read_text)
    return env.num_instances if listed is None else len(listed)


def trained_images(config: Config, read_text: ReadText) -> int:
    """Of the split that is trained on, at most."""
    env = config.env
    if env.image_template is not None and "{" not in env.image_template:
        return 1
    listed = listed_ids(env, read_text)
    if env.name not in _BY_REPOSITORY:
        return trained_instances(env, read_text)
    if listed is None:
        return _BY_REPOSITORY[env.name]
    return len({name.rpartition(".")[0] for name in listed})
