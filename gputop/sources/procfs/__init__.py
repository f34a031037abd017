"""Processes, their threads and identities, from /proc alone: what any user may read, and with root the rest.

* `source`: which process is read when; * `process`: one process; * `threads`: the threads of a trainer or worker; * `identity`: command
line, user, cgroup; * `names`, `packages`: container, pod, versions; * `locks`, `holders`, `semaphores`: who holds what a process waits for;
* `ends`: who is at the other end of pipes, sockets and shared memory; * `wire`, `transport`, `configured`: how ranks reach each other, and
how they are divided; * `libraries`: CUDA and frameworks; * `shared`: memory that workers share.
"""

from gputop.sources.procfs.source import ProcfsSource

__all__ = ["ProcfsSource"]
