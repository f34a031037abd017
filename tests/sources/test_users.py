"""Names of uids, of which a stranger may have as many as he likes."""

from __future__ import annotations

import pwd
import threading

import pytest

from gputop.sources.procfs import identity
from gputop.sources.procfs.identity import Users
from tests.wait import until


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Uids that a slow name service was asked for; it knows those that are even. `LET_GO` lets it answer."""
    LET_GO.clear()
    monkeypatch.setattr(identity, "_passwd", lambda _: {0: "root"})
    found: list[int] = []

    def ask(uid: int) -> pwd.struct_passwd:
        LET_GO.wait(20)
        found.append(uid)
        if uid % 2:
            raise KeyError(uid)
        return pwd.struct_passwd((f"user{uid}", "", uid, uid, "", "", ""))

    monkeypatch.setattr(pwd, "getpwuid", ask)
    return found


LET_GO = threading.Event()


def test_thousands_of_uids_are_asked_for_by_one_thread(asked: list[int]) -> None:
    names, before = Users("/"), threading.active_count()
    assert {names.name(uid) for uid in range(100_000, 103_000)} == {""}
    assert threading.active_count() == before + 1
    assert names.name(0) == "root"
    LET_GO.set()
    until(lambda: names.resolved == 1500)
    until(lambda: threading.active_count() == before)
    assert [names.name(uid) for uid in (100_000, 100_001, 102_998)] == ["user100000", "", "user102998"]
    assert names.name(7_000) == ""
    until(lambda: names.name(7_000) == "user7000")
    assert len(asked) == 3001, "each once"


def test_without_room_for_a_thread_a_name_comes_later(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    names = Users("/")
    LET_GO.set()

    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        assert names.name(8_000) == ""
    until(lambda: names.name(8_000) == "user8000")
    assert asked == [8_000]
