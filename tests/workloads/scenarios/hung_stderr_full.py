"""Tile services of the job, asked in turn with a deadline: nobody reads their stderr, and libtiff's warnings about one's tiles fill it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from queue import Queue
from threading import Thread

import torch

from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_REGIONS, _TILES, _TILE_CPU_MS = ("alps", "andes", "pyrenees"), 32, 0.3
_DEADLINE_S, _AHEAD = 0.4, 2
_GEO_TAGS = (33550, 33922, 34735, 34736, 34737, 42112, 42113)


def serve(folder: Path, region: str) -> None:
    """Batches of a region, on request; some time its tiles come from a provider who writes GeoTIFF."""
    geo_tiff = folder / f"{region}.geotiff"
    with Client(str(folder / "tiles.sock")) as client:
        client.send(region)
        while True:
            wanted = client.recv()
            client.send((wanted, [_read(geo_tiff.exists()).numel() for _ in range(_TILES)]))


def _read(geo: bool) -> torch.Tensor:
    for tag in _GEO_TAGS if geo else ():
        print(f"TIFFReadDirectory: Warning, Unknown field with tag {tag} ({tag:#x}) encountered.", file=sys.stderr)
    return decode(_TILE_CPU_MS)


def _fetch(services: list[Connection], ready: Queue[object]) -> None:
    number = 0
    while True:
        service = services[number % len(services)]
        service.send(number)
        while service.poll(_DEADLINE_S):
            answered, batch = service.recv()
            if answered == number:
                ready.put(batch)
                break
        number += 1


def train(trainer: Trainer) -> None:
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    with Listener(str(folder / "tiles.sock")) as listener:
        command = [sys.executable, "-m", __name__, str(folder)]
        started = [subprocess.Popen([*command, region], stderr=subprocess.PIPE) for region in _REGIONS]
        services = [listener.accept() for _ in started]
    for service in services:
        service.recv()
    ready: Queue[object] = Queue(_AHEAD)
    Thread(target=_fetch, args=(services, ready), daemon=True).start()
    trainer.fit(iter(ready.get, None), trainer.compute(70))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / f"{_REGIONS[1]}.geotiff").touch()
    yield


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb)

if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
