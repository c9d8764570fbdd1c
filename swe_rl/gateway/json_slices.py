"""This module bounds and parses a large body in slices. A parser keeps the interpreter lock until it is done, 100 ms
for 16 MB of text, and all other requests wait meanwhile.

Invariants:
- The value is the one that `orjson.loads` returns, and what `orjson.loads` refuses is refused.
- The parser never gets more than `SLICE_BYTES` and the few bytes that make a slice a list, an object or a text of its
  own. Only a number may be longer, and no number is.
- Where values end is known from the marks outside of texts, which NumPy finds without the interpreter lock. Whatever is
  between two marks is parsed by `orjson`, so a body that is not sound fails in one of its slices.
- The number of values is bounded before anything is parsed, because a body within the limit of bytes may hold far more
  values than any conversation has. It is first an upper bound, which counts marks anywhere. Only if that is too large,
  marks within texts are left out, and the number is exact.
"""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

# Reading a larger body would hold up the event loop.
LARGE_BYTES = 2**18
# Python takes so many apart again in one piece, which takes 20 ms.
MOST_CONTAINERS = 100_000
# An object with so many members grows, in its last step, within 20 ms. No conversation has had a tenth of them.
MOST_VALUES = 500_000
# A prompt of ids is one list of integers, which is cheap.
MOST_IDS = 2_000_000
# NumPy looks at so many bytes at once.
_SCANNED_BYTES = 2**20
_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
_OPENING = b"{["
_Bytes = npt.NDArray[np.uint8]
# The parser takes 30 ms for so many bytes if each pair of them is an empty list, and half a millisecond for text.
SLICE_BYTES = 2**16
# A value that is longer than a slice may have so many values around it.
_DEEPEST = 200
_BLANKS = b" \t\n\r"
_CLOSING = dict(zip(b"{[", b"}]", strict=True))
_IS_MARK = np.isin(np.arange(256), list(b"{}[],:"))
_STEPS = np.zeros(256, np.int64)
_STEPS[list(b"{[")] = 1
_STEPS[list(b"}]")] = -1
# An escape that begins with this has four digits.
_NUMBERED = b"u"
_FIRST_HALF = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
_SECOND_HALF = re.compile(rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HALF_BYTES = 6


def has_too_many_values(raw: bytes, most_values: int = MOST_VALUES) -> bool:
    """Tells whether a body has more than `most_values` JSON values, or more than `MOST_CONTAINERS` objects and lists.
    It costs next to nothing for a small body."""
    if len(raw) < MOST_CONTAINERS:
        return False
    text = np.frombuffer(raw, np.uint8)
    return _is_too_many(*_marks(text), most_values) and _is_too_many(*_marks_outside_texts(text), most_values)


def _is_too_many(containers: int, commas: int, most_values: int) -> bool:
    return containers > MOST_CONTAINERS or containers + commas > most_values


def _marks(text: _Bytes) -> tuple[int, int]:
    """Counts the opening brackets and the commas."""
    slices = [text[begin : begin + _SCANNED_BYTES] for begin in range(0, len(text), _SCANNED_BYTES)]
    containers = sum(int(np.count_nonzero(part == mark)) for part in slices for mark in _OPENING)
    return containers, sum(int(np.count_nonzero(part == _COMMA)) for part in slices)


def _marks_outside_texts(text: _Bytes) -> tuple[int, int]:
    containers = commas = 0
    for _, part, is_outside in _slices_outside_texts(text):
        outside = part[is_outside]
        containers += sum(int(np.count_nonzero(outside == mark)) for mark in _OPENING)
        commas += int(np.count_nonzero(outside == _COMMA))
    return containers, commas


def _slices_outside_texts(text: _Bytes) -> Iterator[tuple[int, _Bytes, npt.NDArray[np.bool_]]]:
    """Yields where each slice begins, its bytes, and which of them are not within a JSON text. The quote that begins a
    text counts as within, the one that ends it does not."""
    # True means that the slice before ends with a backslash that escapes the first byte of this one.
    is_escaped = False
    # An odd number of quotes so far means that this slice begins within a text.
    quotes = 0
    for begin in range(0, len(text), _SCANNED_BYTES):
        part = text[begin : begin + _SCANNED_BYTES]
        escaped, is_escaped = _escaped_places(part, is_escaped)
        is_quote = part == _QUOTE
        is_quote[escaped] = False
        # The sum may overflow: only whether it is odd counts.
        quotes_so_far = np.cumsum(is_quote, dtype=np.uint8) + np.uint8(quotes)
        yield begin, part, quotes_so_far & 1 == 0
        quotes = int(quotes_so_far[-1]) & 1


def _escaped_places(part: _Bytes, is_first_escaped: bool) -> tuple[npt.NDArray[np.int64], bool]:
    """Returns which bytes a backslash escapes, as far as they are no backslashes themselves, and whether the last byte
    escapes the one after this slice."""
    backslashes = np.flatnonzero(part == _BACKSLASH)
    if is_first_escaped and len(backslashes) and backslashes[0] == 0:
        backslashes = backslashes[1:]
    before_first = np.zeros(1 if is_first_escaped else 0, np.int64)
    if not len(backslashes):
        return before_first, False
    is_last_of_run = np.append(np.diff(backslashes) != 1, True)
    run_ends = np.flatnonzero(is_last_of_run)
    run_lengths = np.diff(run_ends, prepend=-1)
    escaped = backslashes[run_ends[run_lengths % 2 == 1]] + 1
    escapes_next = bool(len(escaped)) and bool(escaped[-1] == len(part))
    return np.concatenate((before_first, escaped[:-1] if escapes_next else escaped)), escapes_next


def loads(raw: bytes) -> Any:
    """Parses a body. Raises orjson.JSONDecodeError, whose place counts bytes as if they were one line, and
    RecursionError for a large value with too many values around it."""
    if len(raw) <= SLICE_BYTES:
        return orjson.loads(raw)
    return _Sliced(raw).value(0, len(raw), 0)


def text_slices(raw: bytes, begin: int, end: int) -> Iterator[bytes]:
    """Cuts what is within the quotes of a JSON text. No escape, no pair of halves and no character in UTF-8 is cut."""
    while begin < end:
        cut = _cut(raw, begin, end)
        yield raw[begin:cut]
        begin = cut


def _cut(raw: bytes, begin: int, end: int) -> int:
    """Returns where the slice ends that begins at a whole character or escape."""
    if begin + SLICE_BYTES >= end:
        return end
    cut = _before_character(raw, begin + SLICE_BYTES)
    while (earlier := _before_escape(raw, begin, cut)) != cut:
        cut = earlier
    if cut > begin:
        return cut
    return begin + SLICE_BYTES


def _before_character(raw: bytes, cut: int) -> int:
    """Returns the place of the UTF-8 character that `cut` is in. In bytes that are no UTF-8 any place is as good."""
    for place in range(cut, cut - 4, -1):
        if raw[place] & 0xC0 != 0x80:
            return place
    return cut


def _before_escape(raw: bytes, begin: int, cut: int) -> int:
    """Returns where the escape begins that the cut would divide, or the first half of the character that it would
    divide. Returns `cut` if there is neither."""
    place = raw.rfind(b"\\", max(begin, cut - _HALF_BYTES), cut)
    backslashes = place + 1 - begin - len(raw[begin : place + 1].rstrip(b"\\"))
    if place < 0 or backslashes % 2 == 0:
        return cut
    escape_end = place + (_HALF_BYTES if raw[place + 1 : place + 2] == _NUMBERED else 2)
    divides_halves = (
        escape_end == cut and _FIRST_HALF.match(raw, place) is not None and _SECOND_HALF.match(raw, cut) is not None
    )
    if escape_end > cut or divides_halves:
        return place
    return cut


class _Sliced:
    """Parses one body. `_places` are its marks outside of texts, `_kinds` say which marks these are, and `_depths` how
    many values are open after each."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        places = []
        kinds = []
        for begin, part, outside in _slices_outside_texts(np.frombuffer(raw, np.uint8)):
            marks = np.flatnonzero(_IS_MARK[part] & outside)
            places.append(marks + begin)
            kinds.append(part[marks])
        self._places: npt.NDArray[np.int64] = np.concatenate(places)
        self._kinds: npt.NDArray[np.uint8] = np.concatenate(kinds)
        self._depths: npt.NDArray[np.int64] = np.cumsum(_STEPS[self._kinds])

    def value(self, begin: int, end: int, depth: int) -> Any:
        """Parses the value at `raw[begin:end]`, which has `depth` values around it."""
        begin, end = self._without_blanks(begin, end)
        first = self._raw[begin : begin + 1]
        if end - begin <= SLICE_BYTES or first not in (b'"', b"{", b"["):
            return self._parsed(begin, end)
        if depth == _DEEPEST:
            raise RecursionError("a large value has too many values around it")
        if first == b'"':
            return self._text(begin, end)
        marks = self._marks_within(begin, end, depth)
        if first == b"[":
            return self._list(marks, begin, end, depth)
        return self._object(marks, begin, end, depth)

    def _without_blanks(self, begin: int, end: int) -> tuple[int, int]:
        while begin < end:
            part = self._raw[begin : min(begin + SLICE_BYTES, end)]
            begin += len(part) - len(part.lstrip(_BLANKS))
            if part.strip(_BLANKS):
                break
        while begin < end:
            part = self._raw[max(begin, end - SLICE_BYTES) : end]
            end -= len(part) - len(part.rstrip(_BLANKS))
            if part.strip(_BLANKS):
                break
        return begin, end

    def _parsed(self, begin: int, end: int, opening: bytes = b"", closing: bytes = b"") -> Any:
        try:
            return orjson.loads(b"".join((opening, self._raw[begin:end], closing)))
        except orjson.JSONDecodeError as error:
            place = begin + max(0, error.pos - len(opening))
            raise orjson.JSONDecodeError(error.msg, "", place) from None

    def _text(self, begin: int, end: int) -> str:
        if self._raw[end - 1] != _QUOTE:
            raise orjson.JSONDecodeError("unexpected end of a text", "", end)
        parts = []
        place = begin + 1
        for part in text_slices(self._raw, place, end - 1):
            parts.append(self._parsed(place, place + len(part), b'"', b'"'))
            place += len(part)
        return "".join(parts)

    def _marks_within(self, begin: int, end: int, depth: int) -> slice:
        """Returns which marks are within the list or object at `raw[begin:end]`. Raises orjson.JSONDecodeError if it
        ends elsewhere."""
        first = int(np.searchsorted(self._places, begin))
        last = int(np.searchsorted(self._places, end - 1))
        ends_there = (
            last < len(self._places)
            and self._places[last] == end - 1
            and self._kinds[last] == _CLOSING[self._raw[begin]]
            and self._depths[last] == depth
            and bool((self._depths[first:last] > depth).all())
        )
        if not ends_there:
            raise orjson.JSONDecodeError("unexpected end of a list or an object", "", end)
        return slice(first + 1, last)

    def _groups(self, marks: slice, begin: int, end: int, depth: int) -> Iterator[tuple[int, int, int]]:
        """Yields (begin, end, number) of elements that are together no longer than a slice, or of a longer one."""
        commas = (self._kinds[marks] == _COMMA) & (self._depths[marks] == depth + 1)
        bounds = np.concatenate(([begin], self._places[marks][commas], [end - 1]))
        at = 0
        while at < len(bounds) - 1:
            start = int(bounds[at]) + 1
            reached = int(np.searchsorted(bounds, start + SLICE_BYTES, side="right")) - 1
            following = max(at + 1, reached)
            yield start, int(bounds[following]), following - at
            at = following

    def _is_blank(self, begin: int, end: int) -> bool:
        begin, end = self._without_blanks(begin, end)
        return begin == end

    def _list(self, marks: slice, begin: int, end: int, depth: int) -> list[Any]:
        made: list[Any] = []
        if self._is_blank(begin + 1, end - 1):
            return made
        for start, stop, number in self._groups(marks, begin, end, depth):
            if stop - start > SLICE_BYTES:
                made.append(self.value(start, stop, depth + 1))
                continue
            elements = self._parsed(start, stop, b"[", b"]")
            if len(elements) != number:
                raise orjson.JSONDecodeError("an element of a list is missing", "", start)
            made += elements
        return made

    def _object(self, marks: slice, begin: int, end: int, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if self._is_blank(begin + 1, end - 1):
            return made
        for start, stop, _ in self._groups(marks, begin, end, depth):
            if stop - start > SLICE_BYTES:
                colon = self._colon_after(start, depth + 1)
                made[self._name(start, colon, depth)] = self.value(colon + 1, stop, depth + 1)
                continue
            members = self._parsed(start, stop, b"{", b"}")
            if not members:
                raise orjson.JSONDecodeError("a member of an object is missing", "", start)
            made.update(members)
        return made

    def _colon_after(self, place: int, depth: int) -> int:
        mark = int(np.searchsorted(self._places, place))
        if self._kinds[mark] != _COLON or self._depths[mark] != depth:
            raise orjson.JSONDecodeError("a member of an object has no name", "", place)
        return int(self._places[mark])

    def _name(self, begin: int, end: int, depth: int) -> str:
        name = self.value(begin, end, depth + 1)
        if not isinstance(name, str):
            raise orjson.JSONDecodeError("a member of an object has a name that is no text", "", begin)
        return name
