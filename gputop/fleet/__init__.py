"""Several machines as one: what a node says each second, how it is reached, and which of them holds a job that runs on many."""
