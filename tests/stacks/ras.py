"""A server that speaks the protocol of NCCL's RAS threads, and misbehaves on request."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HEAD = """NCCL version 2.27.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.02s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  {errors}
    1         8         4         1         4        32   RUNNING      OK

Errors
======

"""
HEALTHY = HEAD.format(errors="    OK") + "Warnings\n========\n\n"
LATE = HEAD.format(errors="MISMATCH") + """Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  30 ranks have launched up to operation 6650
  Rank 17 has launched up to operation 6649 -- GPU 1 managed by process 483074 on node 172.16.64.211
  Rank 30 has not launched any operations -- GPU 6 (NVML 2) managed by process 483079 on node 172.16.64.213

"""
GONE = HEAD.format(errors="INCOMPLETE") + """DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 29 -- GPU 5 managed by process 3487984 on node 172.16.64.213

Warnings
========

"""
EARLY = HEAD.format(errors="MISMATCH") + """Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 4 -- GPU 4 managed by process 483076 on node 172.16.64.210
  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210
  Communicator ranks have different status
  31 ranks have status RUNNING
  Rank 9 has status ABORT -- GPU 1 managed by process 7 on node 172.16.64.211

"""


def speaks(report: str, size: int = 1 << 30) -> Callable[[socket.socket], None]:
    """The protocol, with ``report`` in pieces of so many bytes."""

    def serve(line: socket.socket) -> None:
        with line.makefile("rb") as commands:
            for command in commands:
                words = command.decode().strip().upper()
                if words.startswith("CLIENT PROTOCOL"):
                    line.sendall(b"SERVER PROTOCOL 2\n")
                elif words.startswith("TIMEOUT"):
                    line.sendall(b"OK\n")
                elif words == "VERBOSE STATUS":
                    data = report.encode()
                    for begin in range(0, len(data), size):
                        line.sendall(data[begin : begin + size])
                    return
                else:
                    line.sendall(b"ERROR: Unknown command\n")

    return serve


def endless(line: socket.socket) -> None:
    line.sendall(b"SERVER PROTOCOL 2\nOK\n")
    while True:
        line.sendall(b"NCCL version 2.27\n" * 4096)


def silent(line: socket.socket) -> None:
    line.recv(100)
    time.sleep(30)


def stalled(line: socket.socket) -> None:
    line.sendall(b"SERVER PROTOCOL 2\nOK\nNCCL version 2.27.3\n")
    time.sleep(30)


def garbage(line: socket.socket) -> None:
    line.sendall(b"HTTP/1.1 400 \x1b[2J\xff\xfe\r\n\r\n")


@contextmanager
def listening(serve: Callable[[socket.socket], None], host: str = "127.0.0.1") -> Iterator[int]:
    """Serve each who connects in a thread; the port."""
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as server:

        def handle(line: socket.socket) -> None:
            with line:
                try:
                    serve(line)
                except OSError:
                    pass  # the reader has left

        def run() -> None:
            while True:
                try:
                    line, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=handle, args=(line,), daemon=True).start()

        threading.Thread(target=run, daemon=True).start()
        yield server.getsockname()[1]
