"""Results for people: terminal output, notebook HTML and the self-contained report file.

In: a run, results of analyses and their findings, results of `rankscope measure`.
Out: rich renderables, HTML and bytes. Renderers format and lay out; they compute no number.
"""
