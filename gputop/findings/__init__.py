"""Findings, in one shape for every surface: verdict, incident, ledger, explanation; path, text and ranges."""
