"""What any program needs: settings, console, text, errors, crashes, its place before the crowd, memory."""
