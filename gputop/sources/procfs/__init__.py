"""Processes, their threads and identities, from /proc alone: what any user may read, and with root the rest.

* `source`: which process is read when; * `process`: one process; * `threads`: the threads of a trainer or worker; * `identity`: command
line, user, cgroup; * `waits`: the system call a thread sleeps in; * `locks`: holders of file locks; * `ends`: the other end of pipes and
sockets; * `libraries`: CUDA and frameworks.
"""

from gputop.sources.procfs.source import ProcfsSource

__all__ = ["ProcfsSource"]
