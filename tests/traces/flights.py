"""Dumps of a flight recorder, made by hand as torch lays them out; and a rank that has NCCL's pipe: python -m tests.traces.flights DUMP.

The rank makes its pipe as NCCL's process group does, dumps the file DUMP whenever a byte comes, and prints ``ready`` before.
"""

from __future__ import annotations

import os
import pickle
import select
import sys
from collections.abc import Iterable
from typing import Any

CREATED_NS = 1_790_000_000_000_000_000


Made = dict[str, Any]


def call(number: int, name: str = "nccl:all_reduce", sizes: tuple[int, ...] = (1024,), state: str = "scheduled", **more: Any) -> Made:
    """A call, in the layout of version 2.10."""
    return {
        "frames": [{"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/distributed_c10d.py", "line": 3245},
                   {"name": "step", "filename": "/home/me/train.py", "line": 88}],
        "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number, "p2p_seq_id": 0,
        "op_id": number, "profiling_name": name, "time_created_ns": CREATED_NS, "input_sizes": [list(sizes)], "input_dtypes": ["Float"],
        "output_sizes": [list(sizes)], "output_dtypes": ["Float"], "state": state, "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": state == "completed", "timeout_ms": 600_000, "is_p2p": False,
        "thread_id": "1", "thread_name": "pt_main_thread", **more,
    }  # fmt: skip


def dump(calls: Iterable[dict[str, Any]], ranks: Iterable[int] = (), **more: Any) -> dict[str, Any]:
    """A dump of these calls; ``ranks``: of the default group."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}}
    return {"version": "2.10", "pg_config": config, "comm_lib_version": "", "pg_status": {}, "entries": list(calls), **more}


def done(upto: int) -> list[dict[str, Any]]:
    """Collectives that have ended."""
    return [call(number, state="completed") for number in range(1, upto + 1)]


def main(content: str) -> None:
    rank = os.environ["RANK"]
    with open(content, "rb") as file:
        data = file.read()
    path = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe"
    os.mkfifo(path, 0o666)
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    keeps = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # else a pipe without a writer is always readable
    print("ready", flush=True)
    while keeps:
        select.select([pipe], [], [])
        os.read(pipe, 128)
        with open(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{rank}", "wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            file.write(data[len(data) // 2 :])


def packed(content: dict[str, Any], protocol: int = 2) -> bytes:
    """As torch's own pickler does."""
    return pickle.dumps(content, protocol)


if __name__ == "__main__":
    main(sys.argv[1])
