"""Syscall tables, kernel text, permissions, source lines, folding, sampling's arithmetic, and when stacks are taken by themselves."""

from __future__ import annotations

import os
import platform
import re
import struct
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from gputop.model.frame import Stack
from gputop.model.syscalls import syscall_names
from gputop.stacks import kernel, permission, pyspy, source_line
from gputop.stacks.capture import which_python
from gputop.stacks.frames import Line, Unreadable
from gputop.stacks.lines import save, to_folded, to_speedscope, weigh_stacks
from gputop.stacks.sampling import by_line, parse_raw
from gputop.stacks.source_line import read_lines
from gputop.stream.stalled import AutoStacks
from gputop.system.errors import UserError
from tests.probes.swapping import NOBODY
from tests.stranger import GROUP, nobodys_process
from tests.wait import PATIENCE_S

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("machine", "numbers"),
    [
        ("x86_64", {0: "read", 7: "poll", 17: "pread64", 61: "wait4", 202: "futex", 230: "clock_nanosleep", 270: "pselect6", 271: "ppoll",
                    281: "epoll_pwait", 327: "preadv2", 334: "rseq", 435: "clone3", 449: "futex_waitv", 462: "mseal"}),
        ("aarch64", {63: "read", 67: "pread64", 73: "ppoll", 98: "futex", 115: "clock_nanosleep", 22: "epoll_pwait", 260: "wait4",
                     286: "preadv2", 293: "rseq", 435: "clone3", 449: "futex_waitv", 462: "mseal"}),
        ("riscv64", {}),
    ],
)  # fmt: skip
def test_system_call_numbers(machine: str, numbers: dict[int, str]) -> None:
    names = syscall_names(machine)
    assert {number: names.get(number) for number in numbers} == numbers
    assert len(set(names.values())) == len(names)


