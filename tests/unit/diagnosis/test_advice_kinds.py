"""Advice to real programs: every cause's scene, played by an inference server, by one in C++ and by a solver in C++.

`test_advice.py` reads each column of the table; here the kind is found from the program, whatever its workers are called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from gputop.diagnosis.causes import judge_of
from gputop.diagnosis.facts.kinds import Kind, kind_of
from gputop.findings.verdict import GROWTHS, OWN_CAUSES, Fix
from gputop.model.frame import ProcInfo
from tests.unit.diagnosis.all_causes import ALL
from tests.unit.diagnosis.causes import cpu_contention, throttled
from tests.unit.diagnosis.causes_serving import CORE, TOP, full_api_server, tokenizer_of_its_own, vllm
from tests.unit.diagnosis.scene import ON_CPU, Proc, Scene, training

PROGRAMS: dict[str, dict[str, Any]] = {
    "vllm": {"comm": "VLLM::EngineCor", "cmdline": ["VLLM::EngineCore"], "exe": "/usr/bin/python3.12", "libs": ["torch", "cuda"]},
    "sglang": {"comm": "sglang::schedul", "cmdline": ["sglang::scheduler_TP0"], "exe": "/usr/bin/python3.12", "libs": ["torch", "cuda"]},
    "llama.cpp": {"comm": "llama-server", "cmdline": ["/opt/llama-server", "-m", "x.gguf"], "exe": "/opt/llama-server", "libs": ["cuda"]},
    "solver": {"comm": "heat3d", "cmdline": ["./heat3d", "-n", "9"], "exe": "/x/heat3d", "libs": ["cuda"]},
}
OF_A_TRAINING = re.compile(
    r"num_workers|DataLoader|persistent_workers|pin_memory|worker_init_fn|collate_fn|Dataset\b|tf\.data|grain\.|torch\.|torchrun|optimizer|"
    r"losses|loss\.|\bepochs?\b|train\.log|last checkpoint: they|the training"
)
OF_PYTHON = re.compile(r"subprocess\.Popen|functools|np\.array|memray|multiprocessing|set_num_threads|py-spy")


def played_by(scene: Scene, program: str) -> Scene:
    """The scene, in which the processes on GPUs are this program's."""
    made, on_gpus = scene._info, {pid for gpu in scene.gpus.values() for pid in gpu.get("pids", [])} or {100}

    def info(proc: Proc) -> ProcInfo:
        found = made(proc)
        return replace(found, **PROGRAMS[program]) if proc.pid in on_gpus else found

    scene._info = info  # type: ignore[method-assign]
    return scene


def advised(make: Callable[[], Scene], program: str) -> Iterator[tuple[str, Kind, Fix]]:
    """Each cause that is found in the scene at this program, its kind, each fix."""
    facts = played_by(make(), program).play(3, 1.0).engine.facts
    assert facts is not None
    for job in facts.jobs:
        if job.trainer.info.comm != PROGRAMS[program]["comm"]:
            continue  # a service that feeds it
        for claim in job.claims:
            for fix in judge_of(claim.cause).tell(job, facts).fixes:
                yield claim.cause, kind_of(job, facts), fix


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_server_and_no_program_in_cpp_is_advised_as_a_training(program: str) -> None:
    causes = set[str]()
    for make in ALL:
        for cause, kind, fix in advised(make, program):
            causes.add(cause)
            text = f"{fix.text} || {fix.command}"
            assert kind is not Kind.TORCH, (cause, make.__name__)
            assert not OF_A_TRAINING.search(text), (program, cause, text)
            assert program in ("vllm", "sglang") or not OF_PYTHON.search(text), (program, cause, text)
    assert causes <= {*OWN_CAUSES}
    assert len(causes) > 20


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_is_promised_of_workers_that_it_does_not_have(program: str) -> None:
    for make in (cpu_contention, throttled, full_api_server):
        scene = played_by(make(), program).play(12, 0.5)
        changes = [str(one.change) for one in scene.engine.what_if(scene.engine.verdict)]
        assert not any("worker" in change for change in changes), (make.__name__, changes)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("of_gpu", [False, True], ids=["host", "gpu"])
def test_memory_that_grows_is_advised_by_the_program(of_gpu: bool, program: str) -> None:
    scene = played_by(training(run=0.2), program)
    scene.gauges = {"mem_available_bytes": 8 << 30}
    scene.gpus[0] |= {"mem_total_bytes": 80 << 30, "mem_used_bytes": 20 << 30}
    for proc in scene.procs.values():
        proc.anon_bytes = 400 << 20
    scene.play(3)
    for second in range(60):
        if of_gpu:
            scene.gpus[0]["mem_used_bytes"] = (20 << 30) + second * (300 << 20)
        else:
            scene.procs[100].anon_bytes = (400 << 20) + second * (40 << 20)
        scene.play(1, step_s=0.5)
    [grown] = [one for one in scene.engine.incidents if one.cause in GROWTHS]
    assert grown.fixes
    for fix in grown.fixes:
        text = f"{fix.text} || {fix.command}"
        assert not OF_A_TRAINING.search(text), text
        assert program in ("vllm", "sglang") or not OF_PYTHON.search(text), text


def test_a_detokenizer_that_is_full_is_not_helped_by_more_tokenizers() -> None:
    scene = tokenizer_of_its_own()
    scene.procs[92].comm, scene.procs[92].cmdline = "sglang::detoken", ["sglang::detokenizer"]
    fixes = scene.play(12, 0.5).engine.verdict.fixes
    assert scene.engine.verdict.cause == "frontend-bound"
    assert not any("--tokenizer-worker-num" in fix.command for fix in fixes)
    assert "--stream-interval" in fixes[0].command


POD = f"/kubepods.slice/kubepods-burstable-pod0123abcd_0123_0123_0123_0123456789ab.slice/cri-containerd-{64 * 'a'}.scope"


def test_a_server_in_a_pod_is_advised_by_the_pods_spec() -> None:
    """As many CPUs as all of its processes want; without a pod there is no such advice."""
    commands = {}
    for group in (POD, "/job"):
        scene = vllm(30.0, 0.6, 0.4, ON_CPU)
        for proc in scene.procs.values():
            proc.info |= {"cgroup": group}
        scene.procs[TOP].wait, scene.procs[TOP].looks, scene.procs[CORE].wait, scene.cpu_busy = 0.9, [ON_CPU], 0.3, [1.0] * 4
        scene.add(*(Proc(900 + i, comm="bowtie2", cmdline=["bowtie2"], run=0.98, looks=[ON_CPU]) for i in range(3)))
        verdict = scene.play(12, 0.5).engine.verdict
        assert verdict.cause == "cpu-contention"
        commands[group] = [fix.command for fix in verdict.fixes if "kubectl" in fix.command]
        assert [fix.look for fix in verdict.fixes] == sorted(fix.look for fix in verdict.fixes)
    assert commands == {POD: ["kubectl set resources ... --requests=cpu=3 --limits=cpu=3"], "/job": []}
