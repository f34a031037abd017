"""Columns on one time axis, and what puts values into them."""
