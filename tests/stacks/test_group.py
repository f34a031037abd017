"""Folding equal stacks, and the words for them."""

from __future__ import annotations

from gputop.model.frame import Stack
from gputop.model.roles import Role
from gputop.stacks.capture import StackSet
from gputop.stacks.frames import Line, parse
from gputop.stacks.group import group
from gputop.stacks.lines import summary, text_lines

SITE = "/venv/lib/python3.11/site-packages/torch/utils/data"
ROLES = {1: Role("trainer", 1, 0, None, "torch", "train.py rank 0")} | {
    pid: Role("worker", 1, None, pid - 2, "torch", f"worker {pid - 2}") for pid in range(2, 10)
}


def frame(name: str, file: str, line: int) -> str:
    return Line(name, file, line).text


def worker(pid: int, line: int = 41, **parts: object) -> Stack:
    lines = [
        frame("__getitem__", "/home/me/data.py", line),
        frame("fetch", f"{SITE}/_utils/fetch.py", 54),
        frame("BaseProcess._bootstrap", "/usr/lib/python3.11/multiprocessing/process.py", 314),
        frame("<module>", "/home/me/train.py", 100 + pid),
    ]
    source = {"/home/me/data.py:41": "img = cv2.imread(self.files[i])"}
    return Stack(pid, pid, 0, python=lines, state="S", source=source, thread="MainThread", **parts)  # type: ignore[arg-type]


def test_six_of_eight_workers() -> None:
    stacks = [worker(pid, wait="pread64 of /data/a on nvme0n1") for pid in range(2, 8)] + [worker(8, 77), worker(9, 78)]
    first, *_ = group(stacks, ROLES)
    assert first.title == "6 of 8 workers: cv2.imread ← __getitem__ data.py:41"
    assert first.waits == (("pread64 of /data/a on nvme0n1", 6),)
    assert [member.label for member in first.members] == [f"worker {i}" for i in range(6)]
    assert first.frames[0].source == "img = cv2.imread(self.files[i])"
    assert first.frames[1].place == "torch/utils/data/_utils/fetch.py:54"


def test_what_a_forked_worker_inherited_is_left_out() -> None:
    one = group([worker(2), worker(3)], ROLES)
    assert len(one) == 1
    assert all("train.py" not in frame.place for frame in one[0].frames)


def test_a_line_with_two_calls_names_none() -> None:
    stack = worker(2)
    stack.source["/home/me/data.py:41"] = "return decode(read(path))"
    assert group([stack], ROLES)[0].title == "worker 0: __getitem__ data.py:41"


def test_a_running_thread_names_no_call() -> None:
    stack = Stack(2, 2, 0, python=[frame("f", "/me/a.py", 3)], state="R", source={"/me/a.py:3": "g(x)"})
    assert group([stack])[0].title == "process 2: f a.py:3"


def test_trainer_first_helper_threads_last() -> None:
    feeder = Stack(2, 20, 0, thread="QueueFeederThread", python=[frame("wait", "/usr/lib/python3.11/threading.py", 327),
                   frame("Queue._feed", "/usr/lib/python3.11/multiprocessing/queues.py", 231)])  # fmt: skip
    own = Stack(1, 11, 0, thread="prefetch", python=[frame("run", "/me/a.py", 9)])
    pin = Stack(1, 12, 0, thread="pt_data_pin", python=[frame("_pin_memory_loop", f"{SITE}/_utils/pin_memory.py", 30)])
    trainer = Stack(1, 1, 0, python=[frame("__next__", f"{SITE}/dataloader.py", 725), frame("train", "/me/train.py", 138)])
    groups = group([feeder, own, worker(2), pin, trainer], ROLES)
    assert [one.title for one in groups] == [
        "train.py rank 0: __next__ ← train train.py:138",
        "train.py rank 0, thread pt_data_pin: _pin_memory_loop pin_memory.py:30",
        "worker 0: cv2.imread ← __getitem__ data.py:41",
        "train.py rank 0, thread prefetch: run a.py:9",
        "1 helper thread: wait threading.py:327",
    ]


