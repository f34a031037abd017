"""The parts of the screen, one file each; all are drawn by lines (see `drawn`)."""
