"""The NVML source: starts the library, has each GPU polled, and hands over what the polls gave.

Start-up runs on a thread; GPUs are polled on others, or by `NvmlSource.poll` in the beat's (see `poller`). `NvmlSource.read` makes no
call to the driver: it takes what is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event, Lock, Thread
from time import monotonic, monotonic_ns, sleep

from msgspec.structs import replace

from gputop.model.frame import SECOND_NS, SILENT, Frame, Gpu, SourceState, compute_pids, forget_parts
from gputop.sources import Beat, Settings, Unavailable
from gputop.sources.nvml import binding as nvml
from gputop.sources.nvml import numbers
from gputop.sources.nvml.driver import FAILURES, unavailable
from gputop.sources.nvml.fast import FEW_GPUS
from gputop.sources.nvml.gpu import WatchedGpu, fields_of
from gputop.sources.nvml.groups import HANG_NS, Missing, Poll, Values, take
from gputop.sources.nvml.poller import Poller, PollThreads
from gputop.system.errors import UserError

_START_PATIENCE_S = 0.5  # s for the driver to start; it takes seconds if nothing keeps it started, and a screen goes on without
_FIRST_PATIENCE_S = 0.2  # s for the first poll of each GPU
_LOOK_PATIENCE_S = 10.0  # s for both in a single look (--once), unless a call hangs
_END_PATIENCE_S = 0.1  # s for the pollers to end
_LOOK_AGAIN_S = 2.0  # s between two looks for GPUs that come later, or a driver
_WAIT_STEP_S = 0.001  # s
_SLOW_AFTER_NS = 15_000_000  # ns from a beat to the slow poll: after the fast polls and the frame
_QUICK_NS = 5_000_000  # ns that `read` waits at most, for polls that took less the last time; a single look waits for all that answer
_STATE_EVERY_NS = SECOND_NS  # ns between two looks at the source's state
_MOST_NAMED = 8  # GPUs named in an error


class NvmlSource:
    """NVIDIA GPUs by NVML. Fills ``frame.gpus`` with a sample per poll, so several per GPU and frame."""

    name = "nvml"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._gpus: list[WatchedGpu] = []
        self._known: list[KnownGpu] = []
        self._detail: dict[str, str] = {}
        self._count = 0
        self._failure: Unavailable | UserError | None = None
        self._begun = Event()
        self._stop = Lock()
        self._fast, self._slow = _threads(settings, self._stop)
        self._watching = False
        self._is_polled = False  # whether the beat polls
        self.pids: frozenset[int] = frozenset()  # processes with a context on one of the GPUs, as last listed
        self._state = SourceState(self.name, "off")
        self._state_due_ns = 0

    def open(self) -> SourceState:
        """Start NVML and watch each GPU. Raises Unavailable, UserError; while the driver has not answered the state is ``partial``."""
        self._gpus, self._known, self._count, self._failure, self.pids = [], [], 0, None, frozenset()
        self._begun, self._stop = Event(), Lock()
        self._stop.acquire()
        self._fast, self._slow = _threads(self._settings, self._stop)
        self._watching = True
        Thread(target=self._watch, args=(self._stop,), name="nvml-watch", daemon=True).start()
        self._begun.wait(_LOOK_PATIENCE_S if self._settings.everyone else _START_PATIENCE_S)
        if self._failure:
            self.close()
            raise self._failure
        _wait_for(self._has_begun, _LOOK_PATIENCE_S if self._settings.everyone else _FIRST_PATIENCE_S)
        self._state = self._state_now()
        return self._state

    def read(self, beat: Beat, frame: Frame) -> None:
        """Add the samples of all polls since the last call, and in a key frame all that is known. Raises UserError, see `Source`."""
        if isinstance(self._failure, UserError):
            raise self._failure
        if len(self._known) < len(self._gpus):
            self._known += [KnownGpu(gpu.index) for gpu in self._gpus[len(self._known) :]]
        if not self._is_polled:
            self._relieve(monotonic_ns())
            self._wait_for_quick(beat.t_ns)
        now_ns = monotonic_ns()
        for gpu, known in zip(self._gpus, self._known, strict=False):
            self._take(gpu, known, frame)
            for poller in gpu.pollers:
                if poller.may_be_silent and (sample := known.add_silence(poller, now_ns)) is not None:
                    frame.gpus.append(sample)
            if beat.key:
                frame.gpus += known.restate(now_ns)
        if now_ns >= self._state_due_ns:
            self._state_due_ns = now_ns + _STATE_EVERY_NS
            self._raise_errors()
            self._update_state(beat)

    def is_due(self, beat_ns: int, is_between: bool) -> bool:
        """True if a GPU that answers quickly is due, see `Polled`."""
        self._is_polled = True
        return (self._slow if is_between else self._fast).is_due(beat_ns)

    def poll(self, beat_ns: int, is_between: bool) -> None:
        """Poll the GPUs that are due and answer quickly, see `Polled`."""
        (self._slow if is_between else self._fast).poll(beat_ns)

    def relieve(self, now_ns: int, stuck_ns: int) -> bool:
        """See `Polled`."""
        return self._fast.relieve(now_ns, stuck_ns) or self._slow.relieve(now_ns, stuck_ns)

    def close(self) -> None:
        """End the pollers; shut NVML down unless a poller still waits for the driver."""
        if not self._watching:
            return
        self._watching = False
        self._stop.release()
        until = monotonic() + _END_PATIENCE_S
        ended = [threads.join(until) for threads in (self._fast, self._slow)]
        if self._count and all(ended):
            _shut_down()
        self._count = 0

    def _pollers(self) -> Iterator[Poller]:
        return (poller for gpu in self._gpus for poller in gpu.pollers)

    def _raise_errors(self) -> None:
        for poller in self._pollers():
            if poller.error is not None:
                raise poller.error

    def _take(self, gpu: WatchedGpu, known: KnownGpu, frame: Frame) -> None:
        known.begin_frame()
        before = known.pids
        while gpu.polls:
            frame.gpus.append(known.add(gpu.polls.popleft()))
        if known.pids is not before and known.pids != before:
            self.pids = frozenset().union(*(one.pids for one in self._known))

    def _watch(self, stop: Lock) -> None:
        """Start NVML and look for GPUs that come later. It has a thread of its own, since the driver may hang in either."""
        while True:
            try:
                if not self._count:
                    self._detail = _start()
                self._add_gpus()
                self._failure = None
            except (Unavailable, UserError) as failure:
                self._failure = failure
            except FAILURES as error:
                # Once GPUs are watched, each GPU has its own reason.
                self._failure = self._failure if self._count else unavailable(error, self._settings.root)
            self._begun.set()
            if stop.acquire(timeout=_LOOK_AGAIN_S):
                stop.release()
                return

    def _add_gpus(self) -> None:
        count = numbers.gpus(nvml.nvmlDeviceGetCount())
        absent = sorted((self._settings.gpus or frozenset()) - set(range(count)))
        if not self._count and (absent or not count):
            _shut_down()
            raise _no_gpu(count, absent)
        present = set(range(count))
        wanted = present if self._settings.gpus is None else present & self._settings.gpus
        for index in sorted(wanted - {gpu.index for gpu in self._gpus}):
            self._gpus.append(WatchedGpu(index, self._settings.interval_ns, self._fast, self._slow, len(wanted) > FEW_GPUS))
        for gpu in self._gpus:
            gpu.start()
        self._count = max(count, self._count)

    def _has_begun(self) -> bool:
        """True if the first polls are over: each has ended, cannot begin, or hangs."""
        now_ns = monotonic_ns()
        self._relieve(now_ns)
        pollers = (poller for gpu in self._gpus if not gpu.absent for poller in gpu.pollers)
        return all(poller.done_ns or poller.refused or poller.silent_ns(now_ns) >= HANG_NS for poller in pollers)

    def _relieve(self, now_ns: int) -> None:
        self._fast.relieve(now_ns)
        self._slow.relieve(now_ns)

    def _wait_for_quick(self, t_ns: int) -> None:
        """Give the quick polls of this beat a few milliseconds to end, so that their samples are in this frame."""
        quick_ns = HANG_NS if self._settings.everyone else _QUICK_NS
        beat_ns = t_ns // self._settings.interval_ns * self._settings.interval_ns
        pollers = [gpu.fast for gpu in self._gpus if not gpu.fast.refused]
        behind = [poller for poller in pollers if poller.done_ns < beat_ns and poller.lasted_ns < quick_ns]
        late = [poller for poller in behind if t_ns - (poller.began_ns or t_ns) < quick_ns]
        if late:
            _wait_for(lambda: all(poller.done_ns >= beat_ns for poller in late), quick_ns / 1e9)

    def _update_state(self, beat: Beat) -> None:
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
        unread = [f"GPU {gpu.index}: {gpu.unread}" for gpu in self._gpus if gpu.unread]
        silent = [gpu for gpu in self._gpus if not gpu.unread and any(poller.silent_ns(now_ns) for poller in gpu.pollers)]
        reason = "; ".join(unread + [f"GPU {gpu.index} does not answer" for gpu in silent])
        return SourceState(self.name, "partial" if reason else "ok", reason, "", self._detail | self._counts())

    def _counts(self) -> dict[str, str]:
        slowed = [
            f"GPU {gpu.index} {group.fields[0]} every {group.period_ns / SECOND_NS:.1f} s"
            for gpu in self._gpus for poller in gpu.pollers for group in poller.groups if group.slowed
        ]  # fmt: skip
        return {"gpus": str(len(self._gpus))} | ({"slowed": ", ".join(slowed)} if slowed else {})


class KnownGpu:
    """State of GPU ``index``: the latest poll that gave each field, and the reason for each field without a value."""

    __slots__ = ("_held_by", "_index", "_latest", "_missing", "_new", "pids")

    def __init__(self, index: int) -> None:
        self._index = index
        self._latest: dict[str, Poll] = {}
        self._missing: Missing = {}
        self._new: list[Poll] = []  # polls of this frame
        self.pids: frozenset[int] = frozenset()  # processes that compute on it, as last listed
        self._held_by: list[int] = []

    def begin_frame(self) -> None:
        self._new.clear()

    def add(self, poll: Poll) -> Gpu:
        """Take in a poll. Returns its sample: values, and the reasons that are new."""
        values = poll.values
        if self._missing:
            self._regain(values)
        listed = values.get("procs")
        if listed is not None:
            forget_parts(self._missing)
        news: Missing = {}
        if poll.missing:
            news = {field: reason for field, reason in poll.missing.items() if field not in values and self._missing.get(field) != reason}
            self._lack(news)
        self._latest.update(dict.fromkeys(values, poll))
        self._new.append(poll)
        if isinstance(listed, list):
            self.pids = compute_pids(listed)
        return self._with_holders(Gpu(self._index, poll.t_ns, **values, missing=news))  # type: ignore[arg-type]

    def _regain(self, values: Values) -> None:
        """These fields have a value: the reasons why they had none are void."""
        if "nvml_ns" in values and self._missing.get("lost", "").startswith(SILENT):
            values["lost"] = False  # the fast polls go on
        if "needs_reset" in values and "xid" not in values:
            self._missing.pop("xid", None)
        if not self._missing.keys().isdisjoint(values):
            for field in self._missing.keys() & values.keys():
                del self._missing[field]

    def add_silence(self, poller: Poller, now_ns: int) -> Gpu | None:
        """A sample of how long a hanging poller's fields have had no answer; None without news."""
        ns = poller.silent_ns(now_ns)
        if not ns:
            return None
        reason = SILENT + (f"{ns // SECOND_NS} s" if ns >= HANG_NS else f"{ns / SECOND_NS:.1f} s")
        news = {field: reason for field in fields_of(poller) if self._missing.get(field, SILENT).startswith(SILENT)}
        if ns < HANG_NS or not poller.groups:  # a field with a value was read just now, or by the other poller
            news = {field: reason for field in news if field not in self._latest}
        if "lost" in news and "lost" in self._latest and self._latest["lost"].values["lost"]:
            del news["lost"]  # nor does the driver answer for one that it has lost
        if all(self._missing.get(field) == reason for field in news):
            return None
        self._lack(news)
        return self._with_holders(Gpu(self._index, now_ns, missing=news))

    def restate(self, now_ns: int) -> list[Gpu]:
        """Samples of all fields that are not in this frame yet: one for each poll that gave them, then the reasons."""
        fields: dict[int, list[str]] = {}
        polls: dict[int, Poll] = {}
        for field, poll in self._latest.items():
            if poll not in self._new:
                fields.setdefault(id(poll), []).append(field)
                polls[id(poll)] = poll
        samples = [
            Gpu(self._index, poll.t_ns, **{field: poll.values[field] for field in fields[key]})  # type: ignore[arg-type]
            for key, poll in polls.items()
        ]
        return [*samples, Gpu(self._index, now_ns, missing=dict(self._missing), held_by=self._held_by or None)]

    def _lack(self, news: Missing) -> None:
        """These fields have no value any more."""
        for field in news:
            self._latest.pop(field, None)
        self._missing.update(news)

    def _with_holders(self, sample: Gpu) -> Gpu:
        """The sample; while the list of processes cannot be read, with the pids of the last list."""
        if sample.procs is None and "procs" not in sample.missing:
            return sample
        held_by = sorted(self.pids) if sample.procs is None else []
        if held_by == self._held_by:
            return sample
        self._held_by = held_by
        return replace(sample, held_by=held_by)


