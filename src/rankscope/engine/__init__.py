"""Where and in what order things are computed: ``pipeline`` (a run), ``executors`` (where tasks run), ``query`` (SQL).

In: trace files, analyses and rules. Out: a run whose tables, results and findings are computed when they are asked for.
"""
