"""Jobs of other shapes than a loader before a model: environments, threads, tables on the host; for `tests.device.complaints`."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from pathlib import Path
from typing import Any

from tests.device.everyday import DEVICE, SMALL
from tests.device.jobs import Clock, descend


def _layers(width: int, count: int) -> Any:
    from torch import nn

    width = 64 if SMALL else width
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(count))).to(DEVICE)


def _width(model: Any) -> int:
    return int(model[0][0].in_features)


def counts_hits(clock: Clock, _: Path) -> None:
    """Accuracy is counted sample by sample: each `if` asks the GPU, and waits for its answer."""
    import torch

    model = _layers(4096, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    rows, hits = torch.randn(4096, _width(model), device=DEVICE), 0
    while True:
        out = model(rows)
        descend(out.square().mean(), optimizer)
        best = out.argmax(1)
        for at in range(1500):
            if best[at] == at:
                hits += 1
        clock.tick()


def empties_cache(clock: Clock, _: Path) -> None:
    """Against "out of memory": the allocator's cache is emptied after each step, and filled again by cudaMalloc. It takes little."""
    import torch

    model = _layers(4096, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    while True:
        for _step in range(2):
            descend(model(torch.randn(1024, _width(model), device=DEVICE)).square().mean(), optimizer)
            if not SMALL:
                torch.cuda.empty_cache()
        clock.tick()


def host_table(clock: Clock, _: Path) -> None:
    """A recommender whose table is too large for the GPU: looked up and updated by the training thread on the host."""
    import torch

    table = torch.nn.EmbeddingBag(2_000_000 if not SMALL else 2000, 64, mode="sum", sparse=True)
    model, device = _layers(4096, 4), torch.device(DEVICE)
    head = torch.nn.Linear(64, _width(model)).to(DEVICE)
    optimizers = torch.optim.SparseAdam(table.parameters()), torch.optim.Adam([*head.parameters(), *model.parameters()])
    while True:
        found = table(torch.randint(0, table.num_embeddings, (4096, 100)))
        for one in optimizers:
            one.zero_grad(set_to_none=True)
        model(head(found.to(device))).square().mean().backward()
        for one in optimizers:
            one.step()
        clock.tick()


def host_adam(clock: Clock, _: Path) -> None:
    """Adam's state lies on the host: gradients go there, the training thread steps, weights come back."""
    import torch

    model = _layers(4096, 16)
    copies = [torch.nn.Parameter(one.detach().cpu()) for one in model.parameters()]
    optimizer = torch.optim.Adam(copies)
    while True:
        model(torch.randn(4096, _width(model), device=DEVICE)).square().mean().backward()
        for copy, one in zip(copies, model.parameters(), strict=True):
            copy.grad, one.grad = one.grad.cpu(), None
        optimizer.step()
        with torch.no_grad():
            for copy, one in zip(copies, model.parameters(), strict=True):
                one.copy_(copy)
        clock.tick()


def threads(clock: Clock, _: Path) -> None:
    """Eight threads of the trainer make its batches, in Python."""
    import torch

    def make() -> None:
        while True:
            ready.put(torch.tensor([[float(hash((row, at)) % 97) for at in range(_width(model))] for row in range(16)]))

    model, ready = _layers(4096, 4), queue.Queue[Any](4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _thread in range(8):
        threading.Thread(target=make, daemon=True).start()
    while True:
        descend(model(ready.get().to(DEVICE)).square().mean(), optimizer)
        clock.tick()


def environments(clock: Clock, _: Path) -> None:
    """Reinforcement learning: eight processes step their worlds in Python, the policy waits for all of them."""
    import torch

    context = multiprocessing.get_context("fork")
    pipes = []
    for _pipe in range(8):
        ours, theirs = context.Pipe()
        context.Process(target=_world, args=(theirs,), daemon=True).start()
        pipes.append(ours)
    model = _layers(2048, 4)
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        for _step in range(16):
            for pipe in pipes:
                pipe.send(None)
            seen = torch.tensor([pipe.recv() for pipe in pipes], device=DEVICE).repeat(1, _width(model) // 64)
            model(seen).argmax(1).tolist()
        descend(model(seen.repeat(512, 1)).square().mean(), optimizer)
        clock.tick()


def _world(pipe: Any) -> None:
    state = 1
    while True:
        pipe.recv()
        for _ in range(60_000):
            state = (state * 1103515245 + 12345) % 2147483648
        pipe.send([float(state >> at & 1) for at in range(64)])


def two_trainings(clock: Clock, _: Path) -> None:
    """Somebody else trains on the same GPU: each gets a half of it."""
    other = multiprocessing.get_context("fork").Process(target=_fills, args=(Clock(1e9),), daemon=True)
    other.start()
    _fills(clock)


def _fills(clock: Clock) -> None:
    import torch

    model = _layers(8192, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    while True:
        loss = model(torch.randn(4096, _width(model), device=DEVICE)).square().mean()
        descend(loss, optimizer)
        if clock.steps % 10 == 0:
            loss.item()
        clock.tick()


JOBS = {
    "counts-hits": (counts_hits, "wait-heavy/sync-storm"),
    "empties-cache": (empties_cache, "healthy/none"),
    "host-table": (host_table, "input-bound/main-thread-preprocessing"),
    "host-adam": (host_adam, "input-bound/main-thread-preprocessing or transfer-bound/h2d-transfer"),
    "threads": (threads, "input-bound/gil-contention"),
    "environments": (environments, "input-bound/too-few-workers or input-bound/slow-transform"),
    "two-trainings": (two_trainings, "wait-heavy/gpu-shared"),
}
"""Each, and what may be said of it."""
