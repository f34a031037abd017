"""Inference servers: found by their processes, asked at the right port alone, and harmless whatever they answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputop.model.engines import FRONT, SCHEDULER, WORKER, engine_of, engines, families, part_of
from gputop.model.frame import Frame, ProcInfo, Serving
from gputop.model.serving import BEYOND_US, NOT_LISTENING, NOT_READY, ServingTracks, newest, quantile_us, serving_now
from gputop.sources import Beat, Settings, Unavailable
from gputop.sources.procfs import wire
from gputop.sources.serving import FIND_NS, ServingSource, http
from gputop.sources.serving.asking import LOOK_S, parts_of
from gputop.sources.serving.page import MOST_BUCKETS, MOST_LINE, MOST_MODELS, MetricsPage
from gputop.sources.serving.place import Place, is_still, listening, named_port
from tests.ports import free_port
from tests.require import require
from tests.sources.engines import PAGE
from tests.wait import until

API = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
HERE = Path(__file__).parents[2]


class Engine:
    """A fake engine's processes."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        assert process.stdout is not None
        self.pid, self.core = process.pid, int(process.stdout.readline())
        self._stdout, self._folder = process.stdout, folder
        self._argv = [*API, *([word for word in process.args if str(word) == "--port"] and process.args[-2:])]  # type: ignore[index,misc,list-item]

    def listens(self) -> tuple[int, float]:
        """(port, when it began to listen), once it does."""
        port, since_s = self._stdout.readline().split()
        return int(port), float(since_s)

    @property
    def asked(self) -> list[str]:
        file = self._folder / "asked"
        return file.read_text().split("\n")[:-1] if file.exists() else []

    def infos(self) -> list[ProcInfo]:
        server = ProcInfo(self.pid, 1, ppid=1, comm="python3", cmdline=self._argv, exe=sys.executable)
        core = ProcInfo(self.core, 1, ppid=self.pid, comm="VLLM::EngineCor", cmdline=self._argv, exe=sys.executable)
        return [server, core]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder in which `python -m vllm.entrypoints.openai.api_server` is the fake engine."""
    folder = tmp_path / "vllm" / "entrypoints" / "openai"
    folder.mkdir(parents=True)
    (folder / "api_server.py").write_text("import runpy\nrunpy.run_module('tests.sources.engines', run_name='__main__')\n")
    return tmp_path


@contextmanager
def engine(folder: Path, *, port: int | None = None, prefix: tuple[str, ...] = (), **how: object) -> Iterator[Engine]:
    how = {"asked": str(folder / "asked"), "body": "page", **how}
    env = os.environ | {"PYTHONPATH": f"{folder}:{HERE}", "ENGINE_HOW": json.dumps(how)}
    argv = [*API, *(["--port", str(port)] if port is not None else [])]
    with subprocess.Popen([*prefix, *argv], env=env, stdout=subprocess.PIPE, text=True) as process:
        found = Engine(process, folder)
        try:
            yield found
        finally:
            os.kill(found.core, signal.SIGKILL)
            process.kill()


class Watched:
    """The source, and what it put into frames."""

    def __init__(self, *urls: str, gpu_pids: frozenset[int] = frozenset(), infos: list[ProcInfo] | None = None) -> None:
        self.source = ServingSource(Settings(serving=urls))
        self.state = self.source.open()
        self._gpu_pids, self._infos = gpu_pids, infos or []
        self.found: dict[tuple[int, str, str, str], Serving] = {}
        self.slowest_s = 0.0

    def beat(self, gone: list[int] | None = None, key: bool = False) -> list[Serving]:
        now = time.monotonic_ns()
        beat, frame = Beat(now, 1, key, gpu_pids=self._gpu_pids), Frame(1, now, infos=self._infos, gone=gone or [])
        self._infos = []
        began_s = time.thread_time()
        self.source.read(beat, frame)
        self.slowest_s = max(self.slowest_s, time.thread_time() - began_s)
        self.found = newest((*self.found.values(), *frame.servings))
        self.state = next(iter(beat.changed), self.state)
        return frame.servings

    @property
    def page(self) -> Serving | None:
        self.beat()
        return next(iter(self.found.values()), None)

    def values(self) -> Serving:
        """The first page with values."""
        until(lambda: (page := self.page) is not None and page.running is not None)
        return next(iter(self.found.values()))

    def problem(self) -> str:
        """The first reason why an address has none."""
        until(lambda: (page := self.page) is not None and bool(page.address and page.problem))
        return next(iter(self.found.values())).problem


@contextmanager
def watched(*urls: str, of: Engine | None = None) -> Iterator[Watched]:
    found = Watched(*urls, gpu_pids=frozenset({of.core} if of else ()), infos=of.infos() if of else [])
    try:
        yield found
    finally:
        found.source.close()


def read(text: str | bytes, pieces: int = 1 << 20, family: str = "vllm") -> list[Serving]:
    page = MetricsPage([one for one in engines() if one.name == family or not family])
    data = text.encode() if isinstance(text, str) else text
    for at in range(0, len(data), pieces):
        page.feed(data[at : at + pieces])
    return page.end(1, "127.0.0.1:8000", 5)


def test_from_the_process_on_the_gpu_to_the_page(package: Path) -> None:
    """Also the port is found that the command line names, within a second, at a cost of less than 2 ms for each page."""
    with engine(package, port=free_port(), after_s=0.3) as served, watched(of=served) as seen:
        until(lambda: (page := seen.page) is not None and "listens yet" in page.problem)
        port, since_s = served.listens()
        page = seen.values()
        assert page.t_ns / 1e9 - since_s < 10.0, "found late, even for a busy machine"
        assert (page.pid, page.address, page.family, page.model) == (served.pid, f"127.0.0.1:{port}", "vllm", "tiny/llama")
        assert (page.running, page.waiting, page.kv_used_pct, page.preemptions, page.finished) == (5, 23, 42.4, 7, 33)
        assert (page.prompt_tokens, page.generated_tokens, page.steps, page.step_tokens) == (120_000, 4242, 600, 124_242)
        assert page.first_token == {100_000: 10, 500_000: 20, BEYOND_US: 3}
        assert seen.state.state == "ok"
        assert f"asked at 127.0.0.1:{port}" in seen.state.detail.values()
        assert {*served.asked} == {"/metrics"}
        assert len(seen.beat(key=True)) == 1, "a key frame restates the page"
        until(lambda: seen.beat(gone=[served.pid, served.core]) == [] and seen.state.detail == {}), "its thread has ended"


@pytest.mark.parametrize(
    ("body", "server", "on_gpu", "waiting"),
    [
        ("sglang", ["python3", "-m", "sglang.launch_server"], ["sglang::scheduler_TP0"], 9),
        ("llamacpp", ["llama-server"], [], 7),
        ("tgi", ["text-generation-router"], ["python3", "/opt/bin/text-generation-server", "serve"], 5),
        ("triton", ["tritonserver"], [], 6),
    ],
)
def test_each_engine_is_found_by_its_own_processes(package: Path, body: str, server: list[str], on_gpu: list[str], waiting: int) -> None:
    """Where one process does all, that is on the GPU itself; a TGI's router is a sibling of its shards."""
    port = free_port()
    with engine(package, port=port, body=body) as served:
        served.listens()
        flag = "--metrics-port" if body == "triton" else "--port"
        top = served.pid if body != "tgi" else 1_000_001
        own = info(served.pid, 1 if top == served.pid else top, *server, flag, str(port), comm=server[0][:15])
        others = [info(served.core, top, *on_gpu, comm=on_gpu[0][:15])] if on_gpu else []
        launcher = [info(top, 1, "text-generation-launcher", comm="text-generation")] if body == "tgi" else []
        seen = Watched(gpu_pids=frozenset({served.core if on_gpu else served.pid}), infos=[*launcher, own, *others])
        try:
            page = _first(seen)
        finally:
            seen.source.close()
        assert (page.family, page.pid, page.waiting) == (body, top, waiting)


