"""One process read closely, for the Enter view."""
