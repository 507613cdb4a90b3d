"""Protocol Buffers' wire format, without a schema: the fields of a message, and a message of fields.

The input is untrusted: every length is checked against the message around it, a varint has at most ten bytes, and an
error names the byte at which it is.

In: the bytes of a message. Out: its fields by number. And the reverse.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MASK = (1 << 64) - 1
_MAX_FIELD = (1 << 29) - 1
_U64, _U32, _F64 = Struct("<Q"), Struct("<I"), Struct("<d")

Field = tuple[int, int, int, int]
"""Number, wire type, then the value and 0; for `BYTES` where the content begins and ends."""


class WireError(ValueError):
    """Bytes that are not a message.

    Attributes:
        at: where in the data.
        cut: whether more data could make it one.
    """

    def __init__(self, what: str, at: int, *, cut: bool = False) -> None:
        super().__init__(what)
        self.at, self.cut = at, cut


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number of up to 64 bits, and where what follows it begins.

    Raises:
        WireError: it is longer than ten bytes, or the data ends in it.
    """
    value = shift = 0
    first = at
    while True:
        if at >= end:
            raise WireError("the data ends in a number", first, cut=True)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, at
        shift += 7
        if shift > 63:
            raise WireError("a number of more than ten bytes", first)


def read_fields(data: bytes, at: int, end: int) -> Iterator[Field]:
    """The fields of the message between two places, in their order.

    Raises:
        WireError: it is not one.
    """
    while at < end:
        begins = at
        tag = data[at]
        at += 1
        if tag > 0x7F:
            tag, at = read_varint(data, begins, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number <= _MAX_FIELD:
            raise WireError(f"a field with the number {number}", begins)
        if wire == VARINT:
            value, at = read_varint(data, at, end)
            yield number, VARINT, value, 0
        elif wire == BYTES:
            size, at = read_varint(data, at, end)
            if size > end - at:
                raise WireError(f"a field of {size} bytes where {end - at} are left", begins, cut=True)
            yield number, BYTES, at, at + size
            at += size
        elif wire in (FIXED64, FIXED32):
            unpack = _U64 if wire == FIXED64 else _U32
            if unpack.size > end - at:
                raise WireError("the data ends in a number", begins, cut=True)
            yield number, wire, unpack.unpack_from(data, at)[0], 0
            at += unpack.size
        else:
            raise WireError(f"a field of the unknown kind {wire}", begins)


def signed(value: int) -> int:
    """A number as it was before it was written: the field is an `int64`."""
    return value - (1 << 64) if value >> 63 else value


def as_double(value: int) -> float:
    """The bits of a `FIXED64` as a floating point number."""
    found: float = _F64.unpack(_U64.pack(value))[0]
    return found


# -- writing ------------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """A number of up to 64 bits, a negative one as its complement."""
    value &= _MASK
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def number_field(number: int, value: int) -> bytes:
    """A field with an integer."""
    return varint(number << 3) + varint(value)


def fixed_field(number: int, value: int) -> bytes:
    """A field with eight bytes of an unsigned integer (`fixed64`)."""
    return varint(number << 3 | FIXED64) + _U64.pack(value & _MASK)


def double_field(number: int, value: float) -> bytes:
    """A field with a floating point number (`double`)."""
    return varint(number << 3 | FIXED64) + _F64.pack(value)


def bytes_field(number: int, content: bytes) -> bytes:
    """A field with a message or bytes."""
    return varint(number << 3 | BYTES) + varint(len(content)) + content


def text_field(number: int, text: str) -> bytes:
    """A field with a text; what UTF-8 cannot express becomes `?`."""
    return bytes_field(number, text.encode("utf-8", "replace"))
