"""Compile the C stub libraries once and remember them by their content."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def cache_dir() -> Path:
    """A folder of this user's, kept between runs."""
    path = Path(tempfile.gettempdir()) / f"gputop-stubs-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def build(source: Path, soname: str, *flags: str, program: bool = False, compiler: str = "cc") -> Path:
    """Compile ``source`` (a C file; headers beside it count too) into a shared library, or a program, called ``soname``.

    Returns its path, in a folder of its own so that the folder can stand in LD_LIBRARY_PATH.
    """
    digest = hashlib.sha256(repr((soname, flags, program, compiler)).encode())
    for path in sorted([source, *source.parent.glob("*.h"), *HERE.glob("*.h")]):
        digest.update(path.read_bytes())
    folder = cache_dir() / digest.hexdigest()[:16]
    target = folder / soname
    if not target.exists():
        folder.mkdir(exist_ok=True)
        draft = folder / f".{soname}.{os.getpid()}"
        shared = () if program else ("-shared", "-fPIC", f"-Wl,-soname,{soname}")
        command = [compiler, "-O2", "-g", "-Wall", "-Werror", f"-I{HERE}", *shared, "-o", str(draft), str(source)]
        command += ["-lpthread", "-lm", *flags]
        subprocess.run(command, check=True)
        draft.replace(target)
    return target
