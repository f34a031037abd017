"""Dumps of torch's flight recorder: the rank that did not come, damaged and hostile dumps, ranks that are asked by their pipe."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
import time
import tracemalloc
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputop import cli
from gputop.findings.explanation import Dated
from gputop.findings.flights import lines
from gputop.model.flight import Flight
from gputop.stream.explained import _with_dumps
from gputop.system.errors import Unavailable, UserError
from gputop.traces import environment, flight, pickled, pipes
from gputop.traces.flight import FRESH_S, Dump, judged, read_dump, read_files, report_folder
from gputop.traces.pickled import MOST_MARKS, MOST_VALUES, read_pickle
from tests.recording.test_report import EPISODE
from tests.traces.flights import CREATED_NS, call, done, dump, packed

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).resolve().parent / "data"
LATER_NS = CREATED_NS + 40_000_000_000
RANKS = range(4)


def answer(contents: dict[int, dict[str, Any]], at_ns: int = LATER_NS, world: int = 0) -> Flight:
    return judged({rank: Dump(rank, content, at_ns) for rank, content in contents.items()}, [], world)


def test_the_rank_that_did_not_come_is_named_with_the_collective_its_size_and_number() -> None:
    found = answer({rank: dump([*done(5), *([] if rank == 2 else [call(6, sizes=(1 << 20, 2))])], RANKS) for rank in RANKS})
    [stop] = found.stops
    assert (stop.kind, stop.collective, stop.number, stop.group) == ("missing", "all_reduce", 6, "default_pg")
    assert (stop.missing, stop.waiting, stop.unknown) == ([2], [0, 1, 3], [])
    assert (stop.size_bytes, stop.shapes, stop.dtype) == (8 << 20, [[1 << 20, 2]], "Float")
    assert (stop.place, stop.waited_s) == ("train.py:88 in step", 40.0)
    assert "rank 2 has not come to all_reduce 6 of 8.4 MB" in found.words
    assert "all_reduce 5" in stop.instead


def test_ranks_that_ran_ahead_wait_in_the_first_collective_that_one_lacks() -> None:
    found = answer({rank: dump([*done(5), *map(call, range(6, 6 if rank == 3 else 9))], RANKS) for rank in RANKS})
    assert [(stop.number, stop.missing) for stop in found.stops] == [(6, [3])]


def test_a_rank_that_came_to_another_collective_is_named_with_both() -> None:
    other = call(6, "nccl:_all_gather_base", (7,))
    found = answer({rank: dump([*done(5), other if rank == 1 else call(6)], RANKS) for rank in RANKS})
    [stop] = found.stops
    assert (stop.kind, stop.missing, stop.waiting) == ("differs", [1], [0, 2, 3])
    assert "_all_gather_base 6" in stop.instead


@pytest.mark.parametrize(("name", "kinds"), [("nccl:all_reduce", ["differs"]), ("nccl:all_to_all", ["inside"])])
def test_sizes_differ_only_where_they_must_not(name: str, kinds: list[str]) -> None:
    found = answer({rank: dump([call(1, name, (8 + (rank == 0),))], RANKS) for rank in RANKS})
    assert [stop.kind for stop in found.stops] == kinds


def test_a_gpu_that_has_not_begun_a_collective_is_named() -> None:
    found = answer({rank: dump([call(1, state="scheduled" if rank == 1 else "started")], RANKS) for rank in RANKS})
    assert [(stop.kind, stop.missing) for stop in found.stops] == [("late", [1])]


def test_ranks_on_other_hosts_are_named_as_unknown() -> None:
    found = answer({rank: dump([*done(2), call(3)], range(16)) for rank in RANKS})
    [stop] = found.stops
    assert (stop.kind, stop.unknown) == ("inside", list(range(4, 16)))
    assert "there is no dump of ranks 4-15" in found.words


def test_gloo_has_no_members_and_tells_by_its_status_what_has_ended() -> None:
    """Its entries stay at ``scheduled``, as torch 2.13 dumps them."""
    status = {"0": {"last_enqueued_collective": 2, "last_started_collective": -1, "last_completed_collective": 2}}
    calls = [call(1, "gloo:all_reduce"), call(2, "gloo:all_reduce")]
    behind = {"0": {"last_enqueued_collective": 3, "last_completed_collective": 2}}
    whole = {0: dump([*calls, call(3, "gloo:broadcast")], pg_status=behind), 1: dump(calls, pg_status=status)}
    assert [(stop.missing, stop.collective) for stop in answer(whole, world=2).stops] == [([1], "broadcast")]
    assert answer({0: whole[1], 1: whole[1]}).stops == []


def test_the_group_in_which_nobody_else_waits_explains_the_others() -> None:
    """Rank 1 is missing in the whole group, since it waits for rank 2 in a group of two."""
    pair = {"process_group": ("7", "tp"), "pg_id": 1}
    config = {"0": {"desc": "default_pg", "ranks": "[0, 1, 2]"}, "7": {"desc": "tp", "ranks": "[1, 2]"}}
    contents = {
        0: dump([*done(3), call(4)], pg_config=config), 1: dump([*done(3), call(9, **pair)], pg_config=config),
        2: dump([*done(3), call(8, state="completed", **pair)], pg_config=config),
    }  # fmt: skip
    first, second = answer(contents).stops
    assert (first.group, first.missing) == ("tp", [2])
    assert (second.group, second.missing) == ("default_pg", [1, 2])


def test_a_receive_without_its_send_is_named() -> None:
    p2p = {"is_p2p": True, "collective_seq_id": 0, "p2p_seq_id": 4}
    waits = dump([*done(3), call(4, "nccl:recv 0<-1", **p2p)], range(2))
    [stop] = answer({0: waits, 1: dump(done(3), range(2))}).stops
    assert (stop.missing, stop.waiting, stop.collective, stop.number) == ([1], [0], "recv 0<-1", 4)
    assert not answer({0: waits, 1: dump([*done(3), call(4, "nccl:send 1->0", **p2p)], range(2))}).stops


def test_a_job_that_goes_on_has_no_stop() -> None:
    """Ranks dump one after the other: what began just now is no wait."""
    contents = {rank: dump([*done(5), *map(call, range(6, 6 + rank))], RANKS) for rank in RANKS}
    assert answer(contents, CREATED_NS + int(1e9 * FRESH_S) - 200_000_000).stops == []
    assert "no collective stands" in answer(contents, CREATED_NS + 1).words
    assert answer({0: dump([])}).words == "no rank has recorded a collective"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_are_read_as_pickle_reads_them(protocol: int) -> None:
    odd = [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), -7, 1.5, 1 << 40, -(1 << 90), "é", {}]
    content = dump([*done(300), call(301, sizes=(1, 2, 3), odd=odd)])
    assert read_pickle(pickle.dumps(content, protocol)) == content


class Runs:
    """What a hostile pickle holds."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self._path,)


