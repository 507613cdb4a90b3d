"""The timeline inside a report file, so that the page can draw it without a server.

In: a run's timeline, its matched collectives and its findings, and the bytes that the file has left.
Out: named blocks of compressed columns, and sentences that say what did not fit.
"""
