"""The screen: the only part that imports textual, and that by `gputop.tui.toolkit`."""
