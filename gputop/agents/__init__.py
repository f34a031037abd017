"""What programs may ask of a machine, a recording or hosts: small answers that say what was not measured. `gputop mcp` serves them."""