def test_a_hostile_pickle_runs_nothing(tmp_path: Path) -> None:
    target = str(tmp_path / "ran")
    for protocol in range(6):
        for content in (Runs(target), dump([{"x": Runs(target)}]), os.system, {1, 2}, b"x", bytearray(9), Path("x")):
            with pytest.raises(Unavailable):
                read_dump(pickle.dumps(content, protocol), 0)
    assert not os.path.exists(target)


HOSTILE = [
    b"\x80\x02" + b"]" * 30_000 + b".", b"\x80\x02" + b"(" * (MOST_MARKS + 1) + b".", b"\x80\x02]r\xff\xff\xff\xff.", b"\x80\x02e.",
    b"\x80\x02X\xff\xff\xff\xffx.", b"\x80\x04\x8d" + b"\xff" * 8 + b".", b"\x80\x02\x8b\xff\xff\xff\x7f.", b"\x80\x02h\x00.", b"\x80\x02",
    b"", b"\x80\x02](h\x00e.", b"\x80\x02}(]Ku.", b"\x80\x02(K\x01]a.", b"\x80\x02K\x01K\x02.", b"\x80\x02\x82\x01.", b"\x80\x02P0\n.",
    b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00id\x85R.", b"\x80\x02Q.", b"\x80\x02]0.", b"[" * 100_000, b'{"entries": 7}', b'{"a":' * 5000,
    b"\xff\xfe", b"7", b"\x80\x02}](K\x01u.", b"\x80\x02X\x01\x00\x00\x00\xff.", b"\x80\x05\x8c\x05ab",
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_what_is_no_dump_has_a_reason_and_takes_bounded_memory(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MOST_OPCODES", 20_000)
    tracemalloc.start()
    try:
        with pytest.raises(Unavailable):
            read_dump(HOSTILE[number], 0)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_small_pickle_that_unfolds_to_billions_of_values_is_refused_at_once() -> None:
    many: Any = 1
    for _ in range(7):
        many = [many] * 100
    frames = [{"name": "f", "filename": "a.py", "line": 1}] * 3000
    loop: list[Any] = []
    loop.append(loop)
    whole = dump([{**call(1), "frames": frames}] * 3000)
    around = dump([])
    around["entries"] += [around] * 3000
    for content in (dump([], version=many), whole, dump([{**call(1), "input_sizes": many}]), dump([], pg_status=loop), around):
        with pytest.raises(Unavailable):
            read_dump(pickle.dumps(content, 2), 0)
    with pytest.raises(Unavailable):
        read_dump(b'{"entries":[' + b"[]," * MOST_VALUES + b"1]}", 0)
    shared = call(1)["frames"]
    assert len(read_dump(packed(dump({**call(number), "frames": shared} for number in range(1, 2001))), 0).calls) == 2000


def test_many_transfers_and_groups_are_judged_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "MOST_GROUPS", 5)
    waits = [call(0, name, is_p2p=True, p2p_seq_id=1) for name in ("nccl:recv 0<-1", "nccl:send 1->0", "nccl:send 1->2")]
    dumps = {0: Dump(0, dump(waits[:1] * 20_000)), 1: Dump(1, dump([*waits[2:] * 20_000, waits[1]]))}
    began = time.process_time()
    judged(dumps, [])
    assert time.process_time() - began < 20.0, "a pass over each, not over each for each"
    many = Dump(0, dump(call(1, process_group=(str(number), "")) for number in range(99)))
    assert len(many.by_group) == 5


def test_odd_values_cost_only_their_calls() -> None:
    loop = [[[[{}]]]]
    changes: list[Any] = [{"input_sizes": loop}, {"collective_seq_id": -5}, {"frames": 3}]
    odd = [loop, {"profiling_name": loop}, None, *({**call(1), **one} for one in changes)]
    content = dump([*odd, {**call(9, "nccl:\x1b[31mred" + "x" * 900), "input_sizes": [[1 << 62] * 30], "process_group": ["0", "\x1b]0;"]}],
                   pg_config={"0": {"ranks": loop, "desc": "x"}, "1": loop}, pg_status={"0": loop})  # fmt: skip
    content["entries"].append(dump([]))
    found = judged({0: read_dump(pickle.dumps(content, 2), 0, LATER_NS), 1: Dump(1, dump(done(3)))}, [])
    [stop] = found.stops
    assert stop.number == 9 or stop.missing == [1]
    assert "\x1b" not in found.words + stop.collective + stop.group
    assert stop.size_bytes is None or stop.size_bytes >= 0
    assert len(found.words) < 600


def test_damage_never_raises() -> None:
    rng = random.Random(4)
    whole = [packed(dump([*done(3), call(4)], RANKS)), json.dumps(dump([*done(3), call(4)], RANKS)).encode()]
    for i in range(1500):
        data = bytearray(whole[i % 2])
        for _ in range(rng.choice((1, 2, 8))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            found = judged({0: read_dump(bytes(data[: rng.choice((len(data), rng.randrange(len(data))))]), 0, LATER_NS)}, [])
        except Unavailable:
            continue
        assert list(lines(found, 80))


def test_files_are_read_by_the_rank_in_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "comm_lib_trace_rank_0", tmp_path / "dump_11.json"]
    paths[0].write_bytes(packed(dump([*done(2), call(3)])))
    paths[1].write_text(json.dumps(dump(done(2))))
    assert cli.main(["trace", "--flight", "--json", "--read", *map(str, paths)]) == 0
    [job] = json.loads(capsys.readouterr().out)["jobs"]
    assert [(stop["missing"], stop["waiting"]) for stop in job["stops"]] == [([11], [0])]
    assert cli.main(["trace", "--flight", "--read", *map(str, paths)]) == 0
    assert "rank 11 has not come to all_reduce 3" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "norank").write_bytes(b"")
    for wrong in (["norank"], ["dump_11.json", "dump_11.json"], ["gone_1"]):
        with pytest.raises(UserError):
            read_files([str(tmp_path / name) for name in wrong])


