"""The NVML source: starts the library, watches each GPU on lanes of its own, and hands over what they reported.

Nothing here waits for the driver: start-up runs on a thread, each GPU on two (see `lane`), and `NvmlSource.read` only takes what is
finished.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_int, c_uint, create_string_buffer
from threading import Event, Lock, Thread
from time import monotonic, monotonic_ns, sleep

import pynvml

from gputop.model.frame import SECOND_NS, Frame, SourceState
from gputop.sources import Beat, Settings, Unavailable
from gputop.sources.nvml.abi import bind, check
from gputop.sources.nvml.gpu import WatchedGpu
from gputop.sources.nvml.numbers import devices
from gputop.sources.nvml.reading import HANG_NS, Missing, Values, take
from gputop.sources.nvml.reasons import FAILURES, unavailable
from gputop.sources.nvml.standing import Standing
from gputop.system.errors import UserError

_START_PATIENCE_S, _FIRST_PATIENCE_S, _LOOK_PATIENCE_S = 0.5, 0.2, 10.0
"""For the driver to start, which takes seconds where nothing keeps it started, and for each call to have been made once: a screen goes on
without, a single look waits so much longer for both, unless a call hangs."""
_END_PATIENCE_S = 0.1
_LOOK_AGAIN_S = 2.0
_POLL_S = 0.001
_QUICK_NS = 5_000_000
"""`read` waits this long at most, and only for lanes that were quicker than that the last time; a single look waits for all that answer."""
_STATE_EVERY_NS = SECOND_NS
_MOST_NAMED = 8


class NvmlSource:
    """NVIDIA GPUs, by NVML's C interface. Fills ``frame.gpus``: a sample per tick of a lane, so several per GPU and frame."""

    name = "nvml"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._gpus: list[WatchedGpu] = []
        self._standing: list[Standing] = []
        self._detail: dict[str, str] = {}
        self._count = 0
        self._failure: Unavailable | UserError | None = None
        self._begun = Event()
        self._stop = Lock()
        self._watching = False
        self.pids: frozenset[int] = frozenset()
        """Processes with a context on one of the GPUs, as last listed."""
        self._state = SourceState(self.name, "off")
        self._state_due_ns = 0

    def open(self) -> SourceState:
        """Start NVML and watch each GPU. Raises Unavailable, UserError; while the driver still thinks about it the state is ``partial``."""
        self._gpus, self._standing, self._count, self._failure, self.pids = [], [], 0, None, frozenset()
        self._begun, self._stop = Event(), Lock()
        self._stop.acquire()
        self._watching = True
        Thread(target=self._watch, args=(self._stop,), name="nvml-watch", daemon=True).start()
        self._begun.wait(_LOOK_PATIENCE_S if self._settings.everyone else _START_PATIENCE_S)
        if self._failure:
            self.close()
            raise self._failure
        self._wait_for(self._has_begun, _LOOK_PATIENCE_S if self._settings.everyone else _FIRST_PATIENCE_S)
        self._state = self._state_now()
        return self._state

    def read(self, beat: Beat, frame: Frame) -> None:
        """Add the samples finished since the last call, and in a key frame all that stands. UserError: see `Source`."""
        if isinstance(self._failure, UserError):
            raise self._failure
        self._standing += [Standing(gpu.index) for gpu in self._gpus[len(self._standing) :]]
        self._wait_for_quick(beat.t_ns)
        now_ns = monotonic_ns()
        for gpu, standing in zip(self._gpus, self._standing, strict=False):
            self._take(gpu, standing, frame)
            frame.gpus += [silence for tier in gpu.tiers if (silence := standing.silence(tier, now_ns))]
            if beat.key:
                frame.gpus += standing.restate(now_ns)
        if now_ns >= self._state_due_ns:
            self._state_due_ns = now_ns + _STATE_EVERY_NS
            self._raise_errors()
            self._tell_state(beat)

    def _raise_errors(self) -> None:
        for error in (tier.lane.error for gpu in self._gpus for tier in gpu.tiers):
            if error is not None:
                raise error

    def _take(self, gpu: WatchedGpu, standing: Standing, frame: Frame) -> None:
        standing.begin()
        before = standing.pids
        while gpu.reports:
            frame.gpus.append(standing.take(gpu.reports.popleft()))
        if standing.pids != before:
            self.pids = frozenset().union(*(one.pids for one in self._standing))

    def close(self) -> None:
        """End the lanes; NVML is shut down unless one of them still waits for the driver."""
        if not self._watching:
            return
        self._watching = False
        self._stop.release()
        until = monotonic() + _END_PATIENCE_S
        ended = [tier.lane.join(max(0.0, until - monotonic())) for gpu in self._gpus for tier in gpu.tiers]
        if self._count and all(ended):
            _shut_down()
        self._count = 0

    def _watch(self, stop: Lock) -> None:
        """Start NVML and look for GPUs that come later; on its own thread, since the driver may hang in either."""
        while True:
            try:
                if not self._count:
                    self._detail = _start()
                self._add_gpus(stop)
                self._failure = None
            except (Unavailable, UserError) as failure:
                self._failure = failure
            except FAILURES as error:
                # Once GPUs are watched each of them says what ails it.
                self._failure = self._failure if self._count else unavailable(error)
            self._begun.set()
            if stop.acquire(timeout=_LOOK_AGAIN_S):
                stop.release()
                return

    def _add_gpus(self, stop: Lock) -> None:
        count = _count_gpus()
        absent = sorted((self._settings.gpus or frozenset()) - set(range(count)))
        if not self._count and (absent or not count):
            _shut_down()
            raise _no_gpu(count, absent)
        for index in sorted(self._wanted(count) - {gpu.index for gpu in self._gpus}):
            self._gpus.append(WatchedGpu(index, self._settings.interval_ns, stop))
        for gpu in self._gpus:
            gpu.start()
        self._count = max(count, self._count)

    def _wanted(self, count: int) -> set[int]:
        present = set(range(count))
        return present if self._settings.gpus is None else present & self._settings.gpus

    def _has_begun(self) -> bool:
        """Whether nothing more is to be expected of the first ticks: each has ended, is not to be, or hangs."""
        now_ns = monotonic_ns()
        tiers = (tier for gpu in self._gpus if not gpu.absent for tier in gpu.tiers)
        return all(tier.lane.done_ns or tier.refused or tier.silent_ns(now_ns) >= HANG_NS for tier in tiers)

    def _wait_for_quick(self, t_ns: int) -> None:
        """Give the quick ticks of this beat a few milliseconds to end, so that their samples are in this frame."""
        quick_ns = HANG_NS if self._settings.everyone else _QUICK_NS
        beat_ns = t_ns // self._settings.interval_ns * self._settings.interval_ns
        lanes = [gpu.fast.lane for gpu in self._gpus if not gpu.fast.refused]
        behind = [lane for lane in lanes if lane.done_ns < beat_ns and lane.lasted_ns < quick_ns]
        late = [lane for lane in behind if t_ns - (lane.began_ns or t_ns) < quick_ns]
        if late:
            self._wait_for(lambda: all(lane.done_ns >= beat_ns for lane in late), quick_ns / 1e9)

    @staticmethod
    def _wait_for(condition: Callable[[], bool], patience_s: float) -> None:
        deadline_ns = monotonic_ns() + int(patience_s * 1e9)
        while not condition() and monotonic_ns() < deadline_ns:
            sleep(_POLL_S)

    def _tell_state(self, beat: Beat) -> None:
        state = self._state_now()
        if state != self._state:
            self._state = state
            beat.changed.append(state)

    def _state_now(self) -> SourceState:
        if isinstance(self._failure, Unavailable):
            return SourceState(self.name, "unavailable", self._failure.reason, self._failure.remedy)
        if not self._count:
            return SourceState(self.name, "partial", "the driver has not answered yet", "nvidia-smi -pm 1 keeps it started")
        now_ns = monotonic_ns()
        unread = [f"GPU {gpu.index}: {why_not}" for gpu in self._gpus if (why_not := gpu.unread)]
        silent = [
            f"GPU {gpu.index} does not answer"
            for gpu in self._gpus if not gpu.unread and any(tier.silent_ns(now_ns) for tier in gpu.tiers)
        ]  # fmt: skip
        reason = "; ".join(unread + silent)
        return SourceState(self.name, "partial" if reason else "ok", reason, "", self._detail | self._counts())

    def _counts(self) -> dict[str, str]:
        slowed = [
            f"GPU {gpu.index} {reading.fields[0]} every {reading.period_ns / SECOND_NS:.1f} s"
            for gpu in self._gpus for tier in gpu.tiers for reading in tier.readings if reading.slowed
        ]  # fmt: skip
        return {"gpus": str(len(self._gpus))} | ({"slowed": ", ".join(slowed)} if slowed else {})


