"""The torchrun command under ``rankscope run``: torchrun's own options go through untouched.

Nothing here imports torch: torchrun itself finds out how many accelerators there are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankscope.errors import LaunchError
from rankscope.rundir.launcher import identify

RUN_DIR_VARIABLE = "RANKSCOPE_RUN_DIR"
RUN_ID_VARIABLE = "RANKSCOPE_RUN_ID"

FLAGS = {
    "--standalone",
    "--no-python",
    "--no_python",
    "--run-path",
    "--run_path",
    "-m",
    "--module",
    "-h",
    "--help",
}
"""torchrun's options that take no value: what follows any other is its value, and the first argument that is neither
is the script."""
_RENDEZVOUS = ("nnodes", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "master-addr", "master-port", "node-rank")
_RENDEZVOUS_VARIABLES = ("PET_NNODES", "PET_RDZV_ENDPOINT", "PET_RDZV_BACKEND", "PET_MASTER_ADDR", "PET_NODE_RANK")


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide ``[torchrun options] script.py [args]`` into the options, and the script with its arguments."""
    options: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--":
            break
        options.append(option)
        if option not in FLAGS and "=" not in option and rest:
            options.append(rest.pop(0))
    return options, rest


def command(options: Sequence[str], script: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The whole command line.

    Args:
        options: torchrun's options, as the user gave them.
        script: the script and its arguments.
        environ: the environment, which may hold torchrun's ``PET_*`` settings.

    Raises:
        LaunchError: no script, or one that does not exist.
    """
    if not script:
        raise LaunchError(
            "no script to run", hint="rankscope run [torchrun options] script.py [args], as with torchrun itself"
        )
    given = {_name(option) for option in options}
    if not given & {"m", "module", "no-python"} and not Path(script[0]).is_file():
        raise LaunchError("no such script", path=script[0], hint="give the path of a Python file, or -m MODULE")
    added: list[str] = []
    elsewhere = given & {"standalone", *_RENDEZVOUS} or any(v in environ for v in _RENDEZVOUS_VARIABLES)
    if not elsewhere:
        # A rendezvous of its own, on a port that the system says is free: two jobs on one host do not meet.
        added.append("--standalone")
    if "nproc-per-node" not in given and "PET_NPROC_PER_NODE" not in environ:
        added.append(f"--nproc-per-node={_workers()}")
    return [sys.executable, "-m", "rankscope.launch.elastic", *added, *options, *script]


def refuse_to_nest(environ: Mapping[str, str]) -> None:
    """Fail where this process is already one rank of a job: each of its ranks would start a whole job of its own.

    Raises:
        LaunchError: it is.
        LauncherError: the launcher's variables contradict each other.
    """
    who = identify(environ)
    if who.started_by_launcher and (who.world_size or 1) > 1:
        raise LaunchError(
            f"this process is already rank {who.rank} of {who.world_size}, started by {who.launcher}: "
            "torchrun inside it would start a job in each of them",
            hint=f"let {who.launcher} start the script itself, with {RUN_DIR_VARIABLE} set to one directory for all "
            "ranks, or call `rankscope run` outside it",
        )


def _workers() -> str:
    # `auto` is one worker for each accelerator, but one for each core where there is none; that many CPU ranks are
    # more than anyone means who did not say a number. Device files tell without importing torch.
    devices = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dri"))
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "unset") in ("", "-1")
    if hidden or not any(device.exists() for device in devices[:2]):
        return "1" if hidden or not _has_xpu(devices[2]) else "xpu"
    return "gpu"


def _has_xpu(folder: Path) -> bool:
    # Every graphics card has files there; Level Zero's loader beside them says that one computes.
    return "ONEAPI_ROOT" in os.environ and folder.exists() and any(folder.glob("renderD*"))


def _name(option: str) -> str:
    return option.partition("=")[0].lstrip("-").replace("_", "-")
