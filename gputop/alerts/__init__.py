"""Alerts: incidents told to somebody who does not look at the screen, once when one begins and once when it ends."""
