"""gputop's own binding of NVML beside NVIDIA's Python module: names, numbers, structures, and what each function gives on the stub."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pynvml
import pytest

from gputop.sources.nvml import binding
from tests.sources.nvml_rig import Rig, stub

NAMES = sorted(name for name in vars(binding) if name.startswith(("NVML_", "nvml", "c_nvml")) and name != "nvmlLib")
NUMBERS = [name for name in NAMES if isinstance(getattr(binding, name), int)]
STRUCTURES = [name for name in NAMES if isinstance(getattr(binding, name), type)]
FUNCTIONS = [name for name in NAMES if callable(getattr(binding, name)) and name not in STRUCTURES]
ARGUMENTS: dict[str, tuple[object, ...]] = {
    "nvmlDeviceGetClockInfo": (pynvml.NVML_CLOCK_MEM,), "nvmlDeviceGetMaxClockInfo": (pynvml.NVML_CLOCK_SM,),
    "nvmlDeviceGetFieldValues": ([82, (138, 1), 197],), "nvmlDeviceGetMigDeviceHandleByIndex": (0,), "nvmlDeviceGetNvLinkState": (1,),
    "nvmlDeviceGetPcieThroughput": (1,), "nvmlDeviceGetProcessUtilization": (0,), "nvmlDeviceGetRetiredPages": (1,),
    "nvmlDeviceGetTemperature": (0,), "nvmlDeviceGetTemperatureV": (0,), "nvmlDeviceGetTotalEccErrors": (1, 0),
}  # fmt: skip
"""Function -> its arguments after the handle."""
APART = (
    "nvmlInit", "nvmlShutdown", "nvmlEventSetFree", "nvmlGpmSampleFree", "nvmlDeviceRegisterEvents", "nvmlDeviceGetGpuFabricInfoV",
)  # fmt: skip
"""Functions that give nothing to compare; they are called below. Of the last one NVIDIA's fills in a structure: see test_nvml_fabric.py."""


def load(library: str) -> None:
    """Make both use the library."""
    for module in (pynvml, binding):
        module.nvmlLib = ctypes.CDLL(library)
    pynvml._nvmlGetFunctionPointer_cache.clear()


@pytest.fixture
def gpus(rig: Rig) -> None:
    rig.set(
        "gpus 2", "util 61", "temp 54", "power_mw 412000", "pcie_rx_mb_s 3100", "gpu0.procs 7:1024:20, 9:512:10",
        "ecc_uncorrected 3", "remapped 1 2 1 0", "retired 4",
    )  # fmt: skip
    load(str(stub()))
    binding.nvmlInit()


def plain(value: Any) -> object:
    """What a function gave, comparable: structures by their fields."""
    if isinstance(value, (ctypes.Structure, ctypes.Union)):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_ if name not in ("timestamp", "timeStamp", "latencyUsec")}
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, (int, float, str)) else bool(value)  # a handle: whether there is one


def given(module: ModuleType, name: str) -> object:
    """What a module's function gives for the first GPU, or the code of its error."""
    call: Callable[..., Any] = getattr(module, name)
    handle = (module.nvmlDeviceGetHandleByIndex(0),) if "Device" in name or name == "nvmlGpmQueryDeviceSupport" else ()
    arguments = handle + ARGUMENTS.get(name, ())
    if name in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):
        arguments = (1,) if name.endswith("Index") else ()
    try:
        return plain(call(*arguments))
    except (pynvml.NVMLError, binding.NVMLError) as error:
        return "error", error.value


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_those_of_nvml_h(name: str) -> None:
    assert getattr(binding, name) == getattr(pynvml, name)


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_lie_in_memory_as_in_nvml_h(name: str) -> None:
    ours, theirs = getattr(binding, name), getattr(pynvml, name)
    fields = [field for field, *_ in ours._fields_]
    head_only = name == "c_nvmlGpmMetricsGet_t"  # the metrics follow it
    assert fields == [field for field, *_ in theirs._fields_][: -1 if head_only else None]
    for field in fields:
        mine, its = getattr(ours, field), getattr(theirs, field)
        assert (mine.offset, mine.size) == (its.offset, its.size), field
    assert ctypes.sizeof(ours) == (theirs.metrics.offset if head_only else ctypes.sizeof(theirs))


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in APART])
@pytest.mark.usefixtures("gpus")
def test_functions_give_what_nvidias_module_gives(name: str) -> None:
    before, ours, after = given(pynvml, name), given(binding, name), given(pynvml, name)
    assert ours in (before, after) or (isinstance(before, int) and before < ours < after)  # type: ignore[operator]


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 9, 15, 999])
@pytest.mark.usefixtures("gpus")
def test_an_error_has_the_librarys_words(code: int) -> None:
    assert str(binding.NVMLError(code)) == pynvml.nvmlErrorString(code)


@pytest.mark.usefixtures("gpus")
def test_what_is_made_is_freed() -> None:
    handle = binding.nvmlDeviceGetHandleByIndex(0)
    events = binding.nvmlEventSetCreate()
    binding.nvmlDeviceRegisterEvents(handle, binding.nvmlEventTypeXidCriticalError, events)
    binding.nvmlEventSetFree(events)
    binding.nvmlGpmSampleFree(binding.nvmlGpmSampleAlloc())
    binding.nvmlShutdown()


@pytest.mark.usefixtures("gpus")
def test_a_gpu_that_is_not_there_is_an_error() -> None:
    with pytest.raises(binding.NVMLError) as caught:
        binding.nvmlDeviceGetHandleByIndex(7)
    assert caught.value.value == binding.NVML_ERROR_INVALID_ARGUMENT


def test_without_a_library_each_call_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "nvmlLib", None)
    with pytest.raises(binding.NVMLError) as caught:
        binding.nvmlDeviceGetCount()
    assert (caught.value.value, str(caught.value)) == (binding.NVML_ERROR_UNINITIALIZED, "NVML error 1")
    monkeypatch.setattr(binding, "CDLL", lambda _: (_ for _ in ()).throw(OSError("none")))
    with pytest.raises(binding.NVMLError) as caught:
        binding.nvmlInit()
    assert caught.value.value == binding.NVML_ERROR_LIBRARY_NOT_FOUND


def test_a_function_that_an_old_driver_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "nvmlLib", ctypes.CDLL(None))
    with pytest.raises(binding.NVMLError) as caught:
        binding.nvmlDeviceGetName(None)
    assert caught.value.value == binding.NVML_ERROR_FUNCTION_NOT_FOUND
