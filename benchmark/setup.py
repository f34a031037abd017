"""Copy the jobs, which stand in gputop's tests, into wheel and sdist below `slowbench/tree`."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
TREE = Path("slowbench", "tree")
PARTS = ("tests/__init__.py", "tests/wait.py", "tests/corpus/__init__.py", "tests/corpus/calm.py", "tests/workloads", "tests/stubs")


def copy(target: Path) -> None:
    """The jobs and what they import, from gputop's tree or, in an unpacked sdist, from the copy there."""
    source = HERE / TREE if (HERE / TREE).exists() else HERE.parent
    for part in PARTS:
        (target / part).parent.mkdir(parents=True, exist_ok=True)
        if (source / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "test_*.py")
            shutil.copytree(source / part, target / part, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copyfile(source / part, target / part)


class BuildPy(build_py):
    """The package and the jobs; an editable installation reads them where they stand."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            copy(Path(self.build_lib) / TREE)


class Sdist(sdist):
    """The package and the jobs."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        copy(Path(base_dir) / TREE)


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
