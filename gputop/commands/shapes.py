"""The shapes of gputop's JSON, for `gputop schema`, made of the structs that the output is made of.

A test decodes what is really printed by these, and nothing may be left over. Fields that do not always occur are `UNSET`.
"""

from __future__ import annotations

from typing import Any, get_type_hints

from msgspec import UNSET, UnsetType, defstruct

from gputop.findings.explanation import Episode
from gputop.model import frame
from gputop.stream import snapshot

Missing = dict[str, str]  # field -> why it is null


def snapshot_shape() -> Any:
    """Output of `gputop --once --json`, and a line of `gputop --json`."""
    process = get_type_hints(frame.ProcSample)
    gpu = {name: kind for name, kind in get_type_hints(frame.Gpu).items() if name in snapshot._GPU_FIELDS} | {
        "index": int, "t_ns": int | None, **dict.fromkeys(snapshot._BYTE_RATES, float | None), "limits": list[str] | None,
        "mig": _many(_like(frame.MigInstance, uuid=str | None, profile=str | None)) | None,
        "procs": _many(_like(frame.GpuProc, ("gpu_instance",))) | None, "missing": Missing,
    }  # fmt: skip
    hardware = _like(frame.Hardware, nics=_many(_like(frame.Nic)) | None, file_systems=_many(_like(frame.FileSystem)) | None)
    proc = {
        "pid": int, "role": str, "ppid": int | None, "cmdline": list[str] | None,
        **dict.fromkeys(("name", "user", "cgroup", "cpus_allowed"), str | None),
        **{name: process[field] for name, field in snapshot._COUNTERS}, **dict.fromkeys(snapshot._RATES, float | None),
        "gpus": _many(_like(frame.GpuProc, ("gpu_instance",), name="OnGpu", gpu=int)), "missing": Missing,
    }  # fmt: skip
    sometimes = {
        "label": str, "rank": int | None, "trainer_pid": int, "state": str | None, "starving": bool | None,
        "state_fractions": dict[str, float] | None, "state_inferred": bool | None, "identity": dict[str, str | dict[str, str] | None],
    }  # fmt: skip
    return _shape("Snapshot", snapshot_shape.__doc__, {
        "schema": int, "unix_s": float, "t_ns": int, "host": str, "hardware": hardware, "sources": dict[str, dict[str, str | None]],
        "gpus": _many(_shape("Gpu", "One GPU; null is what was not measured, and ``missing`` says why.", gpu)),
        "procs": _many(_shape("Process", "One process, as far as its fields apply to it.", proc, sometimes)), "incidents": list[Episode],
    })  # fmt: skip


def _like(struct: type, sometimes: tuple[str, ...] = (), *, name: str = "", **instead: Any) -> Any:
    """The shape of a struct as an object with ``missing``; ``instead``: other types, and more fields."""
    kinds = get_type_hints(struct) | instead | {"missing": Missing}
    always = {field: kind for field, kind in kinds.items() if field not in sometimes}
    return _shape(name or struct.__name__, struct.__doc__, always, {field: kinds[field] for field in sometimes})


def _many(kind: Any) -> Any:
    return list.__class_getitem__(kind)


def _shape(name: str, about: str | None, always: dict[str, Any], sometimes: dict[str, Any] | None = None) -> Any:
    fields: list[Any] = [*always.items(), *((field, kind | UnsetType, UNSET) for field, kind in (sometimes or {}).items())]
    return defstruct(name, fields, namespace={"__doc__": (about or "").partition("\n\n")[0]}, module=__name__, kw_only=True)
