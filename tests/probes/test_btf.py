"""The BTF reader against bpftool, and against what is no BTF."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gputop.sources.ebpf import btf


def test_offsets_are_bpftools() -> None:
    if not os.path.exists(btf.VMLINUX) or shutil.which("bpftool") is None:
        pytest.skip("needs BTF and bpftool: apt install bpftool")
    dump = subprocess.run(["bpftool", "-j", "btf", "dump", "file", btf.VMLINUX], capture_output=True, text=True, check=True).stdout
    types = {entry["id"]: entry for entry in json.loads(dump)["types"]}
    named = {entry["name"]: entry for entry in types.values() if entry["kind"] == "STRUCT"}

    def offset(structure: str, member: str) -> int:
        return next(m["bits_offset"] // 8 for m in named[structure]["members"] if m["name"] == member)

    layout = btf.task_layout()
    assert layout["ID_OFF"] == offset("task_struct", "pid")
    assert layout["STACK_OFF"] == offset("task_struct", "stack")
    assert layout["SUM_EXEC_OFF"] == offset("task_struct", "se") + offset("sched_entity", "sum_exec_runtime")
    if "RUN_DELAY_OFF" in layout:
        assert layout["RUN_DELAY_OFF"] == offset("task_struct", "sched_info") + offset("sched_info", "run_delay")


@pytest.mark.parametrize("damage", [b"", b"short", b"\x9f\xeb\x01\x00" + bytes(20), b"x" * 4096], ids=["empty", "short", "hollow", "text"])
def test_what_is_no_btf_says_so(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "vmlinux"
    path.write_bytes(damage)
    with pytest.raises(btf.BtfError):
        btf.task_layout(str(path))


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(btf.BtfError, match="No such file"):
        btf.task_layout(str(tmp_path / "vmlinux"))
