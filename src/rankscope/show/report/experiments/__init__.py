"""The five results of `rankscope measure` for people: `tables` for the page and the report, `terminal` for the console.

In: results of `rankscope.experiments.measure`, as objects or as the JSON files in a run's directory.
Out: tables like those of analyses, and rich renderables.
"""
