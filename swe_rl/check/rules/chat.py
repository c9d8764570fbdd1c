"""Rules of the chat format try the model's own chat template, as a start does.

Invariants:
- What a rule says of a template is what the start says of it: both take their sentences from templates/own/words.py.
- Only a model's files are read. A model that is not here yet, a checkpoint and a run have no files to try.
"""

from collections.abc import Iterator
from pathlib import Path

from swe_rl.check.findings import Finding, Host, error, rule_about, warning
from swe_rl.config.folders import PACKAGE
from swe_rl.config.known_models import folders_of
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config, ModelConfig
from swe_rl.templates.names import OWN

_BUILTIN = "builtin:"


@rule_about(Part.engines, Part.warm_start)
def own_template(config: Config, _: Host) -> Iterator[Finding]:
    """Refuses a chat template that cannot be used, and warns of one that changes earlier turns."""
    model = config.model
    folder = _folder(model)
    if model.chat_template != OWN or folder is None:
        return
    # Most configurations need no Jinja.
    from swe_rl.templates.own.files import own_template as read_template
    from swe_rl.templates.own.reply_form import learn
    from swe_rl.templates.own.sandbox import ChatTemplateError
    from swe_rl.templates.own.self_test import breaking_kinds
    from swe_rl.templates.own.words import KEEP, WAY_OUT, breaking_text, useless

    try:
        template = read_template(folder, thinking=model.thinking)
        if model.keep_sampled:
            kinds = []
        else:
            kinds = breaking_kinds(template, learn(template).reasoning)
    except ChatTemplateError as problem:
        yield error("own_template", "model.chat_template", useless(str(problem)), WAY_OUT)
        return
    if kinds:
        yield warning("own_template", "model.keep_sampled", breaking_text(kinds), KEEP)


def _folder(model: ModelConfig) -> Path | None:
    """Returns the folder that has the model's tokenizer here."""
    if model.path.startswith(_BUILTIN):
        return PACKAGE / "model/checkpoints" / model.path.removeprefix(_BUILTIN)
    folders = folders_of(model.path, model.revision)
    return next((folder for folder in folders if (folder / "tokenizer_config.json").is_file()), None)
