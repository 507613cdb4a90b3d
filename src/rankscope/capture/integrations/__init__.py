"""Callbacks for trainers of other libraries: a module each, because importing one needs its library.

In: the options of `Profiler`. Out: a callback for the trainer.
"""
