"""The server behind the page, and the page's TypeScript sources in `ui/`.

In: directories of traces, and requests of the page (`PROTOCOL.md`).
Out: JSON and column files to an authorized browser; the page computes no numbers.
"""
