"""Enter: what the box shows of a real process beside the stream's own facts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs
from textual.pilot import Pilot

from gputop.findings.ways import Way
from gputop.model.collective import Collective, collective_now
from gputop.model.frame import FileSystem, Frame, Hardware, Names, Nic, SourceState, Transport
from gputop.sources import parse
from gputop.sources.closeup import process
from gputop.stream.session import Session
from gputop.system.text import cell_width
from gputop.tui.app import GputopApp
from gputop.tui.details import DetailsScreen
from gputop.tui.draw.table import rows
from gputop.tui.draw.view import View
from gputop.tui.widgets import Scrolled
from tests.stranger import nobodys_process
from tests.tui import scene
from tests.tui.conftest import MakeApp
from tests.tui.test_dashboard import part
from tests.tui.test_replay import until
from tests.wait import PATIENCE_S

NAME = "na\x1b[2Jme\n[bold]x"
CODE = """
import os, socket, sys, time
listening = socket.create_server(("127.0.0.1", 0))
talking = socket.create_connection(listening.getsockname())
accepted = listening.accept()[0]
talking.send(bytes(5000))
pair = socket.socketpair()
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
file = open(sys.argv[1], "w")
memory = os.memfd_create("batch")
print(listening.getsockname()[1], flush=True)
time.sleep(600)
"""
SECRETS = {"HF_TOKEN": "hunter2", "DATABASE_URL": "postgres://ada:hunter2@db/x"}


class Victim:
    """A process with sockets, files and secrets in its environment."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / NAME
        env = {**os.environ, **SECRETS, "SLURM_JOB_ID": "4711", "SLURM_PROCID": "3", "SLURM_NTASKS": "16", "EVIL": "a\x1b[2Jb"}
        self.process = subprocess.Popen([sys.executable, "-c", CODE, self.file], stdout=subprocess.PIPE, env=env, cwd=folder)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.ticks = ticks_of(self.process.pid)


def ticks_of(pid: int) -> int:
    return parse.stat(Path(f"/proc/{pid}/stat").read_bytes()).start_ticks


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    made = Victim(tmp_path)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def session_with(pid: int, ticks: int) -> Session:
    """The scene's stream, in which its hog is that process."""
    session = scene.session()
    info, sample = session.board.infos[scene.HOG], session.board.procs[scene.HOG]
    moved = Frame(
        1000, session.now_ns + scene.TICK_NS, infos=[structs.replace(info, pid=pid, start_ticks=ticks)],
        procs=[structs.replace(sample, pid=pid, start_ticks=ticks)],
    )  # fmt: skip
    session.ingest(moved)
    return session


async def opened(pilot: Pilot[int], app: GputopApp, pid: int) -> DetailsScreen:
    """The box of a process, once all is read."""
    box = DetailsScreen(app.context, pid)
    app.push_screen(box)
    await until(pilot, lambda: box._details is not None and box._details.is_whole and "read from" in text(app), "its details")
    return box


def text(app: GputopApp) -> str:
    return app.screen.query_one(Scrolled).text


def test_a_process_with_sockets_files_and_secrets(victim: Victim, tmp_path: Path) -> None:
    *_, found = process.read(victim.process.pid, victim.ticks)
    assert found.missing == {}
    assert found.program is not None
    assert found.program.cwd == str(tmp_path)
    assert found.priority is not None
    assert found.priority.cpus == sorted(os.sched_getaffinity(victim.process.pid))
    assert found.descriptors is not None
    written = next(file for file in found.descriptors.files if file.target == str(victim.file))
    assert (written.kind, written.mode, written.position) == ("file", "w", 0)
    assert written.mount
    assert "batch" in next(file.target for file in found.descriptors.files if file.kind == "memory")
    assert found.connections is not None
    tcp = {(one.state, one.local.endswith(f":{victim.port}"), one.to_read) for one in found.connections if one.kind == "tcp"}
    assert tcp == {("listen", True, 0), ("established", False, 0), ("established", True, 5000)}
    assert sorted(one.kind for one in found.connections if one.kind != "tcp") == ["other", "unix stream", "unix stream"]
    assert "hunter2" not in str(found)
    assert dict(found.environment or [])["DATABASE_URL"].endswith("@db/x")
    assert found.place is not None
    assert found.place.slurm["rank"] == "3"
    assert found.threads
    assert [limit.soft for limit in found.limits or [] if limit.name == "Max stack size"]


