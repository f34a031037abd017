"""Advice fits the program: what is told to do, and what might come of it, names only what a program of that kind has."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gputop.diagnosis.causes import advice, judge_of, judges
from gputop.diagnosis.causes.advice import COMPUTING, LOADING, Framework, in_flight
from gputop.diagnosis.facts.facts import Memo
from gputop.diagnosis.facts.kinds import Kind, kind_of
from gputop.findings.sentence import is_command, is_own
from gputop.findings.verdict import OWN_CAUSES
from gputop.model.roles import Role
from tests.unit.diagnosis.all_causes import ALL
from tests.unit.diagnosis.causes import alone, gil_in_trainer, no_workers, oversubscription, too_few
from tests.unit.diagnosis.causes_behind import threads_on_the_disk
from tests.unit.diagnosis.causes_fed import actors
from tests.unit.diagnosis.scene import DISK, FUTEX, ON_CPU, READ_PIPE, Proc, Scene

SHOWS = re.compile(
    r"(sudo )?(gputop stacks|gputop$|(ls|ps|ss|grep|journalctl|dmesg|findmnt|fuser|memray attach|nvidia-smi (-i \d+ )?(-q|dmon|--query))\b)"
)
"""Beginnings of commands that change nothing: they are looks."""
OF_TORCHS_LOADER = re.compile("num_workers|DataLoader|persistent_workers|pin_memory|worker_init_fn|collate_fn")


def job(scene: Scene):
    facts = scene.play(6).engine.facts
    assert facts is not None
    return facts.jobs[0], facts


def itself(*libs: str, cmdline: tuple[str, ...] = ("python", "train.py"), comm: str = "python", **info: object) -> Scene:
    """A program that prepares its input itself."""
    scene = alone(40.0, 0.6, [ON_CPU]).drop(101, 102)
    trainer = scene.procs[100]
    trainer.comm, trainer.cmdline = comm, list(cmdline)
    trainer.info |= {"libs": list(libs), **info}
    return scene


def reading(name: str, cmdline: list[str]) -> Scene:
    """A program that reads its input from another one, which it started and which computes."""
    scene = alone(40.0, 0.1, [READ_PIPE]).drop(101, 102)
    scene.procs[100].info["other_ends"] = [300]
    return scene.add(Proc(300, ppid=100, comm=name, cmdline=cmdline, run=0.99, looks=[ON_CPU]))


def pooled() -> Scene:
    """Its workers are processes that it forked itself."""
    scene = too_few()
    for proc in scene.procs.values():
        proc.comm = "python"
    scene.procs[100].looks = [FUTEX]
    return scene


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (too_few, Kind.TORCH),
        (pooled, Kind.POOL),
        (lambda: itself("cuda", "torch"), Kind.TORCH),
        (lambda: itself("cuda"), Kind.UNKNOWN),
        (lambda: itself("cuda", "torch", sockets="listening"), Kind.UNKNOWN),
        (lambda: itself("cuda", "torch", sockets="listening", env={"RANK": "0", "WORLD_SIZE": "2"}), Kind.TORCH),
        (lambda: itself("cuda", "tensorflow"), Kind.TF_DATA),
        (lambda: itself("cuda", "jax", "tensorflow"), Kind.TF_DATA),
        (lambda: itself("cuda", "jax"), Kind.JAX),
        (lambda: itself("cuda", "jax", "grain"), Kind.GRAIN),
        (lambda: itself("cuda", "torch", "dali"), Kind.DALI),
        (lambda: itself("cuda", "torch", "arrow", "http"), Kind.STREAMING),
        (lambda: itself("cuda", "torch", "arrow"), Kind.TORCH),
        (lambda: itself("cuda", cmdline=("./heat3d", "-n", "9"), comm="heat3d", exe="/x/heat3d"), Kind.NATIVE),
        (lambda: itself("cuda", "mpi", env={"OMPI_COMM_WORLD_RANK": "0"}), Kind.NATIVE),
        (lambda: itself("torch", cmdline=("python", "-m", "vllm.entrypoints.openai.api_server")), Kind.ENGINE),
        (lambda: itself("torch", cmdline=("VLLM::EngineCore",), comm="VLLM::EngineCor", exe="/usr/bin/python3.12"), Kind.ENGINE),
        (lambda: itself("torch", cmdline=("sglang::scheduler_TP0",), comm="sglang::schedul", exe="/usr/bin/python3"), Kind.ENGINE),
        (lambda: itself("torch", cmdline=("/venv/bin/python", "/venv/bin/vllm", "serve", "m")), Kind.ENGINE),
        (lambda: itself("cuda", cmdline=("/opt/llama-server", "-m", "x.gguf"), comm="llama-server"), Kind.ENGINE),
        (lambda: itself("cuda", cmdline=("tritonserver",), comm="tritonserver"), Kind.ENGINE),
        (lambda: itself("torch", cmdline=("python", "vllm.py")), Kind.TORCH),
        (lambda: itself("torch", cmdline=("ray::RolloutWorker.sample()",), comm="ray::RolloutWor", exe="/usr/bin/python3"), Kind.RAY),
        (lambda: itself("torch", "ray"), Kind.RAY),
        (lambda: itself("torch", cmdline=("python", "ray.py")), Kind.TORCH),
        (lambda: reading("ffmpeg", ["ffmpeg", "-i", "cam.mp4", "pipe:1"]), Kind.FFMPEG),
        (lambda: reading("ray::map_batche", ["ray::map_batches"]), Kind.RAY),
        (lambda: reading("decode", ["/opt/decode"]), Kind.UNKNOWN),
    ],
)
def test_the_kind_is_found_from_names_libraries_and_who_feeds_it(make: Callable[[], Scene], kind: Kind):
    assert kind_of(*job(make())) is kind


def test_each_kind_has_each_cell():
    assert set(LOADING) == set(Kind)
    assert set(COMPUTING) == set(Framework)
    for column in (*LOADING.values(), *COMPUTING.values()):
        for name in type(column).__struct_fields__:
            hints = getattr(column, name)
            if not isinstance(hints, (bool, str)):
                assert hints, name
                for fix in advice.fixes(hints, 3):
                    assert is_own(fix.text), fix
                    assert not fix.command or is_command(fix.command), fix
                    assert "{" not in str(fix.command).replace("{device", ""), fix


def test_whatever_is_found_is_advised_in_words_of_its_kind(monkeypatch: pytest.MonkeyPatch):
    """What each judge tells of every hand-made scene, as each kind of program: only torch's loader is told of its own options. What only
    shows more stands last."""
    causes, looks = set(), 0
    for make in ALL:
        facts = make().play(3, 1.0).engine.facts
        assert facts is not None
        claimed = [(one, judge_of(claim.cause)) for one in facts.jobs for claim in one.claims]
        for kind in Kind:
            monkeypatch.setattr(advice, "kind_of", lambda _job, _facts, kind=kind: kind)
            for one, judge in claimed:
                fixes = judge.tell(one, facts).fixes
                causes.add(judge.cause)
                looks += sum(fix.look for fix in fixes)
                assert [fix.look for fix in fixes] == sorted(fix.look for fix in fixes), fixes
                assert all(fix.look for fix in fixes if SHOWS.match(fix.command)), fixes
                if kind is not Kind.TORCH:
                    assert not any(OF_TORCHS_LOADER.search(f"{fix.text} {fix.command}") for fix in fixes), (judge.cause, kind, fixes)
    assert len(causes) > 18
    assert causes <= {judge.cause for judge in judges()} <= {*OWN_CAUSES}
    assert looks > 500


def test_no_column_but_torchs_has_words_of_its_loader():
    for kind, column in LOADING.items():
        assert kind is Kind.TORCH or not OF_TORCHS_LOADER.search(str(column)), kind
    assert not OF_TORCHS_LOADER.search(str(list(COMPUTING.values())))


def test_who_prepares_its_input_itself_is_told_to_begin_before():
    verdict = itself("cuda").play(12).engine.verdict
    assert verdict.cause == "main-thread-preprocessing"
    assert "before the GPU has finished this one" in verdict.fixes[0].text


def changes(scene: Scene) -> list[str]:
    return [str(one.change) for one in scene.engine.what_if(scene.engine.verdict)]


@pytest.mark.parametrize(
    ("make", "apart"),
    [
        (lambda: itself("cuda"), True),
        (lambda: itself("cuda", cmdline=("./heat3d",), comm="heat3d", exe="/x/heat3d"), True),
        (lambda: itself("torch", cmdline=("python", "-m", "vllm.entrypoints.openai.api_server")), False),
        (lambda: reading("ffmpeg", ["ffmpeg"]), False),
    ],
)
def test_a_program_without_workers_is_promised_nothing_of_them(make: Callable[[], Scene], apart: bool):
    scene = make().play(12)
    assert scene.engine.verdict.cause != "none"
    found = changes(scene)
    assert not any("worker" in change for change in found), found
    assert any("while it computes" in change for change in found) == apart, found


def test_a_promise_does_not_contradict_the_advice():
    """Who is told to start no more workers than run at once is not told beside it that their number makes no difference."""
    scene = oversubscription().play(12)
    assert scene.engine.verdict.cause == "worker-oversubscription"
    assert "other numbers of workers" not in changes(scene)


@pytest.mark.parametrize(("wait", "first"), [(0.0, "cheaper"), (0.3, "cheaper"), (0.8, "fewer")])
def test_a_crowd_of_workers_is_first_told_what_brings_more(wait: float, first: str):
    """Workers that compute all the time are no faster when they are fewer; a trainer with batches, ready behind them, is."""
    scene = oversubscription()
    scene.procs[100].wait = wait
    verdict = scene.play(12).engine.verdict
    ways = advice.loading(*job(scene))
    assert verdict.cause == "worker-oversubscription"
    [expected, *_] = advice.fixes(getattr(ways, first), 4)
    assert verdict.fixes[0].text == expected.text


def test_nobody_is_told_to_load_more_where_no_cpu_is_left():
    scene = alone(40.0, 0.1, [DISK]).drop(101, 102)
    one, facts = job(scene)
    idle, full = (replace(facts, memo=Memo(), host=replace(facts.host, busy=dict.fromkeys(range(4), share))) for share in (0.2, 1.0))
    working = replace(one, trainer=replace(one.trainer, run=0.9))
    assert in_flight(working, idle)
    assert not in_flight(working, full)
    assert in_flight(one, full), "who only waits takes next to no CPU from others"


def more(scene: Scene) -> str:
    one, facts = job(scene)
    [fix, *_] = advice.fixes(advice.loading(one, facts).more, 4)
    return str(fix.command)


def test_torchs_workers():
    assert more(too_few()) == "DataLoader(..., num_workers=4)"


@pytest.mark.parametrize(
    ("loader", "spelt"),
    [
        ("torch", "multiprocessing.Pool(4)"),
        ("multiprocessing", "multiprocessing.Pool(4)"),
        ("grain", "grain.MultiprocessingOptions(4)"),
        ("tensorflow", "dataset.map(..., num_parallel_calls=4).prefetch(4)"),
        ("dali", "Pipeline(..., num_threads=4)"),
    ],
)
def test_workers_of_another_library_and_those_that_a_script_made(loader: str, spelt: str):
    one, facts = job(too_few())
    first = replace(one.workers[0], role=Role("worker", loader=loader))
    [fix] = advice.fixes(advice.loading(replace(one, loader=replace(one.loader, is_torchs=False), workers=[first]), facts).more, 4)
    assert fix.command == spelt


def test_how_many_threads_read_is_their_authors_business():
    scene = threads_on_the_disk()
    assert [fix.command for fix in in_flight(*job(scene))] == [""]
    assert scene.engine.verdict.cause == "disk-io"


def test_actors_that_feed_a_torch_program_are_no_loader_of_torchs():
    scene = actors()
    scene.procs[100].info["libs"] = ["torch"]
    one, facts = job(scene)
    assert kind_of(one, facts) is not Kind.TORCH


def test_no_workers_of_a_torch_program_are_advised_as_torchs():
    scene = no_workers()
    scene.procs[100].info["libs"] = ["torch"]
    assert "num_workers=" in scene.play(6).engine.verdict.fixes[0].command


@pytest.mark.parametrize(("libs", "command"), [(("cuda", "openmp"), "export OMP_NUM_THREADS=3"), (("cuda",), "")])
def test_openmps_variable_is_for_programs_that_map_it(libs: tuple[str, ...], command: str):
    scene = itself(*libs, cmdline=("./heat3d", "-n", "9"), comm="heat3d", exe="/x/heat3d")
    [fix] = advice.fixes(advice.loading(*job(scene)).more, 3)
    assert fix.command == command


def test_threads_that_load_nothing_are_not_replaced_by_workers():
    """Processes load its input already: the thread that keeps the lock does other work."""
    assert [fix.command for fix in gil_in_trainer().play(6).engine.verdict.fixes if not fix.look] == [""]