def test_equal_errors_share_one_command() -> None:
    stacks = [Stack(pid, pid, 0, error=f"not permitted; `sudo gputop stacks {pid}`") for pid in (2, 3, 1)]
    groups = group(stacks, ROLES)
    assert [one.title for one in groups] == [
        "train.py rank 0: not permitted; `sudo gputop stacks 1`",
        "2 of 2 workers: not permitted; `sudo gputop stacks 2 3`",
    ]


def test_what_could_not_be_read_is_no_stack() -> None:
    unread, read = Stack(2, 2, 0, error="not permitted"), Stack(3, 3, 0, python=["f (a.py:1)"])
    kernel_only = Stack(4, 4, 0, kernel=["schedule"], error="no Python process")
    assert summary(StackSet(0, 34_000_000, False, (unread,))) == "no stack of 1 process could be read"
    some = summary(StackSet(0, 34_000_000, False, (unread, read, kernel_only)))
    assert some == "2 stacks of 2 processes in 34 ms, none paused; 1 process could not be read"


def test_all_text_is_cleaned_and_bounded() -> None:
    evil = "\x1b]0;x\x07" + "\u202e" + "x" * 5000
    stack = Stack(5, 5, 0, python=[frame(evil, f"/{evil}.py", 3)], kernel=[evil], wait=evil, thread=evil, missing={"kernel": evil})
    lines = text_lines(group([stack]))
    assert lines
    for line in lines:
        assert "\x1b" not in line.text
        assert "\u202e" not in line.text
        assert len(line.text) < 1200


def test_own_frames_are_shown_however_deep() -> None:
    deep = [frame(f"f{i}", f"{SITE}/x.py", i + 1) for i in range(40)] + [frame("train", "/me/train.py", 9)]
    texts = [line.text.strip() for line in text_lines(group([Stack(5, 5, 0, python=deep)]), depth=3)]
    assert texts[-2:] == ["… 37 more", "train  /me/train.py:9"]


def test_frames_survive_as_text() -> None:
    for line in (
        Line("f", "/a b (copy)/x.py", 3),
        Line("<lambda>", "<string>", 1),
        Line("at::(anonymous namespace)::f(int)", "/lib/libtorch.so", 0),
        Line("odd", "/tmp/\x1bx\nfile.py", 2),
        Line("std::f (int)", "a.so", 0),
    ):
        back = parse(line.text)
        assert (back.name, back.file, back.line) == (line.name.replace(" (", "("), line.file, line.line)
    assert parse("kernel_function") == Line("kernel_function", "", 0)


def test_native_frames_and_packages_are_not_the_users() -> None:
    assert Line("f", "/usr/lib/libc.so.6", 0).library
    assert Line("f", "/x/Modules/socketmodule.c", 4).library
    assert Line("f", "/usr/lib/python3/dist-packages/numpy/x.py", 4).library
    assert Line("f", "/usr/local/lib/python3.13t/queue.py", 4).library
    assert not Line("f", "/home/me/project/data.py", 4).library
    assert not Line("f", "<ipython-input-3>", 4).library


def test_an_overview_stands_before_the_stacks_of_several_processes() -> None:
    trainer = Stack(1, 1, 0, python=[frame("wait", "/home/me/train.py", 9)], state="S", wait="waits for data 62 %; poll", thread="main")
    beside = Stack(1, 7, 0, python=[frame("run", "/home/me/train.py", 5)], state="S", thread="logger")
    lines = text_lines(group([trainer, beside, *(worker(pid, wait="read of /data") for pid in range(2, 10))], ROLES))
    assert [line.text for line in lines[: [line.kind for line in lines].index("blank")]] == [
        "train.py rank 0: wait train.py:9  · waits for data 62 %",
        "8 of 8 workers: cv2.imread ← __getitem__ data.py:41  · read of /data",
    ]
    alone = text_lines(group([trainer, beside], ROLES))
    assert alone[0].kind == "title"
