"""Names of uids. /etc/passwd first; what it does not know is asked of the name service in a thread, since LDAP may take seconds."""

from __future__ import annotations

import threading
from contextlib import suppress


class Users:
    """uid -> name. ``resolved`` counts late answers, so that a caller can notice them."""

    def __init__(self, root: str) -> None:
        self._names = _passwd(root + "etc/passwd")
        self._ask = root == "/"
        self._asked: set[int] = set()
        self.resolved = 0

    def name(self, uid: int) -> str:
        """Empty while it is not known, and for uids that have no name."""
        name = self._names.get(uid, "")
        if not name and self._ask and uid not in self._asked:
            self._asked.add(uid)
            with suppress(RuntimeError):  # no more threads are allowed: the number stands for the name
                threading.Thread(target=self._resolve, args=(uid,), daemon=True, name="gputop-users").start()
        return name

    def _resolve(self, uid: int) -> None:
        import pwd

        try:
            self._names[uid] = pwd.getpwuid(uid).pw_name
        except (KeyError, OSError):
            return
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
