"""The collector as gputop starts it: ``python -m gputop.collector`` with the flags of `gputop.commands.options.sampling_argv`.

A screen waits for its first frame, so it imports what collecting needs and no more. `gputop collect` does the same, with its flags checked
and explained.
"""

from __future__ import annotations

import sys
from signal import SIG_DFL, SIGINT, default_int_handler, getsignal, signal

_is_ours = getsignal(SIGINT) is default_int_handler
if _is_ours:
    signal(SIGINT, SIG_DFL)  # as in `gputop.__main__`

from gputop.system import priority  # noqa: E402
from gputop.system.imports import import_msgspec  # noqa: E402
from gputop.system.outcome import run_program  # noqa: E402
from gputop.system.program import return_freed_memory  # noqa: E402


def _run() -> int:
    priority.SCREEN_PRIORITY.request()
    return_freed_memory()
    import_msgspec()
    from gputop.collector.streaming import stream
    from gputop.sources import Settings

    words = iter(sys.argv[1:])
    given, servers = dict[str, str](), list[str]()
    for word in words:
        if word == "--serving":
            servers.append(next(words))
        else:
            given[word] = next(words) if word in ("--interval", "--gpu") else ""
    gpus = frozenset(int(one) for one in given["--gpu"].split(",") if one) if "--gpu" in given else None
    stream(Settings(
        round(float(given.get("--interval", 0.1)) * 1e9), gpus=gpus, ebpf="--no-ebpf" not in given, sudo="--sudo" in given,
        serving=tuple(servers), asks="--no-serving" not in given,
    ))  # fmt: skip
    return 0


if __name__ == "__main__":
    if _is_ours:
        signal(SIGINT, default_int_handler)
    sys.exit(run_program(_run))
