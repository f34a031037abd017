"""`--once` and `--json`, as a script sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from tests.pty.conftest import GPUTOP, Launch
from tests.pty.test_usage import run
from tests.unit.test_snapshot import unexplained
from tests.wait import until

KEYS = {"unix_s", "t_ns", "host", "sources", "gpus", "procs", "hardware", "nets", "rdma"}


def test_once_json_is_one_object(env: dict[str, str]) -> None:
    done = run(env, "--once", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    seen = json.loads(done.stdout)
    assert seen.keys() >= KEYS
    assert abs(seen["unix_s"] - time.time()) < 30
    assert len(seen["gpus"]) == 2
    assert seen["hardware"]["threads"] == os.cpu_count()
    assert unexplained({name: seen[name] for name in ("gpus", "procs", "hardware", "nets", "rdma")}) == []
    assert os.getpid() in [proc["pid"] for proc in seen["procs"]]


def test_once_json_without_a_gpu_says_why(env: dict[str, str]) -> None:
    done = run({k: v for k, v in env.items() if k != "LD_LIBRARY_PATH"}, "--once", "--json")
    assert done.returncode == 0
    seen = json.loads(done.stdout)
    assert seen["gpus"] == []
    assert "NVIDIA" in json.dumps(seen["sources"])
    assert seen["procs"]


def test_once_is_text(env: dict[str, str]) -> None:
    done = run(env, "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert str(os.getpid()) in done.stdout


def test_a_long_look_is_announced(launch: Launch) -> None:
    launch("--once", "--interval", "60").wait_text("looking for about 60 s")


def test_once_sees_who_takes_the_cpus(env: dict[str, str]) -> None:
    """A look lasts 100 ms; other processes can keep the hog off the CPUs for that long, so up to three more looks count."""
    without_gpu = {k: v for k, v in env.items() if k != "LD_LIBRARY_PATH"}
    screens: list[str] = []

    def seen() -> bool:
        screens.append(run(without_gpu, "--once", "--no-ebpf").stdout)
        return [str(hog.pid) in screen for screen in screens[-3:]] == [True] * 3

    with subprocess.Popen([sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], stdout=subprocess.PIPE) as hog:
        try:
            assert hog.stdout is not None
            hog.stdout.readline()
            until(seen)
        finally:
            hog.kill()
    assert not any("uses 0.0 of" in screen for screen in screens)


def test_json_is_an_object_a_line(env: dict[str, str]) -> None:
    with subprocess.Popen([GPUTOP, "--json"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as stream:
        assert stream.stdout is not None
        seen = [json.loads(stream.stdout.readline()) for _ in range(5)]
        stream.terminate()
    assert all(one.keys() >= KEYS for one in seen)
    times = [one["t_ns"] for one in seen]
    assert times == sorted(set(times))
