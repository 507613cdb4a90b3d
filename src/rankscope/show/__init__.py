"""For people and for other tools: ``report``, ``timeline``, ``web`` (the page), ``export``, ``agents``, ``monitor``.

In: runs, results and verdicts. Out: text, pages, files in other tools' formats, answers to requests. Nothing here
decides what is true of a run.
"""
