"""One trace file of any producer to tables: find, open, cut, decode, link."""
