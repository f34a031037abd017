"""What gputop knows as metrics for Prometheus and OpenTelemetry: a registry of names, units and labels, and who serves it."""
