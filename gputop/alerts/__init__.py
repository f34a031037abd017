"""Alerts: incidents reported to somebody who is not at the screen, once when one begins and once when it ends."""