def _threads(settings: Settings, stop: Lock) -> tuple[PollThreads, PollThreads]:
    """Threads of the fast polls, and of the slow polls."""
    fast = PollThreads(stop, period_ns=settings.interval_ns)
    return fast, PollThreads(stop, period_ns=SECOND_NS, phase_ns=_SLOW_AFTER_NS, is_spread=True)


def _wait_for(condition: Callable[[], bool], patience_s: float) -> None:
    deadline_ns = monotonic_ns() + int(patience_s * 1e9)
    while not condition() and monotonic_ns() < deadline_ns:
        sleep(_WAIT_STEP_S)


def _no_gpu(count: int, absent: list[int]) -> Unavailable | UserError:
    if not count:
        return Unavailable("the NVIDIA driver finds no GPU", "lspci | grep -i nvidia: is there one? dmesg: why is it not used?")
    words = ", ".join(map(str, absent)) if len(absent) <= _MOST_NAMED else f"{absent[0]} … {absent[-1]}"
    present = f"GPU 0 to {count - 1}" if count > 1 else "GPU 0 only"
    return UserError(f"there is no GPU {words}: this machine has {present}")


def _start() -> dict[str, str]:
    """Start the library. Returns the versions of driver, CUDA and library, and why some are ``unknown``. Raises if it does not start."""
    nvml.nvmlInit()
    known: Values = {}
    unknown: Missing = {}
    take("driver", nvml.nvmlSystemGetDriverVersion, known, unknown)
    take("cuda", _cuda_version, known, unknown)
    take("library", nvml.nvmlSystemGetNVMLVersion, known, unknown)
    versions = {word: str(version) for word, version in known.items()}
    return versions | ({"unknown": f"{', '.join(unknown)} ({'; '.join(dict.fromkeys(unknown.values()))})"} if unknown else {})


def _cuda_version() -> str:
    """The newest CUDA that the driver supports."""
    version = nvml.nvmlSystemGetCudaDriverVersion()
    return f"{version // 1000}.{version % 1000 // 10}"


def _shut_down() -> None:
    try:
        nvml.nvmlShutdown()
    except FAILURES:
        pass
