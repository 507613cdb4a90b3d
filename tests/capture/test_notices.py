"""Where warnings point: at the user's line, or at none."""

from __future__ import annotations

import threading
import warnings

import torch

from rankscope.capture.notices import CaptureWarning, warn


def shown(act):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    (each,) = found
    assert each.category is CaptureWarning
    assert str(each.message) == "rankscope: text"
    return each.filename


def test_at_the_users_line(tmp_path):
    assert shown(lambda: warn("text")) == __file__
    module = torch.nn.Linear(1, 1)
    namespace = {"__name__": "rankscope.capture.some", "warn": warn}
    exec("def hook(*given): warn('text')", namespace)
    module.register_forward_hook(namespace["hook"])
    # Between the hook and this file are frames of torch's.
    assert shown(lambda: module(torch.ones(1))) == __file__


def test_at_no_line_in_a_thread_of_rankscopes():
    def act():
        thread = threading.Thread(target=warn, args=("text",))
        thread.start()
        thread.join()

    assert shown(act) == "rankscope"


def test_at_no_line_of_a_command_line():
    """As in a process that multiprocessing has started: the next line of a user's own code is in this file."""
    namespace = {"warn": warn, "__name__": "__main__"}
    assert shown(lambda: exec("warn('text')", namespace)) == __file__


def test_code_without_a_name_may_warn():
    namespace = {"warn": warn, "__name__": None}
    assert shown(lambda: exec("warn('text')", namespace)) == __file__


def test_a_warning_that_cannot_be_shown_harms_nothing(monkeypatch, caplog):
    def show(*_args):
        raise ValueError("I/O operation on closed file")  # as Python's own does once the job has closed sys.stderr

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        warn("text")
    assert [record.getMessage() for record in caplog.records] == ["text"]


def test_where_warnings_are_errors(caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn("first")
        thread = threading.Thread(target=warn, args=("second",))
        thread.start()
        thread.join()
    assert [record.getMessage() for record in caplog.records] == ["first", "second"]
