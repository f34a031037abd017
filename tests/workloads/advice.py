"""Advice that can be made on a workload from outside: a line for a shell, the end of who is to blame, variables of a new start."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.workloads import runner
from tests.workloads.runner import Running
from tests.workloads.scenario import LOADER_VARIABLE

SHELL = re.compile(r"(?:echo|chrt|taskset|ionice|renice|kill|for p in|for pid in) .*")  # beginnings of commands that change a setting
_ENDS = re.compile(r"Have .* run on another host|Run .* outside of .*, or end it")  # advice that the processes to blame go elsewhere
_FOR = re.compile(r"for (\w+) in (\d+(?: \d+)*); do (.*); done", re.ASCII)
_PIDS = r"(?P<pids>\d+(?: \d+)*)"
_TIMES = r"\$\(\(\d+ \* \$\(cat /sys/fs/cgroup(?:/[\w.:@-]+)+\)\)\)"  # so many times a control group's period
_ECHOED = rf"echo (?:-n )?(?:'[\w:=. -]+'|\"[\w:=. -]+\"|[\w:=.-]+(?: [\w:=.-]+)*|{_TIMES}) > ?"
_WAYS, _POLICIES = r"(?:-[ac]+ |--all-tasks |--cpu-list )*", r"(?:-[abfior]+ |--[a-z]+(?:-[a-z]+)* )*"  # options of taskset and chrt
_SIMPLE = tuple(  # commands that change a setting of processes and control groups, whole: nothing else reaches a shell
    re.compile(form, re.ASCII)
    for form in (
        rf"renice (?:-n ?|--priority[ =])?[+-]?\d+ (?:-p ?|--pid )?{_PIDS}",
        rf"ionice (?:(?:-c ?|--class )(?:[0-3]|none|realtime|best-effort|idle) |(?:-n ?|--classdata )[0-7] )+(?:-p ?|--pid ){_PIDS}",
        rf"taskset {_WAYS}(?:-[ac]*p[ac]* |--pid ){_WAYS}[0-9a-fx][0-9a-fx,-]* {_PIDS}",
        rf"chrt {_POLICIES}(?:-[abfior]*p |--pid ){_POLICIES}\d+ {_PIDS}",
        rf"kill (?:-(?:s |n )?\w+ )?(?:-- )?{_PIDS}",
        rf"{_ECHOED}/proc/(?P<pids>\d+)/(?:autogroup|oom_score_adj)",
        rf"{_ECHOED}(?P<quote>['\"]?)/sys/fs/cgroup(?P<group>(?:/[\w.:@-]+)+)/(?:cpu|cpuset|memory|io|blkio|pids)\.[\w.]+(?P=quote)",
        rf'{_ECHOED}"/sys/fs/cgroup(?:/cpuset)?\$\(cat /proc/(?P<pids>\d+)/cpuset\)/cpuset\.cpus(?P<below>)"',
    )
)
_LOADER = re.compile(r"DataLoader\(\.\.\., (.*)\)")
_EXPORT = re.compile(r"export (.*)")


def targets(command: str) -> tuple[set[int], set[str]] | None:
    """Processes and control groups that a command changes; None unless each part of it is of a known form."""
    pids, groups = set[int](), set[str]()
    for part in _parts(command):
        found = next((match for form in _SIMPLE if (match := form.fullmatch(part))), None)
        if found is None:
            return None
        parts = found.groupdict()
        named = {int(pid) for pid in (parts.get("pids") or "").split()}
        pids |= named
        groups |= {parts["group"]} if parts.get("group") else set()
        if "below" in parts:
            groups |= {_cpuset(pid) for pid in named}
    return pids, groups


def _parts(command: str) -> Iterator[str]:
    """The simple commands of a command: each pass of a loop over pids, and what ``; `` and `` && `` join."""
    before, loop, rest = command.partition("for ")
    if loop and (found := _FOR.fullmatch(loop + rest)) and (not before or before.endswith("; ")):
        yield from before.removesuffix("; ").split("; ") if before else ()
        name, pids, body = found.groups()
        for pid in pids.split():
            yield from re.split("; | && ", body.replace(f'"${name}"', pid).replace(f"${name}", pid))
    else:
        yield from re.split("; | && ", command)


def _cpuset(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cpuset").read_text(errors="replace").strip()
    except OSError:
        return ""


def is_own(command: str, running: Running) -> bool:
    """Whether a command touches the workload's processes and control groups alone."""
    if (found := targets(command)) is None:
        return False
    pids, groups = found
    own = {*runner.descendants([os.getpid()]), *running.culprits}
    return pids <= own and all(_is_own_group(group) for group in groups)


def _is_own_group(group: str) -> bool:
    names = group.split("/")
    return ".." not in names and any(name.startswith("gputop-") for name in names)


def ends_culprits(text: str) -> bool:
    """Whether advice is followed by ending the processes to blame."""
    return _ENDS.match(text) is not None


def environment_of(command: str) -> dict[str, str] | None:
    """Variables with which a job starts that follows the command; None if that is not enough."""
    if (found := _EXPORT.fullmatch(command)) is not None:
        return _exported(found[1])
    if (found := _LOADER.fullmatch(command)) is None:
        return None
    arguments: dict[str, object] = {}
    for one in found[1].split(", "):
        name, _, value = one.partition("=")
        if not re.fullmatch(r"\d+|True|False", value):
            return None
        arguments[name] = {"True": True, "False": False}.get(value) if value in ("True", "False") else int(value)
    return {LOADER_VARIABLE: json.dumps(arguments)}


def _exported(text: str) -> dict[str, str] | None:
    try:
        found = [one.partition("=") for one in shlex.split(text)]
    except ValueError:  # a quote without its end
        return None
    are_named = all(re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) and is_set and "\0" not in value for name, is_set, value in found)
    return {name: value for name, _, value in found} if found and are_named else None


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """The environment with these variables, as it was afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
