"""Writes the outcome of checks as JUnit XML, which CI systems show as tests.

In: checks. Out: XML as bytes, with one test case per check, as the schema of the Jenkins xUnit plugin has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

# What XML 1.0 cannot represent, escapes and invisible characters.
_FORBIDDEN = re.compile(
    "[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u200b-\u200f\u202a-\u202e\u2066-\u2069]"
)
_MAX_TEXT = 4_000


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: what is checked.
        failure: how it failed; empty if it did not.
        error: why it could not be made; empty if it could.
    """

    name: str
    failure: str = ""
    error: str = ""


def to_junit(suite: str, checks: Sequence[Check]) -> bytes:
    """The checks as one test suite.

    Args:
        suite: what the checks are about; also the class of each test case.
        checks: the checks.
    """
    counts = {
        "tests": str(len(checks)),
        "failures": str(sum(bool(check.failure) for check in checks)),
        "errors": str(sum(bool(check.error) for check in checks)),
    }
    root = ElementTree.Element("testsuites", {"name": _text(suite), **counts, "time": "0"})
    element = ElementTree.SubElement(root, "testsuite", {"name": _text(suite), **counts, "skipped": "0", "time": "0"})
    for check in checks:
        attributes = {"classname": _text(suite), "name": _text(check.name), "time": "0"}
        case = ElementTree.SubElement(element, "testcase", attributes)
        for tag, message in (("failure", check.failure), ("error", check.error)):
            if message:
                about = {"message": _text(message.partition("\n")[0]), "type": "condition"}
                ElementTree.SubElement(case, tag, about).text = _text(message)
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _text(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)[:_MAX_TEXT]
