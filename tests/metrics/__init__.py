"""The exporter: metrics, who serves them, and what is shipped for those who read them."""
