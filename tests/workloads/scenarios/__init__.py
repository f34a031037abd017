"""One file per labelled workload, each with a ``SCENARIO``."""