def _first(seen: Watched) -> Serving:
    """The first page with a queue: Triton does not count what it works on."""
    until(lambda: (page := seen.page) is not None and page.waiting is not None)
    return next(iter(seen.found.values()))


def test_no_other_port_is_asked(package: Path) -> None:
    """Its other ports may be NCCL's. Two ports of which none is the usual one are not asked either; the reason has the way out."""
    others = [free_port(), free_port()]
    with engine(package, port=free_port(), others=others) as served, watched(of=served) as seen:
        served.listens()
        seen.values()
        assert "another port" not in served.asked
    (package / "asked").unlink()
    others = [free_port(), free_port()]
    with engine(package, others=others) as served, watched(of=served) as seen:
        served.listens()
        until(lambda: seen.page is not None and "ports" in seen.state.reason and "--serving" in seen.state.remedy)
        assert served.asked == []


def test_a_page_in_chunks(package: Path) -> None:
    with engine(package, port=free_port(), chunks=True) as served, watched(of=served) as seen:
        served.listens()
        assert seen.values().waiting == 23


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"body": "drip"}, "longer than 0.5 s"), ({"body": "gigabyte"}, "larger than 1 MiB"), ({"body": "binary"}, "no metrics of vLLM"),
        ({"body": "other"}, "no metrics of vLLM"), ({"redirect": "http://127.0.0.1:1/metrics"}, "answers 307"),
        ({"body": "series"}, "larger than 1 MiB"),
    ],
)  # fmt: skip
def test_hostile_pages_cost_their_value(package: Path, how: dict[str, object], reason: str) -> None:
    """No beat waits for them, and the reason stands in the source's state."""
    with engine(package, port=free_port(), **how) as served, watched(of=served) as seen:
        served.listens()
        until(lambda: reason in seen.problem())  # a machine that is busy may at first take too long for a large page
        assert seen.state.state == "partial"
        assert reason in seen.state.reason
        assert seen.state.remedy
        assert seen.slowest_s < 0.05


