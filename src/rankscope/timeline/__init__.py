"""The timeline: every rank's events as lanes on one clock, and what a screen needs of them at any zoom.

`clock` puts the ranks' times on one clock, `tracks` makes a rank's tables into events with a track each, `lanes`
lays them out so that nothing in a lane overlaps, `pyramid` sums them per lane at widths that grow by four, `rank`
keeps all that in one file beside the tables, and `whole` is the run: its layout, tiles and events over all ranks.
"""
