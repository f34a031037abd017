"""Dumps of torch's flight recorder, pickles and JSON, right and broken."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from pathlib import Path

from gputop import cli
from gputop.traces.flight import read_files
from tests.fuzzing.kind import Kind, changed_text, changed_within
from tests.recording.fuzz import changed_bytes
from tests.traces.flights import call, done, dump

_SEED = dump([*done(6), call(7), call(8, "nccl:recv 0<-1", is_p2p=True)], range(4), pg_status={"0": {"last_enqueued_collective": 8}})


def make(rng: random.Random) -> bytes:
    """A dump."""
    content = _SEED if rng.random() < 0.4 else changed_within(rng, json.loads(json.dumps(_SEED)))
    if rng.random() < 0.4:
        text = json.dumps(content)
        return changed_text(rng, text) if rng.random() < 0.5 else text.encode("utf-8", "surrogatepass")
    data = pickle.dumps(content, rng.randrange(6))
    return changed_bytes(rng, data) if rng.random() < 0.7 else data


def drive(path: str) -> None:
    """It is read beside a whole one of another rank, or refused."""
    other, own = Path(f"{path}-0"), Path(f"{path}-1")
    other.write_bytes(pickle.dumps(_SEED, 2))
    shutil.copy(path, own)
    try:
        read_files([str(other)])
        assert cli.main(["trace", "--flight", "--read", str(other), str(own)]) in (0, 1)
    finally:
        other.unlink()
        own.unlink()


KINDS = (Kind("flights", make, drive, 6),)
