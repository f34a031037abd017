"""An inference server's pages on every surface: series, lanes, JSON, SQL, metrics, OpenTelemetry, the page in HTML, what agents get."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputop.agents.overview import server_row
from gputop.findings.path import reading
from gputop.metrics.otlp import latencies
from gputop.model.board import Board
from gputop.model.fields import FIRST_TOKEN, KV_USED, OF_SERVERS, RUNNING, STEPS, TOKENS, WAITING
from gputop.model.frame import Frame, Header, Serving
from gputop.model.serving import BEYOND_US, subject_of, whole
from gputop.recording.keyframe import key_frame
from gputop.recording.reader import Recording
from gputop.recording.seconds import merge_second
from gputop.recording.writer import Writer
from gputop.stream.history import History
from gputop.stream.observers import unjudged
from gputop.stream.session import Session
from gputop.stream.snapshot import Snapshots
from gputop.system.text import figure
from gputop.tables.database import Database
from gputop.tui.draw.lanes import all_lanes, short, value_at
from gputop.tui.draw.table import rows
from gputop.tui.draw.view import View
from tests.metrics.made import series, taken
from tests.unit.diagnosis.causes_serving import CORE, TOP, vllm
from tests.unit.diagnosis.scene import FUTEX, POLL_SOCKET, Proc, Scene

SERVER = ["python3", "/opt/bin/vllm", "serve", "tiny"]


def page(second: int, t_ns: int, model: str = "tiny") -> Serving:
    """The page of a server that generates 200 tokens a second while its queue grows."""
    return Serving(
        TOP, "127.0.0.1:8000", "0", model, "vllm", t_ns, running=4, waiting=3 * second, kv_used_pct=50.0, preemptions=second,
        prompt_tokens=1000 * second, generated_tokens=200 * second, finished=2 * second, steps=50 * second, step_tokens=200 * second,
        first_token_us=400_000 * second, first_token={100_000: second, 500_000: second, BEYOND_US: 0}, per_token={20_000: 200 * second},
    )  # fmt: skip


def scene() -> Scene:
    """vLLM on one GPU."""
    made = Scene(gpus={0: {"util_pct": 60.0, "power_w": 300.0, "power_limit_w": 400.0, "pids": [CORE]}})
    info = {"uses_cuda": True, "libs": ["torch", "vllm"]}
    made.add(Proc(TOP, comm="vllm", cmdline=SERVER, run=0.2))
    return made.add(Proc(CORE, TOP, "VLLM::EngineCor", SERVER, 0.4, looks=[FUTEX], info=info))


def stream(seconds: float = 8.0) -> Iterator[Header | Frame]:
    made = scene()
    yield made.board.header
    for tick in range(round(5 * seconds)):
        frame = made.next_frame(0.2)
        frame.servings, frame.key = [page(1 + tick // 5, frame.t_ns)] if tick % 5 == 2 else [], not tick
        yield frame


@pytest.fixture
def session() -> Session:
    made = Session()
    for item in stream():
        made.ingest(item)
    return made


def test_lanes_of_a_server_come_first_and_steps_do_not(session: Session) -> None:
    session.history.put(STEPS, CORE, 3.0)
    lanes = [lane.key for lane in all_lanes(session, View())]
    assert lanes[:2] == [(TOKENS, TOP), (WAITING, TOP)]
    assert (STEPS, CORE) not in lanes
    assert {(FIRST_TOKEN, TOP), (KV_USED, TOP)} <= {*lanes}
    newest = {key[0]: value for key, value in _last(session).items()}
    assert newest[TOKENS] == pytest.approx(200.0)
    assert (newest[WAITING], newest[KV_USED]) == (24.0, 50.0)
    assert newest[FIRST_TOKEN] == pytest.approx(492.0)


def asked(seconds: float = 30.0) -> Iterator[Header | Frame]:
    """A server whose queue, tokens and times change with each page, which comes once a second."""
    made = vllm(30.0, 0.98, 0.1, POLL_SOCKET)
    yield made.board.header
    first_token, tokens = {100_000: 0, 500_000: 0, 3_000_000: 0}, 0
    for tick in range(round(10 * seconds)):
        second = tick // 10
        if is_new := tick % 10 == 3:
            first_token = {100_000: 2 * second, 500_000: 3 * second, 3_000_000: second * (second % 7)}
            tokens += 211 + 37 * (second % 5)
            gauges = {"waiting": 5 + second % 6, "running": 3 + second % 2, "kv_used_pct": 60.5 + second % 4}
            made.server |= gauges | {"first_token": first_token}
        frame = made.next_frame(0.1)
        frame.key = not tick
        frame.servings = [replace(one, generated_tokens=tokens) for one in frame.servings] if is_new else []
        yield frame


def shown(session: Session, at_ns: int | None) -> tuple[list[str], list[str], list[str]]:
    """(running, queue, tokens a second, p99 of the first token, as the lanes print them; the same in the row; those of the verdict)"""
    now_ns = session.now_ns if at_ns is None else at_ns
    lanes = [short(value_at((field, TOP), session.history, now_ns)) for field in (RUNNING, WAITING, TOKENS, FIRST_TOKEN)]
    view = View(width=160, cursor_ns=at_ns)
    [served] = [row.served for row in rows(session, view) if row.served is not None]
    row = [short(value) for value in (served.running, served.waiting, served.tokens_per_s, served.first_token_p99_ms) if value is not None]
    verdict = session.verdict_at(at_ns)
    assert verdict.requests is not None
    told = re.search(r"(\d+) requests run, (\d+) wait; (\d+) tokens/s; first token \d+ ms \(p99 (\d+) ms\)", verdict.requests.told())
    assert told is not None
    assert f"{told[2]} wait, {told[1]} run; first token after" in verdict.requests.way[0].told
    assert f"(p99 {told[4]} ms)" in verdict.requests.way[0].told
    evidence = {one.metric: reading(one.value or 0.0, one.unit) for one in verdict.evidence}
    assert evidence["requests_waiting"].split()[0] == told[2]
    assert evidence["generated_tokens_per_s"].replace(",", "").split()[0] == told[3]
    return lanes, row, [*told.groups()]


def test_lanes_row_verdict_and_evidence_have_one_window_and_one_rounding() -> None:
    """At each tick, between two judgements and while nothing else moves; and at each moment that one looks back to."""
    session, at = Session(), dict[int, list[str]]()
    for item in asked():
        session.ingest(item)
        if session.now_ns - session.oldest_ns > 8 * 10**9:
            lanes, row, told = shown(session, None)
            assert lanes == row == told
            at[session.now_ns] = told
    assert session.engine.verdict.cause == "frontend-bound"
    assert sum(before != after for before, after in pairwise(at.values())) > 20, "each page has numbers of its own"
    for t_ns, told in [*at.items()][::7]:
        assert shown(session, t_ns) == (told, told, told)


def test_who_does_not_judge_has_the_same_series() -> None:
    session, history, board, observers = Session(), History(100_000_000), Board(), unjudged()
    for item in asked(12.0):
        session.ingest(item)
        if isinstance(item, Frame):
            history.tick(item.t_ns)
            for observe in observers:
                observe(board, item, history)
            board.fold(item)
    for field in OF_SERVERS:
        judged, plain = ([value for _, value in one.values((field, TOP), 0, session.now_ns + 1)] for one in (session.history, history))
        assert judged == plain
        assert len(judged) > 9


@pytest.mark.parametrize("value", [0.4, 7.5, 57.49999, 998.7, 1403.4999, 12344.9, 987654.3])
def test_a_number_that_is_rounded_is_rounded_once(value: float) -> None:
    assert int(figure(whole(value)).replace(",", "")) == whole(value) == float(f"{whole(value):.0f}")


def test_a_page_that_is_not_read_has_its_reason_on_its_lane() -> None:
    made, session = scene(), Session()
    session.ingest(made.board.header)
    for number in range(20):
        frame = made.next_frame(0.2)
        frame.key = not number
        frame.servings = [Serving(TOP, "127.0.0.1:8000", family="vllm", t_ns=frame.t_ns, problem="it answers 404")]
        session.ingest(frame)
    first = all_lanes(session, View())[0]
    assert (first.key, first.absent) == ((TOKENS, TOP), "it answers 404")


def _last(session: Session) -> dict[tuple[str, int], float]:
    found = {}
    for key in session.history.series:
        for _, value in session.history.values(key, 0, session.now_ns + 1):
            found[key] = value
    return found


def test_json_has_rates_and_reasons() -> None:
    snapshots = Snapshots()
    for item in stream():
        snapshots.take(item)
    (one,) = snapshots.now().servers
    assert (one.pid, one.model, one.waiting, one.generated_tokens_per_s, one.tokens_per_step) == (TOP, "tiny", 24, 200.0, 4.0)
    assert one.queued_p50_s is None
    assert one.missing["queued_p50_s"] == "its page has no such metric"
    row = server_row(one)
    assert (row["waiting"], row["first_token_p50_s"], row["engine"]) == (24, 0.1, "vllm")


def test_recordings_keep_pages_and_sql_has_what_was_added(tmp_path: Path) -> None:
    path = tmp_path / "run.gputop"
    header, *frames = stream()
    assert isinstance(header, Header)
    writer = Writer(str(path), header)
    for frame in frames:
        writer.add(frame)  # type: ignore[arg-type]
    writer.close()
    with Recording(str(path)) as recording:
        kept = [one for frame in recording.frames(recording.start_ns, recording.end_ns + 1) for one in frame.servings]
        assert [one.waiting for one in kept] == [3 * second for second in range(1, 9)]
        assert kept[-1] == replace(page(8, 0), t_ns=kept[-1].t_ns)
        _, rows = Database(recording).ask("SELECT waiting, generated_tokens, steps, first_token_p99_s, first_token_s FROM serving")
        assert [*rows][1] == (6, 200, 50, pytest.approx(0.492), pytest.approx(0.4))


def test_merged_and_key_frames_have_the_newest_page() -> None:
    _, *frames = stream(2.0)
    merged = merge_second([frame for frame in frames if isinstance(frame, Frame)])[-1]
    assert [one.waiting for one in merged.servings] == [6]
    session = Session()
    for item in stream(2.0):
        session.ingest(item)
    assert [one.waiting for one in key_frame(session.board, Frame(1, session.now_ns)).servings] == [6]
    session.board.fold(Frame(99, session.now_ns + 1, gone=[TOP]))
    assert session.board.servings == {}, "the server is gone"


def test_metrics_of_prometheus() -> None:
    found = series(taken(list(stream())))
    of = 'engine="0",family="vllm",model="tiny",server="127.0.0.1:8000"'
    assert found[f"gputop_serving_requests_waiting{{{of}}}"] == 24
    assert found[f"gputop_serving_generated_tokens_total{{{of}}}"] == 1600
    assert found[f"gputop_serving_kv_used_ratio{{{of}}}"] == 0.5
    median = of.replace(",server", ',quantile="0.5",server')
    assert found[f"gputop_serving_first_token_seconds{{{median}}}"] == pytest.approx(0.1)
    assert not any("queued" in name for name in found), "what is not measured has no sample"


def test_opentelemetry_gets_the_histograms_by_its_own_names() -> None:
    found = {metric.name: metric for metric in latencies([page(3, 1)], 5, 9)}
    assert {*found} == {"gen_ai.server.time_to_first_token", "gen_ai.server.time_per_output_token"}
    (point,) = found["gen_ai.server.time_to_first_token"].data.data_points
    assert (point.count, point.sum, [*point.bucket_counts], [*point.explicit_bounds]) == (6, 1.2, [3, 3, 0], [0.1, 0.5])
    assert point.attributes == {"gen_ai.provider.name": "vllm", "gen_ai.request.model": "tiny", "server.address": "127.0.0.1:8000"}


def test_a_server_without_a_process_has_a_subject_of_its_own() -> None:
    one, other = (subject_of(Serving(0, f"10.0.0.{i}:8000")) for i in (1, 2))
    assert one != other
    assert max(one, other) < 0
