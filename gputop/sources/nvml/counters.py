"""Slow counters of links, clocks and health: all field numbers of nvmlDeviceGetFieldValues that are read every 10 s, in one call a GPU.

Numbers and meanings: NVML_FI_* of nvml.h. A field that a GPU or driver lacks has the driver's reason, and is asked for again every
10 minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from gputop.model.gpu import NvLinkCounts
from gputop.sources.nvml import numbers
from gputop.sources.nvml.binding import NVMLError
from gputop.sources.nvml.driver import FAILURES, Device, KeptFields, field_number, why
from gputop.sources.nvml.groups import Missing, Values

_LINK_COUNT = 91  # NVML_FI_DEV_NVLINK_LINK_COUNT
_MOST_LINKS = 36
_ASK_AGAIN = 60  # readings after which refused fields are asked for again
_MANTISSA_SHIFT, _MANTISSA, _EXPONENT = 8, 0xF, 0xFF  # of a bit error rate: NVML_NVLINK_BER_*


class FieldRow(NamedTuple):
    """One quantity, and where NVML has it."""

    name: str  # field of `Gpu`, or of `NvLinkCounts` where it is one of each link
    numbers: tuple[int, ...]  # NVML's field numbers, the best first
    unit: str
    constants: str  # names in nvml.h
    since: str  # driver and GPU
    each_link: bool = False
    make: Callable[[float], int | float | bool] = numbers.count


def _ber(code: float) -> float:
    """The bit error rate: a mantissa, and a negative exponent of 10."""
    word = numbers.count(code)
    return float((word >> _MANTISSA_SHIFT & _MANTISSA) * 10.0 ** -(word & _EXPONENT))


def _of_megabytes(number: float) -> float:
    return 1e6 * numbers.count(number)


def _truth(number: float) -> bool:
    return numbers.count(number) > 0


ROWS = (
    FieldRow("pcie_replays", (94,), "", "NVML_FI_DEV_PCIE_REPLAY_COUNTER", "R410, Kepler"),
    FieldRow("pcie_recoveries", (169,), "", "NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER", "R515, Hopper"),
    FieldRow("pcie_corrected_errors", (173,), "", "NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS", "R530, Hopper"),
    FieldRow("slowed_power_ns", (74,), "ns", "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, ..._PERF_POLICY_POWER", "R410, Kepler"),
    FieldRow("slowed_sync_boost_ns", (76,), "ns", "NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST, ..._PERF_POLICY_SYNC_BOOST", "R410, Kepler"),
    FieldRow("slowed_heat_ns", (251, 75), "ns", "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, NVML_FI_DEV_PERF_POLICY_THERMAL",
             "R570; before that R410, Kepler"),
    FieldRow("slowed_hw_heat_ns", (252,), "ns", "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN", "R570"),
    FieldRow("slowed_brake_ns", (253,), "ns", "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN", "R570"),
    FieldRow("power_smoothing", (256,), "", "NVML_FI_PWR_SMOOTHING_ENABLED", "R570, Blackwell", make=_truth),
    FieldRow("recovery_action", (230,), "", "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", "R565, Ampere"),
    FieldRow("c2c_links", (170,), "", "NVML_FI_DEV_C2C_LINK_COUNT", "R525, Grace Hopper"),
    FieldRow("c2c_link_bytes_per_s", (172,), "B/s", "NVML_FI_DEV_C2C_LINK_GET_MAX_BW", "R525, Grace Hopper", make=_of_megabytes),
    FieldRow("replays", (161,), "", "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY", "R470, Ampere and Hopper", True),
    FieldRow("recoveries", (215, 162), "", "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
             "R570, Blackwell; before that R470, Ampere and Hopper", True),
    FieldRow("failed_recoveries", (214,), "", "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", "R570, Blackwell", True),
    FieldRow("crc_errors", (163,), "", "NVML_FI_DEV_NVLINK_ERROR_DL_CRC", "R470, Ampere and Hopper", True),
    FieldRow("symbol_errors", (221,), "", "NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS", "R570, Blackwell", True),
    FieldRow("bit_error_rate", (220, 222), "", "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER",
             "R570, Blackwell", True, _ber),
)  # fmt: skip
"""Every slow field that is read. ``since``: the first driver and generation known to have it; others answer with their reason."""
OF_GPU = tuple(row for row in ROWS if not row.each_link)
OF_LINK = tuple(row for row in ROWS if row.each_link)
SUMS = {"nvlink_replays": "replays", "nvlink_recoveries": "recoveries", "nvlink_crc_errors": "crc_errors"}
"""Field of `Gpu` -> field of its links that it sums up."""
FIELDS = (*(row.name for row in OF_GPU), *SUMS, "nvlinks")
_Wanted = tuple[FieldRow, int, int]  # row, NVML's number, link


class Counters:
    """Fills the fields of `FIELDS`."""

    __slots__ = ("_device", "_kept", "_links", "_reasons", "_until_all", "_wanted")

    def __init__(self, device: Device) -> None:
        """Raises nvml.NVMLError if the driver has no field values at all."""
        self._device, self._until_all = device, 0
        self._wanted: list[_Wanted] = []
        self._reasons: dict[tuple[str, int], str] = {}  # (field, link) -> why the driver refuses it
        self._links = _count_links(device)
        self._kept = self._ask(self._all())

    def _all(self) -> Iterable[_Wanted]:
        yield from ((row, number, 0) for row in OF_GPU for number in row.numbers)
        yield from ((row, number, link) for row in OF_LINK for number in row.numbers for link in range(self._links))

    def _ask(self, wanted: Iterable[_Wanted]) -> KeptFields:
        self._wanted = list(wanted)
        self._kept = KeptFields(self._device, *((number, link) for _, number, link in self._wanted))
        return self._kept

    def __call__(self, values: Values, missing: Missing) -> None:
        if not self._until_all:
            self._reasons.clear()
            self._ask(self._all())
        self._until_all = (self._until_all or _ASK_AGAIN) - 1
        self._kept.read()
        found, refused = self._taken()
        for row in OF_GPU:
            _put(row.name, found.get((row.name, 0)), self._reasons.get((row.name, 0), ""), values, missing)
        links = [NvLinkCounts(link, **{row.name: found.get((row.name, link)) for row in OF_LINK}) for link in range(self._links)]  # type: ignore[arg-type]
        _put("nvlinks", links or None, "no NVLink", values, missing)
        for name, part in SUMS.items():
            known = [number for one in links if (number := getattr(one, part)) is not None]
            reason = self._reasons.get((part, 0), "") if links else "no NVLink"
            _put(name, sum(known) if known else None, reason, values, missing)
        if refused:
            self._ask(one for one in self._wanted if one not in refused)

    def _taken(self) -> tuple[dict[tuple[str, int], object], set[_Wanted]]:
        """(values by field and link, what the driver refuses for long). Raises the error of a lost GPU."""
        found: dict[tuple[str, int], object] = {}
        refused: set[_Wanted] = set()
        for at, (row, number, link) in enumerate(self._wanted):
            key = row.name, link
            try:
                value = row.make(self._kept.number(at))
            except FAILURES as error:
                cause = why(error, self._device.mig)
                if cause.lost:
                    raise
                self._reasons.setdefault(key, cause.text)
                if cause.lasting:
                    refused.add((row, number, link))
                continue
            found.setdefault(key, value)
        return found, refused


def _put(name: str, value: object, reason: str, values: Values, missing: Missing) -> None:
    if value is None:
        missing[name] = reason or "the driver has no value for it"
    else:
        values[name] = value


def _count_links(device: Device) -> int:
    """NVLinks of the GPU, up or not; 0 if the driver does not say."""
    try:
        return min(_MOST_LINKS, numbers.count(field_number(*device.fields(_LINK_COUNT))))
    except (NVMLError, numbers.NoValue):
        return 0
