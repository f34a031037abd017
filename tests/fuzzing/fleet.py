"""What a node sends, in blocks and in lines, through the links, the jobs, the screen, `--json`, agents and a recording; and what a node is
asked."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import time
import zlib
from contextlib import closing, suppress
from functools import cache
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from unittest import mock

import msgspec
import zstandard
from msgspec.structs import replace

from gputop.agents import tools
from gputop.agents.places import Places
from gputop.commands.fleet import line_of
from gputop.commands.record_fleet import HostFile
from gputop.commands.replay import sample
from gputop.fleet import document
from gputop.fleet import link as link_module
from gputop.fleet.as_text import MARK, to_lines
from gputop.fleet.asking import Ask, AskLines, NodeAnswer, pack_answer, pack_ask, read_answer, read_stacks
from gputop.fleet.jobs import Sight
from gputop.fleet.link import DOWN, UP
from gputop.fleet.links import Links
from gputop.fleet.node import NodeServer, Out
from gputop.fleet.overview import Overview, sight_of
from gputop.fleet.summary import Summary, pack_summary, read_summary, summarize
from gputop.model.frame import Stack
from gputop.recording.chunks import Decoder, pack_alone
from gputop.recording.format import FLAG_KEY, KIND_ANSWER, KIND_SUMMARY, pack_end, pack_frames, pack_header
from gputop.stacks.group import group
from gputop.stacks.nccl import NcclRank, NcclReport, pack_report, unpack_report
from gputop.stream.following import Following
from gputop.stream.playback import PlayedClock
from gputop.stream.played import PlayedStream
from gputop.stream.reach import Target
from gputop.stream.reader import Loop
from gputop.stream.session import Session
from gputop.system.errors import UserError
from gputop.tui.draw import fleet_page as draw
from gputop.tui.draw import safe_line
from tests.fleet import nodes
from tests.fuzzing.kind import Kind, changed_json, changed_text, changed_within, in_pieces, is_harmless
from tests.recording import fuzz, made
from tests.streams import Given
from tests.tui import scene

MOST_STEPS = 200  # of a link that takes one piece
EVIL = "node02"  # the others are good
ASKED = ("stacks", "nccl", "save")  # in this order: answers bear the numbers 1 to 3
VIEWS = tuple(
    draw.Choice(view=view, sort=sort, pattern=pattern, selected=EVIL, width=width, height=height)
    for view, sort, pattern, width, height in (
        ("nodes", "worst", "", 80, 24), ("nodes", "steps", "", 200, 60), ("jobs", "lost", "", 130, 40), ("ranks", "cpu", "", 60, 12),
        ("nodes", "host", "train 4711", 100, 30),
    )
)  # fmt: skip


# what it sends


@cache
def summaries() -> list[Summary]:
    """What the node says while its training is well, hangs, waits, and has a rank that is late; and what a real diagnosis says."""
    lost = replace(nodes.EPISODE, symptom="idle", cause="gpu-lost", headline="GPU 3 fell off the bus", culprits=[nodes.HOG], gpu=3)
    hung = [nodes.rank(n, nodes.SLEEPS, still_s=30.0, states={"blocked": 1.0}, size=16, absent=[3]) for n in range(8, 16)]
    fleets = [nodes.fleet(3, 4), nodes.fleet(3, 4, late=5), nodes.fleet(3, 4, late=1)]
    found = [one[1].summary for one in fleets if one[1].summary is not None]
    hangs = nodes.sight(EVIL, *hung).summary
    assert hangs is not None
    found += [hangs, replace(found[1], incidents=[lost, replace(lost, id=2, end_unix_s=1_795e6 + 9)], sources={"ebpf": "no BTF"})]
    following = Following()
    for item in scene.frames(100):
        for _ in following.through([item]):
            pass
    return [*found, summarize(following.board, following.engine)]


@cache
def good() -> list[list[Sight]]:
    """The two other nodes, and the nodes whose trainings have the keys of real ones."""
    return [[fleet[0], fleet[2]] for fleet in (nodes.fleet(3, 4), nodes.fleet(3, 4, late=1), nodes.fleet(3, 4, late=9))]


def _answers() -> list[NodeAnswer]:
    stacks = [Stack(1004 + n, 1004 + n, 10**12, ["train (train.py:12)"], ["futex_wait"], thread="MainThread", state="S") for n in range(3)]
    report = NcclReport("2.27.3", 12, 12, [NcclRank(5, 12, "launched 1 of 2 AllReduce", 1005, "10.0.0.2")], ["a line"])
    return [
        NodeAnswer(1, "stacks", data=msgspec.msgpack.encode(stacks), unix_s=1_795e6), NodeAnswer(2, "nccl", data=pack_report(report)),
        NodeAnswer(3, "save", data=fuzz.seeds()[1][:4000], more=True), NodeAnswer(3, "save", data=fuzz.seeds()[1][4000:]),
    ]  # fmt: skip


@cache
def seeds() -> list[bytes]:
    """Sound streams."""
    frames = list(made.Session(1, 3, threads=2).frames(8, 200 * made.MS, key_every=5))
    head, said = pack_header(made.HEADER), [pack_summary(one) for one in summaries()]
    answers = b"".join(map(pack_answer, _answers()))
    plain = b"".join(pack_frames([one]) for one in frames)
    packed = pack_alone(msgspec.msgpack.encode(frames[:5]), FLAG_KEY, frames[0].t_ns)
    return [
        head + said[0] + answers + said[1], *(head + one for one in said), head + said[3] + answers, head + said[5] + plain + said[5],
        head + said[1] + packed + answers + pack_end(1),
    ]  # fmt: skip


def _summary(rng: random.Random, _: bytes) -> bytes:
    """Only summaries, with values that are in range: whatever else is changed is refused."""
    header, *blocks = fuzz.split(pack_header(made.HEADER) + b"".join(map(pack_summary, rng.choices(summaries(), k=rng.choice((1, 1, 2))))))
    return fuzz.joined([header, *(_changed_in_range(rng, one) for one in blocks)])


def _changed_in_range(rng: random.Random, block: fuzz.Block) -> fuzz.Block:
    for _ in range(rng.choice((1, 2, 4, 12, 30))):
        value = changed_within(rng, msgspec.msgpack.decode(fuzz.plain(block) or b""), (1,))
        changed = fuzz.packed(block, _packed(value))
        with suppress(ValueError):
            read_summary(changed.payload)
            block = changed
    return block


def _answer(rng: random.Random, data: bytes) -> bytes:
    """What answers hold, changed."""
    blocks = fuzz.split(data)
    for i, block in enumerate(blocks):
        if block.kind == KIND_ANSWER and rng.random() < 0.7:
            value = msgspec.msgpack.decode(block.payload)
            if value.get("data") and rng.random() < 0.1:
                value["data"] = rng.choice((b"\x81\xa1x", b"\x91\x81\xa1x", b"", b"\x91")) + b"\x91" * rng.choice((900, 100_000)) + b"\xc0"
            elif rng.random() < 0.7 and value.get("data"):
                with suppress(msgspec.MsgspecError):
                    change = rng.choice((fuzz.changed_value, lambda r, d: _packed(changed_within(r, msgspec.msgpack.decode(d)))))
                    value["data"] = change(rng, value["data"])
            else:
                value = changed_within(rng, value)
            blocks[i] = block._replace(payload=_packed(value))
    return fuzz.joined(blocks)


def _packed(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError, TypeError):  # a number of more than 64 bits, half a character
        return msgspec.msgpack.encode(_encodable(value))


def _encodable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_encodable(key): _encodable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_encodable(one) for one in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -(1 << 63) <= value < 1 << 64 else float(value)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _values(rng: random.Random, data: bytes) -> bytes:
    """What blocks of any kind hold, as `fuzz` changes it."""
    blocks = fuzz.split(data)
    for i in rng.sample(range(len(blocks)), min(len(blocks), rng.choice((1, 1, 3)))):
        held = fuzz.plain(blocks[i])
        if held:
            with suppress(msgspec.MsgspecError):
                blocks[i] = fuzz.packed(blocks[i], rng.choice((fuzz.changed_value, fuzz.changed_bytes))(rng, held))
    return fuzz.joined(blocks)


def _large(rng: random.Random, data: bytes) -> bytes:
    """A summary or an answer that is small, and large once it is inflated."""
    fill = rng.choice((b"\xc0", b"\0", b"\x90", b"\x80", b"\xa0", b"\xd6\1\0\0\0\0"))
    count = rng.choice((1 << 16, 1 << 20, 1 << 22))
    plain = rng.choice((b"", b"\x81\xa5ranks", b"\x81\xa4data", b"\x81\xa7sources")) + b"\xdd" + count.to_bytes(4, "big") + fill * count
    kind = rng.choice((KIND_SUMMARY, KIND_ANSWER))
    payload = zstandard.ZstdCompressor(level=1).compress(plain) if kind == KIND_SUMMARY else plain[: 5 << 20]
    block = fuzz.Block(kind, 0, 0, 1, payload)
    blocks = fuzz.split(data)
    return fuzz.joined([*blocks[:2], *[block] * rng.choice((1, 1, 3)), *blocks[2:]])


_CHANGES = ((_summary, 12), (_answer, 5), (_values, 6), (fuzz.changed_bytes, 3), (_large, 1))


def stream(rng: random.Random) -> bytes:
    """A node's stream in blocks."""
    change = rng.choices([change for change, _ in _CHANGES], [often for _, often in _CHANGES])[0]
    return change(rng, rng.choice(seeds()))


