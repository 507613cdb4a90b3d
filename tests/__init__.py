"""The tests mirror `src/rankscope`; what several of them build traces with is `tests.kineto`."""
