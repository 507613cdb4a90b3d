"""Pure column maths: intervals, nesting, kernel categories. No files, no tables' layout, no state."""