def test_the_table_agrees_with_this_machines_headers() -> None:
    header = Path(f"/usr/include/{platform.machine()}-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("no kernel headers for user space here: apt install linux-libc-dev")
    listed = {int(number): name for name, number in re.findall(r"#define __NR_(\w+) (\d+)", header.read_text())}
    names = syscall_names(platform.machine())
    assert {number: names.get(number) for number in listed} == listed


def test_the_table_agrees_with_the_headers_of_machines_that_share_their_numbers() -> None:
    """aarch64 takes asm-generic's numbers. Names under ``__NR3264_`` are those of 32 and of 64 bits."""
    header = Path("/usr/include/asm-generic/unistd.h")
    if not header.exists():
        pytest.skip("no kernel headers for user space here: apt install linux-libc-dev")
    found = re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", header.read_text())
    listed = {name: int(number) for name, number in found}
    common = [(number, name) for number, name in syscall_names("aarch64").items() if name in listed]
    assert common == [(listed[name], name) for _, name in common]
    assert len(common) > 250


def viewed(root: Path) -> kernel.KernelView:
    view = kernel.view_thread(7, 7, str(root))
    assert view is not None
    return view


def fake_thread(root: Path, pid: int, state: str = "S", **files: str) -> None:
    base = root / "proc" / str(pid) / "task" / str(pid)
    base.mkdir(parents=True)
    (base / "stat").write_text(f"{pid} (a) b (c) {state} 1 1 1 0 -1 4194304" + 44 * " 0")
    for name, text in files.items():
        (base / name).write_text(text)


def test_a_thread_in_a_disk_read(tmp_path: Path) -> None:
    number = next(number for number, name in syscall_names("").items() if name == "pread64")
    stack = "[<0>] folio_wait_bit_common+0x136/0x330\n[<0>] filemap_read.isra.0+0x1/0x2\n[<0>] do_syscall_64+0x5/0x6\n"
    fake_thread(tmp_path, 7, "D", syscall=f"{number} 0x3 0x1 0x2 0x0 0x0 0x0 0x7f 0x7f", wchan="folio_wait_bit_common", stack=stack)
    base = tmp_path / "proc/7"
    (base / "fd").mkdir()
    (base / "fd/3").symlink_to("/data/train.bin")
    (base / "fdinfo").mkdir()
    (base / "fdinfo/3").write_text("pos:\t0\nflags:\t0100000\nmnt_id:\t28\n")
    (base / "mountinfo").write_text("22 1 0:1 / / rw - overlay overlay rw\n28 22 259:1 / /data rw shared:1 - ext4 /dev/nvme0n1p1 rw\n")
    view = viewed(tmp_path)
    assert (view.comm, view.state, view.syscall) == ("a) b (c", "D", "pread64")
    assert view.frames == ("folio_wait_bit_common", "filemap_read")
    assert kernel.wait_words(7, view, str(tmp_path)) == "pread64 of /data/train.bin on nvme0n1p1 (folio_wait_bit_common)"


def test_a_named_pipe_is_on_no_disk(tmp_path: Path) -> None:
    base = tmp_path / "proc/7"
    (base / "fd").mkdir(parents=True)
    (base / "fdinfo").mkdir()
    os.mkfifo(tmp_path / "steps.fifo")
    (base / "fd/5").symlink_to(tmp_path / "steps.fifo")
    (base / "fdinfo/5").write_text("pos:\t0\nflags:\t0100000\nmnt_id:\t28\n")
    (base / "mountinfo").write_text("28 22 254:0 / / rw - ext4 /dev/vda rw\n")
    view = kernel.KernelView(7, "python", "S", "read", (5,), "anon_pipe_read")
    assert kernel.wait_words(7, view, str(tmp_path)) == f"read of {tmp_path}/steps.fifo (anon_pipe_read)"


@pytest.mark.parametrize(
    ("seconds", "ns", "said"), [(5, 0, "ppoll, at most 5000 ms"), (0, 250_000_000, "ppoll, at most 250 ms"), (None, 0, "ppoll")]
)
def test_the_time_limit_of_a_ppoll_lies_in_memory(tmp_path: Path, seconds: int | None, ns: int, said: str) -> None:
    number = next(number for number, name in syscall_names("").items() if name == "ppoll")
    address = 0 if seconds is None else 32
    fake_thread(tmp_path, 7, syscall=f"{number} 0x10 0x1 {address:#x} 0x0 0x0 0x0 0x7f 0x7f", wchan="0")
    (tmp_path / "proc/7/mem").write_bytes(bytes(32) + struct.pack("@2q", seconds or 0, ns))
    assert kernel.wait_words(7, viewed(tmp_path), str(tmp_path)) == said


def test_an_address_that_belongs_to_no_function_is_no_frame(tmp_path: Path) -> None:
    fake_thread(tmp_path, 7, "R", syscall="running", wchan="0", stack="[<0>] 0x1\n[<0>] do_sys_poll+0x5/0x6\n[<0>] el0_svc+0x1/0x2\n")
    assert viewed(tmp_path).frames == ("do_sys_poll",)


def test_how_aarch64_enters_the_kernel_is_left_out() -> None:
    preempted = ["do_notify_resume", "__el0_irq_handler_common", "el0t_64_irq_handler", "el0t_64_irq"]
    waiting = ["do_sys_poll", "__arm64_sys_ppoll", "invoke_syscall.constprop.0", "el0_svc_common.constprop.0", "do_el0_svc", "el0_svc"]
    assert kernel.in_kernel(preempted) == ()
    assert kernel.in_kernel(waiting) == ("do_sys_poll", "__arm64_sys_ppoll")


def test_what_may_not_be_read_is_named_and_what_ended_is_gone(tmp_path: Path) -> None:
    fake_thread(tmp_path, 7, syscall="running", wchan="0")
    view = viewed(tmp_path)
    assert (view.syscall, view.wchan) == ("", "")
    assert "stack" in view.missing
    assert kernel.view_thread(8, 8, str(tmp_path)) is None


@pytest.mark.parametrize(("scope", "said"), [(1, "ptrace_scope=0"), (2, "ptrace_scope is 2"), (3, "until the next boot")])
def test_yama_is_named_with_what_mends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: int, said: str) -> None:
    yama = tmp_path / "proc/sys/kernel/yama"
    yama.mkdir(parents=True)
    (yama / "ptrace_scope").write_text(f"{scope}\n")
    fake_thread(tmp_path, 7)
    uid = os.geteuid() or 1000
    os.chown(tmp_path / "proc/7", uid, -1)
    monkeypatch.setattr(permission.os, "geteuid", lambda: uid)
    assert said in permission.why_not(7, str(tmp_path))


