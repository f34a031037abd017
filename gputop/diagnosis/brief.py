"""A verdict's sentences in less room: what they can spare, in the form in which `gputop.diagnosis.takers` lists names and pids.

From text to text, so that what a recording keeps of a diagnosis can be shortened too.
"""

from __future__ import annotations

import re

_PIDS = re.compile(r"\((\d+)((?:, \d+)+)(?: and (\d+) more)?\)")
_STARTS = r"(?: and (?:the [^,;()]+|what) (?:it starts|they start))?"
_NAMES = re.compile(rf"(\w[^,;()]* \(\d[^()]*\){_STARTS})((?:, (?:[^,;()]+ \(\d[^()]*\){_STARTS}|others|short-lived processes))+)")
_WORDS = re.compile(r" but not running| of the time| of the last \d+ s")
_PID = re.compile(r" \(\d+(?: and \d+ more)?\)")  # a process's own, or how many more


def brief(text: str, room: int) -> str:
    """A sentence that is longer than ``room`` characters with what it can spare left out: further pids, further names, set phrases."""
    for pattern, instead in ((_PIDS, _fewer_pids), (_NAMES, _fewer_names), (_WORDS, lambda _: "")):
        if len(text) > room:
            text = pattern.sub(instead, text)
    return text


def without_pids(text: str) -> str:
    """The names alone."""
    return _PID.sub("", text)


def _fewer_pids(found: re.Match[str]) -> str:
    return f"({found[1]} and {found[2].count(',') + int(found[3] or 0)} more)"


def _fewer_names(found: re.Match[str]) -> str:
    count = len(_PID.findall(found[2]))
    return f"{found[1]} and {f'{count} more' if count == found[2].count(', ') else 'others'}"
