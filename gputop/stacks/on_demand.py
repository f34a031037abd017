"""Probes that are loaded for some seconds when somebody asks, by a helper under the system's Python, which has bcc."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from gputop.sources import Unavailable
from gputop.sources.ebpf import access, loader
from gputop.sources.ebpf.handover import find_python, telling_line
from gputop.sources.ebpf.source import PROBES
from gputop.sources.rights import capabilities, in_container
from gputop.stacks import on_demand_loader
from gputop.stacks.permission import SUDO
from gputop.system.text import clean

_LOAD_S = 20.0


class Answer(msgspec.Struct):
    """What the helper says, beside the rows of its probe."""

    seconds: float = 0.0
    lost: int = 0
    error: str = ""
    remedy: str = ""


Said = TypeVar("Said", bound=Answer)


def watch(
    probe: str, wanted: Mapping[str, object], duration_s: float, form: type[Said], as_root: str, root: str = "/",
    files: tuple[int, ...] = (),
) -> Said:  # fmt: skip
    """Run ``probe`` (see on_demand_loader), with the descriptors ``files``, for ``duration_s``. Raises Unavailable; ``as_root`` is what
    follows `SUDO`."""
    access.check(root, sudo=True)
    if not access.may_load(capabilities(root)):
        mends = access.privilege(root) if os.geteuid() == 0 or in_container(root) else f"`{SUDO} {as_root}`"
        raise Unavailable("needs root, or CAP_BPF and CAP_PERFMON", mends)
    request = {
        "probe": probe, "probes": PROBES, "ebpf": os.path.dirname(os.path.abspath(loader.__file__)),
        "btf": os.path.join(root, "sys/kernel/btf/vmlinux"), "seconds": duration_s, **wanted,
    }  # fmt: skip
    command = [find_python(), "-I", os.path.abspath(on_demand_loader.__file__), json.dumps(request)]
    answer, printed = _answer(probe, command, duration_s + _LOAD_S, form, files)
    if answer.error:
        remedy = access.install_bcc(root) if answer.remedy == loader.INSTALL_BCC else answer.remedy
        raise Unavailable(answer.error if remedy or not printed else f"{answer.error} ({printed})", remedy or "gputop doctor")
    return answer


def _answer(probe: str, command: list[str], wait_s: float, form: type[Said], files: tuple[int, ...]) -> tuple[Said, str]:
    """What the helper says, and the line that says most of what it printed beside."""
    import subprocess

    try:
        done = subprocess.run(command, capture_output=True, timeout=wait_s, check=False, pass_fds=files)
        printed = clean(telling_line(done.stderr))
        return msgspec.json.decode(done.stdout, type=form), printed
    except subprocess.TimeoutExpired:
        reason = f"it did not finish within {wait_s:.0f} s"
    except OSError as error:
        reason = f"{command[0]}: {error.strerror}"
    except msgspec.DecodeError:
        reason = printed or f"its helper ended with status {done.returncode}"
    raise Unavailable(f"the {probe} probe failed: {reason}", "gputop doctor")
