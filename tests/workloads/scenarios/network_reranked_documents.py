"""A reranker of somebody's own, uvicorn with the model in the same process, which fetches the documents it is to compare from a store.

Truth: the GPU starves (input-bound), because the three threads that fetch documents, one after another for each question, wait for it
most of the time once it is slow (network-io); the event loop waits for them, and the thread that has the GPU for the event loop. CPUs idle.
More requests to the store at once, or documents kept here, would fix it; more clients or a larger batch would not.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import queue
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.workloads import asking, program, serving, tokens, web
from tests.workloads.asking import Ask, Text
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_THREADS, _DOCUMENTS, _DOCUMENT_BYTES, _READ = 3, 3, 256 << 10, 2000
_QUESTION_MS = 20.0
_own = threading.local()


def train(_trainer: Trainer) -> None:
    program.become_command(f"rerank-api --host 127.0.0.1 --port {serving.port()}", serve)


def serve() -> None:
    """Answer questions by HTTP."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    threads, tokenizer = ThreadPoolExecutor(_THREADS, "fetch"), tokens.Fast(program.folder())
    asked: queue.Queue[tuple[asyncio.Future[None], int]] = queue.Queue()
    threading.Thread(target=_compute, args=(asked,), daemon=True).start()

    async def rerank(request: Request) -> JSONResponse:
        question, loop = (await request.json())["prompt"], asyncio.get_running_loop()
        documents = await loop.run_in_executor(threads, _fetch)
        ids = [await loop.run_in_executor(threads, tokenizer.encode, f"{question}\n{text[:_READ]}") for text in documents]
        done: asyncio.Future[Any] = loop.create_future()
        asked.put((done, sum(map(len, ids))))
        await done
        return JSONResponse({"scores": [random.random() for _ in documents]})

    app = Starlette(routes=[Route("/rerank", rerank, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=serving.port(), log_level="warning", access_log=False)


def _fetch() -> list[str]:
    """Documents, each by a request of its own over this thread's connection."""
    if not hasattr(_own, "store"):
        _own.store = http.client.HTTPConnection("127.0.0.1", int(os.environ["GPUTOP_WEB_PORT"]))
    found = []
    for _ in range(_DOCUMENTS):
        _own.store.request("GET", f"/documents/{random.randrange(1 << 20)}")
        found.append(_own.store.getresponse().read().decode())
    return found


def _compute(asked: queue.Queue[tuple[asyncio.Future[None], int]]) -> None:
    """The model, question by question."""
    job = program.Job()
    while True:
        done, ids = asked.get()
        job.compute(_QUESTION_MS, bytes_in=8 * ids)
        done.get_loop().call_soon_threadsafe(done.set_result, None)
        job.step()


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """The store, and who asks."""
    document = tokens.prose(_DOCUMENT_BYTES, random.Random(7)).encode()
    ask = Ask(clients=8, first=Text(answer=1, characters=200), path="/rerank", called="search-ui")
    with web.serving(running, json.dumps(document.decode()).encode()), asking.asked(running, ask):
        yield


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, prepare, needs=tokens.missing)