def test_a_port_that_another_process_has_taken_is_not_asked(package: Path) -> None:
    port = free_port()
    with engine(package, port=port) as served:
        served.listens()
        place = next(one for one in listening(f"/proc/{served.pid}/") if one.port == port)
    found = Place(place.host, place.port, frozenset({place.inode}))
    with socket.create_server(("127.0.0.1", port)):
        assert not is_still("/proc/", os.getpid(), found)


def test_sockets_that_listen_are_those_of_the_kernels_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """By sock_diag; where it does not answer, by /proc."""
    with socket.create_server(("127.0.0.1", 0)) as four, socket.create_server(("::1", 0), family=socket.AF_INET6) as six:
        wanted = {(one.getsockname()[0], one.getsockname()[1], str(os.fstat(one.fileno()).st_ino).encode()) for one in (four, six)}
        assert wanted <= {tuple(one) for one in listening("/proc/self/")}
        monkeypatch.setattr(wire, "listening", list)
        assert wanted <= {tuple(one) for one in listening("/proc/self/")}


def test_an_engine_in_a_network_of_its_own(package: Path) -> None:
    require("net")
    with engine(package, port=8000, prefix=("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")) as served:
        served.listens()
        with watched(of=served) as seen:
            assert seen.values().address == "127.0.0.1:8000"


def test_an_address_that_was_given(package: Path) -> None:
    """It is asked whatever its process is called; where nothing answers, the reason stands there."""
    with engine(package, port=free_port()) as served:
        port, _ = served.listens()
        with watched(f"http://127.0.0.1:{port}") as seen:
            page = seen.values()
            assert (page.pid, page.family, page.waiting) == (0, "vllm", 23)
    with watched(f"http://127.0.0.1:{port}/metrics") as seen:
        assert "cannot be read" in seen.problem()


def test_addresses() -> None:
    assert parts_of("http://[::1]:9/x") == ("::1", 9, "/x")
    for wrong in ("127.0.0.1:8000", "https://a:1", "http://a", "http://u:p@a:1", "http://a:1/\r\nX: y", "http://a:99999"):
        with pytest.raises(ValueError, match=r"http|Port"):
            parts_of(wrong)
    assert named_port(["x", "--port=81"], ["--port"]) == 81
    assert named_port(["x", "--port"], ["--port"]) is None
    assert named_port(["--port", "8o"], ["--port"]) is None


