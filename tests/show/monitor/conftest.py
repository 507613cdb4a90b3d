"""The command lowers its process's priority for good: not that of the tests."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def usual_priority(monkeypatch):
    monkeypatch.setattr(os, "nice", lambda _increment: 0, raising=False)
