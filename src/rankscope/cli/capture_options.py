"""Commands that also take capture options, in any order before the user's script or command.

In: a command line. Out: the command's own options, and the values of the others in the context's `meta`.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from rankscope.jobs.exec import SWITCHES, leading_options
from rankscope.rundir.config import OPTIONS, CaptureConfig

OTHER_OPTIONS = "rankscope.capture"
"""Key in the context's `meta` of the options that are not the command's: capture options and unknown ones."""
CONTEXT_SETTINGS = {
    "allow_extra_args": True,
    # Everything after the script belongs to the script, `--help` too.
    "allow_interspersed_args": False,
}


CAPTURE = CaptureConfig()
PANELS = {"capture": "Options of the capture"}


class CaptureCommand(TyperCommand):
    """A command with a parameter ``capture: CaptureConfig`` for its help; the options' values go to `meta`."""

    module_is_script = False
    """Whether ``-m MODULE`` may replace the script, so that options end there."""
    usage_rest = "SCRIPT.py [ARGS]..."
    """What follows the options, for the usage line: it is no parameter of the command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        params = [param for param in self.params if param.name not in OPTIONS.values()]
        self.command_options = {name: param for param in params for name in (*param.opts, *param.secondary_opts)}

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line."""
        return [*super().collect_usage_pieces(ctx), self.usage_rest]

    def flags(self) -> set[str]:
        """Options that take no value."""
        flags = {name for name, param in self.command_options.items() if getattr(param, "is_flag", False)}
        return {"--help", *SWITCHES, *flags, *(["-m"] if self.module_is_script else [])}

    def unknown(self, name: str, command: str | None) -> None:
        """Called for each option that is neither the command's nor the capture's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Separate the command's options from the others before typer parses them."""
        options, rest = leading_options(args, self.flags())
        if self.module_is_script and options and options[-1] == ("-m",):
            rest = [*options.pop(), *rest]
        known = {"--help", *self.command_options}
        command_words: list[str] = []
        other_words: list[str] = []
        for words in options:
            name = words[0].partition("=")[0]
            is_known = name in known or (not name.startswith("--") and name[:2] in known)
            if not is_known and "--" + name.removeprefix("--").replace("_", "-") not in OPTIONS:
                self.unknown(name, ctx.info_name)
            (command_words if is_known else other_words).extend(words)
        ctx.meta[OTHER_OPTIONS] = other_words
        return super().parse_args(ctx, [*command_words, *(rest if rest[:1] == ["--"] else ["--", *rest])])
