"""Slow training jobs whose cause is known, and a table of which tools name it."""

__version__ = "2026.1"
