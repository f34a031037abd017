"""Incidents told to somebody who does not look at the screen: a bell, the desktop, a webhook, a command."""
