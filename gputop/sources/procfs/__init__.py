"""Processes, their threads and identities, from /proc alone: what any user may read, and with root the rest.

* `source`: who is read when; * `process`: one process; * `threads`: the threads of a trainer or worker;
* `identity`: who a process is; * `waits`: what it sleeps in; * `libraries`: what it maps; * `files`: kept descriptors;
* `parse`: the texts of /proc; * `users`: names of uids.
"""

from gputop.sources.procfs.source import ProcfsSource

__all__ = ["ProcfsSource"]
