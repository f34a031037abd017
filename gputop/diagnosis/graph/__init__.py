"""The wait-for graph: who waits for whom, where the walk ends, and what its leaves cost."""
