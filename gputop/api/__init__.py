"""The Python API: what `gputop.watch` and `gputop.open` give, and their types. `gputop/__init__.py` names what is public."""
