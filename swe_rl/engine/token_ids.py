"""Holds token ids that grow at their end: a prompt is the prompt before it and what is new.

Invariants:
- A value never changes. Those that continue each other share one array: what is appended lies behind all that were
  there before, and a value sees its own length only.
- Two that continue the same ids differently share nothing: the second has a copy. The same ids again share.
- The JSON text of a prompt is written once: of a longer one only what is new is encoded.
- It is not for several threads at once, but for arrays that were taken before: they stay as they are.
"""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import orjson

# A buffer has room for at least this many more ids, so that short turns do not copy it each time.
_ROOM = 1024


class _Buffer:
    """An array of which `ids[:length]` are used. `text` has the first `encoded` of them as JSON, without brackets.

    `marks` says how long it was after so many ids.
    """

    __slots__ = ("encoded", "ids", "length", "marks", "text")

    def __init__(self, ids: "npt.NDArray[np.int32]", room: int) -> None:
        self.length = len(ids)
        self.ids = np.empty(max(_ROOM, 2 * (self.length + room)), np.int32)
        self.ids[: self.length] = ids
        self.text = bytearray()
        self.encoded = 0
        self.marks = {0: 0}

    def append(self, new: "npt.NDArray[np.int32]") -> None:
        end = self.length + len(new)
        if end > len(self.ids):
            grown = np.empty(2 * end, np.int32)
            grown[: self.length] = self.ids[: self.length]
            self.ids = grown
        self.ids[self.length : end] = new
        self.length = end

    def json(self, length: int) -> bytes:
        if length > self.encoded:
            if self.encoded:
                self.text += b","
            self.text += _encode_ids(self.ids[self.encoded : length])[1:-1]
            self.encoded = length
            self.marks[length] = len(self.text)
        if length not in self.marks:
            return _encode_ids(self.ids[:length])
        with memoryview(self.text) as text:
            return b"".join((b"[", text[: self.marks[length]], b"]"))


class TokenIds(Sequence[int]):
    """A read-only list of token ids (int32). `TokenIds()` is empty.

    `carrier` is another process that has the same ids and sends them to a server, so that they need not be written here
    (`Carrier` of `engine/server/client.py`).
    """

    __slots__ = ("_buffer", "_length", "carrier")

    def __init__(self, ids: "Sequence[int] | npt.NDArray[np.int32]" = ()) -> None:
        given = _as_array(ids)
        self._buffer = _Buffer(given, 0)
        self._length = len(given)
        self.carrier: Any = None

    def extended(self, new: "Sequence[int] | npt.NDArray[np.int32]") -> "TokenIds":
        """Returns these ids and `new`; in place where nothing else follows them yet."""
        ids = _as_array(new)
        buffer = self._buffer
        end = self._length + len(new)
        if buffer.length == self._length:
            buffer.append(ids)
        elif buffer.length < end or not np.array_equal(buffer.ids[self._length : end], ids):
            buffer = _Buffer(self.array(), len(ids))
            buffer.append(ids)
        longer = TokenIds.__new__(TokenIds)
        longer._buffer = buffer
        longer._length = end
        longer.carrier = None
        return longer

    def carried(self, carrier: Any) -> "TokenIds":
        same = self.extended(())
        same.carrier = carrier
        return same

    def array(self) -> "npt.NDArray[np.int32]":
        """Returns the ids without a copy, read-only."""
        view = self._buffer.ids[: self._length]
        view.flags.writeable = False
        return view

    def json(self) -> bytes:
        """Returns the ids as a JSON array."""
        return self._buffer.json(self._length)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> "npt.NDArray[Any]":
        view = self.array()
        return view.astype(dtype or view.dtype, copy=bool(copy))

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            return tuple(self.array()[index].tolist())
        return int(self.array()[index])

    def __iter__(self) -> Iterator[int]:
        return iter(self.array().tolist())

    def __eq__(self, other: object) -> bool:
        """Compares with any sequence of ids."""
        if isinstance(other, TokenIds):
            return np.array_equal(self.array(), other.array())
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TokenIds({self._length} ids)"


def encode_plain(value: object) -> orjson.Fragment:
    """Returns JSON for `orjson.dumps(default=...)`. Raises TypeError for what is not TokenIds."""
    if type(value) is TokenIds:
        return orjson.Fragment(value.json())
    raise TypeError(f"{type(value).__name__} is no JSON")


def _as_array(ids: "Sequence[int] | npt.NDArray[np.int32]") -> "npt.NDArray[np.int32]":
    if type(ids) is TokenIds:
        return ids.array()
    return np.asarray(ids, np.int32)


def _encode_ids(ids: "npt.NDArray[np.int32]") -> bytes:
    return orjson.dumps(ids, option=orjson.OPT_SERIALIZE_NUMPY)
