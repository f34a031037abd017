"""Cgroups by the paths that /proc/PID/cgroup tells: who is inside which, and their files where these are mounted by custom."""

from __future__ import annotations

from gputop.diagnosis.shell import word


def holds(group: str, path: str) -> bool:
    """Whether ``path`` is ``group`` or below it; all are below the root."""
    return path == group or path.startswith(group.rstrip("/") + "/")


def file(version: int, controller: str, group: str, name: str) -> str:
    """A file of a group, quoted for a shell: v1 has a hierarchy for each controller, v2 one for all."""
    return word(f"/sys/fs/cgroup/{controller}{group}/{name}" if version == 1 else f"/sys/fs/cgroup{group}/{name}")
