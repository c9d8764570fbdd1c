"""This module loads a model and its tokenizer from where `model.path` says.

Invariants:
- No code of a checkpoint is ever run; weights are safetensors.
- What is loaded agrees with the numbers of conf/model, or loading is refused.
"""

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.config.choices import AdvantageKind
from swe_rl.config.known_models import CHECKPOINT_FACTS, mixture_facts, plain_facts
from swe_rl.config.schema import AlgoConfig, ModelConfig
from swe_rl.errors import UserError
from swe_rl.facts.vocabulary import vocabulary_problem
from swe_rl.files.disk import read_json
from swe_rl.files.lines import lines_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

BUILTIN = "builtin:"
# A tokenizer of these classes is one file, which is read without torch.
_PLAIN_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")


class ModelError(UserError):
    """A model cannot be found, read, or is another one than the configuration says."""


def locate_model(config: ModelConfig) -> str:
    """Returns a folder, or a hub id as it is. Raises ModelError for a builtin name that is not shipped."""
    if not config.path.startswith(BUILTIN):
        return config.path
    folder = Path(__file__).parent / "checkpoints" / config.path.removeprefix(BUILTIN)
    if not (folder / "model.safetensors").is_file():
        raise ModelError(
            f"model.path={config.path}: no such model ships with the package; make it with "
            f"`python -m swe_rl job=sft` and give its folder as model.path"
        )
    return str(folder)


def load_model(config: ModelConfig) -> "PreTrainedModel":
    """Loads the policy in float32 on the CPU. Raises ModelError."""
    from transformers import AutoModelForCausalLM

    _quiet_transformers()
    model = _from_pretrained(AutoModelForCausalLM, config, dtype="float32")
    _check_facts(model.config, config)
    model.config.use_cache = False
    return model  # type: ignore[no-any-return]


def load_shape(config: ModelConfig) -> "PreTrainedConfig":
    """Loads the model's transformers configuration, without weights. Raises ModelError."""
    from transformers import AutoConfig

    _quiet_transformers()
    shape = _from_pretrained(AutoConfig, config)
    _check_facts(shape, config)
    return shape  # type: ignore[no-any-return]


def model_folder(config: ModelConfig) -> Path:
    """Returns the folder that holds the model; a model of the hub is fetched, or found in the hub's cache. Raises
    ModelError."""
    where = Path(locate_model(config))
    if where.is_dir():
        return where
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                config.path,
                revision=config.revision,
                allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja"],
            )
        )
    except Exception as error:
        # The hub's client raises errors of its own, of requests and of the system.
        raise _cannot_load(config, error) from error


def has_teacher(algo: AlgoConfig) -> bool:
    return algo.advantage is AdvantageKind.teacher and algo.teacher is not None


def teacher_model(student: ModelConfig, algo: AlgoConfig) -> ModelConfig:
    """Returns the configuration of `algo.teacher`, with the sizes that its own config.json has. Raises ModelError if it
    speaks of other tokens."""
    assert algo.teacher is not None
    teacher = replace(student, name="teacher", path=algo.teacher, revision=None)
    try:
        folder = model_folder(teacher)
        problem = vocabulary_problem(partial(_file_in, model_folder(student)), partial(_file_in, folder))
        facts = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError, ModelError) as error:
        raise ModelError(f"algo.teacher={algo.teacher} cannot be read: {error}. Give the folder of a model") from error
    if problem:
        raise ModelError(f"algo.teacher={algo.teacher} {problem}. Choose a teacher of the same tokenizer")
    sizes = {fact: value for fact, value in plain_facts(facts).items() if value is not None}
    return replace(teacher, **sizes, **{fact: value for fact, (_, value) in mixture_facts(facts).items()})


def _file_in(folder: Path, name: str) -> str | None:
    if (folder / name).is_file():
        return (folder / name).read_text("utf-8")
    return None


def _check_facts(shape: "PreTrainedConfig", config: ModelConfig) -> None:
    facts = shape.get_text_config().to_dict()
    numbers = plain_facts(facts)
    plain = {fact: (name, numbers[fact]) for fact, name in CHECKPOINT_FACTS.items()}
    for fact, (name, value) in {**plain, **mixture_facts(facts)}.items():
        if value != getattr(config, fact):
            raise ModelError(
                f"model.{fact}={getattr(config, fact)} but the checkpoint {config.path} has {name}={value}; "
                "correct the key or choose the model option that fits"
            )


def load_tokenizer(config: ModelConfig) -> "PreTrainedTokenizerFast":
    """Loads the model's tokenizer. Raises ModelError."""
    _quiet_transformers()
    tokenizer = _from_pretrained(_tokenizer_loader(config), config)
    if tokenizer.pad_token_id is None:
        raise ModelError(f"model.path={config.path}: its tokenizer has no pad_token; name one in tokenizer_config.json")
    return tokenizer  # type: ignore[no-any-return]


def _tokenizer_loader(config: ModelConfig) -> Any:
    """Returns the class that loads the tokenizer. AutoTokenizer imports torch and all models, four seconds of a core. A
    file of `tokenizers` needs neither."""
    if read_json(Path(locate_model(config)) / "tokenizer_config.json").get("tokenizer_class") in _PLAIN_TOKENIZERS:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


def _from_pretrained(loader: Any, config: ModelConfig, **options: Any) -> Any:
    where = locate_model(config)
    try:
        return loader.from_pretrained(where, revision=config.revision, trust_remote_code=False, **options)
    except Exception as error:
        # transformers raises OSError, ValueError, SafetensorError and more for bad input.
        raise _cannot_load(config, error) from error


def _cannot_load(config: ModelConfig, error: Exception) -> ModelError:
    reason = lines_of(str(error).strip(), ends=False)
    return ModelError(
        f"model.path={config.path} cannot be loaded: {reason[0] if reason else type(error).__name__}; give a "
        "folder with config.json, model.safetensors and a tokenizer, or an id that the hub's cache holds"
    )


def _quiet_transformers() -> None:
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
