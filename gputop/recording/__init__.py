"""The stream's bytes: written to a pipe or a file, read back as frames."""
