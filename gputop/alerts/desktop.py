"""``desktop``: a notification of the desktop, by the terminal: OSC 9, 99 or 777. It reaches the desktop over ssh and through tmux.

OSC 99 is kitty's, OSC 777 rxvt-unicode's (foot, VTE, WezTerm and Ghostty know it), OSC 9 iTerm2's. A terminal without any shows nothing.
tmux passes it on with ``set -g allow-passthrough on``.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from gputop.alerts.alert import BEGIN, Alert
from gputop.alerts.terminal import write_terminal
from gputop.system.text import clean

ST = "\x1b\\"
MOST_BODY = 200  # characters; what a notification shows, and far below any terminal's bound of a sequence (a choice)
TMUX_S = 1.0  # s for tmux's answer
_OSC_777 = ("rxvt", "foot", "vte", "wezterm", "ghostty")


class Desktop:
    """Shows a notification when an incident begins, and when it ends."""

    name = "desktop"

    def send(self, alert: Alert) -> None:
        title = f"gputop: {alert.incident.cause}" + ("" if alert.event == BEGIN else " is over")
        sequence = notification(kind(terminal_name(os.environ)), title, alert.text)
        write_terminal(through_tmux(sequence) if "TMUX" in os.environ else sequence)


def make(_text: str) -> Desktop:
    """The sink."""
    return Desktop()


def kind(name: str) -> int:
    """Number of the OSC that the terminal of this name understands."""
    if "kitty" in name:
        return 99
    return 777 if any(word in name for word in _OSC_777) else 9


def terminal_name(environ: Mapping[str, str]) -> str:
    """Name of the terminal from the environment, or from tmux; lower case, empty if neither has it."""
    hints = {"KITTY_WINDOW_ID": "kitty", "VTE_VERSION": "vte", "WEZTERM_PANE": "wezterm", "GHOSTTY_RESOURCES_DIR": "ghostty"}
    if "TMUX" in environ:  # the variables are of the terminal in which the server was started, maybe another one long ago
        return _of_tmux().lower()
    found = [word for name, word in hints.items() if name in environ]
    return " ".join([*found, environ.get("TERM_PROGRAM", ""), environ.get("LC_TERMINAL", ""), environ.get("TERM", "")]).lower()


def _of_tmux() -> str:
    try:
        asked = ["tmux", "display-message", "-p", "#{client_termtype} #{client_termname}"]
        told = subprocess.run(asked, capture_output=True, timeout=TMUX_S, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stdout.decode(errors="replace").strip()


def notification(osc: int, title: str, body: str) -> str:
    """The sequence. A semicolon would begin the next field."""
    title, body = clean(title).replace(";", ","), clean(body, MOST_BODY)
    if osc == 99:
        return f"\x1b]99;i=gputop:d=0:p=title;{title}{ST}\x1b]99;i=gputop:d=1:p=body;{body}{ST}"
    if osc == 777:
        return f"\x1b]777;notify;{title};{body.replace(';', ',')}{ST}"
    return f"\x1b]9;{body}{ST}"


def through_tmux(sequence: str) -> str:
    """Wrapped so that tmux hands it to its terminal (DCS passthrough)."""
    doubled = sequence.replace("\x1b", "\x1b\x1b")
    return f"\x1bPtmux;{doubled}{ST}"
