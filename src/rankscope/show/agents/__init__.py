"""What programs that use tools (agents) may ask of runs: `rankscope mcp`.

Every number comes from the functions that the page, the report and the command line use; here are only the choice of
the run, the bounds of an answer, and where on the page the same is shown. `server` speaks the protocol and is the only
module that needs the package `mcp`.

In: directories named at the start, and calls of tools. Out: bounded answers as JSON values, and pictures.
"""
