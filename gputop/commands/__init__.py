"""The commands, one module each; `gputop.cli` lists them."""
