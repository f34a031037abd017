"""What would be: what a change brings, and when growing memory ends."""
