"""The timeline: every rank's events in lanes on one clock, aggregated for any zoom.

In: a run's tables and its `clock` analysis. Out: layout, tiles and events of any window, as JSON and column files.
`clock` aligns the ranks, `tracks` and `lanes` lay out a rank's events, `pyramid` aggregates each lane in bins,
`rank_lanes` caches that in one file per rank, and `timeline` combines the ranks.
"""
