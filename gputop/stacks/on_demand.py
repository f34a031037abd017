"""Probes that are loaded for some seconds when somebody asks, by a helper under the system's Python, which has bcc."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from gputop.sources import Unavailable
from gputop.sources.ebpf import access
from gputop.sources.ebpf import loader
from gputop.sources.ebpf.handover import find_python
from gputop.sources.ebpf.source import PROBES
from gputop.sources.rights import capabilities
from gputop.sources.rights import in_container
from gputop.stacks import on_demand_loader
from gputop.stacks.permission import SUDO

_LOAD_S = 20.0


class Answer(msgspec.Struct):
    """What the helper says, beside the rows of its probe."""

    seconds: float = 0.0
    lost: int = 0
    error: str = ""
    remedy: str = ""


Said = TypeVar("Said", bound=Answer)


def watch(probe: str, wanted: Mapping[str, object], duration_s: float, form: type[Said], as_root: str, root: str = "/") -> Said:
    """Run ``probe`` (see on_demand_loader) for ``duration_s``. Raises Unavailable; ``as_root`` is what follows `SUDO`."""
    import subprocess

    access.check(root, sudo=True)
    if not access.may_load(capabilities(root)):
        mends = access.privilege(root) if os.geteuid() == 0 or in_container(root) else f"`{SUDO} {as_root}`"
        raise Unavailable("needs root, or CAP_BPF and CAP_PERFMON", mends)
    request = {
        "probe": probe, "probes": PROBES, "ebpf": os.path.dirname(os.path.abspath(loader.__file__)),
        "btf": os.path.join(root, "sys/kernel/btf/vmlinux"), "seconds": duration_s, **wanted,
    }  # fmt: skip
    command = [find_python(), "-I", os.path.abspath(on_demand_loader.__file__), json.dumps(request)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=duration_s + _LOAD_S, check=False)
        answer = msgspec.json.decode(done.stdout, type=form)
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        raise Unavailable(f"the {probe} probe failed: {error}", "gputop doctor") from None
    if answer.error:
        remedy = access.install_bcc(root) if answer.remedy == loader.INSTALL_BCC else answer.remedy
        raise Unavailable(answer.error, remedy or "gputop doctor")
    return answer
