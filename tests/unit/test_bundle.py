"""The bundle for a bug report: what is in it, and that nobody is named in it."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import tarfile
import typing
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gputop import cli
from gputop.commands.replay import sample
from gputop.diagnosis import Engine
from gputop.doctor import bundle
from gputop.doctor.mask import _RULES, Mask
from gputop.model.board import Board
from gputop.model.frame import Frame, Header, Host, Probes, ProcInfo, RdmaPort, Serving, ThreadCalls, ThreadSample, Transport, Wakeup
from gputop.recording.reader import Recording
from gputop.system import config, crash

SECRET = "hunter2"
DEVICE = _RULES["FileSystem.device"]
KEPT = {
    "CgroupSample.cpuset", "CudaCall.call", "DiskSample.name", "DriverError.device", "DriverError.kind", "DriverError.text",
    "FileSystem.kind", "Gpu.architecture",
    "Gpu.compute_mode", "Gpu.fabric_health", "Gpu.fabric_state", "Gpu.missing", "Gpu.name", "Gpu.near_cpus",
    "Gpu.pci_bus_id", "GpuProc.kind", "Hardware.missing", "Header.gputop", "Header.kernel", "Header.machine", "MigInstance.missing",
    "MigInstance.profile", "Names.missing", "Names.pod_by", "Names.runtime", "Probes.lost",
    "ProcInfo.cpus_allowed", "ProcInfo.libs", "ProcInfo.sockets", "ProcInfo.wait_unreadable", "ProcSample.kernel_stack", "ProcSample.state",
    "ProcSample.wchan", "ReadLimit.device", "SchedThread.state",
    "Serving.engine", "Serving.family", "Serving.problem",
    "SourceState.detail", "SourceState.name", "SourceState.reason", "SourceState.remedy", "SourceState.state", "ThreadSample.state",
    "ThreadSample.wchan", "Met.state", "Met.wchan", "Wakeup.kind", "ThreadCalls.call",
    "RdmaPort.driver", "RdmaPort.link", "RdmaPort.state", "RdmaPort.missing",
    "Transport.library", "Transport.version", "Transport.configured", "Transport.missing",
}  # fmt: skip
"""Texts that are the kernel's, the driver's or gputop's own. A new field of a frame is masked; leaving it as it is is decided here."""


