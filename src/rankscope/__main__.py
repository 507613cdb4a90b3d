"""`python -m rankscope`."""

from rankscope.cli import main

main()
