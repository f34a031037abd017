"""Files for other programs that come with gputop: systemd units, a dashboard, rules, manifests. Units start the gputop that is here."""

from __future__ import annotations

import os
import re
import sys

from gputop.system.errors import UserError
from gputop.system.install import in_cache, program
from gputop.system.program import FOLDER
from gputop.system.text import clean, did_you_mean

FILES = {
    "gputop-record.service": "a flight recorder, from boot on",
    "gputop-exporter.service": "metrics for Prometheus, from boot on",
    "gputop-report.service": "the GPU time lost yesterday, by mail",
    "gputop-report.timer": "starts gputop-report.service each morning",
    "prometheus/rules.yml": "recording rules and alerts",
    "grafana/gputop.json": "a dashboard for Grafana",
    "kubernetes.yaml": "a pod that watches one node",
    "kubernetes-exporter.yaml": "the exporter on every GPU node",
}
"""Name below packaging/ -> what it is."""
_PROGRAM = "/usr/local/bin/gputop"  # what the units in packaging/ start
_PLAIN = re.compile(r"[\w./+@-]+", re.ASCII)  # a path that needs no quotes in a unit, nor in a shell within it
# Where a unit's sandbox hides the program: (folders, its line, the line that lets the program be seen).
_HIDDEN = (
    (("/home/", "/root/", "/run/user/"), "ProtectHome=yes", "ProtectHome=read-only"),
    (("/tmp/", "/var/tmp/"), "PrivateTmp=yes", "PrivateTmp=no"),
)


def find(name: str) -> str:
    """The name of a file, which may be given without its folder. UserError for one that is not here."""
    found = [one for one in FILES if name in (one, os.path.basename(one))]
    if not found:
        close = did_you_mean(name, [*FILES, *map(os.path.basename, FILES)])
        raise UserError(f"there is no file {clean(name)}{close or ': gputop files lists them'}", code=2)
    return found[0]


def text_of(name: str, command: str | None = None) -> str:
    """Text of a file. A unit gets ``command``, an absolute path, or this gputop's; UserError if a unit cannot start that."""
    with open(os.path.join(FOLDER, "packaging", name), encoding="utf-8") as file:
        text = file.read()
    if not name.endswith(".service"):
        return text
    needed = [command] if command else [_startable(), *map(os.path.realpath, (_startable(), sys.executable)), FOLDER]
    for folders, line, other in _HIDDEN:
        if any(path.startswith(folders) for path in needed):
            text = re.sub(rf"^{line}$", other, text, flags=re.MULTILINE)
    return text.replace(_PROGRAM, needed[0])


def _startable() -> str:
    """The path of this gputop. UserError for one that cannot stand in a unit."""
    command = program()
    if in_cache():
        raise UserError(f"{clean(command)} lies in a cache that uv may empty: uv tool install gputop-ebpf, and ask that gputop", code=2)
    if not _PLAIN.fullmatch(command):
        raise UserError(f"{clean(command)!r} cannot stand in a unit: sudo ln -s it to {_PROGRAM}, and edit ExecStart", code=2)
    return command


def who_may_change(command: str) -> str:
    """Name of the user other than root who owns a program that a unit starts, or one of its folders, and so can change it; else empty."""
    for path in {command, os.path.realpath(command), FOLDER}:
        while True:
            try:
                owner = os.stat(path).st_uid
            except OSError:
                return ""
            if owner != 0:
                return _user_name(owner)
            if path == os.path.dirname(path):
                break
            path = os.path.dirname(path)
    return ""


def _user_name(uid: int) -> str:
    import pwd

    try:
        return clean(pwd.getpwuid(uid).pw_name, 80)
    except KeyError:
        return f"uid {uid}"