@pytest.fixture
def folder() -> Iterator[str]:
    path = environment.make_folder(f"/tmp/gputop-test-{os.getpid()}-{uuid.uuid4().hex[:6]}")
    yield path
    for name in os.listdir(path):
        os.unlink(os.path.join(path, name))
    os.rmdir(path)


@contextmanager
def rank(folder: str, number: int, content: Path) -> Iterator[int]:
    """A rank that has NCCL's pipe; yields its pid."""
    environ = {**os.environ, **environment.variables(folder), "RANK": str(number), "WORLD_SIZE": "3"}
    child = subprocess.Popen([sys.executable, "-m", "tests.traces.flights", str(content)], cwd=ROOT, stdout=subprocess.PIPE, env=environ)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
    finally:
        child.kill()
        child.wait()


def test_ranks_that_hang_are_asked_by_their_pipes(folder: str, tmp_path: Path) -> None:
    ahead, behind = tmp_path / "ahead", tmp_path / "behind"
    created_ns = time.time_ns() - 60_000_000_000
    ahead.write_bytes(packed(dump([*done(2), call(3, time_created_ns=created_ns)], range(3))))
    behind.write_bytes(packed(dump(done(2), range(3))))
    with ExitStack() as stack:
        pids = [stack.enter_context(rank(folder, number, file)) for number, file in enumerate((ahead, behind, ahead))]
        assert set(pids) <= set(pipes.recorded())
        [found] = pipes.ask(pids)
        again = pipes.answers(pids)
    assert [(one.rank, one.pid, one.error) for one in found.ranks] == [(number, pid, None) for number, pid in enumerate(pids)]
    [stop] = found.stops
    assert (stop.missing, stop.waiting) == ([1], [0, 2])
    assert stop.waited_s is not None
    assert 55 < stop.waited_s < 600
    assert again == [found.words]
    assert [name for name in os.listdir(folder) if name.startswith(environment.FLIGHT) and not name.endswith(".pipe")] == []


