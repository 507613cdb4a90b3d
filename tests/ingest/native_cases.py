"""Both readers over a file, and files that try what one of them might take in another way.

`python -m tests.ingest.native_cases SEED MINUTES` compares them over damaged and distorted files for a while, and
`… pieces FOLDER` writes what `native/examples/fuzz.rs` starts from.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ingest.test_fuzz import bases, damage, spans_of

from rankscope.errors import RankscopeError
from rankscope.ingest import native
from rankscope.ingest.kineto import KinetoTrace, read_kineto

CHUNKS = [200, 1000, 5000, 1 << 16, 4 << 20]
_FIELDS = ("counts", "losses", "odd", "metadata", "extent", "json_bytes", "others")
# A value after its key, or in an array: a number, a text, or a word.
_VALUE = re.compile(rb'(?<=[:\[,])\s*(?:-?[0-9][0-9.eE+-]*|"[^"\\]*"|null|true|false)(?=\s*[,\]}])')
_KEY = re.compile(rb'"[^"\\]*"\s*:\s*')
_VALUES = rb"""0 1 7 -1 -0 007 1.5 1.0 0.001 12.3456 1e3 1E-2 -3.25 8796093022208.125 4398046511103.999
4503599627370.5 999999999999999999 9223372036854775807 9223372036854775808 -9223372036854775808 4611686018427387
1e400 null true false "" "7" "-7" "007" "1.5" " 7" "null" "true" "x" "Spans" "\u00e9" "\u0000" "\ud83d\ude00" "\ud800"
"a\nb" "\"" "\\" "\/" "[memory]" "Python GC" "ProfilerStep#12" "record_param_comms" "kernel" "X" "i" [] {} [1,[2]]
[1.50,"a"] {"a":1,"a":2} "9999999999999999999999" .5 +1 1. nan NaN Infinity 0x1 - "\q" "\u12" [1,] {,}""".split()
_KEYS = [b'"%s":' % name for name in rb"ph|cat|name|ts|dur|pid|tid|id|args|External id|stream|bytes|Seq".split(b"|")]


def distorted(source: random.Random, text: bytes) -> bytes:
    """A trace in which some values and keys of events are others, and which is mostly still JSON."""
    spans = spans_of(text)
    if not spans:
        return text
    for start, end in sorted(source.sample(spans, min(len(spans), source.choice([1, 1, 2, 5]))), reverse=True):
        event = text[start:end]
        for _ in range(source.choice([1, 1, 3])):
            kind = source.randrange(6)
            found = list((_KEY if kind == 1 else _VALUE).finditer(event))
            if not found:
                continue
            one = source.choice(found)
            if kind == 1:
                event = event[: one.start()] + source.choice(_KEYS) + event[one.end() :]
            elif kind == 2:  # a key more, perhaps for the second time
                added = source.choice(_KEYS) + source.choice(_VALUES) + b","
                at = source.choice([place.end() for place in re.finditer(rb"\{", event)])
                event = event[:at] + added + event[at:]
            elif kind == 3:
                event = event[: one.start()] + source.choice([b" ", b"\n\t", b"\r\n" * 9]) + event[one.start() :]
            else:
                event = event[: one.start()] + source.choice(_VALUES) + event[one.end() :]
        text = text[:start] + event + text[end:]
    return text


def read(file: Path, reader: str, **how: Any) -> KinetoTrace | str:
    """What a reader makes of a file, or the error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.VARIABLE, reader)
        try:
            return read_kineto(str(file), **how)
        except RankscopeError as error:
            return str(error)


def differences(file: Path, **how: Any) -> list[str]:
    """In what the two readers differ."""
    ours, reference = (read(file, reader, **how) for reader in ("native", "python"))
    if isinstance(ours, str) or isinstance(reference, str):
        return [] if ours == reference else [f"{ours} / {reference}"]
    found = [name for name, table in reference.tables.items() if not ours.tables[name].equals(table)]
    found += [name for name in _FIELDS if getattr(ours, name) != getattr(reference, name)]
    return found + (["order of counts"] if list(ours.counts) != list(reference.counts) else [])


def mutations(seed: int) -> Iterator[tuple[int, bytes, int]]:
    """Damaged and distorted traces without end, each with its seed and a size of chunks."""
    while True:
        source = random.Random(seed)
        change = source.choice([damage, _distorted])
        yield seed, change(source, source.choice(bases()), bases()), source.choice(CHUNKS)
        seed += 1


def _distorted(source: random.Random, text: bytes, _: list[bytes]) -> bytes:
    return distorted(source, text)


def toolchain() -> dict[str, str]:
    """Where rustup's cargo finds its compiler, although tests have a home of their own."""
    cargo = shutil.which("cargo")
    rustup = Path(cargo).parents[2] / ".rustup" if cargo else None
    return {"RUSTUP_HOME": str(rustup)} if rustup and rustup.is_dir() else {}


def write_pieces(folder: Path) -> None:
    """The description of events, and arrays of a few events each."""
    (folder / "pieces").mkdir(parents=True)
    (folder / "description").write_bytes(native._description()[0])
    for number, text in enumerate(bases()):
        spans = spans_of(text)
        for first in range(0, len(spans), 12):
            events = [text[start:end] for start, end in spans[first : first + 12]]
            (folder / "pieces" / f"{number}-{first}.json").write_bytes(b"[" + b",\n".join(events) + b"]")


def main() -> None:
    if sys.argv[1] == "pieces":
        write_pieces(Path(sys.argv[2]))
        return
    seed, minutes = int(sys.argv[1]), float(sys.argv[2])
    end, number, differ = time.monotonic() + 60 * minutes, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "t.json"
        for each, text, chunk_bytes in mutations(seed):
            file.write_bytes(text)
            number += 1
            if found := differences(file, chunk_bytes=chunk_bytes):
                differ += 1
                print(f"seed {each}, chunks of {chunk_bytes}: {found}", flush=True)
            if time.monotonic() > end:
                break
    print(f"{number} files, {differ} differ")


if __name__ == "__main__":
    main()
