"""What agents may ask: the tools, the server, and how few questions lead to a cause."""
