"""A recording as tables: one row per tick and subject, counters as increments over the tick, every column with its unit."""