def test_another_users_process_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """To root everything is open, so the roles are turned round: who may not read is asked of a child that is nobody."""
    if os.geteuid() != 0:
        *_, found = process.read(1, ticks_of(1))
        assert {found.missing[part] for part in ("descriptors", "connections", "environment")} == {"belongs to root"}
        return
    reading = """
import os, sys
import psutil
from gputop.sources.closeup import process
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
*_, found = process.read(int(sys.argv[1]), int(sys.argv[2]))
print(found.rights, *(f"{part}={found.missing.get(part)}" for part in ("descriptors", "connections", "environment", "limits")), sep="|")
"""
    monkeypatch.setenv("SUDO_UID", "65534")
    with subprocess.Popen(["sleep", "60"]) as child:
        command = [sys.executable, "-c", reading, str(child.pid), str(ticks_of(child.pid))]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout.strip().split("|")
        child.kill()
    assert said[1:] == ["descriptors=belongs to root", "connections=belongs to root", "environment=belongs to root", "limits=None"]
    assert "also after sudo" in said[0]


def test_root_reads_everybodys() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: another user's process is started")
    with nobodys_process() as pid:
        *_, found = process.read(pid, ticks_of(pid))
    assert found.environment or "CAP_SYS_PTRACE" in found.rights


def test_one_that_has_ended_and_is_not_collected() -> None:
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        *_, found = process.read(child.pid, ticks_of(child.pid))
    assert {found.missing[part] for part in ("descriptors", "connections", "environment")} == {found.missing["environment"]}
    assert "zombie" in found.missing["environment"]


def test_many_descriptors_and_a_huge_environment_are_cut_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, time; fds = [os.dup(0) for _ in range(500)]; print(flush=True); time.sleep(60)"
    env = {**os.environ, **{f"V{i}": "x" * 100_000 for i in range(10)}}
    monkeypatch.setattr(process, "MOST_FILES", 100)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as child:
        assert child.stdout is not None
        child.stdout.readline()
        *_, found = process.read(child.pid, ticks_of(child.pid))
        child.kill()
    assert found.descriptors is not None
    assert len(found.descriptors.files) == 100
    assert found.descriptors.kinds["pipe"] >= 500
    assert found.cut["descriptors"].startswith("the first 100 of 5")
    assert found.cut["environment"] == "the first 256 KB"


