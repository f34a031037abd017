"""The last ten minutes as columns on one time axis, and the observers that fill them from frames."""