def test_root_without_the_capability_is_told_about_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("CapEff:\t00000000a80425fb\n")
    monkeypatch.setattr(permission.os, "geteuid", lambda: 0)
    assert "--cap-add SYS_PTRACE" in permission.why_not(7, str(tmp_path))


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ("Permission Denied: Try running again with elevated permissions", "permission"),
        ("Error: Failed to suspend process\n\nCaused by:\n  EPERM: Operation not permitted", "permission"),
        ("Error: Failed to find python version from target process\n\nStack backtrace:\n 0: anyhow::open process", "not-python"),
        ("Error: Failed to get process executable name. Check that the process is running.\n\nCaused by: (os error 2)", "gone"),
        ("Error: Unsupported version of Python: 3.15.0", "unsupported"),
        ("Error: Failed to copy PyFrameObject\n\nCaused by: Bad address (os error 14)", "torn"),
        ("Error: No such file or directory (os error 2)", "hidden"),
        ("", "torn"),
    ],
)
def test_errors_of_py_spy(errors: str, kind: str) -> None:
    assert pyspy.explain(errors).kind == kind
    assert "\n" not in pyspy.explain(errors).reason


@pytest.mark.parametrize(
    ("mapped", "said"),
    [
        ("/usr/bin/python3.13t", "Python 3.13t that exports no symbols"),
        ("/opt/lib/libpython3.14t.so.1.0", "Python 3.14t that exports no symbols"),
        ("/opt/bin/python3.12", "Python 3.12 that exports no symbols"),
        ("/usr/bin/sleep", ""),
    ],
)
def test_a_python_that_py_spy_does_not_know_is_told_from_no_python(tmp_path: Path, mapped: str, said: str) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/maps").write_text(f"00400000-00401000 r-xp 00000000 08:01 12  {mapped}\n7ffe-7fff rw-p 0 0:0 0 [stack]\n")
    assert which_python(7, str(tmp_path)).startswith(said)
    assert bool(which_python(7, str(tmp_path))) == bool(said)


def test_source_is_shown_only_where_the_owner_may_read_it_too(tmp_path: Path) -> None:
    here = os.getpid()
    source = tmp_path / "data.py"
    source.write_text("one\n    two()\n")
    os.utime(source, (0, 0))
    (tmp_path / "fifo").parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / "fifo")
    lines = {name: Line("f", str(tmp_path / name), 2) for name in ("data.py", "fifo", "none.py")} | {"device": Line("f", "/dev/zero", 1)}
    texts = read_lines({(here, line) for line in lines.values()}, timeout_s=PATIENCE_S)
    assert {name: texts[here, line] for name, line in lines.items()} == {"data.py": "two()", "fifo": "", "none.py": "", "device": ""}


def test_a_file_changed_since_says_so(tmp_path: Path) -> None:
    source = tmp_path / "data.py"
    source.write_text("x = 1\n")
    os.utime(source, (time.time() + 60,) * 2)
    (text,) = read_lines({(os.getpid(), Line("f", str(source), 1))}, timeout_s=PATIENCE_S).values()
    assert text == "x = 1  [file changed since the process started]"


