"""The pages of the reference that are made of the code have no gaps: every name of the API is described."""

import importlib.util
from pathlib import Path

import pytest

from swe_rl import api
from swe_rl.config.schema import Config

FILE = Path(__file__).parents[1] / "docs" / "reference_pages.py"


def load_pages():
    spec = importlib.util.spec_from_file_location("reference_pages", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = load_pages()
DESCRIBED = {name: member for name in api.__all__ if PAGES.kind_of(member := getattr(api, name))}


def test_every_class_and_function_of_the_api_is_on_the_page():
    # A number and a union of the events are no classes.
    assert set(api.__all__) - set(DESCRIBED) == {"API_VERSION", "Event"}
    text = "\n".join(PAGES.write_api())
    assert [name for name in DESCRIBED if f"### {name}\n" not in text] == []


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_name_of_the_api_says_what_it_is(name):
    member = DESCRIBED[name]
    if PAGES.kind_of(member) == "choice":
        return
    # A dataclass without a docstring has its signature in the place of one.
    assert member.__doc__ and not member.__doc__.startswith(f"{name}(")


@pytest.mark.parametrize("name", [name for name in DESCRIBED if PAGES.kind_of(DESCRIBED[name]) in ("data", "protocol")])
def test_every_field_and_method_is_described(name):
    member = DESCRIBED[name]
    assert [field for field, text in PAGES.describe_attributes(member).items() if not text] == []
    for method, value in PAGES.public_methods(member).items():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        assert function.__doc__, method


def test_a_field_without_a_comment_would_be_found():
    class Given:
        """Has `said` in its docstring."""

        said: int
        beside: int = 0  # This stands beside it.
        # This stands
        # above it.
        above: int = 0
        nothing: int = 0

    assert PAGES.describe_attributes(Given) == {"said": "see above", "beside": "", "above": "", "nothing": ""}
    found = PAGES._comments_in(
        "class Given:\n    said: int\n    beside: int = 0  # This stands beside it.\n"
        "    # This stands\n    # above it.\n    above: int = 0\n    nothing: int = 0\n"
    )
    assert found["beside"] == "This stands beside it." and found["above"] == "This stands above it."
    assert found["said"] == found["nothing"] == ""


def test_every_key_has_a_row_with_a_meaning():
    rows = [line for line in PAGES.write_keys() if line.startswith("| `")]
    assert len(rows) > 300 and all(line.split(" | ")[2].strip() for line in rows)


def test_every_rule_of_the_tests_has_a_row():
    examples = PAGES.read_examples()
    text = PAGES.MESSAGES.read_text(encoding="utf-8")
    names = {line.split(":")[0].split("/")[0] for line in text.splitlines() if line[:1].strip()}
    assert {rule for rule, _, _ in examples} == names and len(names) > 100
    assert all(severity in ("error", "warning") and message and fix for _, _, (severity, message, fix) in examples)


def test_no_description_names_an_address_of_this_process():
    text = "\n".join(line for write in (PAGES.write_api, PAGES.write_keys) for line in write())
    assert " at 0x" not in text and "swe_rl.sandbox." not in text


def test_the_options_are_groups():
    options = [name for name, member in DESCRIBED.items() if PAGES.kind_of(member) == "options"]
    groups = {name.removesuffix("Config").lower() for name in options} - {""}
    assert "agent" in groups and all(hasattr(Config(), group) for group in groups)
