"""`gputop doctor`: what works on this machine, and the bundle for a bug report, without the names in it."""
