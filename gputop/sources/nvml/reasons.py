"""What NVML's failures mean, in words: for one value, and for the source as a whole."""

from __future__ import annotations

import os

import pynvml
from msgspec import Struct

from gputop.sources import Unavailable
from gputop.sources.nvml.abi import MissingSymbol
from gputop.sources.nvml.numbers import NoValue
from gputop.system import crash

FAILURES = Exception
"""What asking for one thing may raise: NVML's errors, and whatever nobody foresaw of a driver, which must cost that thing only."""
# A binding that is older or newer than the library fails in Python's own ways.
_MISFITS: tuple[type[Exception], ...] = (
    getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError), AttributeError, TypeError, ValueError,
)  # fmt: skip


class Why(Struct, frozen=True):
    """Why a call gave no value. ``lasting``: asking again soon is of no use; ``lost``: the whole GPU is."""

    text: str
    lasting: bool = False
    lost: bool = False


_KNOWN = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: Why("not supported on this GPU", lasting=True),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Why("the driver is too old for it", lasting=True),
    pynvml.NVML_ERROR_INVALID_ARGUMENT: Why("not supported on this GPU (invalid argument)", lasting=True),
    pynvml.NVML_ERROR_GPU_IS_LOST: Why("GPU lost: it has fallen off the bus or been removed", lost=True),
    pynvml.NVML_ERROR_RESET_REQUIRED: Why("GPU needs a reset", lost=True),
    pynvml.NVML_ERROR_NO_DATA: Why("the driver has no value for it"),
    pynvml.NVML_ERROR_TIMEOUT: Why("the driver timed out"),
}
_ARGUMENT_VERSION = 25  # NVML_ERROR_ARGUMENT_VERSION_MISMATCH, not in older bindings
MIG = Why("not available while MIG is on", lasting=True)


def why(error: Exception, mig: bool = False) -> Why:
    """The meaning of a failed call; ``mig``: the GPU is split into MIG instances."""
    if isinstance(error, MissingSymbol):
        return Why(f"the driver is too old: it has no {error}", lasting=True)
    if isinstance(error, NoValue):
        return Why(str(error))
    if isinstance(error, pynvml.NVMLError):
        return _of_code(error, mig)
    return Why(f"nvidia-ml-py does not fit this driver: {error}" if isinstance(error, _MISFITS) else crash.log(error), lasting=True)


def _of_code(error: pynvml.NVMLError, mig: bool) -> Why:
    code = error.value
    if mig and code == pynvml.NVML_ERROR_NOT_SUPPORTED:
        return MIG
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        return _no_permission()
    if code == _ARGUMENT_VERSION:
        return Why("the driver is too old for it", lasting=True)
    return _KNOWN.get(code) or Why(f"the driver failed: {error}")


def _no_permission() -> Why:
    whom = "not even for root; in a container it may take CAP_SYS_ADMIN" if os.geteuid() == 0 else "the driver reserves it for root"
    return Why(f"no permission: {whom}", lasting=True)


_START = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "no NVIDIA driver: libnvidia-ml.so.1 is not found",
        "install the NVIDIA driver; in a container start it with --gpus all (NVIDIA Container Toolkit)",
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "the NVIDIA driver is not loaded",
        "modprobe nvidia (see dmesg for why it is not); in a container pass the GPU in with --gpus all",
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "driver/library version mismatch: libnvidia-ml was updated, the loaded kernel module was not",
        "reboot, or stop what uses the GPUs and reload: rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "no permission to talk to the NVIDIA driver",
        "ls -l /dev/nvidia*: join the group that may use them, or run as root; in a container pass the GPU in with --gpus all",
    ),
}
_NEWER = "install a newer driver (R384 or later)"


def unavailable(error: Exception) -> Unavailable:
    """Why NVML as a whole cannot be used, and what would mend it."""
    code = error.value if isinstance(error, pynvml.NVMLError) else None
    if isinstance(error, MissingSymbol) or code == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
        name = error if isinstance(error, MissingSymbol) else "nvmlInitWithFlags"
        return Unavailable(f"the NVIDIA driver is too old: it has no {name}", _NEWER)
    reason, remedy = _START.get(code, (f"NVML does not start: {error}", "nvidia-smi says more"))
    return Unavailable(reason, remedy)
