"""A process that speaks Kineto's side of the protocol, as torch does, and writes a trace: python -m tests.traces.job TRACE [HOW].

HOW: ``empty-first`` writes a trace without events first; ``busy`` traces for itself for 1 s; ``silent`` never asks; ``cancels`` gives up
what it was asked for; ``drops-first`` takes no notice of the first answer; ``dies`` ends once it was asked; ``folder`` makes a folder in
place of its trace.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import sys
import time
import uuid

HEAD = struct.Struct("@Q32s")
EMPTY = '{"traceEvents": []}'


def main(trace: str, how: str = "") -> None:
    """Ask every 50 ms, until killed."""
    folder = os.environ["KINETO_IPC_SOCKET_DIR"]
    own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    own.bind(f"{folder}/dynoconfigclient{uuid.uuid4()}")
    own.settimeout(0.05)
    began_s, asked, busy_until_s = time.monotonic(), 0, 0.0
    print("ready", flush=True)
    while True:
        time.sleep(0.05)
        if how == "silent":
            continue
        busy = time.monotonic() < busy_until_s or (how == "busy" and time.monotonic() - began_s < 1.0)
        body = struct.pack("@iiqi", 1 if busy else 3, 1, 0, os.getpid())
        try:
            own.sendto(HEAD.pack(len(body), b"req") + body, f"{folder}/dynolog")
            answer, sender = own.recvfrom(1 << 14)
        except OSError:
            continue
        assert sender == f"{folder}/dynolog", f"torch ends the process for an answer from {sender!r}"
        settings = dict(line.split("=", 1) for line in answer[HEAD.size :].decode().splitlines())
        if not settings:
            continue
        asked += 1
        if how == "dies":
            sys.exit(0)
        if how == "drops-first" and asked == 1:
            continue
        busy_until_s = time.monotonic() + 0.3
        target = settings["ACTIVITIES_LOG_FILE"].replace(".json", f"_{os.getpid()}.json")
        if how == "cancels":
            continue
        if how == "folder":
            os.makedirs(target, exist_ok=True)
        elif how == "empty-first" and asked == 1:
            with open(target, "w") as file:
                file.write(EMPTY)
        else:
            shutil.copy(trace, f"{target}.tmp")
            os.rename(f"{target}.tmp", target)


if __name__ == "__main__":
    main(*sys.argv[1:])
