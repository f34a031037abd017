"""Names of uids. /etc/passwd first; what it does not know is asked of the name service in a thread, since LDAP may take seconds."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress


class Users:
    """uid -> name. ``resolved`` counts late answers, so that a caller can notice them."""

    def __init__(self, root: str) -> None:
        self._names = _passwd(root + "etc/passwd")
        self._ask = root == "/"
        self._asked: set[int] = set()
        self._to_ask: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        """One for all, a user may have 65,536 uids and processes of each; while there is somebody to ask for: one that is older than a drop
        of privileges keeps what it may get again."""
        self.resolved = 0

    def name(self, uid: int) -> str:
        """Empty while it is not known, and for uids that have no name."""
        name = self._names.get(uid, "")
        if not name and self._ask:
            if uid not in self._asked:
                self._asked.add(uid)
                self._to_ask.put(uid)
            if not self._to_ask.empty() and (self._thread is None or not self._thread.is_alive()):
                self._start()
        return name

    def _start(self) -> None:
        thread = threading.Thread(target=self._resolve, daemon=True, name="gputop-users")
        with suppress(RuntimeError):  # no room for another thread now
            thread.start()
            self._thread = thread

    def _resolve(self) -> None:
        import pwd

        with suppress(queue.Empty):
            while True:
                uid = self._to_ask.get_nowait()
                with suppress(KeyError, OSError):
                    self._names[uid] = pwd.getpwuid(uid).pw_name
                    self.resolved += 1


def _passwd(path: str) -> dict[int, str]:
    names: dict[int, str] = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                parts = line.split(":")
                if len(parts) > 2 and parts[2].isdecimal():
                    names.setdefault(int(parts[2]), parts[0])
    except OSError:
        pass
    return names
