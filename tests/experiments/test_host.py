"""One lock and one set of journals for a host, whoever experiments; what is changed back, and what is left to others."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputop.commands.prove import _undo
from gputop.prove import change, host, journal
from gputop.prove.change import BACK, FILE, IDLE, THEIRS, Change, Plan, Record, TargetProcess, restore
from gputop.prove.guardian import ExperimentEnding, Guard
from gputop.prove.host import JournalFolder, why_not, why_not_in
from gputop.prove.journal import Damaged, Journal, create, leftovers, of_others, undo_leftovers
from gputop.prove.processes import read_process
from tests.experiments.place import set_place
from tests.experiments.processes import ROOT, THREADS, holder, record_of, settings, started, target, threads
from tests.experiments.processes import running as running_in
from tests.probes.swapping import NOBODY
from tests.stranger import nobodys_process
from tests.wait import PATIENCE_S, until
from tests.workloads import cgroup

root = pytest.mark.skipif(os.geteuid() != 0, reason="not root")
CPUS = sorted(os.sched_getaffinity(0))
REAL_WHY = host.why_not_in
running = partial(
    running_in, own_session=True
)  # who shares a session with those of another experiment, of a test beside this one, is its heir


def nice(*targets: TargetProcess) -> Plan:
    return Plan("nice", f"{targets[0]} to nice 19", tuple(Change("nice", "19", one) for one in targets), may_keep=True)


def niceness(pid: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, pid)


# the lock

LOCKED = """
import os
from gputop.prove import host
lock = host.open_lock()
print(host.is_locked(lock))
read, write = os.pipe()
if os.fork() == 0:
    os.setresuid(65534, 65534, 65534)
    other = host.open_lock()
    os.write(write, repr((host.is_locked(other), host.holders(other) == [os.getppid()])).encode())
    os._exit(0)
print(os.read(read, 100).decode())
os.wait()
os.close(lock)
print(host.is_locked(host.open_lock()))
"""


@root
def test_the_lock_is_the_same_for_all_users_and_needs_no_folder() -> None:
    """In a namespace of clocks of its own, for tests run beside other experiments of this host."""
    done = subprocess.run(["unshare", "--time", "--fork", sys.executable, "-c", LOCKED], cwd=ROOT, capture_output=True, text=True)
    if "unshare" in done.stderr and done.returncode:
        pytest.skip(done.stderr.strip())
    assert done.stdout.split("\n")[:3] == ["True", "(False, True)", "True"], done.stderr


def test_two_experiments_never_run_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as hog, running() as other, holder(nice(hog)) as first:
        for name in ("TMPDIR", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "HOME"):
            monkeypatch.setenv(name, str(tmp_path))
        with pytest.raises(OSError, match=f"another one is under way on this machine .process {first.pid} of uid {os.geteuid()}"):
            Guard(nice(other)).__enter__()
        assert niceness(other.pid) != 19


# the folders


def test_real_places_belong_to_root() -> None:
    assert host.PLACES
    assert [place for place in ("/run", "/tmp", "/var/tmp") if os.path.isdir(place) and why_not_in(place)] == []


@pytest.mark.parametrize(("mode", "is_safe"), [(0o755, True), (0o1777, True), (0o777, False), (0o775, False)])
def test_a_place_where_others_may_rename_is_none(tmp_path: Path, mode: int, is_safe: bool) -> None:
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(mode)
    assert (REAL_WHY(str(place)) == "") == (is_safe and os.geteuid() == 0)


@root
@pytest.mark.parametrize("harm", ["link", "file", "others", "writable"])
def test_a_folder_that_somebody_else_made_is_none(tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next place is taken."""
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        place.mkdir()
    monkeypatch.setattr(host, "PLACES", (str(first), str(second)))
    trap = first / f"{host.PREFIX}0"
    if harm == "link":
        trap.symlink_to(tmp_path)
    elif harm == "file":
        trap.touch()
    else:
        trap.mkdir()
        os.chown(trap, NOBODY if harm == "others" else 0, 0)
        trap.chmod(0o777 if harm == "writable" else 0o755)
    assert host.make_folder() == JournalFolder(str(second / f"{host.PREFIX}0"), 0)
    assert why_not(JournalFolder(str(trap), 0))
    assert [folder.path for folder in host.folders()] == [str(second / f"{host.PREFIX}0")]


