"""Random input of a terminal, likely and unlikely, by a seed."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

TIMES = int(os.environ.get("GPUTOP_FUZZ_TIMES", "1"))
"""Factor by which the screen's fuzzers run longer than in CI."""

KEYS = [
    *(chr(code).encode() for code in range(128)), *("é", "ß", "€", "日", "🚀", "e\u0301", "\u202e", "\u200b", "\x85", "\x9b", "\ufffd"),
    "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", "\x1bOA", "\x1bOP", "\x1b[1;5C", "\x1b[5~", "\x1b[6~", "\x1b[H", "\x1b[F", "\x1b[3~",
    "\x1b[Z", "\x1b[[A", "\x1b[15;5~", "\x1bx", "\x1b\x1b[A", "\r", "\t", "\x7f",
]  # fmt: skip
ANSWERS = [
    "\x1b[?62;22c", "\x1b[>41;354;0c", "\x1b[>0;10;1c", "\x1b[?2026;2$y", "\x1b[?2026;0$y", "\x1b[?2048;0$y", "\x1b[12;40R", "\x1b[?12;40R",
    "\x1b[0n", "\x1b[?997;1n", "\x1b[8;24;80t", "\x1b[4;600;800t", "\x1b[?0u", "\x1b[?1u", "\x1b[?1;2;4S",
    "\x1b]11;rgb:1e1e/1e1e/1e1e\x1b\\", "\x1b]10;rgb:ffff/ffff/ffff\x07", "\x1b]4;1;rgb:cccc/0000/0000\x1b\\", "\x1b]52;c;aGVsbG8=\x07",
    "\x1bP>|XTerm(388)\x1b\\", "\x1bP1+r524742=38\x1b\\", "\x1bP!|00000000\x1b\\", "\x1b_Gi=31;OK\x1b\\", "\x1b^pm\x1b\\", "\x1bXsos\x1b\\",
]  # fmt: skip
"""Answers of terminals to questions of other programs; none is a key."""


def _bytes(random: Random) -> bytes:
    return random.randbytes(random.randrange(1, 40))


def _key(random: Random) -> bytes:
    key = random.choice(KEYS)
    return key if isinstance(key, bytes) else key.encode()


def _kitty(random: Random) -> bytes:
    number = random.choice([97, 113, 27, 13, 9, 127, 0, 57344, 57441, 55296, 1114111, 1114112, 2**31, random.randrange(1 << 21)])
    modifiers = random.choice(["", ";1", ";5", ";2", ";0", ";256", ";1:3", f";{random.randrange(1 << 12)}"])
    text = random.choice(["", ";97", ";97:98", ";55296", ";1114112", ";27", ";:::", ";99999999999"]) if modifiers else ""
    other = random.choice(["", "", ":65", "::97", ":"])
    return f"\x1b[{number}{other}{modifiers}{text}{random.choice('uuuu~ABCDEFHPQRS')}".encode()


def _coordinate(random: Random) -> int:
    return random.choice([0, 1, 2, 40, 80, 223, 255, 1000, 65535, 2**31, 2**63, -1, -70000, random.randrange(1, 200)])


def _mouse(random: Random) -> bytes:
    button = random.choice([0, 1, 2, 3, 32, 35, 64, 65, 66, 67, 96, 128, 131, 255, 10**9, random.randrange(256)])
    x, y = _coordinate(random), _coordinate(random)
    return random.choice([
        f"\x1b[<{button};{x};{y}M".encode(), f"\x1b[<{button};{x};{y}m".encode(), f"\x1b[{button + 32};{x};{y}M".encode(),
        b"\x1b[M" + bytes(random.randrange(32, 256) for _ in range(3)), f"\x1b[<{button};{x}M".encode(), b"\x1b[<;;M", b"\x1b[<1;2;3;4;5M",
    ])  # fmt: skip


def _report(random: Random) -> bytes:
    number = random.randrange(1 << random.randrange(1, 40))
    return random.choice([
        *(answer.encode() for answer in ANSWERS), b"\x1b[I", b"\x1b[O", f"\x1b[?{number};{number % 7}$y".encode(),
        f"\x1b[{number};{number}R".encode(), b"\x1b[48;0;0;0;0t", b"\x1b[48;24;80;0;0t", b"\x1b[48;65535;65535;1;1t",
        b"\x1b[48;40;120;800:9;1200:9t",
    ])  # fmt: skip


def _paste(random: Random) -> bytes:
    text = random.choice([
        b"", b"words", b"q", b"!(a+)+b", b"!(", b"K\ry\r", b"\x1b[2J", "日本 🚀 e\u0301".encode(), b"\x00\x9b\x1b]0;x\x07", b"x" * 5000,
        random.randbytes(60), b"\xe9\xff\xc3", b"a\nb\r\nc\td", b"\x1b[200~", b"50%", b"14:03:07",
    ])  # fmt: skip
    ends = random.choice([b"\x1b[201~", b"\x1b[201~", b"\x1b[201~", b"", b"\x1b[201", b"\x1b[201~\x1b[201~"])
    return b"\x1b[200~" + text + ends


def _broken(random: Random) -> bytes:
    whole = random.choice([_key, _kitty, _mouse, _report, _paste])(random)
    return whole[: random.randrange(len(whole) + 1)]


def _odd(random: Random) -> bytes:
    return random.choice([
        b"\x00" * 30, b"\x1b" * random.randrange(1, 40), b"\x1b[" + b"9" * random.randrange(1, 600) + b"u", b"\x1b[" + b";" * 300,
        b"\x9b1;2R", b"\x90x\x9c", b"\xe9", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x9a", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80",
        b"\x1bO", b"\x1b[", b"\x1b]", b"\x1bP", b"\x1b[M", b"\x1b[[", b"\x18\x1a", b"\x1b[<0;1;1M" * 50, b"\x1b]" + b"z" * 9000,
    ])  # fmt: skip


KINDS: tuple[Callable[[Random], bytes], ...] = (_bytes, _key, _key, _key, _kitty, _mouse, _report, _paste, _broken, _odd)


def typed(random: Random, count: int) -> list[bytes]:
    """``count`` random inputs, cut into random pieces."""
    sent = b"".join(random.choice(KINDS)(random) for _ in range(count))
    pieces = []
    while sent:
        at = random.choice([1, 1, 2, 3, 5, 17, 100, 4096])
        pieces.append(sent[:at])
        sent = sent[at:]
    return pieces
