"""A guard of the terminal: gives it back where no code of ours can any more (kill -9, the OOM killer, a crash of a C library).

It is a shell that sleeps until our end of its input closes: a quarter of a megabyte, and no CPU. Where there is no shell we go without.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

# A line is our word that the terminal has been given back. Line settings that are no longer those of the screen are somebody else's.
_SCRIPT = r"""
read -r _ && exit
printf '\030\033[?2026l\033[m\033[?2004l\033[?7h\033[?2048l\033[?1000l\033[?1003l\033[?1015l\033[?1006l\033[?1016l'
printf '\033[<u\033[?1049l\033[?25h\033[?1004l'
exec <&1
[ "$(stty -g)" = "$2" ] && stty "$1"
"""
"""Ends a sequence that was cut off (CAN), then undoes what `LinuxDriver.start_application_mode` switches on. ``$1``: the line settings
before, ``$2``: those of the screen."""

MEND_S = 2.0  # s that it may take: a terminal that nobody reads takes nothing
Attributes = list[object]
"""As `termios.tcgetattr` gives them."""


class Guard:
    """Watches over a terminal in the screen's modes until `close`."""

    def __init__(self, terminal: int, before: Attributes, ours: Attributes) -> None:
        """``terminal``: its descriptor; its line settings ``before`` the screen, and as the screen sets them. Made before anything is
        changed, so that there is no moment without it. Raises OSError where there can be no guard."""
        command = ["/bin/sh", "-c", _SCRIPT, "gputop-guard", _stty(before), _stty(ours)]
        # A session of its own: Ctrl-Z and a hang-up are not meant for it, and nothing stops it when another has the terminal.
        self._shell = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=terminal, stderr=subprocess.DEVNULL, start_new_session=True, bufsize=0
        )

    def close(self, given_back: bool) -> None:
        """End it; it mends the terminal where that has not been ``given_back``."""
        assert self._shell.stdin is not None
        with suppress(OSError):  # somebody ended it
            os.write(self._shell.stdin.fileno(), b"\n" if given_back else b"")
        self._shell.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._shell.wait(MEND_S)


def _stty(attributes: Attributes) -> str:
    """As stty -g writes them."""
    modes, characters = attributes[:4], attributes[6]
    assert isinstance(characters, list)
    codes = (code if isinstance(code, int) else code[0] for code in characters)
    return ":".join(f"{number:x}" for number in (*modes, *codes))
