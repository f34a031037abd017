"""Several machines as one: what each node reports once a second, how it is reached, and which node holds up a job that runs on many."""