def lines(rng: random.Random) -> bytes:
    """A node's stream in lines of text, with what srun, pdsh and shells add, cut and lose."""
    found = to_lines(stream(rng) if rng.random() < 0.5 else rng.choice(seeds())).splitlines(keepends=True)
    for _ in range(rng.choice((0, 1, 1, 3, 10))):
        i, kind = rng.randrange(len(found) + 1), rng.randrange(8)
        if kind == 0:
            found[i:i] = [rng.choice((b"motd\n", b"\xff\xfe\n", b"gp \n", b"gp ====\n", b"\n" * 50, b"x" * 200_000, b"gp " * 3000 + b"\n"))]
        elif kind == 1:
            del found[i : i + rng.choice((1, 1, 5))]
        elif kind == 2:
            found[i : i + 1] = [one[: rng.randrange(len(one) + 1)] for one in found[i : i + 1]]
        elif kind == 3:
            found[i : i + 1] = [changed_text(rng, one.decode("latin-1")) for one in found[i : i + 1]]
        elif kind == 4:
            label = rng.choice((b"3: ", b"node02: ", b"\x1b[1m", MARK))
            found = [label + one for one in found]
        elif kind == 5:
            found = [one.replace(b"\n", b"\r\n") for one in found]
        elif kind == 6:
            found[i:i] = found[i : i + 3] * rng.choice((1, 200))
        else:
            found[i : i + 1] = [one.rstrip(b"\n") for one in found[i : i + 1]]
    return b"".join(found)