def test_what_takes_too_long_is_cut(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PART_S", -1.0)
    monkeypatch.setattr(process, "CHECK_EVERY", 2)
    *_, found = process.read(victim.process.pid, victim.ticks)
    assert {"threads", "descriptors", "connections"} <= set(found.cut)
    assert found.is_whole


@pytest.mark.parametrize("size", [(160, 48), (80, 24)])
async def test_the_box_of_a_real_process(make_app: MakeApp, victim: Victim, size: tuple[int, int]) -> None:
    pid = victim.process.pid
    app = make_app(session_with(pid, victim.ticks))
    async with app.run_test(size=size) as pilot:
        await opened(pilot, app, pid)
        told = text(app)
        assert "4711, rank 3 of 16" in told
        assert "hunter2" not in told
        await pilot.press("a")
        await pilot.pause()
        told = text(app)
        assert f"127.0.0.1:{victim.port}" in told
        assert "HF_TOKEN=(hidden)" in told
        assert "\x1b" not in told
        assert "EVIL=a·[2Jb" in told
        assert "[bold]x" in told
        page = app.screen.query_one(Scrolled)
        assert max(cell_width(line) for line in told.split("\n")) <= page.size.width
        await pilot.press("a", "f")
        await pilot.pause()
        shown = [page.render_line(y).text for y in range(page.size.height)]
        assert any("open:" in line for line in shown), "a section that is opened is gone to"


async def test_what_is_typed_is_found_in_folded_sections_too(make_app: MakeApp, victim: Victim) -> None:
    pid = victim.process.pid
    app = make_app(session_with(pid, victim.ticks))
    async with app.run_test(size=(80, 24)) as pilot:
        box = await opened(pilot, app, pid)
        await pilot.press("slash", *"hf_tokenq", "backspace")
        await pilot.pause()
        assert text(app).split("\n")[1].startswith("/hf_token▏")
        await pilot.press("enter")
        assert [line.strip() for line in text(app).split("\n")[2:]] == ["HF_TOKEN=(hidden)"]
        await pilot.press("escape")
        assert "role" in text(app)
        await pilot.press("escape")
        assert app.screen is not box


async def test_the_past_and_a_second_reading(make_app: MakeApp, victim: Victim) -> None:
    pid = victim.process.pid
    session = session_with(pid, victim.ticks)
    app = make_app(session, end_ns=session.now_ns)
    async with app.run_test(size=(160, 48)) as pilot:
        box = await opened(pilot, app, pid)
        assert "not at the moment looked at" in text(app)
        victim.process.kill()
        victim.process.wait()
        await pilot.press("r")
        await until(pilot, lambda: "has ended" in text(app), "that it has ended")
        assert box._began_s is None
        assert "hunter2" not in text(app)


async def test_a_recording_and_a_remote_stream_say_what_they_do_not_hold(make_app: MakeApp, victim: Victim) -> None:
    pid = victim.process.pid
    app = make_app(session_with(pid, victim.ticks))
    app.context.look.remote = True
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(DetailsScreen(app.context, pid))
        await pilot.pause()
        await pilot.press("r")
        told = text(app)
        assert "not in the stream" in told
        assert "bystander" in told
        assert "HF_TOKEN" not in told
        assert "executable" not in told


async def test_threads_of_a_trainer_are_those_of_the_stream(make_app: MakeApp) -> None:
    app = make_app()
    app.context.look.remote = True
    async with app.run_test(size=(160, 48)) as pilot:
        app.push_screen(DetailsScreen(app.context, scene.TRAINER))
        await pilot.pause()
        assert "over the last second" in text(app)
        assert "RUNQ%" in text(app)


async def test_the_hosts_facts_stand_beside_its_lanes_and_the_affinity(make_app: MakeApp, victim: Victim) -> None:
    session = session_with(victim.process.pid, victim.ticks)
    nics, disks = [Nic("ib0", True, 400_000)], [FileSystem("/data", "filer:/export", "nfs4", True)]
    session.board.host["hardware"] = Hardware(cores=2, threads=4, cpu_mhz=2400.0, nics=nics, file_systems=disks)
    app = make_app(session)
    async with app.run_test(size=(160, 48)) as pilot:
        await opened(pilot, app, victim.process.pid)
        assert "of 4 CPUs, 2 cores)" in text(app)
        await pilot.press("escape", "z")
        told = set()
        for _ in range(20):
            told |= {line.removeprefix("host: ").strip() for line in text(app).split("\n") if line.startswith("host: ")}
            await pilot.press("down")
            await pilot.pause()
    assert told == {"2 cores, 4 threads, 2.4 GHz", "ib0 400 Gbit/s", "/data nfs4 on filer:/export"}


NAMED = {
    "cgroup": f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{'1' * 32}.slice/cri-containerd-{'3f2a' * 16}.scope",
    "env": {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "bert-0", "MASTER_PORT": "29500", "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"},
    "names": Names(pod="bert-1", namespace="m\x1b[2Jl", pod_by="HOSTNAME", missing={"container": "needs root: /run/x: permission denied"}),
}


def named_session() -> Session:
    """The scene's, whose trainer stands in a pod of a Slurm job."""
    session = scene.session()
    info, sample = session.board.infos[scene.TRAINER], session.board.procs[scene.TRAINER]
    session.ingest(Frame(1000, session.now_ns + scene.TICK_NS, infos=[structs.replace(info, **NAMED)], procs=[sample]))
    return session


@pytest.mark.parametrize("size", [(160, 48), (80, 24)])
async def test_whose_a_trainer_is_stands_in_the_stream(make_app: MakeApp, size: tuple[int, int]) -> None:
    """Of a recording and a remote host too, and why a part is not known."""
    app = make_app(named_session())
    app.context.look.remote = True
    async with app.run_test(size=size) as pilot:
        app.push_screen(DetailsScreen(app.context, scene.TRAINER))
        await pilot.pause()
        facts = {line.strip()[:18].strip(): line.strip()[18:].strip() for line in text(app).split("\n")}
        assert facts["training"] == "bert-0:29500 × 2"
        assert facts["pod"].startswith("m·[2Jl/bert-1 (its host name")
        assert facts["pod uid"] == f"{'1' * 32} burstable"
        assert facts["container"] == "containerd 3f2a3f2a3f2a"
        assert facts["container name"].startswith("not known: needs root: /run/x")
        assert facts["Slurm job"] == "4711.0"


async def test_how_a_ranks_data_reach_the_others(make_app: MakeApp) -> None:
    session = named_session()
    info = session.board.infos[scene.TRAINER]
    variables = {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth0\x1b[2J"}
    known = Transport("nccl", "2.21.5", devices=["mlx5_0"], variables=variables, configured=["NCCL_IB_DISABLE"])
    session.board.infos[scene.TRAINER] = structs.replace(info, transport=known, group_sizes={"tp": 2})
    assert session.engine.facts is not None
    session.engine.facts.ways[scene.TRAINER] = (Way("sockets", "eth0", 12e6), Way("shm"))
    reduced = Collective(
        scene.TRAINER, "0xa", "AllReduce", size_bytes=64_000_000, times=2, time_us=20_000, bus_bytes=800_000_000,
        compared=2, late=2, awaited_us=9000,
    )  # fmt: skip
    session.engine.facts.collectives[scene.TRAINER] = (collective_now(None, reduced),)
    session.board.sources["inspector"] = SourceState("inspector", "partial", "x", "", {str(scene.TRAINER): "a link is not followed"})
    app = make_app(session)
    async with app.run_test(size=(160, 60)) as pilot:
        app.push_screen(DetailsScreen(app.context, scene.TRAINER))
        await pilot.pause()
        facts = {line.strip()[:18].strip(): line.strip()[18:].strip() for line in text(app).split("\n")}
        assert facts["parallel"] == "tensor 2"
        assert facts["to other ranks"].startswith("TCP by eth0 12 MB/s, shared memory")
        assert facts["collectives"].startswith("nccl 2.21.5")
        assert facts["RDMA devices"].startswith("mlx5_0")
        assert facts["AllReduce"].startswith("64.0 MB, 10.0 ms, 40.0 GB/s; came last in 100 % of them, awaited for 4.5 ms")
        assert facts["by name"].startswith("a link is not followed")
        assert "/etc/nccl.conf" in facts["NCCL_IB_DISABLE"]
        assert "\x1b" not in text(app)


async def test_a_wide_table_has_the_job(make_app: MakeApp) -> None:
    app = make_app(named_session())
    async with app.run_test(size=(220, 50)) as pilot:
        await pilot.pause()
        heading, *table = part(app, "procs")
        assert "JOB" in heading
        assert any("m·[2Jl/bert-1" in line for line in table)


def test_a_search_finds_the_job() -> None:
    assert {row.pid for row in rows(named_session(), View(pattern="bert-1"))} == {scene.TRAINER}
