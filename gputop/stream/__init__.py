"""One stream of frames: where it comes from, its restarts, what is known of it, what was kept."""