# through the links


class Stepped(Links):
    """Links without a thread of their own: `step` does once what it does again and again."""

    def _run(self) -> None:
        """Nothing."""

    def step(self) -> None:
        self._step(lambda: 0.0)


class Way:
    """Stands for the process of a link; ``into`` is the other end of its output."""

    def __init__(self, *_: Any, **__: Any) -> None:
        read, self._into = os.pipe()
        os.set_blocking(self._into, False)
        self.stdout: IO[bytes] = os.fdopen(read, "rb", 0)
        self.stdin: IO[bytes] = open(os.devnull, "wb", 0)  # noqa: SIM115 - the link closes them
        silent, ended = os.pipe()
        os.close(ended)
        self.stderr: IO[bytes] = os.fdopen(silent, "rb", 0)
        _ways.append(self)

    def send(self, piece: bytes, links: Stepped) -> bool:
        """Whether the link has read so far; not where it ends, or leaves the node unread for a while."""
        for _ in range(MOST_STEPS):
            if links._links[EVIL].child is not self:
                return False
            with suppress(BlockingIOError):
                piece = piece[os.write(self._into, piece) :]
            if not piece:
                return True
            links.step()
        return False

    def end(self) -> None:
        os.close(self._into)

    def poll(self) -> int:
        return 0

    def terminate(self) -> None:
        """It has ended."""

    def wait(self, _s: float = 0.0) -> int:
        return 0