def test_a_page_is_read_in_any_pieces() -> None:
    whole = read(PAGE)
    assert [read(PAGE, pieces) for pieces in (1, 7, 1000)] == [whole] * 3
    assert len(whole) == 1


def test_what_a_page_may_hold() -> None:
    """Lines without sense are passed over: no number, no end, a control character, more models than a server has."""
    strange = (
        b'vllm:num_requests_running{model_name="a\x1b[31m"} 1\nvllm:num_requests_waiting nan\nvllm:num_requests_waiting -3\n'
        b'vllm:num_requests_waiting{model_name="a\n} 5\nvllm:kv_cache_usage_perc 7\n' + b"vllm:num_requests_running" * MOST_LINE + b" 3\n"
    )
    found = read(strange)
    assert all(one.waiting is None for one in found)
    assert all(one.model.isprintable() for one in found)
    assert max(one.kv_used_pct or 0.0 for one in found) == 100.0
    many = "".join(f'vllm:num_requests_running{{model_name="m{number}"}} 1\n' for number in range(500))
    assert len(read(many)) == MOST_MODELS
    assert read("vllm:num_requests_running 1e300\n") == [] or read("vllm:num_requests_running 1e300\n")[0].running is None


def test_a_page_made_to_be_slow_is_not() -> None:
    """Labels that nearly are some, and a histogram with a bucket for each number."""
    began_s = time.thread_time()
    read("".join(f"vllm:num_requests_running{{{'a' * 4000}}} {i}\n" for i in range(100)))
    assert time.thread_time() - began_s < 1.0
    [page] = read("".join(f'vllm:e2e_request_latency_seconds_bucket{{le="{i}"}} {i}\n' for i in range(1, 2000)))
    assert len(page.whole) == MOST_BUCKETS


def test_a_name_that_is_no_hosts_has_a_reason() -> None:
    for host in ("a..b", "x" * 64):
        with pytest.raises(Unavailable, match="no name of a host"):
            list(http.get(host, 80, "/metrics"))


def test_older_names_and_other_engines() -> None:
    (old,) = read('vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:time_per_output_token_seconds_bucket{model_name="m",le="0.1"} 4\n')
    assert (old.kv_used_pct, old.per_token) == (50.0, {100_000: 4})
    (both,) = read('vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:kv_cache_usage_perc{model_name="m"} 0.6\n')
    assert both.kv_used_pct == 60.0
    (tp,) = read(
        'sglang:num_running_reqs{model_name="m",tp_rank="0"} 4\nsglang:num_running_reqs{model_name="m",tp_rank="1"} 4\n'
        'sglang:token_usage{model_name="m",tp_rank="0"} 0.25\nsglang:num_retracted_requests_total{model_name="m"} 2\n', family="",
    )  # fmt: skip
    assert (tp.family, tp.running, tp.kv_used_pct, tp.preemptions) == ("sglang", 4, 25.0, 2)
    (tgi,) = read("tgi_batch_current_size 3\ntgi_queue_size 9\ntgi_request_generated_tokens_sum 700\n", family="")
    assert (tgi.family, tgi.running, tgi.waiting, tgi.generated_tokens) == ("tgi", 3, 9, 700)
    (llama,) = read("llamacpp:requests_processing 2\nllamacpp:tokens_predicted_total 99\nllamacpp:n_decode_total 40\n", family="")
    assert (llama.family, llama.running, llama.generated_tokens, llama.steps) == ("llamacpp", 2, 99, 40)
    (triton,) = read('nv_inference_pending_request_count{model="m",version="1"} 6\nnv_inference_request_success{model="m"} 8\n', family="")
    assert (triton.family, triton.model, triton.waiting, triton.finished) == ("triton", "m", 6, 8)


def info(pid: int, ppid: int, *words: str, comm: str = "python3") -> ProcInfo:
    exe = "" if words and words[0].startswith(("llama", "triton", "text-gen")) else "/usr/bin/python3"
    return ProcInfo(pid, 1, ppid=ppid, comm=comm, cmdline=list(words), exe=exe)


