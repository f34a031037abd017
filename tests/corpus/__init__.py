"""Recordings of the labelled workloads, and how often the diagnosis is right on them: `make accuracy`."""
