"""Says of assertions by their names which of their arguments are expectations, and what contradicts them."""

import builtins
import re
from collections.abc import Mapping, Sequence

_OPPOSITES = {
    "assertTrue": "assertFalse",
    "assertIn": "assertNotIn",
    "assertIsNone": "assertIsNotNone",
    "assertIsInstance": "assertNotIsInstance",
    "assertEqual": "assertNotEqual",
    "assertEquals": "assertNotEqual",
    "assertIs": "assertIsNot",
    "assertGreater": "assertLessEqual",
    "assertLess": "assertGreaterEqual",
    "assertRegex": "assertNotRegex",
    "assertAlmostEqual": "assertNotAlmostEqual",
    "assert_called": "assert_not_called",
    "assert_awaited": "assert_not_awaited",
}
# Both names take the same arguments, and the two assertions never hold together.
OPPOSITES = {
    **_OPPOSITES,
    **{right: left for left, right in _OPPOSITES.items() if left != "assertEquals"},
    "assert_called_once": "assert_not_called",
    "assert_awaited_once": "assert_not_awaited",
}
# Of these two arguments, the one that is written out is the expectation.
COMPARED = frozenset(
    {
        "assertEqual", "assertEquals", "assertAlmostEqual", "assertAlmostEquals", "assertListEqual", "assertIs",
        "assertDictEqual", "assertSetEqual", "assertTupleEqual", "assertSequenceEqual", "assertMultiLineEqual",
        "assertCountEqual", "assertItemsEqual", "assertHTMLEqual", "assertXMLEqual", "assertJSONEqual",
        "assertQuerysetEqual", "assertQuerySetEqual", "assertURLEqual", "assert_equal", "assert_allclose", "eq_",
        "assert_almost_equal", "assert_array_equal", "assert_array_almost_equal", "assert_approx_equal",
        "assert_frame_equal", "assert_series_equal", "assert_index_equal", "assert_identical",
    }
)  # fmt: skip
# This says by the name of an assertion which of its arguments is the expectation. None means all of them.
EXPECTATIONS: Mapping[str, int | None] = {
    "assertIn": 0,
    "assertInHTML": 0,
    "assertNumQueries": 0,
    "assertRegex": 1,
    "assertRegexpMatches": 1,
    "assertContains": 1,
    "assertRedirects": 1,
    "assertTemplateUsed": 1,
    "assert_called_with": None,
    "assert_called_once_with": None,
    "assert_any_call": None,
    "assert_has_calls": None,
    "assert_awaited_with": None,
    "assert_awaited_once_with": None,
    "assert_any_await": None,
    "assert_has_awaits": None,
}
# The first argument of these is an exception.
EXPECTING_ERRORS = frozenset(
    {
        "raises",
        "assertRaises",
        "assertRaisesRegex",
        "assertRaisesRegexp",
        "assertRaisesMessage",
        "assert_raises",
        "assert_raises_regex",
        "assert_raises_regexp",
        "warns",
        "assertWarns",
        "assertWarnsMessage",
    }
)
# An assertion of the repository's own, which no table can name, compares its first two arguments.
OWN_ASSERTION = re.compile(r"assert_?[a-zA-Z]")
_EXCEPTIONS = (
    "ValueError",
    "TypeError",
    "KeyError",
    "IndexError",
    "AttributeError",
    "RuntimeError",
    "ZeroDivisionError",
    "NotImplementedError",
    "FileNotFoundError",
    "ImportError",
)
_WARNINGS = ("DeprecationWarning", "FutureWarning", "RuntimeWarning", "ImportWarning", "BytesWarning", "UnicodeWarning")


def unrelated_exceptions(expected: str) -> Sequence[str]:
    """Returns names of exceptions (or warnings) that are neither above nor below those in an expression's text."""
    candidates = _WARNINGS if "Warning" in expected else _EXCEPTIONS
    known = [getattr(builtins, word, None) for word in re.findall(r"\w+", expected)]
    classes = [
        kind for kind in known if isinstance(kind, type) and issubclass(kind, Exception) and kind is not Exception
    ]
    return [name for name in candidates if not any(_are_related(getattr(builtins, name), kind) for kind in classes)]


def _are_related(first: type, second: type) -> bool:
    return issubclass(first, second) or issubclass(second, first)
