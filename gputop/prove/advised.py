"""A fix's command as a plan: what `x` on the screen changes by itself, with the same reach, guardian and undoing as an experiment.

Only commands that write a setting of `gputop.prove.change.SETTINGS`, or one of its files, are understood; nothing is given to a shell.
Other advice, such as code, an option for the next start or a restart, is for people: `Refusal` says so.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress

from gputop.model.machine import parse_cpus
from gputop.prove.change import DEVICE, FILE, FILES, IDLE, RUNNING, Case, Change, Plan, Refusal, TargetProcess, autogroup_of
from gputop.prove.groups import ReachUnknown, content
from gputop.prove.interventions.idle_priority import first_nice
from gputop.prove.interventions.io_priority import IDLE as IO_IDLE
from gputop.prove.permission import why_never
from gputop.prove.processes import read_process, why_no_pids
from gputop.prove.scene import Scene, may_raise
from gputop.sources.cgroup import ControllerPath

NAME = "advised"
NOT_OURS = "a person's work (code, an option of the next start, a restart)"
USUAL_SHARES, USUAL_WEIGHT = 1024, 100  # cpu.shares of v1, cpu.weight of v2, where nobody set them (kernel/sched/core.c)
PERIOD_US = 100_000  # of a quota (kernel/sched/fair.c), as systemd sets it
_LOOP = re.compile(r"for (\w+) in ([\d ]+); do (.+); done")
_PRODUCT = re.compile(r"\$\(\((\d+) \* \$\(cat ([^ ()$]+)\)\)\)")
_DISK = re.compile(r"\d+:\d+( [\w=]+)+")
_CPUS = re.compile(r"[\d,-]+")


class _Unknown(Exception):
    """A command that is not understood."""


def plan_of(command: str, case: Case, started: Mapping[int, int]) -> Plan | Refusal:
    """The plan that does what the command does, or why that is not done from here. Nothing is changed yet; takes `reach.LOOK_S`.

    ``started``: pid -> start time of processes that the command means; one that has another start time got a pid that was used again.
    """
    if problem := why_no_pids():
        return Refusal(problem)
    try:
        scene = Scene(case, allow_stop=False, allow_others=True)
        for pid, ticks in started.items():
            if read_process(pid).start_ticks != ticks:
                raise ProcessLookupError
        changes = tuple(dict.fromkeys(change for one in _simple(command) for change in _changes(shlex.split(one), scene)))
        if not changes:
            return Refusal(NOT_OURS)
        if why := next((why for change in changes if (why := _why_not(change, scene))), ""):
            return Refusal(why)
        planned = scene.planned(Plan(NAME, command, changes, may_keep=True))
        return planned if isinstance(planned, Refusal) else _harmless(planned, scene)
    except (_Unknown, ValueError):
        return Refusal(NOT_OURS)
    except ReachUnknown as error:
        return Refusal(str(error))
    except ProcessLookupError:
        return Refusal("a process that it names has ended")
    except OSError as error:
        return Refusal(f"what is there could not be looked at: {error.strerror or error}")


def command_of(planned: Plan) -> str:
    """The command that makes the changes of a plan by hand: what `plan_of` reads. Empty for a plan that is for experiments alone."""
    return "; ".join(_command(change) for change in planned.changes) if planned.may_keep else ""


def _command(change: Change) -> str:
    if change.target is None:
        return f"echo {change.new} > {shlex.quote(change.path)}"
    pid = change.target.pid
    return {
        "policy": f"chrt --idle --all-tasks --pid 0 {pid}", "nice": f"renice -n {change.new} -p {pid}",
        "io-priority": f"ionice -c 3 -p {pid}", "cpu-mask": f"taskset -apc {change.new} {pid}",
        "autogroup": f"echo {change.new} > /proc/{pid}/autogroup", "state": f"kill -CONT {pid}",
    }[change.setting]  # fmt: skip


# the command's parts


def _simple(command: str) -> Iterator[str]:
    """The simple commands that a command consists of: without sudo, loops unrolled."""
    words = command.removeprefix("sudo ")
    if words.startswith("sh -c "):
        inner = shlex.split(words)
        if len(inner) != 3:
            raise _Unknown
        words = inner[2]
    if found := _LOOP.fullmatch(words):
        name, values, body = found.groups()
        for value in values.split():
            yield from _simple(body.replace(f"${name}", value))
        return
    for part in re.split(r" && |; ", words):
        yield part.strip().removeprefix("sudo ")


def _changes(words: list[str], scene: Scene) -> list[Change]:
    """The changes that a simple command makes. Raises `_Unknown`."""
    match words:
        case ["chrt", "--idle", "--all-tasks", "--pid", "0", *pids]:
            return [Change("policy", IDLE, one) for one in _targets(pids, scene)]
        case ["renice", "-n", nice, "-p", *pids] if nice.lstrip("-").isdecimal():
            return [Change("nice", str(int(nice)), one) for one in _targets(pids, scene)]
        case ["ionice", "-c", "3", "-p", *pids]:
            return [Change("io-priority", IO_IDLE, one) for one in _targets(pids, scene)]
        case ["taskset", "-apc", cpus, pid] if _CPUS.fullmatch(cpus):
            return [Change("cpu-mask", _mask(cpus, one, scene), one) for one in _targets([pid], scene)]
        case ["kill", "-CONT", *pids]:
            return [Change("state", RUNNING, one) for one in _targets(pids, scene)]
        case ["systemctl", "set-property", "--runtime", unit, setting]:
            return [_of_unit(unit, setting, scene)]
        case ["echo", *value, ">", path]:
            return [_written(" ".join(value), path, scene)]
    raise _Unknown


def _targets(pids: list[str], scene: Scene) -> list[TargetProcess]:
    """The processes; as the diagnosis saw them, where it named them. Raises ProcessLookupError if one has ended since."""
    if not pids or not all(pid.isdecimal() for pid in pids):
        raise _Unknown
    case = scene.case
    known = {one.pid: one for one in (*case.culprits, *case.victims, *case.family, case.trainer)}
    found = []
    for pid in map(int, pids):
        proc = read_process(pid)
        target = known.get(pid, scene.target(proc))
        if target.start_ticks != proc.start_ticks or proc.ended:
            raise ProcessLookupError
        found.append(target)
    return found


def _mask(cpus: str, target: TargetProcess, scene: Scene) -> str:
    """The CPUs of a list that the process's cpuset allows, as the kernel would cut it."""
    allowed = parse_cpus(cpus) & scene.groups.cpus(target.pid)
    if not allowed:
        raise _Unknown
    return ",".join(map(str, sorted(allowed)))


