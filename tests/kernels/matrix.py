"""The probes on the kernels and bccs of several distributions: `make kernels` (QEMU, no KVM; half an hour, 5 GB of cache).

Each row is a distribution's own kernel, Python and bcc in a machine that lives in memory: debootstrap fetches the packages once,
unpacked and with our files they are an initramfs. Needs root and: apt install qemu-system-x86 qemu-system-arm debootstrap cpio gcc
gcc-aarch64-linux-gnu
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.bench.figures import table
from tests.stubs.build import build

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("GPUTOP_KERNELS", "/var/tmp/gputop-kernels"))
DEBIAN, UBUNTU = "http://deb.debian.org/debian", "http://archive.ubuntu.com/ubuntu"


class Machine(NamedTuple):
    """What an architecture's guests need, by Debian's word for it."""

    name: str
    """What ``uname -m`` says in them."""
    qemu: tuple[str, ...]
    console: str
    compiler: str


class Suite(NamedTuple):
    """A distribution's release, from its mirror."""

    name: str
    mirror: str
    kernel: str
    """Its package."""
    components: str = "main"
    architecture: str = "amd64"


MACHINES = {
    "amd64": Machine("x86_64", ("qemu-system-x86_64",), "ttyS0", "x86_64-linux-gnu-gcc"),
    "arm64": Machine("aarch64", ("qemu-system-aarch64", "-M", "virt"), "ttyAMA0", "aarch64-linux-gnu-gcc"),
}
SUITES = {
    "jammy": Suite("jammy", UBUNTU, "linux-image-virtual", "main,universe"),
    "bookworm": Suite("bookworm", DEBIAN, "linux-image-amd64"),
    "trixie": Suite("trixie", DEBIAN, "linux-image-amd64"),
    "bookworm-arm64": Suite("bookworm", DEBIAN, "linux-image-arm64", architecture="arm64"),
    "trixie-arm64": Suite("trixie", DEBIAN, "linux-image-arm64", architecture="arm64"),
    "resolute-arm64": Suite("resolute", UBUNTU, "linux-image-7.0.0-14-generic-64k", "main,universe", "arm64"),
}
"""Ubuntu 22.04 (5.15, bcc 0.18), Debian 12 (6.1, bcc 0.26), Debian 13 (6.12, bcc 0.31), Ubuntu 26.04 (7.0, bcc 0.35), that one with
pages of 64 KiB, as on servers with Grace Hopper."""
SHARED = {
    "sources/ebpf": ("btf", "libcuda", "loader", "maps", "uprobe"),
    "sources": ("elf", "files", "waits"),
    "system": ("errors", "privilege", "text"),
    "stacks": ("frames", "interpreter", "layout", "on_demand_loader", "permission"),
}
"""Modules that need the standard library only, by their package."""
_LEFT_OUT = (
    "boot", "usr/lib/modules", "lib/modules", "usr/lib/firmware", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache",
    "var/lib/apt", "dev", "proc", "sys",
)  # fmt: skip
_INIT = """#!/bin/dash
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev; mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
/usr/bin/python3 /probe/guest.py
echo o > /proc/sysrq-trigger; sleep 60
"""
BOOT_S = 1800


def tree(key: str) -> Path:
    """The distribution's files, from the cache or from its mirror; unpacked only: nothing need be configured to run Python and bcc."""
    folder, suite = CACHE / key, SUITES[key]
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        keys = [] if suite.mirror == DEBIAN or Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg").exists() else ["--no-check-gpg"]
        wanted = f"--include=python3-bpfcc,{suite.kernel}", f"--components={suite.components}", f"--arch={suite.architecture}"
        script = "/usr/share/debootstrap/scripts/" + ("sid" if suite.mirror == DEBIAN else "gutsy")
        command = ["debootstrap", "--foreign", "--variant=minbase", *keys, *wanted, suite.name, str(folder), suite.mirror, script]
        subprocess.run(command, check=True, stdout=sys.stderr)
        for package in (folder / "var/cache/apt/archives").glob("*.deb"):
            unpack(package, folder)
            package.unlink()
        (folder / "complete").touch()
    return folder


def unpack(package: Path, folder: Path) -> None:
    """Its files, as debootstrap does it: /lib and others are links by then."""
    files = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-C", str(folder), "--keep-directory-symlink", "-xf", "-"], stdin=files.stdout, check=True)
    if files.wait():
        raise subprocess.CalledProcessError(files.returncode, files.args)


