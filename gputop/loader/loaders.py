"""A torch DataLoader built again with another number of workers: same settings, nothing of the original consumed, nothing left behind.

torch is never imported: whoever has a DataLoader has imported it. The copy shares the data set with its original, except where this
process itself reads from it (no workers): then it reads from a shallow copy, so that counters and caches of the original stay.
"""

from __future__ import annotations

import copy
import glob
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gputop.system.errors import UserError
from gputop.system.text import clean, one_line

END_S = 2.0  # s that workers get to end by themselves, then to obey SIGTERM (a batch that is being made may take longer)
SEND_S, RECEIVE_S = 0.15e-3, 0.35e-3  # CPU s of a worker and of the consumer for a batch of no size (measured: torch 2.13, 2 vCPUs)
_MOST_SHARED = 64 << 20  # bytes of the batch that is timed on its way
_FEW = 64  # elements of a list that are copied one by one: data sets joined to one, not samples (guess)


def torch_base(loader: Any) -> Any:
    """The class DataLoader of torch that ``loader`` is an instance of. Raises UserError for anything else."""
    for base in type(loader).__mro__:
        if base.__name__ == "DataLoader" and base.__module__.startswith("torch.utils.data"):
            return base
    raise UserError(f"{name_of(loader)} is no torch.utils.data.DataLoader")


def name_of(thing: object) -> str:
    """The name of its class, safe for a terminal."""
    return clean(type(thing).__qualname__, 80)


class Endless:
    """A sampler that begins again when it is through, and leaves out the first ``skipped`` items. Other attributes are the sampler's."""

    def __init__(self, sampler: Any, skipped: int) -> None:
        self.sampler = sampler
        self.skipped = skipped
        self.skipped_s = 0.0  # s that leaving them out took
        self.given = 0

    def __iter__(self) -> Iterator[Any]:
        left, began = self.skipped, time.monotonic()
        while True:
            is_empty = True
            for item in self.sampler:
                is_empty = False
                if left > 0:
                    left -= 1
                    self.skipped_s = time.monotonic() - began
                    continue
                self.given += 1
                yield item
            if is_empty:
                return

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        if name == "sampler":  # not set yet, while it is being copied
            raise AttributeError(name)
        return getattr(self.sampler, name)


class Rebuilt:
    """A DataLoader like ``loader`` with ``workers`` workers. On a map-style data set it never ends.

    ``skipped``: batches that its sampler leaves out. ``patience_s``: after so long without a batch workers count as hung, unless the
    loader has a timeout of its own. ``notes`` lists what could not be kept.
    """

    def __init__(self, loader: Any, workers: int, *, skipped: int, patience_s: float) -> None:
        base = torch_base(loader)
        torch = sys.modules["torch"]
        self.notes: list[str] = []
        self.endless: Endless | None = None
        self.is_iterable = isinstance(loader.dataset, torch.utils.data.IterableDataset)
        if not self.is_iterable:
            _check_sampler(loader)
        elif _is_pipe(torch, loader.dataset) and ranks()[1] > 1:
            raise UserError("its DataPipe asks all ranks for a seed whenever it is read: sweep it outside of the distributed job")
        settings = dict(vars(loader))
        is_read_here = workers == 0 or _is_pipe(torch, loader.dataset)
        seen: dict[int, Any] = {} if is_read_here else {id(loader.dataset): loader.dataset}
        for name in ("dataset", "sampler", "batch_sampler", "generator"):
            settings[name] = self._apart(settings[name], torch, seen, is_top=True)
        settings |= {
            "num_workers": workers,
            "prefetch_factor": (loader.prefetch_factor or 2) if workers else None,
            "persistent_workers": loader.persistent_workers and workers > 0,
            "timeout": (loader.timeout or patience_s) if workers else 0,
            "_iterator": None,
            "_IterableDataset_len_called": None,
        }
        if not self.is_iterable:
            name = "sampler" if settings["batch_sampler"] is None else "batch_sampler"
            settings[name] = self.endless = Endless(settings[name], skipped)
        running = [name for name, value in vars(loader).items() if name != "_iterator" and "_sampler_iter" in _held(value)]
        self.loader = object.__new__(base if running else type(loader))
        if running:
            self.notes.append(f"{name_of(loader)} keeps an iterator that runs: it is measured as torch's own DataLoader")
        vars(self.loader).update(settings)

    def _apart(self, value: Any, torch: Any, seen: dict[int, Any], *, is_top: bool = False) -> Any:
        """``value`` so that reading does not change the original: generators, samplers, data sets, and lists and dicts in them, are
        copied; what these hold is shared."""
        if id(value) in seen:
            return seen[id(value)]
        kind, found = type(value), value
        data = torch.utils.data
        if isinstance(value, torch.Generator):
            found = torch.Generator(device=value.device)
            found.set_state(value.get_state())
        elif isinstance(value, random.Random) or kind.__module__.startswith("numpy.random"):
            found = copy.deepcopy(value)
        elif kind in (list, dict, set, bytearray):
            found = value.copy()
            if kind is list and len(value) <= _FEW:
                found[:] = [self._apart(item, torch, seen) for item in value]
        elif isinstance(value, (data.Dataset, data.Sampler)) or (is_top and _held(value)):
            found = seen[id(value)] = self._copied(value)
            if found is not value:
                for name, held in list(_held(found).items()):
                    _held(found)[name] = self._apart(held, torch, seen)
        seen[id(value)] = found
        return found

    def _copied(self, value: Any) -> Any:
        """A shallow copy; the original where that cannot be, or would close what the original has open."""
        if not hasattr(type(value), "__del__"):
            with suppress(Exception):  # the class is the user's
                return copy.copy(value)
        self.notes.append(f"{name_of(value)} cannot be copied: what it changes in itself while it is read stays changed")
        return value