def _written(value: str, path: str, scene: Scene) -> Change:
    if found := re.fullmatch(r"/proc/(\d+)/autogroup", path):
        if not value.lstrip("-").isdecimal():
            raise _Unknown
        return Change("autogroup", value, _targets([found[1]], scene)[0])
    if os.path.basename(path) not in FILES or os.path.normpath(path) != path:
        raise _Unknown
    if product := _PRODUCT.fullmatch(value):
        period = content(*os.path.split(product[2]))
        value = str(int(product[1]) * int(period))
    return Change(DEVICE if _DISK.fullmatch(value) else FILE, value, path=path)


def _of_unit(unit: str, setting: str, scene: Scene) -> Change:
    """The file of a systemd unit's control group that ``set-property --runtime`` writes."""
    case = scene.case
    places = (scene.groups.place(one.pid, "cpu") for one in (*case.culprits, *case.family, case.trainer))
    found: tuple[ControllerPath, str] | None = next(
        ((place, folder) for place in places if place for folder in place.folders if os.path.basename(folder) == unit), None
    )
    name, _, value = setting.partition("=")
    if found is None or not value.removesuffix("%").isdecimal():
        raise _Unknown
    (place, folder), number = found, int(value.removesuffix("%"))
    is_first = place.mount.version == 1
    if name == "CPUWeight":
        shares = max(2, number * USUAL_SHARES // USUAL_WEIGHT)
        return Change(FILE, str(shares if is_first else number), path=f"{folder}/{'cpu.shares' if is_first else 'cpu.weight'}")
    if name == "CPUQuota":
        quota = number * PERIOD_US // 100
        file, text = ("cpu.cfs_quota_us", f"{quota}") if is_first else ("cpu.max", f"{quota} {PERIOD_US}")
        return Change(FILE, text, path=f"{folder}/{file}")
    raise _Unknown


# what may be changed, and can be put back


def _why_not(change: Change, scene: Scene) -> str:
    """Why a change is not made; empty if it may be, and can be put back."""
    if change.target is None:
        refused = scene.refuse_file(change.path)
        return refused.reason if refused else ""
    target, proc = change.target, read_process(change.target.pid)
    if why := scene.why_untouchable(proc):
        return f"{target} {why}"
    if change.setting == "autogroup":
        rest = scene.rest_of_session(target)
        if isinstance(rest, Refusal):
            return rest.reason
        if autogroup_of(target.pid)[0] == autogroup_of(os.getpid())[0]:
            return f"{target} shares its terminal's CPU time with gputop (autogroup): run gputop in another terminal"
        lowest = autogroup_of(target.pid)[1]
    elif change.setting in ("policy", "nice"):
        lowest = first_nice(scene, target)
    else:
        return ""
    return "" if may_raise(target.pid, lowest) else f"{target}: only root can take that back: run gputop as root (sudo)"


def _harmless(planned: Plan, scene: Scene) -> Plan | Refusal:
    """The plan, unless it takes CPU time, memory or disk from what the system or this terminal stands on."""
    paths = {os.path.dirname(change.path) for change in planned.changes if change.target is None}
    places = (scene.groups.place(scene.case.trainer.pid, name) for name in ("cpu", "memory", "blkio"))
    job = {folder for place in places if place is not None for folder in place.folders}
    if not paths or paths <= job:  # of the job's own groups limits are raised
        return planned
    for one in planned.reached:
        with suppress(ProcessLookupError):
            if why := why_never(read_process(one.target.pid), scene.table):
                return Refusal(f"it would change {one.target}, too, which {why}")
    return planned
