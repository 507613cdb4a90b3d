"""Commands that take the options of a capture too, in any order before a script or command of the user's."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from rankscope.jobs.exec import SWITCHES, leading_options
from rankscope.rundir.config import OPTIONS, CaptureConfig

OTHER_OPTIONS = "rankscope.capture"
"""Where the context's `meta` has the options that are not the command's own: those of the capture, and unknown ones."""
CONTEXT_SETTINGS = {
    "allow_extra_args": True,
    # Everything after the script is the script's own, `--help` too.
    "allow_interspersed_args": False,
}


CAPTURE = CaptureConfig()
PANELS = {"capture": "Options of the capture"}


class CaptureCommand(TyperCommand):
    """A command with a parameter ``capture: CaptureConfig`` for its help; the given options are set aside in `meta`."""

    module_is_script = False
    """Whether ``-m MODULE`` may replace the script, so that options end there."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = [param for param in self.params if param.name not in OPTIONS.values()]
        self.own = {name: param for param in own for name in (*param.opts, *param.secondary_opts)}

    def flags(self) -> set[str]:
        """Options that take no value."""
        own = {name for name, param in self.own.items() if getattr(param, "is_flag", False)}
        return {"--help", *SWITCHES, *own, *(["-m"] if self.module_is_script else [])}

    def unknown(self, name: str, command: str | None) -> None:
        """Called for each option that is neither the command's own nor the capture's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Divide the words before typer reads the command's own options."""
        options, rest = leading_options(args, self.flags())
        if self.module_is_script and options and options[-1] == ("-m",):
            rest = [*options.pop(), *rest]
        own: list[str] = []
        other: list[str] = []
        for words in options:
            name = words[0].partition("=")[0]
            is_own = name in self.own or name == "--help" or (not name.startswith("--") and name[:2] in self.own)
            if not is_own and "--" + name.removeprefix("--").replace("_", "-") not in OPTIONS:
                self.unknown(name, ctx.info_name)
            (own if is_own else other).extend(words)
        ctx.meta[OTHER_OPTIONS] = other
        return super().parse_args(ctx, [*own, *(rest if rest[:1] == ["--"] else ["--", *rest])])