@pytest.mark.parametrize(
    ("processes", "on_gpu", "top", "fronts"),
    [
        ([info(5, 1, "python3", "/opt/bin/vllm", "serve", "m"), info(6, 5, "VLLM::EngineCore"), info(7, 6, "VLLM::Worker_TP0")], 7, 5, [5]),
        ([info(5, 1, "python3", "/opt/bin/vllm", "serve", "m"), info(6, 5, "VLLM::APIServer_0"), info(7, 5, "VLLM::APIServer_1"),
          info(8, 5, "python3", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork")], 8, 5, [5, 6, 7]),
        ([info(5, 1, "python3", "-m", "sglang.launch_server"), info(6, 5, "sglang::scheduler_TP0"), info(7, 5, "sglang::detokenizer")],
         6, 5, [5]),
        ([info(5, 1, "text-generation-launcher", comm="text-generation"), info(6, 5, "text-generation-router", comm="text-generation"),
          info(7, 5, "python3", "/opt/bin/text-generation-server", "serve")], 7, 5, [6]),
        ([info(5, 1, "llama-server", "-m", "x.gguf", comm="llama-server")], 5, 5, [5]),
        ([info(5, 1, "tritonserver", comm="tritonserver"), info(6, 5, "triton_python_backend_stub", comm="triton_python_b")], 5, 5, [5]),
    ],
)  # fmt: skip
def test_families(processes: list[ProcInfo], on_gpu: int, top: int, fronts: list[int]) -> None:
    infos = {one.pid: one for one in (info(1, 0, "init"), info(99, 1, "python3", "train.py"), *processes)}
    found = families(infos, [on_gpu, 99])
    assert {pid: family.pids(FRONT) for pid, family in found.items()} == {top: fronts}


def test_parts_of_an_engine_are_known_by_their_titles() -> None:
    titles = ["ACME::EngineCore", "VLLM::Worker_TP3", "VLLM::APIServer", "sglang::scheduler_TP0", "python3"]
    assert [part_of(info(5, 1, title)) for title in titles] == [SCHEDULER, WORKER, FRONT, SCHEDULER, ""]
    assert engine_of(info(5, 1, "python3", "vllm_notes.py")) is None, "a name that begins alike is no engine"
    assert engine_of(info(5, 1, "vim", "vllm")) is None


def test_what_is_derived_from_two_pages() -> None:
    (old,) = read(PAGE)
    new = replace(
        old, t_ns=old.t_ns + 2_000_000_000, generated_tokens=4442, steps=620, step_tokens=124_482,
        first_token={100_000: 12, 500_000: 22, BEYOND_US: 3},
    )  # fmt: skip
    now = serving_now(old, new)
    assert (now.generated_tokens_per_s, now.steps_per_s, now.tokens_per_step, now.preemptions_per_s) == (100.0, 10.0, 12.0, 0.0)
    assert now.first_token_p50_s == 0.1
    assert now.first_token_p99_s == pytest.approx(0.492)
    assert now.per_token_p50_s is None
    assert now.missing["per_token_p50_s"] == "none in the last seconds"
    assert now.queued_p50_s is None
    assert now.missing["queued_p50_s"] == "its page has no such metric"
    assert "two pages" in serving_now(None, new).missing["generated_tokens_per_s"]
    assert "two pages" in serving_now(new, replace(old, t_ns=new.t_ns + 1)).missing["steps_per_s"], "its counters began again"
    assert quantile_us({}, {100: 1, BEYOND_US: 9}, 0.99) == 100.0, "what lies beyond the last bound counts as it"


def test_a_model_that_a_page_lacks_is_served_no_more() -> None:
    first = [Serving(1, "a", model=name, t_ns=5, running=1) for name in ("x", "y")]
    assert [*newest([*first, Serving(1, "a", model="y", t_ns=6)])] == [(1, "a", "", "y")]
    tracks = ServingTracks()
    tracks.push(newest(first))
    tracks.push(newest([replace(first[0], t_ns=1_000_000_005)]))
    assert [one.model for one in tracks.now()] == ["x"]
    tracks.push({})
    assert tracks.now() == []


def test_an_answer_that_ends_too_early() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        for said in (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", b"SSH-2.0-x\r\n\r\n", chunked + b"zz\r\n", chunked + b"5\r\nab"):
            thread = threading.Thread(target=_answer, args=(server, said))
            thread.start()
            with pytest.raises(Unavailable):
                list(http.get("127.0.0.1", server.getsockname()[1], "/metrics"))
            thread.join()


def _answer(server: socket.socket, words: bytes) -> None:
    line, _ = server.accept()
    with line:
        line.recv(4096)
        line.sendall(words)


REAL = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 9
llamacpp:prompt_tokens_cached_total 0
llamacpp:prompt_seconds_total 0.000388
llamacpp:tokens_predicted_total 40
llamacpp:tokens_predicted_seconds_total 0.002676
llamacpp:n_decode_total 40
llamacpp:n_tokens_max 48
llamacpp:spec_decode_num_draft_tokens_total 0
llamacpp:prompt_tokens_seconds 23195.9
llamacpp:predicted_tokens_seconds 14574
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
llamacpp:n_busy_slots_per_decode 1
"""
"""Most of the page of a real llama.cpp (b11549, the server in PyPI's xllamacpp 2026.10.11549, on a CPU), after one request of 40 tokens."""


def test_the_page_of_a_real_llama_cpp() -> None:
    (page,) = read(REAL, family="llamacpp")
    assert (page.running, page.waiting, page.prompt_tokens, page.generated_tokens, page.steps) == (1, 2, 9, 40, 40)
    assert page.kv_used_pct is None, "it has no such metric any more"


def test_a_large_page_costs_little() -> None:
    """As many lines as vLLM's of 40 kB, ten times over: 4 ms on a quiet CPU, the best of several."""
    text = (PAGE + "".join(f'vllm:x_bucket{{engine="0",le="{i}.0",model_name="tiny/llama"}} {i}.0\n' for i in range(400))) * 10
    assert 250_000 < len(text) < 500_000
    spent = []
    for _ in range(5):
        began_s = time.thread_time()
        read(text, 1 << 16)
        spent.append(time.thread_time() - began_s)
    assert min(spent) < 0.05


def test_an_engine_is_found_within_a_second_of_listening() -> None:
    """By the two intervals that it takes at most: of the search where processes changed, and of the look at its sockets."""
    assert FIND_NS / 1e9 + LOOK_S <= 1.0


def test_a_server_that_is_not_ready_loads_and_later_is_overloaded(package: Path) -> None:
    """llama-server and others listen, and answer 503, before they have their weights."""
    ready = package / "ready"
    with engine(package, port=free_port(), ready=str(ready)) as served, watched(of=served) as seen:
        until(lambda: (page := seen.page) is not None and page.problem == NOT_READY)
        ready.touch()
        assert seen.values().problem == ""
        ready.unlink()
        until(lambda: (page := seen.page) is not None and page.problem)
        assert seen.page is not None
        assert seen.page.problem == http.UNAVAILABLE


def test_a_port_that_a_stranger_takes_over_is_asked_no_more(package: Path) -> None:
    """The engine lives on, but has closed its socket; another process, of another user where there is one, listens at its port."""
    port = free_port()
    command = "import os,socket,sys;os.getuid() or os.setuid(65534);s=socket.create_server(('127.0.0.1',int(sys.argv[1])));"
    command += "print('up',flush=True)\nwhile 1: print(s.accept()[1][1],flush=True)"
    with engine(package, port=port, closes="yes") as served, watched(of=served) as seen:
        served.listens()
        seen.values()
        os.kill(served.pid, signal.SIGUSR1)
        until(lambda: not [one for one in listening("/proc/self/") if one.port == port])
        with subprocess.Popen([sys.executable, "-c", command, str(port)], stdout=subprocess.PIPE, text=True) as stranger:
            try:
                assert stranger.stdout is not None
                assert stranger.stdout.readline() == "up\n"
                until(lambda: (page := seen.page) is not None and page.problem == NOT_LISTENING)
                with socket.create_connection(("127.0.0.1", port)) as own:
                    assert int(stranger.stdout.readline()) == own.getsockname()[1], "asked by this test, and by nobody before"
                assert seen.page is not None
                assert seen.page.problem == NOT_LISTENING
            finally:
                stranger.kill()
