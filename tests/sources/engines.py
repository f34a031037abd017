"""Processes that look like an inference engine's, with a real server of metrics."""

from __future__ import annotations

import ctypes
import http.server
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny/llama"} 5.0
vllm:num_requests_waiting{engine="0",model_name="tiny/llama"} 23.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny/llama"} 0.424
vllm:num_preemptions_total{engine="0",model_name="tiny/llama"} 7.0
vllm:prompt_tokens_total{engine="0",model_name="tiny/llama"} 1.2e+05
vllm:generation_tokens_total{engine="0",model_name="tiny/llama"} 4242.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny/llama"} 30.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny/llama"} 3.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="tiny/llama"} 60.0
vllm:iteration_tokens_total_count{engine="0",model_name="tiny/llama"} 600.0
vllm:iteration_tokens_total_sum{engine="0",model_name="tiny/llama"} 124242.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="tiny/llama"} 10.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="tiny/llama"} 30.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny/llama"} 33.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny/llama"} 33.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.025",model_name="tiny/llama"} 4000.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="tiny/llama"} 4209.0
process_cpu_seconds_total 12.5
"""


class _Metrics(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    how: dict[str, Any] = {}

    def do_GET(self) -> None:
        """Answer in the way that the test asked for."""
        with Path(self.how["asked"]).open("a") as file:
            file.write(f"{self.path}\n")
        if "ready" in self.how and not Path(self.how["ready"]).exists():
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if "redirect" in self.how:
            self.send_response(307)
            self.send_header("Location", self.how["redirect"])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        if "chunks" in self.how:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(PAGE), 100):
                piece = PAGE[at : at + 100].encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.end_headers()
        self.close_connection = True
        try:
            for piece in _BODIES[self.how["body"]]():
                self.wfile.write(piece)
        except OSError:
            return

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _drip() -> Any:
    while True:
        yield b"v"
        time.sleep(0.05)


def _gigabyte() -> Any:
    for _ in range(1 << 14):
        yield b"x" * (1 << 16)


def _series() -> Any:
    for number in range(1_000_000):
        yield b'vllm:num_requests_running{model_name="m%d"} 1\n' % number


_BODIES: dict[str, Any] = {
    "page": lambda: [PAGE.encode()], "drip": _drip, "gigabyte": _gigabyte, "series": _series,
    "sglang": lambda: [b'sglang:num_running_reqs{model_name="m",tp_rank="0"} 4\nsglang:num_queue_reqs{model_name="m",tp_rank="0"} 9\n'],
    "llamacpp": lambda: [b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 7\n"],
    "tgi": lambda: [b"tgi_batch_current_size 3\ntgi_queue_size 5\n"],
    "triton": lambda: [b'nv_inference_pending_request_count{model="m",version="1"} 6\nnv_inference_request_success{model="m"} 8\n'],
    "binary": lambda: [bytes(range(256)) * 400], "other": lambda: [b"process_cpu_seconds_total 12.5\n"],
}  # fmt: skip


def serve(port: int, how: dict[str, Any]) -> None:
    """Serve for ever, after a pause where the test wants one; listen at other ports, too, of which each connection is noted."""
    time.sleep(how.get("after_s", 0.0))
    for other in how.get("others", ()):
        threading.Thread(target=_note, args=(socket.create_server(("127.0.0.1", other)), Path(how["asked"])), daemon=True).start()
    handler = type("Handler", (_Metrics,), {"how": how})
    server = http.server.ThreadingHTTPServer((how.get("host", "127.0.0.1"), port), handler)
    if "closes" in how:
        signal.signal(signal.SIGUSR1, lambda *_: server.socket.close())
    print(server.server_address[1], time.monotonic(), flush=True)
    try:
        server.serve_forever()
    except (OSError, ValueError):  # its socket was closed, as the test asked
        time.sleep(600)


def _note(server: socket.socket, asked: Path) -> None:
    while True:
        server.accept()
        with asked.open("a") as file:
            file.write("another port\n")


def call(title: str) -> None:
    """Name this process (PR_SET_NAME), as engines do."""
    ctypes.CDLL(None).prctl(15, title.encode(), 0, 0, 0)


if __name__ == "__main__":
    given = json.loads(os.environ["ENGINE_HOW"])
    named = int(sys.argv[sys.argv.index("--port") + 1]) if "--port" in sys.argv else given.get("port", 0)
    core = os.fork()
    if not core:
        call("VLLM::EngineCore")
        time.sleep(600)
        os._exit(0)
    try:
        print(core, flush=True)
        serve(named, given)
    finally:
        os.kill(core, 9)
