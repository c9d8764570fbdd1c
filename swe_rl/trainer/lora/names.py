"""Names of an adapter's parameters: in the model that carries it, in transformers, and in peft's files.

Invariants:
- `X.weight` of transformers is `X.base_layer.weight` once X carries an adapter, beside `X.lora_A.default.weight` and
  `X.lora_B.default.weight`; peft's files have `base_model.model.X.lora_A.weight`.
"""

ADAPTER = "default"
_A, _B = f".lora_A.{ADAPTER}.weight", f".lora_B.{ADAPTER}.weight"
_WEIGHT, _CARRIED, _IN_FILES = ".weight", ".base_layer.", "base_model.model."


def is_adapter(name: str) -> bool:
    return name.endswith((_A, _B))


def is_a(name: str) -> bool:
    """The one that reads the layer's input; the other begins as zero."""
    return name.endswith(_A)


def plain(name: str) -> str:
    """transformers' own name of a parameter that is not the adapter's."""
    return name.replace(_CARRIED, ".")


def pair(name: str) -> tuple[str, str]:
    """A and B of a weight by transformers' name; whether there are such is for the caller to see."""
    layer = name.removesuffix(_WEIGHT)
    return f"{layer}{_A}", f"{layer}{_B}"


def in_files(name: str) -> str:
    """peft's name, in its files, of a parameter of the adapter."""
    return _IN_FILES + name.replace(f".{ADAPTER}.", ".")