def test_a_rank_that_cannot_dump_has_a_reason(folder: str, tmp_path: Path) -> None:
    """A dump that is more than data, a process that has no pipe, one that was started without the variable."""
    hostile = tmp_path / "hostile"
    hostile.write_bytes(pickle.dumps(Runs(str(tmp_path / "ran")), 2))
    waits = [sys.executable, "-c", "print(flush=True); input()"]
    plain = subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    gloo = subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment.variables(folder)})
    try:
        for child in (plain, gloo):
            assert child.stdout is not None
            child.stdout.readline()
        assert pipes.ask([plain.pid]) == []
        with rank(folder, 0, hostile) as pid:
            [found] = pipes.ask([pid, gloo.pid], 1.0)
    finally:
        for child in (plain, gloo):
            child.communicate(b"\n")
    assert ["more than data" in str(one.error) for one in found.ranks] == [True, False]
    assert "no pipe" in str(found.ranks[1].error)
    assert not (tmp_path / "ran").exists()


def test_dumps_that_torch_left_are_reported_and_kept(folder: str) -> None:
    for number in range(2):
        Path(folder, f"{environment.FLIGHT}{number}").write_bytes(packed(dump([*done(2), *([call(3)] if number else [])])))
    os.mkfifo(f"{folder}/{environment.FLIGHT}0.pipe")
    said: list[str] = []
    report_folder(folder, said.append)
    environment.remove(folder)
    assert "rank 0 has not come to all_reduce 3" in said[0]
    assert sorted(os.listdir(folder)) == [f"{environment.FLIGHT}{number}" for number in range(2)]


def test_settings_of_the_users_own_stay() -> None:
    more, path = environment.added({"TORCH_NCCL_TRACE_BUFFER_SIZE": "9", "TORCH_FR_DUMP_TEMP_FILE": "/x/y_"})
    assert path is not None
    environment.remove(path)
    assert not {name for name in more if "BUFFER" in name or "TEMP_FILE" in name}
    assert more[environment.PIPE].startswith(path)


@pytest.mark.parametrize("ending", ["", ".json"])
def test_torchs_own_dumps_of_two_ranks_name_the_one_that_did_not_come(ending: str) -> None:
    """Of torch 2.13: rank 0 began a fourth all-reduce, of 4 MiB, and rank 1 did not."""
    [stop] = read_files([str(DATA / f"gloo_{number}{ending}") for number in range(2)]).stops
    assert (stop.kind, stop.missing, stop.waiting, stop.number, stop.size_bytes) == ("missing", [1], [0], 4, 4 << 20)


def test_a_dump_is_evidence_of_the_incident_in_whose_time_it_was_taken() -> None:
    told = [Dated(50.0, "rank 9 has not come to x"), Dated(120.0, "rank 1 has not come to all_reduce 6"), Dated(900.0, "later")]
    hung = _with_dumps(replace(EPISODE, cause="straggler-rank", start_unix_s=100.0, end_unix_s=200.0, evidence=[]), told)
    assert [one.text for one in hung.evidence] == ["torch's flight recorder: rank 1 has not come to all_reduce 6"]
    assert _with_dumps(replace(EPISODE, cause="disk-io", start_unix_s=100.0, end_unix_s=200.0, evidence=[]), told).evidence == []


def test_a_dump_that_is_larger_than_any_is_given_up_at_the_first_look(tmp_path: Path) -> None:
    one = pipes._RankRecorder.__new__(pipes._RankRecorder)
    one._path, one._before, one._size = str(tmp_path / "dump0"), (0, 0, 0), -1
    assert one.dump(False) is None
    with open(one._path, "wb") as file:
        file.truncate(flight.MOST_BYTES + 1)
    with pytest.raises(Unavailable, match="larger"):
        one.dump(False)
