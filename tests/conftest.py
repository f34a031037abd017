"""What every test stands on."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import last_try

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

HERE = Path(__file__).parent
ALONE = ("test_guided.py", "test_quiet.py", "test_runs.py")
"""Files whose tests want the CPUs for themselves: one worker takes them one after the other, before all others, and
what they start in sessions of its own (demos, terminals, trainings) runs first."""
FIRST = b"-12"  # nice value of a session, by which the kernel shares the CPUs among sessions: nine tenths beside the tests that compute
LONGEST = (
    *ALONE, "test_kills.py", "test_corpus.py", "test_untrusted.py", "test_keep.py", "test_lxcfs.py", "test_split.py",
    "test_fuzz.py", "test_fuzzing.py", "test_tools.py", "test_server.py", "test_cuda.py", "test_sched.py", "test_switches.py",
    "test_sweep.py", "test_reach.py", "test_drawing.py", "test_prove.py", "test_lasting.py", "test_replay.py", "test_alertmanager.py",
    "test_screenshots.py", "test_slower_pairs.py", "test_integrations.py", "test_loop.py", "test_html.py",
)  # fmt: skip
"""Files that take long of one worker, the longest first: they begin at once, or one worker would be left with them."""
APART = ("test_drawing.py", "test_untrusted.py", "test_fuzz.py", "test_reach.py")
"""Files of long tests that share nothing: each test goes to the next worker that is free. The tests of another file stay with one."""
BEFORE = (
    "workloads", "demo", "corpus", "fuzzing", "test_readme.py", "test_packaging.py", "pty", "fleet", "experiments", "probes", "sources",
)  # fmt: skip
"""What comes after them, since its files take longer than others."""


FAILED = os.environ.pop("GPUTOP_FAILED", "")
"""The file in which `tests.last_try` finds what has failed; the tests' own pytests write none."""


gc.disable()  # until all is collected: three hundred modules and thousands of tests, none of which is garbage, would be gone through again


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the tests' own garbage is looked for without it."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


def pytest_configure() -> None:
    """A background job of a shell, or one under nohup, is deaf to these signals, and so would be all that the tests start. A Python told
    not to buffer hides that somebody did not flush; one told to keep no bytecode compiles torch and its trainers at each start."""
    os.environ.pop("PYTHONUNBUFFERED", None)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The workers would import three hundred modules for those of `make soak`, which are few."""
    is_other = config.option.markexpr == "soak" and collection_path.match("test_*.py") and "mark.soak" not in collection_path.read_text()
    return True if is_other else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """``--dist loadfile``, but for the files of `ALONE` and `APART`."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Units(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, _ = nodeid.partition("::")
            name = file.rpartition("/")[2]
            return "alone" if name in ALONE else nodeid if name in APART else file

    return Units(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What real processes do depends on who else is on the machine: such a test is tried twice more before it fails, and listed then.

    Pure functions on hand-made frames have no such excuse.
    """
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    parts = {path: path.relative_to(HERE).parts[0] for path in {item.path for item in items}}
    live = {path: last_try.is_live(path) for path in parts}
    items.sort(key=lambda item: (ranks.get(item.path.name, len(ranks)), parts[item.path] not in BEFORE))
    for item in items:
        if live[item.path]:
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=2))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep which tests have failed, for their last try."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if FAILED and reporter is not None and not hasattr(session.config, "workerinput"):
        last_try.write(Path(FAILED), [*reporter.stats.get("failed", []), *reporter.stats.get("error", [])])


@pytest.fixture(autouse=True)
def _no_handlers() -> Iterator[None]:
    """A command that runs in the tests' own process leaves no handlers of signals to the next test, and no real-time priority: who has
    that cannot be put into a v1 control group."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2)
    before = [(number, handler) for number in numbers if (handler := signal.getsignal(number)) is not None]
    yield
    for number, handler in before:
        signal.signal(number, handler)
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _cpu_group(pid: int) -> Path | None:
    """The file with the shares of a process's control group for the CPUs, of cgroup v1; `FIRST` does not count in a group of its own."""
    paths = dict(line.split(":")[1:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    path = next((path for names, path in paths.items() if "cpu" in names.split(",")), "/")
    return Path(f"/sys/fs/cgroup/cpu{path}/cpu.shares") if path != "/" else None


@pytest.fixture(autouse=True)
def _sessions_first(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sessions that a test of `ALONE` starts get `FIRST`, where this is root and the kernel has groups of sessions."""
    if request.path.name not in ALONE or os.geteuid() != 0 or not os.path.exists("/proc/self/autogroup"):
        yield
        return
    is_over, done, own = threading.Event(), {os.getsid(0)}, _cpu_group(os.getpid())

    def children(pid: int) -> Iterator[int]:
        with suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                yield int(child)
                yield from children(int(child))

    def raise_all() -> None:
        while not is_over.wait(0.2):
            for pid in children(os.getpid()):
                with suppress(OSError):
                    if (session := os.getsid(pid)) not in done:
                        done.add(session)
                        Path(f"/proc/{pid}/autogroup").write_bytes(FIRST)
                    if (group := _cpu_group(pid)) not in (own, None):
                        group.write_text("15000")

    thread = threading.Thread(target=raise_all)
    thread.start()
    yield
    is_over.set()
    thread.join()


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders that are not there yet, one for each test."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _no_habits(monkeypatch: pytest.MonkeyPatch, _homes: Iterator[Path]) -> Path:
    """Nobody's configuration, and nothing kept from one test's screen for the next one's."""
    home = next(_homes)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    return home
