"""The screen: the only part that imports textual."""
