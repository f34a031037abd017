"""Alerts: incidents reported to people away from the screen, once at the begin and once at the end."""
