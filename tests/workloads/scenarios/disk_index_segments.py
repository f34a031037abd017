"""Segments of an index are merged on the GPU by a native program whose two threads read them from a volume; its bandwidth is used up.

Truth: the GPU starves (input-bound) because both threads `merge_reader` sleep in pread(2) at the disk (disk-io): the volume gives 8 MB/s
from the onset on, and the GPU merges a segment of 1 MB in 26 ms. What was read is dropped from the page cache, for no segment is read
twice. CPUs idle; the victim is the main thread of `index_merge`, nobody is to blame. Lost: 0.79 of the GPU's time. A faster volume, or
segments compressed on it, would fix it; more threads would not.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from tests.workloads import native, slow_disk
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_BYTES_PER_S = 8 << 20
_INDEX_MERGE = """
enum { SEGMENT = 1 << 20, READERS = 2 };
QUEUE(spare, 6);
QUEUE(segments, 3);
static int volume;
static _Atomic(long) taken;

static void *read_segments(void *unused) {
    off_t end = lseek(volume, 0, SEEK_END);
    name_thread("merge_reader");
    for (;;) {
        off_t at = (off_t)(atomic_fetch_add(&taken, 1) * SEGMENT) % end;
        void *segment = get(&spare);
        require(pread(volume, segment, SEGMENT, at) == SEGMENT, "pread");
        posix_fadvise(volume, at, SEGMENT, POSIX_FADV_DONTNEED);
        put(&segments, segment);
    }
    return unused;
}

int main(void) {
    volume = open(in_folder("samples"), O_RDONLY);
    posix_fadvise(volume, 0, 0, POSIX_FADV_RANDOM);
    gpu_open(0, 1300 << 20);
    for (int i = 0; i < 6; i++) put(&spare, pinned(SEGMENT));
    for (int i = 0; i < READERS; i++) run_thread(read_segments, NULL);
    for (;;) {
        void *segment = get(&segments);
        gpu_copy(segment, SEGMENT, TO_DEVICE);
        for (int pass = 0; pass < 2; pass++) gpu_launch(13);
        gpu_wait();
        put(&spare, segment);
        step();
    }
}
"""


def prepare(running: Running) -> ExitStack:
    stack = ExitStack()
    stack.enter_context(slow_disk.file(running))
    stack.enter_context(native.built(running, index_merge=_INDEX_MERGE))
    return stack


def train(_trainer: Trainer) -> None:
    native.become("index_merge --in segments --threads 2 --out merged.ivf")


def missing() -> str:
    return native.missing() or slow_disk.missing()


disturb = partial(slow_disk.throttle, bytes_per_s=_BYTES_PER_S)
SCENARIO = Scenario(Label("input-bound", "disk-io"), train, disturb, prepare, needs=missing)
