"""Where frames come from: a child process, a file, ssh."""
