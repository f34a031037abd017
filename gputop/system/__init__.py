"""Parts that any program needs: settings, console, text, errors, crash log, scheduling priority, memory, new files."""
