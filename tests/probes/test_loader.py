"""Loading, handing over and letting go: what goes wrong is said in a line, and nothing stays behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gputop.sources import Settings, Unavailable
from gputop.sources.ebpf import helper, loader, uprobe
from gputop.sources.ebpf.helper import Helper, HelperFailed
from gputop.system.privilege import CAP_PERFMON, in_initial_pid_namespace
from tests.probes.conftest import HERE, Beaten
from tests.require import require
from tests.stubs.build import build
from tests.wait import PATIENCE_S

Make = Callable[..., Beaten]
Run = Callable[..., subprocess.Popen[str]]
_COLLECTOR = """
import time
from tests.probes.conftest import Beaten
one = Beaten()
one.until_loaded()
print("ready", flush=True)
time.sleep(60)
"""


def programs_of(pid: int) -> set[int]:
    """Ids of the BPF programs a process holds descriptors of."""
    text = subprocess.run(f"cat /proc/{pid}/fdinfo/*", shell=True, capture_output=True, text=True, check=False).stdout
    return {int(number) for number in re.findall(r"^prog_id:\s*(\d+)", text, re.MULTILINE)}


def still_loaded(programs: set[int]) -> set[int]:
    shown = subprocess.run(["bpftool", "prog", "show", "-j"], capture_output=True, text=True, check=True)
    return programs & {program["id"] for program in json.loads(shown.stdout)}


def need_bpftool() -> None:
    require("ebpf")
    if shutil.which("bpftool") is None:
        pytest.skip("needs bpftool: apt install bpftool")


def test_nothing_is_left_when_the_source_closes(beaten: Make) -> None:
    need_bpftool()
    one = beaten()
    one.until_loaded()
    programs = programs_of(os.getpid())
    assert len(still_loaded(programs)) >= 6
    one.source.close()
    one.until(lambda: not still_loaded(programs), "detached")


def test_nothing_is_left_when_the_collector_is_killed(beaten: Make) -> None:
    need_bpftool()
    with subprocess.Popen([sys.executable, "-c", _COLLECTOR], stdout=subprocess.PIPE, text=True) as collector:
        assert collector.stdout is not None
        assert collector.stdout.readline() == "ready\n"
        programs = programs_of(collector.pid)
        assert len(still_loaded(programs)) >= 6
        collector.send_signal(signal.SIGKILL)
    beaten().until(lambda: not still_loaded(programs), "detached")


def test_a_loader_killed_half_way_is_said(beaten: Make) -> None:
    one = beaten()
    one.until(lambda: one.source._helper, "started")
    helper = one.source._helper
    assert helper is not None
    os.kill(helper.pid, signal.SIGKILL)
    one.until(lambda: one.source.ready, "noticed")
    one.tick()
    assert one.states[-1].state == "unavailable"
    assert "SIGKILL" in one.states[-1].reason
    assert one.frames[-1].probes is None


def test_the_first_frames_do_not_wait_for_the_loader(beaten: Make) -> None:
    one = beaten()
    assert one.states[0].state == "partial"
    one.tick()
    assert one.frames[0].probes is None
    one.until_loaded()
    one.until(lambda: one.frames[-1].probes, "probes in the frame")


def test_they_are_loaded_from_a_folder_that_has_been_deleted(beaten: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    one = beaten()
    one.until_loaded()
    assert one.states[-1].state == "ok"


def test_two_at_once_do_not_disturb_each_other(beaten: Make, run: Run) -> None:
    load = run("burn", 30, max(os.sched_getaffinity(0)))
    both = beaten(), beaten()
    for one in both:
        one.hot = frozenset({load.pid})
        one.until_loaded()
    both[0].until(lambda: load.pid in both[0].board.threads, "seen by the first")
    both[1].until(lambda: load.pid in both[1].board.threads, "seen by the second")
    both[0].source.close()
    seen = both[1].board.threads[load.pid].oncpu_ns
    both[1].until(lambda: both[1].board.threads[load.pid].oncpu_ns > seen, "the second goes on")


def test_without_btf_the_plain_tracepoints_serve(beaten: Make, run: Run, tmp_path: Path) -> None:
    require("ebpf")
    if not any(os.path.isdir(folder + "/events/sched") for folder in loader.TRACEFS):
        pytest.skip("needs tracefs: mount -t tracefs tracefs /sys/kernel/tracing")
    (tmp_path / "proc").symlink_to("/proc")
    load = run("doze", 30, max(os.sched_getaffinity(0)))
    one = beaten(settings=Settings(root=str(tmp_path)))
    one.hot = frozenset({load.pid})
    one.until_loaded()
    assert one.states[-1].detail["tracepoints"] == "plain"
    one.until(lambda: (t := one.board.threads.get(load.pid)) and t.vol > 100 and t.sleeping_ns > t.oncpu_ns > 0, "counted")
    assert one.board.threads[load.pid].pid == load.pid
    one.until(lambda: one.board.threads[load.pid].hist, "followed as hot")
    one.until(lambda: any(w.wakee_tid == load.pid for w in one.board.wakeups.values()), "with its wakers")


def test_the_impostor_is_passed_by_for_the_real_bcc(tmp_path: Path) -> None:
    require("ebpf")
    assert look_for_bcc(tmp_path, "print(m['import_bcc']().BPF.__name__)") == "BPF"


def test_the_impostor_alone_is_named(tmp_path: Path) -> None:
    said = look_for_bcc(tmp_path, _ALONE)
    assert "PyPI's unrelated package" in said
    assert said.endswith(loader.INSTALL_BCC)


_ALONE = """
m['glob'].glob = lambda _: []
try:
    m['import_bcc']()
