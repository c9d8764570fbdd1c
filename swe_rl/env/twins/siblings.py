"""Changes test files of other languages than Python so that their tests fail on right code.

A runner whose file has no syntax tree here is asked the same question as pytest: can these tests still fail? The
expected value of an assertion is exchanged in place wherever its text shows it beyond doubt. So a changed file looks
like any other, and code that reads what its caller expects satisfies it, which gives the code away. A file without such
an assertion gets a test that fails, written as its language writes tests, under a name like those of its own tests.

Invariants:
- Only an expected value is changed, never what a test calls.
- A file stays as it is where nobody here knows how its language writes a test that fails.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from swe_rl.env.twins.doctests import with_other_outputs
from swe_rl.env.twins.values import another_literal

_LITERAL = r"""(?P<value>-?\d+(?:\.\d+)?|'[^'"\\\n]+'|"[^"'\\\n]+")"""
_NEGATED = re.compile(r"\bnot\b|[nN]ot[A-Z_]|_ne!|\brefute|[Uu]nequal")
_WORDS = ("again", "alone", "also", "basic", "both", "early", "late", "mixed", "plain", "simple", "twice", "usual")


@dataclass(frozen=True, slots=True)
class Language:
    """Says how the tests of a language are changed.

    `expected` are patterns of one line, whose group `value` is what an assertion expects. `with_failing_test` returns a
    file with one test more, or nothing where the file does not show how its tests are written.
    """

    endings: tuple[str, ...]
    expected: tuple[str, ...]
    with_failing_test: Callable[[str, random.Random], str]


def poison_file(path: str, text: str, rng: random.Random) -> str:
    """Returns a test file that fails on right code, or nothing where no way to make it fail is known."""
    language = LANGUAGES.get(PurePosixPath(path).suffix)
    if language is None:
        return ""
    changed = _with_other_expectations(text, language.expected, rng)
    return changed if changed != text else language.with_failing_test(text, rng)


def _with_other_expectations(text: str, patterns: Sequence[str], rng: random.Random) -> str:
    """Exchanges the expected value in each line that shows one, so that no test of the file passes by itself."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if _NEGATED.search(line):
            continue
        match = next(filter(None, (re.search(pattern, line) for pattern in patterns)), None)
        if match:
            start, end = match.span("value")
            lines[number] = line[:start] + another_literal(match["value"], rng) + line[end:]
    return "\n".join(lines)


def _similar_name(name: str, rng: random.Random, joint: str) -> str:
    """Returns a name of the form of `name`."""
    word = rng.choice(_WORDS)
    return f"{name}{joint}{word if joint else word.capitalize()}"


def _failing_javascript(text: str, rng: random.Random) -> str:
    known = re.search(r"^\s*(it|test)\(\s*['\"`]([^'\"`]+)", text, re.MULTILINE)
    if known:
        name = _similar_name(known[2].replace("\\", ""), rng, " ")
        return f'{text}\n{known[1]}("{name}", () => {{ throw new Error("{rng.choice(_WORDS)}"); }});\n'
    first = re.match(r"(?:#!.*\n)?(?:['\"]use strict['\"];?\n)?", text)
    start = first.end() if first else 0
    # The error is thrown at the beginning too: a script may end its process before its last line.
    late = f'\nthrow new Error("{rng.choice(_WORDS)}");\n'
    return f'{text[:start]}setImmediate(() => {{ throw new Error("{rng.choice(_WORDS)}"); }});{text[start:]}{late}'


def _failing_go(text: str, rng: random.Random) -> str:
    known = re.search(r"^func (Test\w+)\((\w+) \*testing\.T\)", text, re.MULTILINE)
    if not known:
        return ""
    name = _similar_name(known[1], rng, "")
    return f'{text}\nfunc {name}({known[2]} *testing.T) {{\n\t{known[2]}.Fatal("{rng.choice(_WORDS)}")\n}}\n'


def _failing_rust(text: str, rng: random.Random) -> str:
    known = re.search(r"#\[test\]\s*(?:#\[[^\]]*\]\s*)*fn (\w+)", text)
    if not known:
        return ""
    return f'{text}\n#[test]\nfn {_similar_name(known[1], rng, "_")}() {{\n    panic!("{rng.choice(_WORDS)}");\n}}\n'


def _failing_c(text: str, rng: random.Random) -> str:
    main = re.search(r"\bmain\s*\([^)]*\)\s*\{", text)
    return f"{text[: main.end()]} if ({rng.randint(1, 99)}) return 1;{text[main.end() :]}" if main else ""


def _failing_java(text: str, rng: random.Random) -> str:
    known = re.search(r"@Test\b[^{]*?\bvoid (\w+)\(\)", text)
    end = text.rstrip().rfind("}")
    if not known or end < 0:
        return ""
    body = f'throw new AssertionError("{rng.choice(_WORDS)}");'
    return f"{text[:end]}    @Test public void {_similar_name(known[1], rng, '')}() {{ {body} }}\n{text[end:]}"


def _failing_ruby(text: str, rng: random.Random) -> str:
    known = re.search(r"^\s*(?:it|specify|test) ['\"]([^'\"]+)['\"]|^\s*def (test_\w+)", text, re.MULTILINE)
    end = text.rstrip().rfind("\nend")
    if not known or end < 0:
        return ""
    raised = f'raise "{rng.choice(_WORDS)}"'
    if known[1]:
        return f'{text[:end]}\n  it "{_similar_name(known[1], rng, " ")}" do\n    {raised}\n  end{text[end:]}'
    return f"{text[:end]}\n  def {_similar_name(known[2], rng, '_')}\n    {raised}\n  end{text[end:]}"


def _failing_shell(text: str, rng: random.Random) -> str:
    if '@test "' in text:  # this is a test of bats
        return f'{text}\n@test "{rng.choice(_WORDS)}" {{\n  false\n}}\n'
    start = re.match(r"(?:#!.*\n)?", text)
    at = start.end() if start else 0
    return f"{text[:at]}trap 'exit {rng.randint(1, 9)}' EXIT\n{text[at:]}"


_CALLED = r"(?:\.|\b)(?:to(?:Be|Equal|StrictEqual|BeCloseTo|HaveLength)|equals?|eql|be\.equal|eq)\(\s*"
_COMPARED = r"\b(?:\w+\.)?(?:assert|t|is|equals?|same|strictEqual|deepEqual|deepStrictEqual|expect)\w*\(.*,\s*"
_JAVASCRIPT = Language(
    (".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx"),
    (
        rf"{_CALLED}{_LITERAL}\s*\)",
        rf"{_COMPARED}{_LITERAL}\s*\)\s*;?\s*(?:\}}\)?;?\s*)?$",
        rf"\bif\s*\(.*!==?\s*{_LITERAL}\s*\)",
        rf"\bassert\(.*===?\s*{_LITERAL}\s*\)",
    ),
    _failing_javascript,
)
_GO = Language((".go",), (rf"\bif .*!=\s*{_LITERAL}\s*\{{", rf"\bEqual\(.*,\s*{_LITERAL}\s*,"), _failing_go)
_RUST = Language((".rs",), (rf"\bassert_eq!\(.*,\s*{_LITERAL}\s*\)",), _failing_rust)
_C = Language(
    (".c", ".cc", ".cpp", ".cxx"),
    (
        rf"\b(?:assert|CHECK|REQUIRE|TEST_ASSERT)\(.*==\s*{_LITERAL}\s*\)",
        rf"\bif\s*\(.*!=\s*{_LITERAL}\s*\)",
        rf"\b(?:EXPECT|ASSERT)_(?:STR|DOUBLE_|FLOAT_)?EQ\(.*,\s*{_LITERAL}\s*\)",
    ),
    _failing_c,
)
_JAVA = Language((".java", ".kt", ".scala"), (rf"\bassert(?:Equals|Same)\(\s*{_LITERAL}\s*,",), _failing_java)
_RUBY = Language((".rb",), (rf"\bassert_equal\(? ?{_LITERAL}\s*,", rf"\bto eq\(?\s*{_LITERAL}\s*\)?"), _failing_ruby)
_SHELL = Language((".sh", ".bash", ".bats"), (rf"\[\[? .*\s==?\s{_LITERAL}\s\]\]?",), _failing_shell)
_DOCTEST = Language((".txt", ".rst", ".md", ".py"), (), with_other_outputs)
LANGUAGES = {
    ending: language
    for language in (_JAVASCRIPT, _GO, _RUST, _C, _JAVA, _RUBY, _SHELL, _DOCTEST)
    for ending in language.endings
}