# of other users

AS_NOBODY = """
import os, sys
sys.path[:0] = sys.argv[1:2]
import msgspec, psutil
from gputop.prove import host
from gputop.prove.change import Record
from gputop.prove.journal import Damaged, Journal, create, in_use, leftovers, of_others
from tests.experiments.place import from_environment
from_environment()
open("/dev/null", encoding="ascii").close()  # who becomes somebody else may not be able to import any more
if os.geteuid() == 0:
    os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
records = msgspec.json.decode(sys.argv[2], type=list[Record])
one = create("nobody's experiment")
one.append(records)
print(len(host.folders()), of_others(), flush=True)
if sys.argv[3:]:
    sys.stdin.readline()
"""


@pytest.fixture
def everybodys(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place that other users may enter and write, as pytest's own folders must not be."""
    path = Path(tempfile.mkdtemp(prefix="gputop-tests-"))
    path.chmod(0o1777)
    set_place(path, monkeypatch)
    yield path
    shutil.rmtree(path)


def of_nobody(*records: Record) -> None:
    """Leave a journal of nobody's behind."""
    import msgspec

    command = [sys.executable, "-c", AS_NOBODY, str(ROOT), msgspec.json.encode(list(records)).decode()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    until(lambda: not any(one.name == "gputop-guardian" for one in threading.enumerate()))  # `gputop prove --undo` forks without threads


@root
@pytest.mark.usefixtures("everybodys")
def test_root_undoes_what_every_user_left_behind() -> None:
    with nobodys_process() as pid, running() as hog:
        one = target(pid)
        os.sched_setaffinity(pid, CPUS[:1])
        own = create("root's experiment")
        own.append([record_of(hog, "nice", "3", str(niceness(hog.pid)))])
        os.close(own.fd)
        of_nobody(record_of(one, "cpu-mask", ",".join(map(str, CPUS)), str(CPUS[0])))
        assert {(left.says, left.uid) for left in leftovers()} == {("root's experiment", 0), ("nobody's experiment", NOBODY)}
        with pytest.raises(OSError, match="gputop prove --undo"):
            Guard(nice(hog)).__enter__()
        assert undo_leftovers() == ["root's experiment: put back", f"nobody's experiment: put back (of uid {NOBODY})"]
        assert (os.sched_getaffinity(pid), niceness(hog.pid)) == (set(CPUS), 3)
        assert leftovers() == []


@root
@pytest.mark.usefixtures("everybodys")
def test_a_journal_of_another_user_has_that_users_rights() -> None:
    """Whoever may write a journal has root put back nothing that is not its own."""
    with running() as roots:
        of_nobody(record_of(roots, "nice", str(niceness(roots.pid) + 5), str(niceness(roots.pid))))
        before = settings(roots.pid)
        [told] = undo_leftovers()
        assert told.startswith("nobody's experiment: not all could be put back: nice of ")
        assert settings(roots.pid) == before


@root
def test_a_user_is_told_of_roots_journals(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as hog:
        one = create("root's experiment")
        one.append([record_of(hog, "nice", "3", "0")])
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
        assert host.folders() == []
        assert of_others() == [0]
        assert _undo() == 0
        assert "uid 0" in capsys.readouterr().out
        os.close(one.fd)


@root
def test_what_a_user_spoils_does_not_keep_root_from_experiments(everybodys: Path) -> None:
    of_nobody()
    [left] = (everybodys / f"{host.PREFIX}{NOBODY}").glob("*.journal")
    left.write_bytes(b"\xff\n")
    assert leftovers() == []
    with running() as hog, Guard(nice(hog)):
        pass
    assert [line for line in undo_leftovers() if "is damaged" in line]


@pytest.mark.parametrize("data", [b"[]", b'{"says": "\xff"}', b'{"x": ' + b"[" * 5000, b"\xff"])
def test_a_journal_whose_checks_hold_may_be_damaged_all_the_same(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(b"%08x %s\n" % (zlib.crc32(data), data))
    with path.open("rb") as file, pytest.raises(Damaged, match="is damaged"):
        Journal(str(path), file.fileno()).read()


# what is written

HARMFUL = ("cgroup.procs", "cgroup.kill", "release_agent", "tasks", "notify_on_release", "cgroup.subtree_control")


def test_only_control_groups_are_written(tmp_path: Path) -> None:
    """Whatever a journal names: neither a file elsewhere, nor through a link, nor a file of a group that is no setting of ours."""
    file = tmp_path / "cpu.weight"
    file.write_text("1")
    record = Record(FILE, "1", "100", path=str(file))
    with pytest.raises(OSError, match="no setting of the kernel"):
        restore(record)
    assert file.read_text() == "1"
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="no setting of the kernel"):
        restore(replace(record, path=str(tmp_path / "link" / ".." / tmp_path.name / "cpu.weight")))


@pytest.mark.parametrize("name", HARMFUL)
def test_no_other_file_of_a_group_is_written(name: str) -> None:
    if why := cgroup.missing("cpu"):
        pytest.skip(why)
    with cgroup.group("cpu", "experiment") as path, pytest.raises(OSError, match="no setting that an experiment changes"):
        restore(Record(FILE, "", "1", path=str(path / name)))


def test_a_groups_file_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    if why := cgroup.missing("cpu"):
        pytest.skip(why)
    with cgroup.group("cpu", "experiment") as path:
        file = path / ("cpu.weight" if cgroup.is_v2("cpu") else "cpu.shares")
        before = file.read_text().strip()
        file.write_text("77")
        record = Record(FILE, "77", before, path=str(file))
        assert restore(record) == BACK
        assert file.read_text().strip() == before
        file.write_text("55")
        assert restore(record) == THEIRS
        assert file.read_text().strip() == "55"
        with monkeypatch.context() as patch:
            patch.setattr(change, "CONTROL_GROUPS", (0x01021994,))  # as if it were tmpfs
            with pytest.raises(OSError, match="no setting of the kernel"):
                restore(record)


def _set_mask(pid: int) -> None:
    os.sched_setaffinity(pid, CPUS[1:])


def _set_policy(pid: int) -> None:
    os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))


def _set_nice(pid: int) -> None:
    os.setpriority(os.PRIO_PROCESS, pid, 7)


@pytest.mark.parametrize(
    ("setting", "new", "theirs"),
    [("cpu-mask", str(CPUS[0]), _set_mask), ("policy", IDLE, _set_policy), ("nice", "19", _set_nice)],
)  # fmt: skip
def test_what_somebody_else_changes_meanwhile_is_left_and_told(setting: str, new: str, theirs: Callable[[int], None]) -> None:
    if len(CPUS) < 2:
        pytest.skip("one CPU")
    ending = ExperimentEnding()
    with running() as hog, running() as other:
        before = settings(other.pid)
        with Guard(Plan(setting, "it", tuple(Change(setting, new, one) for one in (hog, other)), True), ending=ending) as guard:
            guard.on()
            theirs(hog.pid)
            now = settings(hog.pid)
            guard.off()
            assert settings(hog.pid) == now
            guard.on()  # who takes a setting over keeps it
            assert settings(hog.pid) == now
            assert settings(other.pid) != before
        assert settings(hog.pid) == now
        assert settings(other.pid) == before
        [told] = ending.theirs
        assert told.startswith(f"{setting} of {hog.pid} (")
        assert ending.is_put_back
        assert "another program has changed it" in ending.told


def test_it_ends_where_somebody_else_has_taken_all_over() -> None:
    with running() as hog, Guard(nice(hog)) as guard:
        guard.on()
        _set_nice(hog.pid)
        guard.off()
        with pytest.raises(OSError, match="another program has changed it"):
            guard.on()
    assert leftovers() == []


def test_a_guardian_leaves_what_somebody_else_has_changed() -> None:
    with running() as hog, running() as other:
        before = niceness(other.pid)
        with holder(nice(hog, other)) as gputop:
            _set_nice(hog.pid)
            gputop.kill()
            until(lambda: niceness(other.pid) == before)
        assert niceness(hog.pid) == 7
        until(lambda: not leftovers() and not journal.in_use())


def test_a_mask_reads_as_a_cpuset_lets_it() -> None:
    """What the kernel makes of a value is what is looked for afterwards: here a part of the mask."""
    if len(CPUS) < 2:
        pytest.skip("one CPU")
    more = f"{CPUS[0]},{max(CPUS) + 1}"  # a CPU that is not there
    with running(THREADS) as hog:
        before = settings(hog.pid)
        with Guard(Plan("cpu-mask", "it", (Change("cpu-mask", more, hog),), True)) as guard:
            guard.on()
            assert {frozenset(os.sched_getaffinity(tid)) for tid in threads(hog.pid)} == {frozenset(CPUS[:1])}
        assert settings(hog.pid) == before


def test_put_back_is_said_only_of_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that says it went well, and changes nothing."""
    monkeypatch.setattr(journal, "TRY_S", 0.2)
    ending = ExperimentEnding()
    with running() as hog:
        guard = Guard(nice(hog), ending=ending).__enter__()
        guard.on()
        setting = change.SETTINGS["nice"]
        with monkeypatch.context() as patch:
            patch.setitem(change.SETTINGS, "nice", replace(setting, write=lambda _tid, _value: None))
            with pytest.raises(OSError, match=r"not put back yet: nice of .*it reads 19 after that"):
                guard.close()
        assert not ending.is_put_back
        assert "its guardian process puts everything back" in ending.told
        until(lambda: niceness(hog.pid) != 19)  # the guardian has a write that works


def test_a_leftover_is_not_put_back_over_what_others_set_since() -> None:
    with running() as hog, running() as other:
        one = create("it")
        before = niceness(other.pid)
        os.setpriority(os.PRIO_PROCESS, other.pid, 19)
        one.append([record_of(hog, "nice", "3", "19"), record_of(other, "nice", str(before), "19")])
        os.close(one.fd)
        _set_nice(hog.pid)
        [told] = undo_leftovers()
        assert told == f"it: put back; left as it is, for another program has changed it: nice of {hog.pid} (7)"
        assert (niceness(hog.pid), niceness(other.pid)) == (7, before)


def test_a_second_ctrl_c_leaves_it_to_the_guardian(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = ExperimentEnding()
    with started(THREADS, own_session=True) as child:
        hog, before = target(child.pid), settings(child.pid)
        guard = Guard(nice(hog), ending=ending).__enter__()
        guard.on()

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(journal, "undo", interrupted)
            with pytest.raises(KeyboardInterrupt):
                guard.close()
        assert not ending.is_put_back
        until(lambda: settings(child.pid) == before)


def test_a_stopped_process_that_somebody_let_go_on_stays_so() -> None:
    with running() as hog, Guard(Plan("stop", "it", (Change("state", change.STOPPED, hog),), False, 1.0)) as guard:
        guard.on()
        until(lambda: read_process(hog.pid).state == "T")
        os.kill(hog.pid, signal.SIGCONT)
        guard.off()
        assert read_process(hog.pid).state != "T"


def test_a_journal_whose_writer_died_before_its_header_names_no_change() -> None:
    made = create("nothing yet")
    whole = Path(made.path).read_bytes()
    os.close(made.fd)
    for header in (b"", whole[: len(whole) // 2]):
        Path(made.path).write_bytes(header)
        assert leftovers() == []
        assert Path(made.path).exists(), "it may still be written"
    os.utime(made.path, (0, 0))
    assert leftovers() == []
    assert not Path(made.path).exists()
