"""What is said to be typed: names of strangers are one word each in it, whatever they are called."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputop.diagnosis.causes import judge_of
from gputop.diagnosis.graph.shell import cgroup_file, kill, wake
from gputop.findings.sentence import filled
from gputop.model.frame import Host, ProcInfo
from tests.unit.diagnosis.all_causes import ALL
from tests.unit.diagnosis.scene import Scene
from tests.wait import PATIENCE_S

HOSTILE = "-rf \n'\"; touch PWNED; $(touch PWNED) `touch PWNED` && > PWNED | \\ * ~ \x1b[2J\u202e#"
UNITS = ("{}.service", "-{}.scope", "{}", "-{}")


def strange(scene: Scene, unit: str, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """All that others may call as they like is called so as to be obeyed."""
    infos, hosts = scene._info, scene._host

    def renamed(group: str) -> str:
        return group if group in ("", "/") else f"{group.rpartition('/')[0]}/{unit.format(group.rpartition('/')[2] + HOSTILE)}"

    def info(proc: object) -> ProcInfo:
        said = infos(proc)  # type: ignore[arg-type]
        words = [word + HOSTILE if word.endswith(".py") else word for word in said.cmdline]
        comm = said.comm if said.comm.startswith("pt_") else said.comm + HOSTILE
        return replace(said, comm=comm, cmdline=words, cgroup=renamed(said.cgroup), cpu_cgroup=renamed(said.cpu_cgroup))

    def host(dt: float) -> Host:
        said = hosts(dt)
        groups = []
        for group in said.cgroups or ():
            limit = group.read_limit
            limit = limit and replace(limit, path=renamed(limit.path), device=limit.device + HOSTILE * (unit == UNITS[0]))
            groups.append(replace(group, path=renamed(group.path), read_limit=limit))
        return replace(said, cgroups=groups or None)

    monkeypatch.setattr(scene, "_info", info)
    monkeypatch.setattr(scene, "_host", host)
    return scene


def check(command: str) -> None:
    """Each piece of a stranger's is quoted as a whole, and the shell can read it."""
    subprocess.run(["sh", "-n"], input=command, text=True, check=True, timeout=PATIENCE_S, capture_output=True)
    for one in shlex.split(command):
        if "touch" in one or "PWNED" in one:
            assert HOSTILE[:3] in one, f"{one!r} is a part of a name, in {command!r}"
            assert shlex.quote(one) in command, f"{one!r} may be obeyed, in {command!r}"
            assert not one.startswith("-") or f"-- {shlex.quote(one)}" in command


def commands(make: Callable[[], Scene], unit: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What any judge says of a scene of strangers is to be typed, as far as it names one; judges that find nothing of it say nothing."""
    facts = strange(make(), unit, monkeypatch).play(3, 1.0).engine.facts
    assert facts is not None
    fixes = [fix for job in facts.jobs for claim in job.claims for fix in judge_of(claim.cause).tell(job, facts).fixes]
    return {fix.command for fix in fixes if "PWNED" in fix.command}


def test_names_of_strangers_are_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other units are given to those scenes whose commands name somebody."""
    first, *others = UNITS
    naming = {make: found for make in ALL if (found := commands(make, first, monkeypatch))}
    assert len(naming) > 5
    for found in (*naming.values(), *(commands(make, unit, monkeypatch) for unit in others for make in naming)):
        assert found
        for command in found:
            check(command)


@pytest.mark.parametrize("name", ["a b", "-x", "-", "'", "$(x)", "a\nb", "", "*", "~", "!x", "é", "\udcff"])
def test_a_word_is_one_word(name: str) -> None:
    assert shlex.split(filled("{:word}", name)) == [name]
    assert shlex.split(filled("systemctl stop {:operand}", name))[-1] == name
    assert (shlex.split(filled("x {:operand}", name))[1] == "--") == name.startswith("-")
    file = cgroup_file(2, "cpu", f"/{name}", "cpu.max")
    assert shlex.split(filled("cat {:file}", file))[1:] == [f"/sys/fs/cgroup/{name}/cpu.max"]


def test_nobody_is_told_to_kill_everybody() -> None:
    assert wake([12, 13]) == "kill -CONT 12 13"
    assert kill([12]) == "kill 12"
    assert wake([-1, 0, 1]) == kill([]) == ""


def test_each_hole_of_a_command_says_what_may_stand_in_it() -> None:
    """Who writes a fix gives its command numbers and pids, and texts as words: in `{}`, which quotes nothing, there is never one."""
    folder = Path(__file__).parents[3] / "gputop" / "diagnosis"
    program = re.compile(r"(sudo |echo |cat |ls |ps |kill|taskset|nvidia-smi|gputop stacks|systemctl|chrt|ionice|DataLoader)")
    for path in folder.rglob("*.py"):
        assert not re.findall(r'Fix\([^\n]*?, f(".*?"|\'.*?\')\)', path.read_text()), path
        for template in re.findall(r'filled\(\s*"([^"]*)"', path.read_text()):
            assert not (program.match(template) and "{}" in template), f"{path.name}: {template}"
