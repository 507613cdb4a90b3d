"""torchrun, which ends by a signal as other programs do: without a traceback of its own, with 128 + the signal's
number; and which says in its table alone that a worker has failed.

``python -m rankscope.launch.elastic [torchrun's arguments]``, as ``rankscope run`` starts it.
"""

from __future__ import annotations

import runpy
import signal
import sys


def main() -> None:
    """Run torchrun in this process."""
    try:
        runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        # Both are torch.distributed.elastic.multiprocessing's and cannot be named here: nothing in launch imports
        # torch. The workers are gone by then.
        if type(error).__name__ == "SignalException" and hasattr(error, "sigval"):
            sys.exit(128 + int(error.sigval))
        if type(error).__name__ == "ChildFailedError":
            # Its table says who failed and how; twenty lines of torchrun's insides before it say nothing.
            sys.stderr.write(f"{error}\n")
            sys.exit(1)
        raise


if __name__ == "__main__":
    main()
