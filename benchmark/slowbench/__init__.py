"""Slow training jobs with known causes, and a table of the tools that find these causes."""

__version__ = "2026.1"
