"""Experiments that run a job several times, or change it while it runs, and say what they found with its uncertainty.

``results`` is what each writes (``overhead.json``, ``scaling.json``, ``buckets.json``, ``binding.json``,
``profiler.json``), ``files`` how, ``statistics`` the arithmetic, ``formulas`` what is computed of times, ``jobs`` how
one is run, and there is a module for each experiment. What runs inside the job is in ``rankscope.measure.injob``.
"""

SCHEMA = 1
"""Of the files that experiments write; it stands here for those who only look whether a file is one of them."""
