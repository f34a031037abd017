"""Questions that programs may ask of a machine, a recording or hosts: small answers that name what was not measured. `gputop mcp` serves
them."""
