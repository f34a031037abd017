"""Predictions: the gain of a change, and the time until growing memory is full."""
