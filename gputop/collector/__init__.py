"""The beat: absolute deadlines, one frame per tick."""
