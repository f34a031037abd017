"""A pipeline of one native process, as GStreamer runs it: a thread for each element, a small queue between two of them.

Truth: healthy. The demuxer reads a file from the page cache, the decoder takes 7 ms of a CPU for a frame and the encoder 6 ms, each in its
own thread; the GPU's filter takes 30 ms and its thread waits for nothing else (lost: 0.03). Queues before it are full, queues behind it are
empty. Nobody is a victim or to blame; only a faster GPU would make it faster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_PACKETS, _PACKET_BYTES = 128, 60_000
_GST_LAUNCH = """
enum { PACKET = 60000, FRAME = 640 * 360 * 3 / 2, FRAMES = 12 };
QUEUE(spare, FRAMES);
QUEUE(packets, 4);
QUEUE(decoded, 3);
QUEUE(filtered, 3);

static void *demux(void *unused) {
    int file = open(in_folder("in.mkv"), O_RDONLY);
    name_thread("qtdemux0:sink");
    for (;;) {
        void *frame = get(&spare);
        if (!read_all(file, frame, PACKET)) {
            lseek(file, 0, SEEK_SET);
            read_all(file, frame, PACKET);
        }
        put(&packets, frame);
    }
    return unused;
}

static void *decode(void *unused) {
    name_thread("avdec_h264-0:s");
    for (;;) {
        void *frame = get(&packets);
        burn_ms(7);
        put(&decoded, frame);
    }
    return unused;
}

static void *encode(void *unused) {
    int out = open("/dev/null", O_WRONLY);
    name_thread("queue2:src");
    for (;;) {
        void *frame = get(&filtered);
        burn_ms(6);
        write_all(out, frame, PACKET);
        put(&spare, frame);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 800 << 20);
    for (int i = 0; i < FRAMES; i++) put(&spare, pinned(FRAME));
    run_thread(demux, NULL);
    run_thread(decode, NULL);
    run_thread(encode, NULL);
    name_thread("queue1:src");
    for (;;) {
        void *frame = get(&decoded);
        gpu_copy(frame, FRAME, TO_DEVICE);
        for (int pass = 0; pass < 3; pass++) gpu_launch(10);
        gpu_copy(frame, FRAME, TO_HOST);
        gpu_wait();
        put(&filtered, frame);
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("gst-launch filesrc location=in.mkv ! qtdemux ! avdec_h264 ! queue ! cudafilter ! queue ! x264enc ! fakesink")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    (running.folder / "in.mkv").write_bytes(os.urandom(_PACKET_BYTES) * _PACKETS)
    with native.built(running, **{"gst-launch": _GST_LAUNCH}):
        yield


SCENARIO = Scenario(HEALTHY, train, prepare=prepare, needs=native.missing)
