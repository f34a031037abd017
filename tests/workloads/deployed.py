"""Whole inference servers, each with the processes, titles and command line of a real one, of which a scenario is the main function.

What `train` becomes is the command (`SGLANG` …); what that runs is the function of the same name.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from tests.workloads import pages, program, serving, tokens
from tests.workloads.serving import Encode, Front, Plan, Workers, in_loop, started

_MODEL = "meta-llama/Llama-3.1-8B-Instruct"
_METRICS_PORT = "GPUTOP_METRICS_PORT"
_STUB = "triton_python_backend_stub"


def sglang_command(*flags: str) -> str:
    """How SGLang is started."""
    return " ".join(("python3 -m sglang.launch_server --model-path", _MODEL, "--port", str(serving.port()), "--enable-metrics", *flags))


def sglang(plan: Plan, detokenize_ms: tuple[float, float] = (0.5, 0.5), workers: int = 0) -> None:
    """HTTP server and tokenizer in the main process, unless there are tokenizer ``workers``; scheduler and detokenizer are its children."""
    requests, to_scheduler = socket.socketpair()
    told, to_detokenizer = socket.socketpair()
    texts, back = socket.socketpair()
    lines = [socket.socketpair() for _ in range(workers)]
    started(lambda: serving.scheduled(to_scheduler, to_detokenizer, plan), "sglang::scheduler")
    started(lambda: serving.detokenize(told, back, detokenize_ms), "sglang::detokenizer")
    for _, theirs in lines:
        started(lambda line=theirs: serving.tokenize(line), f"sglang::tokenizer_worker:{os.getppid()}")  # type: ignore[misc]
    encode = Workers([ours for ours, _ in lines]).encode if lines else in_loop(tokens.Slow(program.folder()).encode)
    asyncio.run(Front(pages.sglang, encode, _MODEL).run(requests, texts))


def vllm_command(*flags: str, port: str = "") -> str:
    """How vLLM is started, by the process that it replaces, or beside at a ``port``."""
    return " ".join(("vllm serve", _MODEL, "--port", port or str(serving.port()), *flags))


def vllm(plan: Plan, gpus: int = 1) -> None:
    """The API server makes tokens and text itself; the engine has its GPU itself, or a worker for each of several."""
    ours, theirs = socket.socketpair()
    ranks = [socket.socketpair() for _ in range(gpus)] if gpus > 1 else []
    started(lambda: _engine_core(theirs, plan, ranks), "VLLM::EngineCore")
    front = Front(pages.vllm, in_loop(tokens.Fast(program.folder()).encode), _MODEL)
    asyncio.run(front.run(ours))


def _engine_core(line: socket.socket, plan: Plan, ranks: list[tuple[socket.socket, socket.socket]]) -> NoReturn:
    for rank, (_, theirs) in enumerate(ranks):
        started(lambda rank=rank, theirs=theirs: _worker(theirs, rank, plan), f"VLLM::Worker_TP{rank}")  # type: ignore[misc]
    if not ranks:
        serving.scheduled(line, line, plan)
    workers = [ours for ours, _ in ranks]

    def run(blocks: int) -> None:
        for worker in workers:
            worker.sendall(bytes([blocks]))
        for worker in workers:
            program.receive(worker, 1)

    run(1)  # as a profile run: no request waits for a worker's context
    serving.core(serving.received(line), serving.Pushed(line).push, plan, run)


def _worker(line: socket.socket, rank: int, plan: Plan) -> None:
    job = program.Job(rank)
    while blocks := line.recv(1):
        job.compute(plan.pass_ms, blocks=blocks[0])
        line.sendall(b"!")
        if rank == 0:
            job.step()


def tgi_command(*flags: str) -> str:
    """How text-generation-inference is started."""
    return " ".join(("text-generation-launcher --model-id", _MODEL, "--port", str(serving.port()), *flags))


def tgi(plan: Plan, validation_workers: int = 2) -> None:
    """The launcher starts the shard, which has the GPU, and the router, whose validation threads make tokens; then it waits."""
    ours, theirs = socket.socketpair()
    shard = ("/opt/conda/bin/python3", "/opt/conda/bin/text-generation-server", "serve", _MODEL, "--uds-path", "/tmp/tgi")
    router = ("text-generation-router", "--validation-workers", str(validation_workers), "--port", str(serving.port()))
    program.titled("text-generation-launcher", "--model-id", _MODEL, "--port", str(serving.port()))
    started(lambda: serving.scheduled(theirs, theirs, plan), *shard, name="text-generation-server")
    started(lambda: _router(ours, validation_workers), *router)
    os.wait()


def _router(line: socket.socket, validation_workers: int) -> None:
    tokenizer, threads = tokens.Fast(program.folder()), ThreadPoolExecutor(validation_workers)

    async def encode(text: str) -> Any:
        return await asyncio.get_running_loop().run_in_executor(threads, tokenizer.encode, text)

    made: Encode = encode
    asyncio.run(Front(pages.tgi, made, _MODEL).run(line))


def triton_command(*flags: str) -> str:
    """How Triton is started; its port for metrics is another one, which is free now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        os.environ[_METRICS_PORT] = str(free.getsockname()[1])
    return " ".join(("tritonserver --model-repository=/models", *_triton_ports(), *flags))


def _triton_ports() -> tuple[str, ...]:
    return "--http-port", str(serving.port()), "--metrics-port", os.environ[_METRICS_PORT]


def triton(plan: Plan, stubs: int = 1) -> None:
    """One process serves and has the GPU, in a thread of the model's instance; stubs of its Python backend make tokens."""
    ours, theirs = socket.socketpair()
    lines = [socket.socketpair() for _ in range(stubs)]
    program.titled("tritonserver", "--model-repository=/models", *_triton_ports())
    for number, (_, line) in enumerate(lines):
        title = (f"/opt/tritonserver/backends/python/{_STUB}", "/models/tokens/1/model.py", f"triton_shm_{number}")
        started(lambda line=line: serving.tokenize(line), *title, name=_STUB)  # type: ignore[misc]
    front = Front(pages.triton, Workers([mine for mine, _ in lines]).encode, "reranker", int(os.environ[_METRICS_PORT]))
    threading.Thread(target=serving.scheduled, args=(theirs, theirs, plan), daemon=True).start()
    asyncio.run(front.run(ours))
