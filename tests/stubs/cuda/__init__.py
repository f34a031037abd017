"""Builds the CUDA stubs: a driver, a runtime, and a program with the runtime linked into it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from tests.stubs.build import build

HERE = Path(__file__).parent
DRIVER_VERSION = "550.54.15"

# Every exported function keeps an address of its own and begins with its prologue, as in the real library: uprobes need both.
_FLAGS = (
    "-fno-omit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-fno-ipa-icf",
    "-fno-shrink-wrap",
    "-fvisibility=hidden",
    "-ldl",
    *(("-mno-omit-leaf-frame-pointer", "-fcf-protection=none") if platform.machine() == "x86_64" else ()),
)


def driver(*flags: str) -> Path:
    """libcuda.so.550.54.15, with the link libcuda.so.1 beside it that programs open; ``-s`` among ``flags`` strips it."""
    library = build(HERE / "libcuda.c", f"libcuda.so.{DRIVER_VERSION}", *_FLAGS, "-Wl,-soname,libcuda.so.1", *flags)
    _link(library, "libcuda.so.1")
    return library


def runtime() -> Path:
    """libcudart.so.12.4.127 with its links; it opens libcuda.so.1 by name, so the driver's folder must be in LD_LIBRARY_PATH."""
    library = build(HERE / "libcudart.c", "libcudart.so.12.4.127", *_FLAGS, "-Wl,-soname,libcudart.so.12")
    _link(library, "libcudart.so.12")
    return library


def static_trainer() -> Path:
    """The program of static_trainer.c: a trainer whose runtime is inside it."""
    return build(HERE / "static_trainer.c", "static_trainer", *_FLAGS, program=True)


def _link(library: Path, name: str) -> None:
    link = library.parent / name
    if link.is_symlink():
        return
    draft = library.parent / f".{name}.{os.getpid()}"
    draft.symlink_to(library.name)
    draft.replace(link)
