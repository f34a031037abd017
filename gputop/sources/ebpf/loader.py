"""Compile the probes, load and attach them, hand over their descriptors and exit: the only part that needs bcc and root.

Run as a script by the system's own Python (3.8 or later), which has the distribution's bcc, and with the standard library only:

    python3 -I loader.py SOCKET REQUEST

SOCKET is the name of the collector's abstract Unix socket, REQUEST a JSON object: ``probes`` (folder of the C), ``btf`` (path), ``sizes``
(macro -> entries of a map). One message goes back: the JSON of `gputop.sources.ebpf.source.LoaderAnswer`, with the descriptors. It ends by
``os._exit``, since bcc's clean-up at a normal exit would switch the events off.
"""

from __future__ import annotations

import array
import ctypes
import glob
import importlib.util
import json
import os
import platform
import random
import socket
import sys
from typing import Any

MAPS = (
    "settings", "lost", "threads", "dead", "deaths", "histograms", "preempts", "wakeups", "arguments", "hot", "calls", "inflight",
    "launches", "gate", "alarms", "thread_calls", "slices", "opened",
)  # fmt: skip
TRACEPOINTS = ("sched_switch", "sched_waking", "sched_wakeup", "sched_wakeup_new")
TRACEFS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
MOUNT_TRACEFS = "mount -t tracefs tracefs /sys/kernel/tracing; start a container with -v /sys/kernel/tracing:/sys/kernel/tracing"
INSTALL_BCC = "install bcc"  # the collector knows the distribution's command
SYS_BPF = {"x86_64": 321, "aarch64": 280}
BPF_PROG_LOAD, BPF_OBJ_GET_INFO, KPROBE, UPROBE_MULTI = 5, 15, 2, 48