def _held(value: Any) -> dict[str, Any]:
    """Attributes of an object; empty if it has none of its own."""
    return getattr(value, "__dict__", {})


def _check_sampler(loader: Any) -> None:
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    if hasattr(type(sampler), "__next__"):
        raise UserError(f"its sampler ({name_of(sampler)}) can be read once only: make it a list, or a class with __iter__")


def _is_pipe(torch: Any, dataset: Any) -> bool:
    pipe = getattr(torch.utils.data, "IterDataPipe", None)
    return pipe is not None and isinstance(dataset, pipe)


def ranks() -> tuple[int, int]:
    """(rank, ranks) of the distributed job that this process belongs to; (0, 1) outside of one."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Put the random states of Python, NumPy and torch back afterwards, as far as they are in use."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    python, ours = random.getstate(), torch.get_rng_state()
    theirs = numpy.random.get_state() if numpy is not None else None
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(ours)
        if numpy is not None:
            numpy.random.set_state(theirs)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)


class Interrupts:
    """Ctrl-C while workers run: it interrupts what is `allowed` to be, and waits elsewhere, so that all workers are known and ended.

    The third press interrupts anything. In other threads than the main one, and where SIGINT has no handler, nothing is changed.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._is_allowed = False
        self._pending = 0

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._before is None:
            return
        signal.signal(signal.SIGINT, self._before)
        if self._pending and kind is None:
            self._before(signal.SIGINT, None)

    def _handle(self, number: int, frame: Any) -> None:
        if self._is_allowed or self._pending >= 2:
            self._is_allowed = False
            self._before(number, frame)
        else:
            self._pending += 1

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Ctrl-C interrupts the block; one that has waited for it does at once."""
        if self._pending:
            self._pending = 0
            self._before(signal.SIGINT, None)
        self._is_allowed = True
        try:
            yield
        finally:
            self._is_allowed = False


def end_workers(iterator: Any, workers: list[Any]) -> None:
    """End the workers (``multiprocessing.Process``) of a DataLoader's iterator, by force after `END_S`, and remove their shared memory.

    torch waits 5 s for each worker that is busy, so a timer terminates slower ones.
    """
    if not workers:
        return
    late = threading.Timer(END_S, lambda: [worker.terminate() for worker in workers if worker.is_alive()])
    late.daemon = True
    late.start()
    try:
        with suppress(Exception):  # torch complains of workers that were terminated
            iterator._shutdown_workers()
    finally:
        late.cancel()
    for queue in getattr(iterator, "_index_queues", ()):  # where torch was interrupted in ending them: else their threads stay
        queue.cancel_join_thread()
        queue.close()
    deadline = time.monotonic() + END_S
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()) if iterator is not None else 0.0)
        if worker.is_alive():
            worker.terminate()
            worker.join(0.5)
        if worker.is_alive():
            worker.kill()
            worker.join()
    for worker in workers:
        _remove_memory(worker.pid)


def _remove_memory(pid: int) -> None:
    """Remove files in /dev/shm that an ended worker made and this process has not fetched: queued batches under torch's sharing strategy
    ``file_system``, and files of a worker killed before it removed the name. Fetched ones are mapped, and torch removes them."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        mapped = file.read()
    for path in glob.glob(f"/dev/shm/torch_{pid}_*"):
        if path not in mapped:
            with suppress(OSError):
                os.unlink(path)


def passing_s(batch: Any) -> tuple[float, float]:
    """CPU seconds that a worker takes to pass a batch like this on, and the consumer to fetch it: shared memory is filled and freed here.

    Batches that are large, or have no room in /dev/shm, pass for nothing.
    """
    tensors = list(_tensors(batch, sys.modules["torch"]))
    size = sum(tensor.nbytes for tensor in tensors)
    room = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    if room is None or size > min(_MOST_SHARED, room.f_bavail * room.f_frsize // 4):
        return 0.0, 0.0
    filled, freed = [], []
    for _ in range(3):  # the quickest: what comes first, and what comes between, is not the batch's
        copies = [tensor.clone() for tensor in tensors]
        began = time.thread_time()
        for tensor in copies:
            tensor.share_memory_()
        filled.append(time.thread_time() - began)
        began = time.thread_time()
        copies.clear()
        tensor = None
        freed.append(time.thread_time() - began)
    return SEND_S + min(filled) + min(freed), RECEIVE_S + min(freed)


def _tensors(batch: Any, torch: Any) -> Iterator[Any]:
    """The dense tensors of a batch, however it is nested."""
    if isinstance(batch, torch.Tensor):
        if batch.layout == torch.strided and batch.device.type == "cpu":
            yield batch
    elif isinstance(batch, (list, tuple, dict)):
        for item in batch.values() if isinstance(batch, dict) else batch:
            yield from _tensors(item, torch)


def said(error: BaseException) -> str:
    """A line about an error: the last line of the worker's traceback that torch puts into it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    told = lines[-1] if lines and "Traceback" in str(error) else one_line(str(error))
    kind = type(error).__name__
    return one_line(told if told.startswith(kind) else f"{kind}: {told}" if told else kind)[:300]
