"""Pages of inference servers, with their heads, as any program at the right port may write them."""

from __future__ import annotations

import random
import socket
import time
from pathlib import Path

import msgspec

from gputop.model.engines import engines
from gputop.model.frame import Frame
from gputop.model.serving import newest, serving_now
from gputop.recording.columns import ColumnDecoder, ColumnEncoder
from gputop.sources.serving import http
from gputop.sources.serving.page import MetricsPage
from gputop.system.errors import Unavailable
from tests.fuzzing.kind import Kind, changed_text
from tests.sources.engines import PAGE

_OTHERS = (
    'sglang:num_running_reqs{model_name="m",tp_rank="0"} 4\nsglang:time_to_first_token_seconds_bucket{model_name="m",le="0.1"} 4\n',
    "tgi_batch_current_size 3\ntgi_request_queue_duration_bucket{le=\"1\"} 3\n", "llamacpp:n_decode_total 40\n",
    'nv_inference_request_success{model="m",version="1"} 8\nnv_inference_queue_duration_us{model="m"} 80\n',
)  # fmt: skip
_ROOM = 100_000  # bytes that a pair of sockets holds


def answers(rng: random.Random) -> bytes:
    """An answer to a GET."""
    page = changed_text(rng, rng.choice((PAGE, PAGE * 20, *_OTHERS)))
    kind = rng.randrange(4)
    if kind == 0:
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(page) + rng.choice((0, 0, -3, 3))) + page
    if kind == 1:
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for at in range(0, len(page), 200) if (part := page[at : at + 200]))
        return changed_text(rng, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n") + chunks + b"0\r\n\r\n"
    return b"HTTP/1.0 200 OK\r\n\r\n" + page if kind == 2 else changed_text(rng, "HTTP/1.1 200 OK\r\nServer: x\r\n\r\n") + page


def answers_drive(path: str) -> None:
    """The way of a page: read, kept as columns, read again, and what is derived from it."""
    page = MetricsPage(engines())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(Path(path).read_bytes()[:_ROOM])
        theirs.shutdown(socket.SHUT_WR)
        try:
            for piece in http.body(ours, time.monotonic() + 5.0):
                page.feed(piece)
        except Unavailable:
            return
    found = page.end(7, "127.0.0.1:8000", 10_000)
    assert all(one.model.isprintable() and one.engine.isprintable() for one in found)
    frame = Frame(1, 10_000, servings=found)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(frame), type=Frame).servings == found
    (kept,) = ColumnDecoder().decode(ColumnEncoder().encode([frame]))
    assert len(newest(kept.servings)) == len(found)
    for one in found:
        serving_now(one, msgspec.structs.replace(one, t_ns=one.t_ns + 1))


KINDS = (Kind("server pages", answers, answers_drive, 2),)