class Failure(Exception):
    """A failure and its remedy."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


def import_bcc() -> Any:
    """iovisor's bcc, even if PyPI's unrelated package of that name hides it."""
    missing, impostor = "", False
    for folder in ["", *glob.glob("/usr/lib/python3*/dist-packages"), *glob.glob("/usr/lib/python3*/site-packages")]:
        if folder:
            sys.path.insert(0, folder)
            sys.modules.pop("bcc", None)
        try:
            import bcc
        except ImportError as error:
            missing = str(error)
            continue
        if hasattr(bcc, "BPF"):
            return bcc
        impostor = True
    if impostor:
        raise Failure("the module bcc here is PyPI's unrelated package, not iovisor's", INSTALL_BCC)
    raise Failure(f"{sys.executable} has no bcc ({missing})", INSTALL_BCC)


def import_neighbour(name: str) -> Any:
    """A module in this file's folder. With its folder in sys.path, sched.py there would hide the standard library's."""
    spec: Any = importlib.util.spec_from_file_location(name, os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def read_layout(path: str) -> tuple[dict[str, int], str]:
    """(macros with this kernel's offsets, ""); or ({}, why) without BTF, in which case the plain tracepoints are used."""
    btf = import_neighbour("btf")
    try:
        return btf.task_layout(path), ""
    except btf.BtfError as error:
        return {}, str(error)


def compile_always(request: dict[str, Any], layout: dict[str, int]) -> Any:
    """Compile the probes that are always loaded. Without a layout this attaches the plain tracepoints."""
    macros = {**request["sizes"], **layout, "CPUS": possible_cpus(), "STACK_BYTES": max(16384, os.sysconf("SC_PAGE_SIZE"))}
    macros["SCRAMBLE"] = f"0x{random.SystemRandom().getrandbits(64) | 1:x}ULL"
    return compile_probes(request["probes"], ("common.h", "calls.h", "sched.c", "cuda.c"), macros)


def compile_probes(folder: str, names: tuple[str, ...], macros: dict[str, Any]) -> Any:
    """Compile the files ``names`` as one text."""
    bcc = import_bcc()
    os.environ["BCC_KERNEL_SOURCE"] = folder
    os.chdir("/")  # the compiler fails in a folder that has been deleted
    text = ""
    for name in names:
        with open(os.path.join(folder, name)) as file:
            text += file.read()
    return bcc.BPF(text=text, cflags=["-I" + folder, *(f"-D{name}={value}" for name, value in macros.items())])


def possible_cpus() -> int:
    """The highest possible CPU number plus one (/sys/devices/system/cpu/possible)."""
    with open("/sys/devices/system/cpu/possible") as file:
        return int(file.read().replace(",", "-").split("-")[-1]) + 1


def load_uprobes(bpf: Any, names: tuple[str, ...]) -> tuple[list[int], str]:
    """Load these programs; returns descriptors, and how to attach them: ``multi`` (Linux 6.6), ``perf`` before; [] and "" if refused."""
    for expected, way in ((UPROBE_MULTI, "multi"), (0, "perf")):
        programs = [load_program(bpf.dump_func(name.encode()), expected) for name in names]
        # Linux before 6.6 loads a program for uprobe_multi, but cannot attach it.
        if min(programs) >= 0 and (way == "perf" or import_neighbour("uprobe").takes_multi(programs[0])):
            return programs, way
    return [], ""


def load_program(code: bytes, expected: int) -> int:
    """bpf(BPF_PROG_LOAD) of a kprobe program, -1 if it is refused; bcc itself cannot set expected_attach_type."""

    class Attr(ctypes.Structure):
        _fields_ = [
            ("type", ctypes.c_uint32), ("count", ctypes.c_uint32), ("insns", ctypes.c_uint64), ("license", ctypes.c_uint64),
            ("log", ctypes.c_uint32 * 4), ("kern_version", ctypes.c_uint32), ("flags", ctypes.c_uint32),
            ("name", ctypes.c_char * 16), ("ifindex", ctypes.c_uint32), ("expected", ctypes.c_uint32),
        ]  # fmt: skip

    text, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    attr = Attr(KPROBE, len(code) // 8, ctypes.addressof(text), ctypes.addressof(licence), name=b"gputop_cuda", expected=expected)
    result: int = ctypes.CDLL(None).syscall(SYS_BPF[platform.machine()], BPF_PROG_LOAD, ctypes.byref(attr), ctypes.sizeof(attr))
    return result


def map_shape(descriptor: int) -> list[int]:
    """[key bytes, value bytes, entries] of a map (bpf_map_info); bcc 0.18 lacks them for some tables."""
    info = (ctypes.c_uint32 * 32)()
    attr = (ctypes.c_uint64 * 2)(descriptor | ctypes.sizeof(info) << 32, ctypes.addressof(info))
    if ctypes.CDLL(None).syscall(SYS_BPF[platform.machine()], BPF_OBJ_GET_INFO, ctypes.byref(attr), ctypes.sizeof(attr)) < 0:
        raise Failure("the kernel does not describe its maps")
    return list(info[2:5])


def load(request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Load and attach everything; returns (answer, descriptors)."""
    layout, no_btf = read_layout(request["btf"])
    if no_btf and not any(os.path.exists(folder + "/events/sched") for folder in TRACEFS):
        raise Failure(f"no BTF ({no_btf}) and no tracefs", MOUNT_TRACEFS)
    bpf = compile_always(request, layout)
    descriptors: list[int] = []
    maps: dict[str, list[int]] = {}
    for name in MAPS:
        maps[name] = [len(descriptors), *map_shape(bpf[name].map_fd)]
        descriptors.append(bpf[name].map_fd)
    programs, way = load_uprobes(bpf, ("cuda_enter", "cuda_leave", "cuda_launch"))
    links = list(bpf.raw_tracepoint_fds.values()) + list(bpf.tracepoint_fds.values())
    if len(links) < len(TRACEPOINTS):
        raise Failure(f"only {len(links)} of {len(TRACEPOINTS)} tracepoints could be attached")
    tracers = {name: function.fd for name in TRACEPOINTS for full, function in bpf.funcs.items() if full.decode().endswith(f"__{name}")}
    answer: dict[str, Any] = {"maps": maps, "uprobes": way, "no_btf": no_btf}
    answer["programs"] = [len(descriptors) + i for i in range(len(programs))]
    descriptors += programs
    answer["tracers"] = {name: len(descriptors) + i for i, name in enumerate(tracers)}
    descriptors += tracers.values()
    answer["links"] = [len(descriptors) + i for i in range(len(links))]
    return answer, descriptors + links


def hurry() -> None:
    """Raise the priority: on busy CPUs a second of compiling would take four, and other processes lose the same second either way."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    except OSError:
        pass


def hand_over(name: str, answer: dict[str, Any], descriptors: list[int]) -> None:
    """Send one message with the descriptors."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect("\0" + name)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        sock.sendmsg([json.dumps(answer).encode()], rights)


def main() -> None:
    name, request = sys.argv[1], json.loads(sys.argv[2])
    hurry()
    try:
        answer, descriptors = load(request)
    except Failure as failure:
        answer, descriptors = {"error": str(failure), "remedy": failure.remedy}, []
    except Exception as error:  # noqa: BLE001 - bcc raises bare Exception; the collector must get every error
        answer, descriptors = {"error": f"{type(error).__name__}: {error}", "remedy": ""}, []
    hand_over(name, answer, descriptors)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
