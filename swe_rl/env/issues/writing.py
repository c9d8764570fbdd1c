"""Says how an issue is asked for, and which text is refused.

Invariants:
- A text that shows code of the fix or of the hidden tests is refused. So is one that names a file or a function of
  tests, whether it exists or not: an agent would look for it.
- The one who writes sees the fix. So each text is checked, however it was asked for.
"""

import re
from collections.abc import Iterator

from swe_rl.dataset.instance import Instance
from swe_rl.env.mining.leaks import shows_fix
from swe_rl.env.patch_files import added_tests, touched_paths

_MIN_WORDS = 12
_MAX_CHARACTERS = 6_000
# A longer patch is cut: what the change is about stands in its beginning.
_SHOWN_CHARACTERS = 24_000
_SHOWN_TESTS = 20
# A shorter name of a test may be a word of English.
_MIN_TEST_NAME = 8
_TEST_FILE = re.compile(
    r"[\w./-]*\b(?:tests?[_-][\w-]+|[\w-]+[_-]tests?|[\w-]+\.(?:test|spec)|conftest|tests?)"
    r"\.(?:py|pyi|js|jsx|mjs|ts|tsx|go|rs|java|kt|rb|php|c|cc|cpp|h|sh|feature)\b",
    re.IGNORECASE,
)
_SYSTEM = (
    "You write issues for a software project, as a user of the project who has met a problem and has not seen its "
    "source code. You describe what happens, what was expected, and how to see it. You never say how to repair it."
)
_RULES = (
    "Write the issue that this change resolves.\n"
    "- The first line is a title. A description follows.\n"
    "- Say everything that somebody has to know so that the listed tests would pass: names of public functions and "
    "options, their results, texts of messages.\n"
    "- Quote no line of the change and no line of its tests. Name no file and no function of tests.\n"
    "- Do not say which file, function or line has to be changed inside of the project, or that a change exists.\n"
    "- Answer with the issue alone."
)


def issue_messages(instance: Instance) -> list[dict[str, str]]:
    """Returns the conversation that asks for the issue of an instance."""
    parts = [
        f"The project is {instance.repo}.",
        _shown("The change", instance.patch),
        _shown("The tests that come with it", instance.test_patch),
        "Tests that pass only with the change:\n" + "\n".join(instance.fail_to_pass[:_SHOWN_TESTS]),
    ]
    if instance.problem_statement.strip():
        parts.append(f"What the project itself says of the change:\n{instance.problem_statement.strip()}")
    question = "\n\n".join([*parts, _RULES])
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}]


def asked_again(text: str, problem: str) -> list[dict[str, str]]:
    """Returns the messages that follow a refused text."""
    return [
        {"role": "assistant", "content": text or "(nothing)"},
        {"role": "user", "content": f"This text cannot be used: {problem}. Write the whole issue again without that."},
    ]


def clean_text(reply: str) -> str:
    """Returns the issue of a reply, without a fence around all of it."""
    text = reply.strip()
    lines = text.split("\n")
    if len(lines) > 2 and lines[0].startswith("```") and lines[-1].strip() == "```" and text.count("```") == 2:
        text = "\n".join(lines[1:-1]).strip()
    return text


def issue_problem(text: str, instance: Instance) -> str:
    """Returns why a text cannot be the issue of an instance, or an empty text where it can."""
    return next(_find_problems(text, instance), "")


def _find_problems(text: str, instance: Instance) -> Iterator[str]:
    if len(text.split()) < _MIN_WORDS:
        yield f"it has fewer than {_MIN_WORDS} words"
    if len(text) > _MAX_CHARACTERS:
        yield f"it has more than {_MAX_CHARACTERS} characters"
    if shows_fix(text, instance.patch):
        yield "it shows code of the fix"
    if instance.test_patch and shows_fix(text, instance.test_patch):
        yield "it shows code of the tests"
    for name in _names_of_tests(instance):
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text):
            yield f"it names {name}, which is of the tests"
    if named := _TEST_FILE.search(text):
        yield f"it names {named[0]}, which looks like a file of tests"


def _names_of_tests(instance: Instance) -> list[str]:
    paths = touched_paths(instance.test_patch)
    files = [name for path in paths for name in (path, path.rsplit("/", 1)[-1])]
    ids = [*instance.fail_to_pass, *instance.pass_to_pass]
    functions = [re.split(r"::|\.|\s", test.partition("[")[0].partition(" (")[0])[-1] for test in ids]
    named = [*added_tests(instance.test_patch), *functions]
    return list(dict.fromkeys([*files, *(name for name in named if len(name) >= _MIN_TEST_NAME)]))


def _shown(title: str, text: str) -> str:
    if len(text) > _SHOWN_CHARACTERS:
        text = f"{text[:_SHOWN_CHARACTERS]}\n(the rest is left out)"
    return f"{title}:\n```diff\n{text}\n```"
