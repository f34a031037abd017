"""A transcoder in C reads an intra-coded master (every frame a megabyte) from a volume whose bandwidth drops.

A thread demultiplexes into a queue of three frames, the main thread has the GPU decode and scale them.
Truth: the GPU starves (input-bound) because the demultiplexer waits in read(2) for the volume (disk-io); the victim is `transcode` itself,
nobody else is to blame, and a faster volume or a local copy of the master would fix it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from tests.workloads import native, slow_disk
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_SLOW_BYTES_PER_S = 6 << 20
_TRANSCODE = """
enum { FRAME = 1 << 20, FRAMES = 192, ROOM = 3 };
QUEUE(spare, ROOM);
QUEUE(filled, ROOM);

static void *demux(void *unused) {
    int file = open(in_folder("samples"), O_RDONLY);
    name_thread("dmx0:mov");
    for (off_t number = 0;; number = (number + 1) % FRAMES) {
        void *frame = get(&spare);
        lseek(file, number * FRAME, SEEK_SET);
        require(read_all(file, frame, FRAME), "read");
        posix_fadvise(file, number * FRAME, FRAME, POSIX_FADV_DONTNEED);  /* masters are larger than memory */
        put(&filled, frame);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 900 << 20);
    for (int i = 0; i < ROOM; i++) put(&spare, pinned(FRAME));
    run_thread(demux, NULL);
    for (;;) {
        void *frame = get(&filled);
        gpu_copy(frame, FRAME, TO_DEVICE);
        gpu_launch(42);
        gpu_wait();
        put(&spare, frame);
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("transcode -i master.mov -vf scale_cuda=1920:1080 -c:v h264_nvenc proxy.mp4")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with native.built(running, transcode=_TRANSCODE), slow_disk.file(running):
        yield


def disturb(running: Running) -> AbstractContextManager[None]:
    return slow_disk.throttle(running, bytes_per_s=_SLOW_BYTES_PER_S)


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, disturb, prepare, needs=lambda: native.missing() or slow_disk.missing())