def test_source_is_read_as_far_as_a_budget_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many files there are, and how long, is decided by whoever is read."""
    monkeypatch.setattr(source_line, "_MOST_BYTES", 1000)
    lines = [Line("f", str(tmp_path / f"{number}.py"), 2) for number in range(10)]
    for line in lines:
        Path(line.file).write_text("x = 1\ny = 2\n" + "#" * 300)
        os.utime(line.file, (0, 0))
    texts = read_lines([(os.getpid(), line) for line in lines], timeout_s=PATIENCE_S)
    assert [texts[os.getpid(), line] for line in lines] == ["y = 2"] * 3 + [""] * 7


@pytest.mark.parametrize("what", ["print('x' * (1 << 20))", "kept.append(bytearray(16 << 20))"])
def test_what_py_spy_may_take_and_say_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """It says whatever the process that it reads holds."""
    program = tmp_path / "py-spy"
    program.write_text(f"#!{sys.executable}\nkept = []\nwhile True:\n    {what}\n")
    program.chmod(0o700)
    monkeypatch.setattr(pyspy, "binary", lambda: str(program))
    with pytest.raises(Unreadable) as refused:
        pyspy.run(os.getpid(), [], time.monotonic() + PATIENCE_S)
    assert refused.value.kind == "torn"  # it came to its own end


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to own a file that another may not read")
def test_a_file_of_root_is_not_shown_for_a_process_of_another(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("password\n")
    secret.chmod(0o600)
    fake_thread(tmp_path, 7)
    base = tmp_path / "proc/7"
    os.chown(base, 1000, 1000)
    (base / "root").symlink_to("/")
    (base / "ns").mkdir()
    (base / "ns/mnt").symlink_to("mnt:[1]")
    (base / "stat").write_text("7 (x) " + " ".join(["0"] * 50))
    line = Line("f", str(secret), 1)
    assert read_lines({(7, line)}, str(tmp_path), PATIENCE_S) == {(7, line): ""}
    os.chown(base, 0, 0)
    assert read_lines({(7, line)}, str(tmp_path), PATIENCE_S)[7, line].startswith("password")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run a process of another")
def test_of_another_users_process_root_reads_what_that_user_may_reach() -> None:
    """Also where everybody may read the file itself, but nobody else may enter its folder; root's own rights are as they were."""
    with tempfile.TemporaryDirectory() as name, nobodys_process() as stranger:
        folder, line = Path(name), Line("f", f"{name}/within/run.py", 1)
        within = folder / "within"
        within.mkdir()
        (within / "run.py").write_text("password\n")
        os.utime(within / "run.py", (0, 0))
        wanted = [(os.getpid(), line), (stranger, line), (os.getpid(), line)]
        folder.chmod(0o755)
        within.chmod(0o700)
        assert read_lines(wanted, timeout_s=PATIENCE_S) == {wanted[0]: "password", wanted[1]: ""}
        within.chmod(0o710)
        os.chown(within, 0, GROUP)
        assert read_lines(wanted[1:2], timeout_s=PATIENCE_S)[wanted[1]] == "password", "by a group that it is in"
        os.chown(within, 0, 0)
        assert read_lines(wanted[1:2], timeout_s=PATIENCE_S)[wanted[1]] == "", "root's own groups count no more"
        within.chmod(0o700)
        os.chown(within, NOBODY, 0)
        assert read_lines(wanted[1:2], timeout_s=PATIENCE_S)[wanted[1]] == "password"
        assert (within / "run.py").read_text()


def stack(pid: int, *python: str, kernel_frames: tuple[str, ...] = ()) -> Stack:
    return Stack(pid, pid, 0, python=list(python), kernel=list(kernel_frames), thread="MainThread")


def test_folded_puts_the_kernel_on_top_and_keeps_to_its_format() -> None:
    one = stack(5, "inner (a;b\n.py:2)", "outer (a.py:1)", kernel_frames=("do_sys_poll", "poll"))
    assert to_folded(weigh_stacks([one, one])) == "MainThread 5;outer (a.py:1);inner (a,b·.py:2);poll_[k];do_sys_poll_[k] 2\n"


