"""Copying to the clipboard of the terminal that the user sits at, also over SSH and from within tmux or screen: OSC 52."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from textual.app import App

from gputop.tui.terminal import send

TMUX_S = 1.0  # s for tmux to take a text: it answers in some ms, or hangs


def copy_nth(app: App[object], commands: Sequence[str], number: int) -> str:
    """Copy one of the commands, counted from 1; returns a line with the outcome."""
    if not commands:
        return "there is no command to copy here"
    if number > len(commands):
        return f"there is no command {number}"
    return f"{copy(app, commands[number - 1])}: {commands[number - 1]}"


def copy(app: App[object], text: str) -> str:
    """Copy a text without control characters; where it went, in a few words. Whether a terminal takes OSC 52 cannot be asked."""
    if os.environ.get("TMUX") and _tmux_takes(text):
        return "copied, by tmux"
    send(app, sequences(text, os.environ.get("TERM", "")))
    return "copied, by the terminal (OSC 52)"


def sequences(text: str, term: str) -> str:
    """OSC 52 with the text; under tmux or screen a second time, wrapped so that these pass it on to the terminal around them."""
    from base64 import b64encode

    osc = f"\x1b]52;c;{b64encode(text.encode('utf-8', 'replace')).decode()}"
    plain = f"{osc}\x07"
    if term.startswith("tmux") or os.environ.get("TMUX"):
        return f"{plain}\x1bPtmux;\x1b{osc}\x07\x1b\\"
    if term.startswith("screen"):  # tmux's name of old, too; each drops what is meant for the other
        return f"{plain}\x1bPtmux;\x1b{osc}\x07\x1b\\\x1bP{osc}\x07\x1b\\"
    return plain


def _tmux_takes(text: str) -> bool:
    """Give the text to tmux, which passes it on to its own terminal (-w); by default it ignores OSC 52 from within."""
    try:
        done = subprocess.run(["tmux", "load-buffer", "-w", "-"], input=text.encode(), capture_output=True, timeout=TMUX_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