_ways: list[Way] = []


def read_stream(path: str, target: Target) -> str:
    """The state of a node that sends a file of bytes, before its stream ends."""
    data = Path(path).read_bytes()
    rng = random.Random(zlib.crc32(data))
    _ways.clear()
    fake = SimpleNamespace(Popen=Way, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
    never = {"ANSWER_S": inf, "SILENT_S": inf, "HUNG_S": inf}  # the time that a busy machine takes between two pieces is not the node's
    with mock.patch.multiple(link_module, subprocess=fake, **never), closing(Stepped([target])) as links:
        link = links._links[EVIL]
        link.is_old = rng.random() < 0.15
        session, file = Session(), HostFile(EVIL, f"{path}.rec.gputop", 1 << 62, 1)
        takes = rng.choice((None, session.ingest, file.take))
        if takes is not None:
            links.tap(EVIL, takes)
        answers: list[NodeAnswer] = []
        fleet = Overview()
        links._begin_due()
        [way] = _ways
        is_asked = False
        for piece in in_pieces(rng, data):
            if not way.send(piece, links):
                break
            links.step()
            answers += [one for _, one in links.answers()]
            if not is_asked and links.poll()[EVIL].state == UP:
                is_asked = True
                for what in ASKED:
                    links.ask(EVIL, what)
            if rng.random() < 0.1:
                _look(links, fleet, answers, rng)
        links.step()
        _look(links, fleet, answers, rng)
        state = links.poll()[EVIL].state
        way.end()
        for _ in range(3):
            links.step()
        _look(links, fleet, answers, rng)
        end = links.poll()[EVIL]
        assert end.state != UP or link.child is not None
        assert end.state != DOWN or end.reason
        assert is_harmless(end.reason), end.reason
        assert len(end.reason) < 5000
        _take_answers(answers)
        file.close()
        fuzz.remove(file.path)
        return state


def _look(links: Links, fleet: Overview, answers: list[NodeAnswer], rng: random.Random) -> None:
    """All that shows the nodes, which costs the good ones nothing."""
    others = rng.choice(good())
    sights = [others[0], sight_of(links.poll()[EVIL]), others[1]]
    fleet.take(sights)
    fleet.look_again(sights)
    for job in fleet.jobs:
        for answer in answers:
            with suppress(ValueError):
                if (report := unpack_report(answer.data)) is not None:
                    fleet.take_report(job.key, report)
    fleet.take(sights)
    json.loads(fleet.used(lambda seen: msgspec.json.encode(document.fleet(seen), enc_hook=str)))
    for choice in VIEWS:
        _check_lines(fleet.used(lambda seen, choice=choice: draw.page(seen, choice, clock="12:00:00", own="", note="")).lines)  # type: ignore[misc]
    _check_lines(fleet.used(lambda seen: draw.why_lines(seen, seen.jobs[0] if seen.jobs else None)))
    for form in ("plain", "tmux", "waybar"):
        assert is_harmless(fleet.used(line_of).form(form, False).replace("\n", " "))
    places = Places(hosts=[Target(one.host) for one in sights], anywhere=False)
    with mock.patch.object(places.hosts, "fleet", return_value=fleet):
        for name in ("overview", "diagnose", "ranks"):
            text = msgspec.json.encode(tools.call(places, name, {"target": "hosts", "max_bytes": rng.choice((1000, 8000, 20_000))}))
            assert len(text) <= 20_000
    assert not fleet._faults, fleet._faults
    assert [row.host for row in fleet.rows if row.sight.is_seen and row.host != EVIL] == [one.host for one in others]


def _check_lines(lines: list[draw.Line]) -> None:
    for line in lines:
        assert is_harmless("".join(text for text, _ in safe_line(line)))


def _take_answers(answers: list[NodeAnswer]) -> None:
    """As those who have asked."""
    places = Places(hosts=[Target(EVIL)], anywhere=False)
    for answer in answers:
        with suppress(ValueError):
            group(read_stacks(answer.data), {})
        with suppress(UserError), mock.patch.object(places.hosts, "ask", lambda _h, _w, take, *_a, data=answer.data, **_n: take(data)):
            places.stacks(f"host:{EVIL}", [1])


def blocks_drive(path: str) -> None:
    """Over ssh."""
    read_stream(path, Target(EVIL))


def lines_drive(path: str) -> None:
    """Over srun."""
    read_stream(path, Target(EVIL, "srun", "4711"))


# what a node is asked

_ASKS = (
    Ask(1, "summary"), Ask(2, "frames", back_s=5.0), Ask(3, "frames", back_s=-1.0), Ask(4, "stacks", [1, 2], 1_795e6), Ask(5, "nccl", [7]),
    Ask(6, "save"), Ask(7, "what"), Ask(8, "play", clock=PlayedClock(1.0, 2.0, 0.5)),
)  # fmt: skip


def asks(rng: random.Random) -> bytes:
    """Lines of questions."""
    found = []
    for one in rng.choices(_ASKS, k=rng.choice((1, 3, 20))):
        value = msgspec.to_builtins(one)
        found.append(changed_json(rng, value) if rng.random() < 0.8 else pack_ask(one).strip())
    return rng.choice((b"\n", b"\n", b"\r\n", b"")).join(found) + b"\n" * rng.randrange(3)


@cache
def _node() -> NodeServer:
    """A node that has read some frames of a recording, and plays one."""
    node = NodeServer(os.open(os.devnull, os.O_RDONLY), Out(os.memfd_create("past")), PlayedStream(sample()))
    with Loop(Given(list(scene.frames(30))), node) as loop:
        loop.run()
    return node


def asks_drive(path: str) -> None:
    """To a node that plays a recording: stacks and NCCL's report of real processes are not taken."""
    data = Path(path).read_bytes()
    fd = os.memfd_create("node")
    node = _node()
    node._out = Out(fd)
    lines = AskLines()
    asked = []
    for piece in in_pieces(random.Random(zlib.crc32(data)), data):
        asked += lines.feed(piece)
    saves = 0
    for one in asked[:200]:
        if isinstance(one, NodeAnswer):
            node._reply(one)
        elif not (one.ask == "save" and saves >= 3):
            saves += one.ask == "save"
            node._answer(one)
    end_s = time.monotonic() + 10
    while saves and time.monotonic() < end_s:
        select.select([node._done_r], [], [], 10)
        saves -= len([one for one in node._done if not one.more])
        with suppress(BlockingIOError):
            node._hand_over()
    assert not saves
    node._out.flush()
    found: list[NodeAnswer] = []
    decoder = Decoder(lambda _, payload: found.append(read_answer(payload)), wants=lambda head: head.kind == KIND_ANSWER)
    decoder.feed(os.pread(fd, os.fstat(fd).st_size, 0))
    assert decoder.lost_bytes == 0
    assert len(found) >= min(len(asked), 200) - sum(isinstance(one, Ask) and one.ask == "save" for one in asked), (len(found), len(asked))
    os.close(fd)


KINDS = (
    Kind("fleet-blocks", stream, blocks_drive, 20), Kind("fleet-lines", lines, lines_drive, 6), Kind("fleet-asks", asks, asks_drive, 4),
)  # fmt: skip
