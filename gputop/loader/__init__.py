"""The DataLoader sweep: how fast a loader is with other numbers of workers."""