def _no_gpu(count: int, absent: list[int]) -> Unavailable | UserError:
    if not count:
        return Unavailable("the NVIDIA driver finds no GPU", "lspci | grep -i nvidia: is there one? dmesg: why is it not used?")
    words = ", ".join(map(str, absent)) if len(absent) <= _MOST_NAMED else f"{absent[0]} … {absent[-1]}"
    present = f"GPU 0 to {count - 1}" if count > 1 else "GPU 0 only"
    return UserError(f"there is no GPU {words}: this machine has {present}")


def _start() -> dict[str, str]:
    """Start the library; the versions it and the driver have, and why which of them are ``unknown``. Raises where it does not start."""
    pynvml.nvmlInit()
    known: Values = {}
    unknown: Missing = {}
    for word, read in (("driver", _driver), ("cuda", _cuda), ("library", _library)):
        take(word, read, known, unknown)
    versions = {word: str(version) for word, version in known.items()}
    return versions | ({"unknown": f"{', '.join(unknown)} ({'; '.join(dict.fromkeys(unknown.values()))})"} if unknown else {})


def _shut_down() -> None:
    try:
        pynvml.nvmlShutdown()
    except FAILURES:
        pass


def _system_text(name: str) -> str:
    out = create_string_buffer(96)
    check(bind(name)(out, c_uint(len(out))))
    return out.value.decode("utf-8", "replace")


def _driver() -> str:
    return _system_text("nvmlSystemGetDriverVersion")


def _library() -> str:
    return _system_text("nvmlSystemGetNVMLVersion")


def _cuda() -> str:
    out = c_int()
    check(bind("nvmlSystemGetCudaDriverVersion")(byref(out)))
    return f"{out.value // 1000}.{out.value % 1000 // 10}"


def _count_gpus() -> int:
    out = c_uint()
    check(bind("nvmlDeviceGetCount_v2")(byref(out)))
    return devices(out.value)