def pack(key: str, work: Path) -> tuple[Path, Path]:
    """(kernel, initramfs)."""
    source, overlay, image = tree(key), work / "overlay", work / "initramfs.cpio"
    probe = overlay / "probe"
    shutil.copytree(ROOT / "probes", probe / "probes")
    for package, names in SHARED.items():
        (probe / "gputop" / package).mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copy(ROOT / "gputop" / package / f"{name}.py", probe / "gputop" / package)
    shutil.copy(ROOT / "tests" / "kernels" / "guest.py", probe)
    shutil.copy(build(ROOT / "tests" / "probes" / "libcuda.c", "libcuda.so.1", compiler=machine_of(key).compiler), probe)
    (overlay / "init").write_text(_INIT)
    (overlay / "init").chmod(0o755)
    for folder in ("dev", "proc", "sys"):
        (overlay / folder).mkdir()
    prune = " -o ".join(f"-path ./{path}" for path in _LEFT_OUT)
    subprocess.run(f"find . \\( {prune} \\) -prune -o -print | cpio -o -H newc --quiet > {image}", shell=True, cwd=source, check=True)
    subprocess.run(f"find . | cpio -o -H newc --quiet >> {image}", shell=True, cwd=overlay, check=True)
    return bootable(max((source / "boot").glob("vmlinuz-*")), work), image


def bootable(kernel: Path, work: Path) -> Path:
    """As QEMU takes it: Ubuntu's for arm64 is in an EFI program, in another one, and compressed (drivers/firmware/efi/libstub/zboot)."""
    program, image = kernel.read_bytes(), work / "Image"
    start = program.find(b"MZ\0\0zimg")
    if start < 0:
        return kernel
    at, size, form = struct.unpack_from("<II8x8s", program, start + 8)
    packed = program[start + at : start + at + size]
    image.write_bytes(subprocess.run([form.rstrip(b"\0"), "-dc"], input=packed, capture_output=True, check=True).stdout)
    return image


def boot(machine: Machine, kernel: Path, image: Path, plain: bool) -> dict[str, object]:
    """What the guest said of itself."""
    words = f"console={machine.console} rdinit=/init loglevel=1 panic=-1" + (" gputop.plain" if plain else "")
    command = [*machine.qemu, "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "6000", "-nographic", "-no-reboot", "-nic", "none"]
    command += ["-kernel", str(kernel), "-initrd", str(image), "-append", words]
    try:
        output = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=BOOT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"nothing within {BOOT_S} s"}
    for line in output.stdout.splitlines():
        if "RESULT {" in line:
            result: dict[str, object] = json.JSONDecoder().raw_decode(line, line.index("{"))[0]  # a message of the kernel may follow
            return result
    return {"error": "it said nothing: " + " / ".join(output.stdout.splitlines()[-5:])}


def machine_of(key: str) -> Machine:
    return MACHINES[SUITES[key].architecture]


def verdict(result: dict[str, object]) -> str:
    """OK, or what is wrong."""
    if "error" in result:
        return str(result["error"])
    wrong = []
    if abs(int(str(result["vol_missed"]))) > 3:
        wrong.append(f"{result['vol_missed']} switches missed")
    if not 0.97 * int(str(result["rounds"])) <= int(str(result["wakeups"])) <= 1.1 * int(str(result["rounds"])):
        wrong.append(f"{result['wakeups']} of {result['rounds']} wake-ups")
    if (result["calls"], result["bytes"]) not in ((40, 20_000), (-1, -1)):
        wrong.append(f"{result['calls']} of 40 CUDA calls, {result['bytes']} of 20,000 bytes copied")
    if int(str(result["off_cpu"])) < 20:
        wrong.append(f"{result['off_cpu']} sleeps seen in the kernel")
    if result["polls"] != [5000, -1]:
        wrong.append(f"polls of 5000 ms and for ever read as {result['polls']}")
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
    for key in sys.argv[1:] or SUITES:
        with tempfile.TemporaryDirectory(dir=CACHE if CACHE.exists() else None) as work:
            kernel, image = pack(key, Path(work))
            for plain in (False, True):
                result = boot(machine_of(key), kernel, image, plain)
                facts = [result.get(name, "?") for name in ("kernel", "bcc", "python", "tracepoints", "uprobes")]
                rows.append([SUITES[key].name, machine_of(key).name, *facts, verdict(result)])
                print(result, file=sys.stderr)
    print(table(["distribution", "machine", "kernel", "bcc", "Python", "tracepoints", "uprobes", "result"], rows))
    return 0 if all(row[-1] == "OK" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