def _filled(kind: typing.Any, label: str) -> typing.Any:
    """A value of a type, every text in it telling where it stands."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{name: _filled(hint, f"{kind.__name__}.{name}") for name, hint in typing.get_type_hints(kind).items()})
    if origin is list:
        return [_filled(parts[0], label)]
    if origin is dict:
        return {"key" if parts[0] is str else 1: _filled(parts[1], label)}
    if parts:  # X | None
        return _filled(parts[0], label)
    return f"{SECRET} {label}" if kind is str else kind(1)


def _texts(item: object) -> set[str]:
    """The labels that are left."""
    data = msgspec.json.encode(item).decode()
    return {piece.split('"')[0].strip() for piece in data.split(SECRET)[1:]}


def test_every_text_is_masked_unless_somebody_decided_otherwise() -> None:
    frame, header, mask = _filled(Frame, ""), _filled(Header, ""), Mask()
    assert {"ProcInfo.cmdline", "ThreadInfo.comm", "Mark.text", "Stack.python", "Header.host"} <= _texts([frame, header])
    assert _texts([mask.frame(frame), mask.header(header)]) <= KEPT


def test_ports_of_a_driver_stay_and_what_a_variable_names_does_not() -> None:
    ports = [RdmaPort(name, interface="ib0") for name in ("mlx5_0/1", "rdmap0s31/1", "secret-rail/1")]
    variables = {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_NTHREADS": "4", "NCCL_TOPO_FILE": "/home/ana/topo.xml"}
    rank = ProcInfo(7, 1, transport=Transport("nccl", "2.21.5", devices=["mlx5_0"], variables=variables))
    frame = Mask().frame(Frame(0, 0, infos=[rank], host=Host(0, rdma=ports)))
    assert [port.name for port in frame.host.rdma][:2] == ["mlx5_0/1", "rdmap0s31/1"]
    assert "secret" not in frame.host.rdma[2].name
    masked = frame.infos[0].transport
    assert (masked.devices, masked.variables["NCCL_IB_DISABLE"], masked.version) == (["mlx5_0"], "1", "2.21.5")
    assert "ana" not in masked.variables["NCCL_TOPO_FILE"]


def test_numbers_of_a_server_stay() -> None:
    server = Serving(7, "127.0.0.1:8000", family="vllm", running=3, kv_used_pct=12.5, first_token={1000: 2})
    assert Mask().frame(Frame(0, 0, servings=[server])).servings == [server]


def test_addresses_and_names_of_a_job_are_masked_and_stay_apart() -> None:
    env = {"MASTER_ADDR": "10.3.0.7", "MASTER_PORT": "29500", "RANK": "3", "CUDA_VISIBLE_DEVICES": "0,1", "POD_NAMESPACE": "secret-project"}
    alike = [ProcInfo(pid, 1, env=env | {"MASTER_ADDR": address}) for pid, address in enumerate(("10.3.0.7", "10.3.0.8", "127.0.0.1"))]
    masked = [info.env for info in Mask().frame(Frame(0, 0, infos=alike)).infos]
    assert all(one | {"MASTER_ADDR": "", "POD_NAMESPACE": ""} == env | {"MASTER_ADDR": "", "POD_NAMESPACE": ""} for one in masked)
    addresses = [one["MASTER_ADDR"] for one in masked]
    assert len(set(addresses)) == 3
    assert addresses[2] == "127.0.0.1"
    assert not {"10.3.0.7", "10.3.0.8", "secret-project"} & {*addresses, *(one["POD_NAMESPACE"] for one in masked)}


@pytest.mark.parametrize(
    ("rule", "text", "masked"),
    [
        (Mask.mount_point, "/", "/"), (Mask.mount_point, "/home", "/home"), (Mask.mount_point, "/data/acme", r"x\w{8}/x\w{8}"),
        (DEVICE, "/dev/nvme0n1p2", "/dev/nvme0n1p2"), (DEVICE, "/dev/vda", "/dev/vda"), (DEVICE, "overlay", "overlay"),
        (DEVICE, "/dev/mapper/acme-root", r"x\w{8}"), (DEVICE, "filer.acme.com:/export", r"x\w{8}"),
    ],
)  # fmt: skip
def test_disks_stay_and_servers_and_volumes_are_hashed(rule: Callable[[Mask, str], str], text: str, masked: str) -> None:
    assert re.fullmatch(masked, rule(Mask(), text))


def test_words_of_the_kernel_and_of_the_driver_stay() -> None:
    probes = Probes(
        1, wakeups=[Wakeup(7, 0, 0, 1, 10, call=202, kind="futex")], thread_calls=[ThreadCalls(7, "cuStreamSynchronize", 7, 1, 10)],
    )  # fmt: skip
    frame = Frame(0, 1, probes=probes)
    assert Mask().frame(frame).probes == probes
    thread = ThreadSample(7, 0, 0, 0, "S", wchan="futex_wait_queue")
    assert Mask()._struct(thread) == thread


def test_programs_stay_apart_and_starters_are_known() -> None:
    mask = Mask()
    python = "/opt/x/python3.11"
    info = ProcInfo(7, 1, 2, 1234, "ada", "python", [python, "-u", "/home/ada/train.py", "--key=s3cret", "-m"], python)
    one = mask.frame(Frame(0, 0, infos=[info])).infos[0]
    assert one == mask.frame(Frame(1, 0, infos=[info])).infos[0], "the same process has the same name in every frame"
    assert one.cmdline[0].endswith("/python3.11")
    assert one.cmdline[1] == "-u"
    assert one.cmdline[2].endswith(".py")
    assert one.cmdline[3].startswith("-x")
    assert one.uid == 1000
    assert Mask().word("ada") != mask.word("ada"), "each bundle has a key of its own"
    assert mask.argument("from multiprocessing.spawn import spawn_main; spawn_main(3)").startswith("from multiprocessing.spawn import")


def _judged(frames: list[Frame], header: Header) -> list[tuple[str, str, int]]:
    board, engine, seen = Board(header=header), Engine(), []
    for number, frame in enumerate(frames):
        board.fold(frame)
        if number % 5 == 0:
            engine.feed(board)
            seen.append((engine.verdict.symptom, engine.verdict.cause, len(engine.roles)))
    return seen


def test_a_masked_recording_gets_the_same_verdicts() -> None:
    with Recording(sample()) as recording:
        header = recording.header
        frames = list(recording.frames(end_ns=recording.start_ns + 25 * 10**9))
    mask = Mask()
    masked = [mask.frame(frame) for frame in frames]
    assert any(verdict[1] == "cpu-contention" for verdict in _judged(frames, header))
    assert _judged(masked, mask.header(header)) == _judged(frames, header)
    told = msgspec.json.encode(masked)
    assert not [name for name in (b"train.py", b"log-shipper", b'"ada"', b"/home/") if name in told]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("OK /data/acme/.venv/bin/py-spy", r"OK x\w{8}/bin/py-spy"),
        ('"/data/acme/gputop/cli.py", line 3', r'"x\w{8}/gputop/cli.py", line 3'),
        ("/data/acme/lib/python3.11/site-packages/bcc", r"x\w{8}/lib/python3.11/site-packages/bcc"),
        ("cannot open /data/acme/secret.py: No", r"cannot open x\w{8}/x\w{8}\.py: No"), ("in /home/bob/runs.", r"in x\w{8}/x\w{8}\."),
        ("/dev/shm/acme", r"x\w{8}/x\w{8}"),
        ('"/data/My Work/x y.py", line 3', r'"x\w{8}/x\w{8}\.py", line 3'),
        ('\\"/data/My Work (old)/x y.py\\", line', r'\\"x\w{8}/x\w{8}\.py\\", line'),
        ("cannot read /data/My Work/x: No such", r"cannot read x\w{8}/x\w{8}: No such"),
        ("cannot read /data/My Work: No such", r"cannot read x\w{8}/x\w{8}: No such"),
        ("saved /data/My Work/At 10 o.py, 3 s", r"saved x\w{8}/x\w{8}\.py, 3 s"),
        ("copy /data/My Work/x to /data/My Work/y", r"copy x\w{8}/x\w{8} to x\w{8}/x\w{8}"),
    ],
)  # fmt: skip
def test_folders_that_are_not_the_systems_are_hashed(text: str, masked: str) -> None:
    assert re.fullmatch(masked, Mask().message(text))


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("/data/My Secret Work is full", r"x\w{8}/x\w{8} is full"), ("in /data/My Secret Work", r"in x\w{8}/x\w{8}"),
        ("no room in /data/My Secret Work/run 1 for it", r"no room in x\w{8}/x\w{8} for it"),
        ("/opt/My Libs or /usr/lib", r"x\w{8}/x\w{8} or /usr/lib"), ("/usr/bin/less -R is no My Libs", "/usr/bin/less -R is no My Libs"),
    ],
)  # fmt: skip
def test_paths_that_gputop_was_started_with_are_hashed_to_their_end(text: str, masked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWD", "/data/My Secret Work/run 1")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/lib:/opt/My Libs")
    monkeypatch.setenv("PAGER", "/usr/bin/less -R")
    assert re.fullmatch(masked, Mask().message(text))


@pytest.mark.parametrize(
    "text",
    [
        "/usr/lib/python3/dist-packages/bcc", "/sys/kernel/tracing", "12 MB/s and/or 3 / 4", "https://github.com/a/b", "in /tmp.",
        "/tmp is full: 12 MB/s", "'/usr/bin/x --of y/z'",
    ],
)  # fmt: skip
def test_the_systems_own_stay(text: str) -> None:
    assert Mask().message(text) == text


def test_what_lies_in_ones_own_folder_is_hashed_and_the_folder_is_told_as_such() -> None:
    home = os.path.expanduser("~")
    assert Mask().message(f"cannot read {home}: No such") == "cannot read ~: No such"
    assert re.fullmatch(r"cannot read x\w{8}/x\w{8}\.py: No such", Mask().message(f"cannot read {home}/My Work/x.py: No such"))


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "SECONDS", 2.0)


def _read(path: Path, folder: Path) -> dict[str, str]:
    """The texts of a bundle, the recording's frames as JSON."""
    with tarfile.open(path) as tar:
        tar.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    texts = {file.name: file.read_text() for file in (folder / "gputop-bundle").iterdir() if file.suffix != ".gputop"}
    with Recording(str(folder / "gputop-bundle" / "recording.gputop")) as recording:
        texts["recording.gputop"] = msgspec.json.encode([recording.header, *recording.frames()]).decode()
    return texts


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("with_names", [False, True])
def test_the_bundle_of_this_machine(
    with_names: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(config.config_path())
    path.parent.mkdir(parents=True)
    path.write_text(f'gpu = "{SECRET}"\ninterval = 0.5\n')
    crash.log(ValueError("once"))
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out.tar.gz"
    sleeper = [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)", f"--token={SECRET}"]
    with subprocess.Popen(sleeper, stdout=subprocess.PIPE) as stranger:
        try:
            assert stranger.stdout is not None
            stranger.stdout.readline()
            assert cli.main(["doctor", "--bundle", "--json", "-o", str(out), *["--with-names"] * with_names]) in (0, 1)
        finally:
            stranger.kill()
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    told = json.loads(capsys.readouterr().out)["bundle"]
    texts = _read(out, tmp_path / "read")
    assert {name for name, text in texts.items() if SECRET in text} == ({"config.json", "recording.gputop"} if with_names else set())
    assert [name for name in texts if name != "README.txt" and name not in texts["README.txt"]] == []
    assert told["path"] == str(out)
    assert {part["name"] for part in told["parts"]} | {"README.txt"} == set(texts)
    assert json.loads(texts["doctor.json"])["checks"]
    assert json.loads(texts["config.json"])["config"]["interval"] == 0.5
    said = json.loads(texts["sources.json"])
    assert {"procfs", "nvml"} <= {source["name"] for source in said["sources"]}
    assert said["frames"] == len(json.loads(texts["recording.gputop"])) - 1 > 1  # of how many beats a busy machine leaves
    assert said["collector_cpu_pct"] > 0
    assert "ValueError: once" in texts["errors.txt"]
    assert os.uname().release in texts["machine.txt"]
    assert set(os.listdir(tmp_path)) == {"read", "out.tar.gz"}


def test_what_exists_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("precious")
    link.symlink_to(victim)
    for path, word in ((victim, "exists already"), (link, "link")):
        assert cli.main(["doctor", "--bundle", "-o", str(path)]) == 1
        assert word in capsys.readouterr().err.splitlines()[-1]
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("flag", [["-o", "x"], ["--with-names"]])
def test_flags_of_the_bundle_need_it(flag: list[str]) -> None:
    assert cli.main(["doctor", *flag]) == 2


@pytest.mark.parametrize("read", [True, False])
def test_traceback_and_bundle_wait_for_no_fifo(read: bool) -> None:
    Path(crash.log_path()).parent.mkdir(parents=True)
    os.mkfifo(crash.log_path())
    reader = os.open(crash.log_path(), os.O_RDONLY | os.O_NONBLOCK) if read else os.open(os.devnull, os.O_RDONLY)
    assert crash.log(LookupError("what was sought")) == "this is a bug: LookupError: what was sought"
    assert crash.read_log() == ""
    os.close(reader)


def test_a_bug_is_a_line_and_its_traceback_is_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_arguments: list[str]) -> int:
        raise LookupError("what was sought")

    monkeypatch.setattr(cli, "_run", broken)
    assert cli.main([]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gputop: this is a bug: LookupError: what was sought")
    assert "in broken" in crash.read_log()
    assert stat.S_IMODE(os.stat(crash.log_path()).st_mode) == 0o600
    for _ in range(200):
        crash.log(LookupError("x" * 2000))
    assert os.stat(crash.log_path()).st_size < 100_000
