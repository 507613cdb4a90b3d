"""Read a pickle of plain values without running code: an interpreter of the few opcodes that they need.

`pickle.load` calls whatever a file names. Even without imports, Python's unpickler allocates memory for sizes in the
file before it reads a byte. This one supports numbers, text, bytes, tuples, lists, dicts and the memo. It has no opcode
that imports, calls, builds or sets state; a file that needs one is rejected.

In: the bytes of a pickle. Out: plain values, or an error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 200
MAX_HEIGHT = 100_000
MAX_INTEGER_BYTES = 32
_CALLS = {
    b"R": "REDUCE", b"b": "BUILD", b"i": "INST", b"o": "OBJ", b"\x81": "NEWOBJ", b"\x92": "NEWOBJ_EX",
    b"P": "PERSID", b"Q": "BINPERSID", b"\x82": "EXT1", b"\x83": "EXT2", b"\x84": "EXT4",
    b"\x97": "NEXT_BUFFER", b"\x98": "READONLY_BUFFER",
}  # fmt: skip


class UnpickleError(ValueError):
    """A pickle that is cut, damaged, or needs more than plain values."""


class _Mark:
    """The start of a tuple, list or dict."""


_MARK = _Mark()


def unpickle(data: bytes) -> Any:
    """The value in a pickle.

    Args:
        data: the complete pickle.

    Raises:
        UnpickleError: it is cut, damaged, nested too deeply, or needs an import or a call.
    """
    try:
        return _Machine(data).run()
    except UnpickleError:
        raise
    except (IndexError, struct.error, ValueError, OverflowError, TypeError, AttributeError) as error:
        raise UnpickleError(f"the pickle is damaged: {error}") from error


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []

    def run(self) -> Any:
        """Run the opcodes up to STOP."""
        data, steps = self.data, _STEPS
        while True:
            code = data[self.at : self.at + 1]
            self.at += 1
            step = steps.get(code)
            if step is not None:
                step(self)
            elif code == b".":
                if len(self.stack) != 1:
                    raise UnpickleError("the pickle is damaged: it does not end with one value")
                return self.stack[0]
            else:
                raise self._refused(code)

    def _refused(self, code: bytes) -> UnpickleError:
        if not code:
            return UnpickleError("the pickle ends too early")
        if code in (b"c", b"\x93"):
            names = self._line(2) if code == b"c" else [part for part in self.stack[-2:] if isinstance(part, str)]
            return UnpickleError(f"it imports {'.'.join(names)[:100]!r}, which plain values do not need")
        if code in _CALLS:
            return UnpickleError(f"it calls or builds something ({_CALLS[code]}), which plain values do not need")
        return UnpickleError(f"the pickle is damaged: opcode {code!r} at byte {self.at - 1}")

    def take(self, count: int) -> bytes:
        """The next `count` bytes; an error if there are fewer."""
        if count < 0 or count > len(self.data) - self.at:
            raise UnpickleError("the pickle ends too early")
        data = self.data[self.at : self.at + count]
        self.at += count
        return data

    def number(self, form: str) -> Any:
        """A number in a form of `struct`."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def _line(self, count: int) -> list[str]:
        return [part.decode("utf-8", "replace") for part in self.data[self.at :].split(b"\n", count)[:count]]

    def line(self) -> bytes:
        """Text up to the end of its line."""
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise UnpickleError("the pickle ends too early")
        return self.take(end + 1 - self.at)[:-1]

    def integer(self, count: int) -> int:
        """A little-endian integer of `count` bytes."""
        if count > MAX_INTEGER_BYTES:
            raise UnpickleError(f"an integer of {count} bytes, which no snapshot or dump has")
        return int.from_bytes(self.take(count), "little", signed=True)

    def decimal(self, text: bytes) -> int:
        """An integer in decimal digits."""
        if len(text) > 80:
            raise UnpickleError("an integer of more than 80 digits, which no snapshot or dump has")
        return int(text.rstrip(b"L"))

    def mark(self) -> None:
        """Start a container."""
        if len(self.marks) >= MAX_DEPTH:
            raise UnpickleError(f"it is nested more than {MAX_DEPTH} deep, which no snapshot or dump is")
        self.marks.append(len(self.stack))
        self.stack.append(_MARK)

    def pop_to_mark(self) -> list[Any]:
        """Pop the values above the last mark, and the mark."""
        if not self.marks:
            raise UnpickleError("the pickle is damaged: it ends a container that it did not start")
        mark = self.marks.pop()
        values = self.stack[mark + 1 :]
        del self.stack[mark:]
        return values

    def push(self, value: Any) -> None:
        """Push a value."""
        self.stack.append(value)

    def open(self, value: Any) -> None:
        """Push a new container. The height limit bounds nesting that uses no marks."""
        if len(self.stack) > MAX_HEIGHT:
            raise UnpickleError("it is nested too deeply, which no snapshot or dump is")
        self.stack.append(value)

    def pop(self) -> Any:
        """Pop the top of the stack."""
        value = self.stack.pop()
        if value is _MARK:
            self.marks.pop()
        return value

    def put(self, index: int) -> None:
        """Store the top in the memo. Pickles number their memo consecutively, so a number beyond its end is invalid."""
        if index == len(self.memo):
            self.memo.append(self.stack[-1])
        elif 0 <= index < len(self.memo):
            self.memo[index] = self.stack[-1]
        else:
            raise UnpickleError("the pickle is damaged: its memo jumps")

    def get(self, index: int) -> None:
        """Push a value from the memo."""
        if not 0 <= index < len(self.memo):
            raise UnpickleError("the pickle is damaged: it uses a memo entry that does not exist")
        self.stack.append(self.memo[index])

    def append(self, values: list[Any]) -> None:
        """Append values to the list on the top."""
        target = self.stack[-1]
        if not isinstance(target, list):
            raise UnpickleError("the pickle is damaged: it appends to something that is not a list")
        target.extend(values)

    def setitems(self, values: list[Any]) -> None:
        """Put keys and values into the dict on the top."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(values) % 2:
            raise UnpickleError("the pickle is damaged: it sets items of something that is not a dict")
        # The hash of a tuple in a tuple in a tuple … is recursive, and nothing bounds it.
        if any(not isinstance(key, str | int | float | bytes | None) for key in values[::2]):
            raise UnpickleError("a key that is neither text nor a number, which no snapshot or dump has")
        target.update(zip(values[::2], values[1::2], strict=True))

    def tuple(self, count: int) -> None:
        """Replace the top values by a tuple of them."""
        if len(self.stack) < count:
            raise UnpickleError("the pickle is damaged: a tuple without enough values")
        values = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.stack.append(values)


def _setitem(m: _Machine) -> None:
    value, key = m.pop(), m.pop()
    m.setitems([key, value])


def _dict(m: _Machine) -> None:
    values = m.pop_to_mark()
    m.stack.append({})
    m.setitems(values)


def _append(m: _Machine) -> None:
    value = m.pop()
    m.append([value])


def _bool_or_int(m: _Machine) -> None:
    text = m.line()
    m.push(text == b"01" if text in (b"00", b"01") else m.decimal(text))


_STEPS: dict[bytes, Callable[[_Machine], object]] = {
    b"\x80": lambda m: m.take(1),
    b"\x95": lambda m: m.take(8),
    b"(": _Machine.mark,
    b"0": lambda m: m.pop(),
    b"1": lambda m: m.pop_to_mark(),
    b"2": lambda m: m.push(m.stack[-1]),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"I": _bool_or_int,
    b"L": lambda m: m.push(m.decimal(m.line())),
    b"J": lambda m: m.push(m.number("<i")),
    b"K": lambda m: m.push(m.number("<B")),
    b"M": lambda m: m.push(m.number("<H")),
    b"\x8a": lambda m: m.push(m.integer(m.number("<B"))),
    b"\x8b": lambda m: m.push(m.integer(m.number("<i"))),
    b"F": lambda m: m.push(float(m.line()[:40])),
    b"G": lambda m: m.push(m.number(">d")),
    b"V": lambda m: m.push(m.line().decode("raw-unicode-escape")),
    b"X": lambda m: m.push(m.take(m.number("<I")).decode("utf-8", "surrogatepass")),
    b"\x8c": lambda m: m.push(m.take(m.number("<B")).decode("utf-8", "surrogatepass")),
    b"\x8d": lambda m: m.push(m.take(m.number("<Q")).decode("utf-8", "surrogatepass")),
    b"U": lambda m: m.push(m.take(m.number("<B")).decode("latin-1")),
    b"T": lambda m: m.push(m.take(m.number("<i")).decode("latin-1")),
    b"B": lambda m: m.push(m.take(m.number("<I"))),
    b"C": lambda m: m.push(m.take(m.number("<B"))),
    b"\x8e": lambda m: m.push(m.take(m.number("<Q"))),
    b")": lambda m: m.push(()),
    b"]": lambda m: m.open([]),
    b"}": lambda m: m.open({}),
    b"t": lambda m: m.push(tuple(m.pop_to_mark())),
    b"l": lambda m: m.push(list(m.pop_to_mark())),
    b"d": _dict,
    b"\x85": lambda m: m.tuple(1),
    b"\x86": lambda m: m.tuple(2),
    b"\x87": lambda m: m.tuple(3),
    b"a": _append,
    b"e": lambda m: m.append(m.pop_to_mark()),
    b"s": _setitem,
    b"u": lambda m: m.setitems(m.pop_to_mark()),
    b"\x94": lambda m: m.put(len(m.memo)),
    b"p": lambda m: m.put(m.decimal(m.line())),
    b"q": lambda m: m.put(m.number("<B")),
    b"r": lambda m: m.put(m.number("<I")),
    b"g": lambda m: m.get(m.decimal(m.line())),
    b"h": lambda m: m.get(m.number("<B")),
    b"j": lambda m: m.get(m.number("<I")),
}
