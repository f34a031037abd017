"""Texts that know what they are made of: as a reader makes them, and what it takes for none of ours."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from msgspec.msgpack import Ext

from gputop.findings import explanation as report
from gputop.findings.sentence import NAME, commanded, filled, is_command, is_own, joined, literals, name, pack, said, unpack
from gputop.findings.verdict import CAUSES

STACKS = "gputop stacks {:pids} --duration 5"


class Kept(Struct):
    text: str


def read(text: str) -> str:
    return unpack(pack(Kept(text)), Kept).text


def test_a_text_comes_back_as_it_was() -> None:
    waits = filled(
        "{} waited for the network {:.0f}% of the time{}",
        filled("{} ({})", "train.py", 7),
        41.7,
        "; workers have batches ready",
    )
    assert waits == "train.py (7) waited for the network 42% of the time; workers have batches ready"
    for text in (waits, joined(", ", [waits, "agent"]), waits + "agent", "agent" + waits, filled(STACKS, [7, 8])):
        assert read(text) == text
        assert pickle.loads(pickle.dumps(text)) == text
    assert is_own(read(waits))
    assert is_command(read(filled(STACKS, [7, 8])))
    assert joined(", ", []) == ""


def test_only_what_stands_in_our_code_is_ours() -> None:
    assert STACKS in literals()
    assert said("received by the host") == "received by the host"
    assert said("apply the vendor's hotfix", "network-io") == "network-io"
    assert said(read(filled("apply the {}", "hotfix")), "network-io") == "network-io"
    assert commanded("apply the vendor's hotfix") == commanded(filled("{} grows", "x")) == ""


@pytest.mark.parametrize("arg", [[0], [-1], [True], ["7"], [7.0], [1 << 40], [], [7] * 9999, 7, None, "7; reboot"])
def test_a_hole_for_pids_holds_pids(arg: Any) -> None:
    assert not is_command(read(filled(STACKS, arg)))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e300, "9", None, True, [1]])
def test_a_hole_for_a_number_holds_one(number: Any) -> None:
    kept = msgspec.msgpack.encode(["{:.0f} major faults/s", [number]])
    assert not is_own(unpack(msgspec.msgpack.encode({"text": Ext(1, kept)}), Kept).text)


def test_a_reading_of_another_kind_ends_no_diagnosis() -> None:
    assert filled("kill {:targets}", 5) == "kill 5"
    assert filled("{:.0f}% of the time", None) == "None% of the time"
    assert filled("{} lost {:.0f}% of {:d} s {{}}", "GPU 0", 12.6, 3) == "GPU 0 lost 13% of 3 s {}"
    assert filled("{} lost {:.0f}% of {:d} s {{}}", "GPU 0", "a b", 3) == "GPU 0 lost 'a b'% of 3 s {}"


def test_texts_within_texts_end() -> None:
    text = filled("{} ({})", "x", 1)
    for _ in range(200):
        text = filled("{} ({})", text, 1)
    assert not is_own(read(text))


def test_names_are_short_and_obey_nobody() -> None:
    assert name("train.py rank 3") == "train.py rank 3"
    assert name("/kubepods.slice/" + "a" * 100) == "/kubepods.slice/" + "a" * 100
    assert name("x" * 999) == "x" * NAME
    assert name("a | b; c && $(d) `e` > f\x1b[2J") == "a · b· c ·· ·(d) ·e· · f·[2J"
    assert read(filled("{} grows", "a | b")) == "a · b grows"


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_is_told_in_general(cause: str) -> None:
    told = report.in_general(cause)
    assert told.startswith(f"{cause}: ") or cause in ("none", "unexplained"), "its file is called as it is, with _ for each -"
    assert len(report.in_general(cause)) < 200


def test_no_command_is_joined_of_parts() -> None:
    """Each part is a literal of gputop's own; together they would be anybody's."""
    look, reboot = "sudo fuser -v /dev/nvidia*", "sudo dmesg | grep -iE 'xid|nvrm' | tail -20"
    assert all(map(is_command, (look, reboot)))
    for between in ("", " ", "; ", ", "):
        assert not is_command(joined(between, (look, reboot)))
        assert not is_command(unpack(pack(joined(between, (look, reboot))), str))
