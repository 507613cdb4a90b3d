"""`python -m benchmarks [NAME …]`: run benchmarks by name; all of them without one."""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module

import benchmarks

NAMES = [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name not in ("__main__", "peers", "timing")]


def main(wanted: list[str]) -> int:
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in wanted or NAMES:
        print(f"== {name}", flush=True)
        import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
