"""Versions as numbers."""

from __future__ import annotations

import pytest

from rankscope.rundir.versions import is_supported_torch, release


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("2.13.0+cpu", (2, 13, 0)), ("1.14.0a0+410ce96", (1, 14, 0)), ("2", (2,)), ("2.15", (2, 15)), ("unknown", ())],
)
def test_release(version, numbers):
    assert release(version) == numbers


@pytest.mark.parametrize(
    ("version", "supported"),
    [("2.3.1+cu118", False), ("2.4.0a0", True), ("2.10.0", True), ("10.0", True), ("?", True), ("1.9", False)],
)
def test_is_supported_torch(version, supported):
    assert is_supported_torch(version) is supported
