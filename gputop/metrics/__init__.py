"""Metrics for Prometheus and OpenTelemetry: a registry of names, units and labels, and the ways to serve them."""
