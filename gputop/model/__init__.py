"""The vocabulary: frames, the latest reading of everything, rates, roles, fields."""
