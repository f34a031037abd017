"""Lists of machines: what somebody types, files of hosts, and what squeue and kubectl print."""

from __future__ import annotations

import random
from pathlib import Path
from unittest import mock

from gputop.stream.reach import hosts, kubectl, srun
from gputop.system.errors import UserError
from tests.fuzzing.kind import Kind, changed_text, is_harmless
from tests.recording import fuzz

TYPED = (
    "node[01-16,18],gpu7", "node01-16", "a[1-3]b[01-10/2].lab", "ana@node1,ssh://ana@node2:22", "rack[1-4]n[1-8]g[0,1]", "ip-10-0-12-34",
    "[::1],fe80::1%eth0", "node[1-4095]", "a" * 300, "n[000000000000000001-2]",
)  # fmt: skip
FILES = (
    "node1 slots=8\nnode2:8\n# a comment\nnode3 8  # two\n", "node[01-16]\n\ngpu7,gpu8\n", "[gpus]\nnode1 ansible_host=10.0.0.1\n",
    "---\nall:\n  hosts:\n    node1:\n", '{"all": {"hosts": ["node1"]}}', "\ufeffnode1\r\nnode2\r\n", "pod/train-0\npod/train-1\n",
    "node[01-02],node[04-05]\nnode7\n",
)  # fmt: skip
_MANY = ("[", "[1-4095]", "node[1-4095],", "a,", "-", "[1-2]", "1-2,", "01-", "#", "a:1 ", "=", "\n", "[]", "n[1,1,1,1],")


def typed(rng: random.Random) -> bytes:
    """What stands behind --host."""
    return _changed(rng, rng.choice(TYPED))


def listed(rng: random.Random) -> bytes:
    """What a file or a program lists."""
    data = _changed(rng, rng.choice(FILES) * rng.choice((1, 1, 20)))
    return data.decode("utf-8", "replace").encode("utf-16") if rng.random() < 0.05 else data


def _changed(rng: random.Random, text: str) -> bytes:
    if rng.random() < 0.25:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(_MANY) * rng.choice((3, 300, 20_000)) + text[at:]
    return changed_text(rng, text) if rng.random() < 0.8 else fuzz.changed_bytes(rng, text.encode("utf-8", "replace"))


def typed_drive(path: str) -> None:
    """Expanded, folded, and expanded again."""
    text = Path(path).read_bytes().decode("utf-8", "surrogateescape")
    for is_typed in (True, False):
        _expand(text, is_typed)


def _expand(text: str, is_typed: bool) -> None:
    try:
        found = hosts.expand(text, typed=is_typed)
    except UserError as error:
        _check_line(error)
        return
    assert 1 <= len(found) <= hosts.MOST_HOSTS
    assert len(set(found)) == len(found)
    folded = hosts.fold(found)
    assert set(hosts.expand(folded)) == set(found), folded[:200]


def _check_line(error: UserError) -> None:
    said = str(error)
    assert said
    assert is_harmless(said), said[:300]
    assert len(said) < 2000


def listed_drive(path: str) -> None:
    """A file of hosts, and the same text from squeue and kubectl."""
    text = Path(path).read_bytes().decode("utf-8", "replace")
    for read in (lambda: hosts.read(path), lambda: srun.nodes("4711"), lambda: kubectl.pods("app=train", "x")):
        with mock.patch.object(srun, "asked", return_value=text), mock.patch.object(kubectl, "asked", return_value=text):
            try:
                found = read()
            except UserError as error:
                _check_line(error)
                continue
        assert 1 <= len(found) <= hosts.MOST_HOSTS


KINDS = (Kind("host-lists", typed, typed_drive, 8), Kind("host-files", listed, listed_drive, 8))
