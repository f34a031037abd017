"""What starts us again takes nothing from the folder that we stand in."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gputop.system.program import __version__, argv_of
from tests.wait import PATIENCE_S


@pytest.mark.parametrize("has_safe_path", [False, *([True] if sys.version_info >= (3, 11) else [])])
@pytest.mark.parametrize("name", ["gputop", "msgspec", "runpy"])
def test_modules_of_the_folder_it_stands_in_are_not_run(tmp_path: Path, name: str, has_safe_path: bool) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit('somebody else spoke')")
    argv = argv_of("gputop", "--version", has_safe_path=has_safe_path)
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert __version__ in done.stdout


CTRL_C_AS_IT_IMPORTS = """
import os, runpy, signal, sys
class Finder:
    def find_spec(name, *_):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
runpy.run_module("gputop", run_name="__main__")
"""


@pytest.mark.parametrize("name", ["argparse", "gputop.cli", "gputop.system.config"])
def test_ctrl_c_while_it_still_imports_ends_it_without_a_word(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C_AS_IT_IMPORTS, name], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
