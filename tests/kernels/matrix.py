"""The probes on the kernels and bccs of several distributions: `make kernels` (QEMU, no KVM; some minutes, a gigabyte of cache).

Each row is a distribution's own kernel, Python and bcc in a machine that lives in memory: debootstrap makes the tree once, it is
packed with our files as an initramfs and booted. Needs root and: apt install qemu-system-x86 debootstrap cpio
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.figures import table
from tests.stubs.build import build

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("GPUTOP_KERNELS", "/var/tmp/gputop-kernels"))
DEBIAN, UBUNTU = "http://deb.debian.org/debian", "http://archive.ubuntu.com/ubuntu"
SUITES = {
    "jammy": (UBUNTU, "linux-image-virtual", "main,universe"),
    "bookworm": (DEBIAN, "linux-image-amd64", "main"),
    "trixie": (DEBIAN, "linux-image-amd64", "main"),
}
"""Ubuntu 22.04 (5.15, bcc 0.18), Debian 12 (6.1, bcc 0.26), Debian 13 (6.12, bcc 0.31)."""
SHARED = {
    "sources/ebpf": ("btf", "elf", "libcuda", "loader", "maps", "uprobe"),
    "sources": ("rights",),
    "stacks": (
        "code_object", "frames", "interpreter", "kernel", "layout", "on_demand_loader", "permission", "python_thread", "syscalls",
    ),
}
"""Modules that need the standard library only, by their package."""
_LEFT_OUT = (
    "boot", "usr/lib/modules", "lib/modules", "usr/lib/firmware", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache",
    "var/lib/apt", "dev", "proc", "sys",
)  # fmt: skip
_INIT = """#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev; mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
/usr/bin/python3 /probe/guest.py
echo o > /proc/sysrq-trigger; sleep 60
"""
BOOT_S = 900


def tree(suite: str) -> Path:
    """The distribution's files, from the cache or from its mirror."""
    folder, (mirror, kernel, components) = CACHE / suite, SUITES[suite]
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        keys = [] if mirror == DEBIAN or Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg").exists() else ["--no-check-gpg"]
        wanted = f"--include=python3-bpfcc,{kernel}", f"--components={components}"
        subprocess.run(["debootstrap", "--variant=minbase", *keys, *wanted, suite, str(folder), mirror], check=True, stdout=sys.stderr)
        (folder / "complete").touch()
    return folder


def pack(suite: str, work: Path) -> tuple[Path, Path]:
    """(kernel, initramfs)."""
    source, overlay, image = tree(suite), work / "overlay", work / "initramfs.cpio"
    probe = overlay / "probe"
    shutil.copytree(ROOT / "probes", probe / "probes")
    for package, names in SHARED.items():
        (probe / "gputop" / package).mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copy(ROOT / "gputop" / package / f"{name}.py", probe / "gputop" / package)
    shutil.copy(ROOT / "tests" / "kernels" / "guest.py", probe)
    shutil.copy(build(ROOT / "tests" / "probes" / "libcuda.c", "libcuda.so.1"), probe)
    (overlay / "init").write_text(_INIT)
    (overlay / "init").chmod(0o755)
    for folder in ("dev", "proc", "sys"):
        (overlay / folder).mkdir()
    prune = " -o ".join(f"-path ./{path}" for path in _LEFT_OUT)
    subprocess.run(f"find . \\( {prune} \\) -prune -o -print | cpio -o -H newc --quiet > {image}", shell=True, cwd=source, check=True)
    subprocess.run(f"find . | cpio -o -H newc --quiet >> {image}", shell=True, cwd=overlay, check=True)
    return max((source / "boot").glob("vmlinuz-*")), image


def boot(kernel: Path, image: Path, plain: bool) -> dict[str, object]:
    """What the guest said of itself."""
    words = "console=ttyS0 rdinit=/init quiet panic=-1" + (" gputop.plain" if plain else "")
    command = ["qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "2500", "-nographic", "-no-reboot"]
    command += ["-kernel", str(kernel), "-initrd", str(image), "-append", words]
    try:
        output = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=BOOT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"nothing within {BOOT_S} s"}
    for line in output.stdout.splitlines():
        if "RESULT {" in line:
            result: dict[str, object] = json.loads(line[line.index("{") :])
            return result
    return {"error": "it said nothing: " + " / ".join(output.stdout.splitlines()[-5:])}


def verdict(result: dict[str, object]) -> str:
    """OK, or what is wrong."""
    if "error" in result:
        return str(result["error"])
    wrong = []
    if abs(int(str(result["vol_missed"]))) > 3:
        wrong.append(f"{result['vol_missed']} switches missed")
    if not 0.97 * int(str(result["rounds"])) <= int(str(result["wakeups"])) <= 1.1 * int(str(result["rounds"])):
        wrong.append(f"{result['wakeups']} of {result['rounds']} wake-ups")
    if result["calls"] not in (20, -1):
        wrong.append(f"{result['calls']} of 20 CUDA calls")
    if int(str(result["off_cpu"])) < 20:
        wrong.append(f"{result['off_cpu']} sleeps seen in the kernel")
    if result["uprobes"] and result["callers"] != "the line and no other":
        wrong.append(f"callers: {result['callers']}")
    return "; ".join(wrong + yama(result)) or "OK"


def yama(result: dict[str, object]) -> list[str]:
    """Each ptrace_scope lets through, or is named with what mends it; 3 also to root."""
    said = [str(one) for one in result["yama"]] if isinstance(result["yama"], list) else []
    told = [re.sub(r".*(ptrace_scope is \d).*?(sudo).*", r"\1 \2", one) for one in said]
    wanted = ["read", "ptrace_scope is 1 sudo", "ptrace_scope is 2 sudo", "ptrace_scope is 3 sudo", "ptrace_scope is 3 sudo"]
    return [] if told == wanted else [f"Yama: {said}"]


def main() -> int:
    """The table; 1 where a row is not OK."""
    rows = []
    for suite in sys.argv[1:] or SUITES:
        with tempfile.TemporaryDirectory(dir=CACHE if CACHE.exists() else None) as work:
            kernel, image = pack(suite, Path(work))
            for plain in (False, True):
                result = boot(kernel, image, plain)
                facts = [result.get(name, "?") for name in ("kernel", "bcc", "python", "tracepoints", "uprobes")]
                rows.append([suite, *facts, verdict(result)])
                print(result, file=sys.stderr)
    print(table(["distribution", "kernel", "bcc", "Python", "tracepoints", "uprobes", "result"], rows))
    return 0 if all(row[-1] == "OK" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