except m['Failure'] as failure:
    print(failure, '|', failure.remedy)
"""


def look_for_bcc(folder: Path, code: str) -> str:
    """What ``code`` prints in the system's Python, where an unrelated module bcc comes first; ``m`` is the loader."""
    (folder / "bcc").mkdir()
    (folder / "bcc" / "__init__.py").write_text("lattice = 'body-centred cubic'\n")
    start = f"import runpy, sys; sys.path.insert(0, {str(folder)!r}); m = runpy.run_path({os.path.abspath(loader.__file__)!r})\n"
    done = subprocess.run(["/usr/bin/python3", "-I", "-c", start + code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_helper_that_prints_and_fails_gives_its_words(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text("import sys\nprint('warming up')\nsys.exit('Error: the clay is wet')\n")
    helper = Helper(str(script))
    try:
        with pytest.raises(HelperFailed, match="the clay is wet"):
            helper.wait(PATIENCE_S)
    finally:
        helper.close()


def test_a_helper_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    script = tmp_path / "sleeping.py"
    script.write_text("import time\ntime.sleep(60)\n")
    helper = Helper(str(script))
    helper.close()
    deadline = time.monotonic() + PATIENCE_S
    while os.path.exists(f"/proc/{helper.pid}"):  # as a zombie too
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_helper_that_attaches_runs_under_python_3_8(tmp_path: Path) -> None:
    script = tmp_path / "old.py"
    script.write_text(f"import runpy, socket\ndel socket.recv_fds\nrunpy.run_path({uprobe.__file__!r}, run_name='__main__')\n")
    helper = Helper(str(script))
    try:
        helper.send(b'{"cookies": {"0": 0}, "way": "multi"}', [0, 1, 2], 20)
        answer, links = helper.wait(PATIENCE_S)
    finally:
        helper.close()
    assert answer["error"]
    assert links == []


def test_what_bcc_prints_is_in_the_reason(beaten: Make) -> None:
    one = beaten(sizes={"THREADS": "nonsense"})  # type: ignore[dict-item]
    one.until(lambda: one.source.ready, "failed")
    one.tick()
    assert one.states[-1].state == "unavailable"
    assert "nonsense" in one.states[-1].reason
    assert "\n" not in one.states[-1].reason


@pytest.mark.parametrize(
    ("capabilities", "lockdown", "reason"),
    [
        ("0000000000000000", "[none] integrity confidentiality", "CAP_BPF"),
        ("0000008000000000", "[none] integrity confidentiality", "CAP_PERFMON"),
        ("000001ffffffffff", "none integrity [confidentiality]", "locked down"),
    ],
)
def test_what_is_certain_to_fail_is_said_before_anything_starts(tmp_path: Path, capabilities: str, lockdown: str, reason: str) -> None:
    for path, text in (("proc/self/status", f"CapEff:\t{capabilities}\n"), ("sys/kernel/security/lockdown", lockdown)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    if not in_initial_pid_namespace():
        pytest.skip("in a pid namespace, which is said first")
    with pytest.raises(Unavailable, match=reason) as caught:
        helper.check(str(tmp_path), sudo=False)
    assert caught.value.remedy


@pytest.mark.parametrize(("capabilities", "enough"), [("200000", True), ("c000000000", True), ("8000000000", False), ("0", False)])
def test_which_capabilities_are_enough(capabilities: str, enough: bool) -> None:
    assert helper.may_load(int(capabilities, 16)) is enough


@pytest.mark.parametrize(
    ("release", "command"),
    [
        ("ID=ubuntu\nID_LIKE=debian\n", "apt install python3-bpfcc"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "dnf install python3-bcc"),
    ],
)
def test_the_remedy_is_the_distributions(tmp_path: Path, release: str, command: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "os-release").write_text(release)
    assert helper.install_bcc(str(tmp_path)) == command


@pytest.mark.parametrize("keep", ["keep", "none"])
def test_the_invoking_user_goes_on_reading_and_attaching(keep: str) -> None:
    require("ebpf", "cc")
    library = Path("/tmp") / f"gputop-dropped-{os.getpid()}-{keep}" / "libcuda.so.1"  # where another user may look
    library.parent.mkdir(mode=0o755)
    try:
        shutil.copy(build(HERE / "libcuda.c", "libcuda.so.1"), library)
        library.chmod(0o755)
        environment = {**os.environ, "SUDO_UID": "65534", "SUDO_GID": "65534"}
        command = [sys.executable, "-m", "tests.probes.dropped", keep, str(library)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    finally:
        shutil.rmtree(library.parent)
    said = json.loads(done.stdout)
    assert (said["dropped"], said["uid"]) == (True, 65534)
    assert said["capabilities"] == (3 << CAP_PERFMON if keep == "keep" else 0)
    assert said["threads"] > 0
    if said["state"] == "ok":
        assert said["calls"] == 5
    else:  # before Linux 6.6 attaching takes CAP_SYS_ADMIN
        assert said["remedy"] == "gputop --sudo"