def test_speedscope_indices_and_weights() -> None:
    weighted = weigh_stacks([stack(5, "f (a.py:2)", "m (a.py:1)"), stack(5, "m (a.py:1)")])
    document = to_speedscope(weighted, "x")
    frames = document["shared"]["frames"]  # type: ignore[index]
    assert frames == [{"name": "MainThread 5"}, {"name": "m", "file": "a.py", "line": 1}, {"name": "f", "file": "a.py", "line": 2}]
    (profile,) = document["profiles"]  # type: ignore[misc]
    assert profile["samples"] == [[0, 1, 2], [0, 1]]
    assert (profile["weights"], profile["endValue"]) == ([1, 1], 2)


def test_saving_overwrites_nothing_and_is_for_the_owner_alone(tmp_path: Path) -> None:
    save(str(tmp_path / "out"), "x")
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for name, said in (("link", "is a link"), ("out", "exists already")):
        with pytest.raises(UserError, match=said):
            save(str(tmp_path / name), "y")
    assert (tmp_path / "out").read_text() == "x"


def test_samples_are_split_by_the_users_line_and_its_call() -> None:
    loader = "DataLoader.__next__ (/v/lib/python3.11/site-packages/d.py"
    raw = [
        f"thread (9): MainThread;<module> (/me/train.py:20);train (/me/train.py:11);{loader}:7) 31\n",
        f"thread (9): MainThread;<module> (/me/train.py:20);train (/me/train.py:11);{loader}:9) 31\n",
        "thread (9): MainThread;<module> (/me/train.py:20);train (/me/train.py:14) 38\n",
        "thread (10): QueueFeederThread;_feed (/usr/lib/python3.11/multiprocessing/queues.py:1) 100\n",
        "broken\n",
    ]
    shares = by_line(parse_raw(raw, 9))
    found = [(share.place, share.call, share.share) for share in shares]
    assert found == [("train.py:11", "DataLoader.__next__", 0.62), ("train.py:14", "", 0.38)]


@dataclass
class Episode:
    id: int
    start_ns: int
    end_ns: int | None = None


def test_one_set_for_each_incident_while_it_lasts() -> None:
    auto = AutoStacks(least_gap_ns=10 * SECOND)
    first, second = Episode(1, SECOND), Episode(2, 3 * SECOND)
    assert auto.due([], SECOND) is None
    assert auto.due([first], SECOND) is first
    auto.taken(first, SECOND)
    assert auto.due([first], 2 * SECOND) is None
    assert auto.due([first, second], 3 * SECOND) is None, "too soon after the first"
    assert auto.due([first, second], 12 * SECOND) is second, "it waits its turn while it lasts"
    second.end_ns = 12 * SECOND
    assert auto.due([first, second], 13 * SECOND) is None


def test_ids_that_begin_anew_are_other_incidents() -> None:
    auto = AutoStacks(least_gap_ns=SECOND)
    auto.taken(Episode(1, SECOND), SECOND)
    assert auto.due([Episode(1, 9 * SECOND)], 9 * SECOND) is not None


def test_an_hour_has_only_so_many_and_dear_ones_are_rarer() -> None:
    auto = AutoStacks(least_gap_ns=SECOND, most_per_hour=3)
    for i in range(3):
        auto.taken(Episode(i, i * SECOND), i * SECOND)
    assert auto.due([Episode(9, 60 * SECOND)], 60 * SECOND) is None
    assert auto.due([Episode(9, 60 * SECOND)], 3601 * SECOND) is not None
    dear = AutoStacks(least_gap_ns=SECOND)
    dear.taken(Episode(1, 0), 0, took_ns=SECOND)
    assert dear.due([Episode(2, SECOND)], 299 * SECOND) is None
    assert dear.due([Episode(2, SECOND)], 300 * SECOND) is not None
