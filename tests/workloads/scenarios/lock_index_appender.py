"""Two jobs of a search team share an index by flock(2): one embeds and appends, the other one compacts and from some moment on mirrors.

Truth: the GPU has nothing to do most of the time (wait-heavy) because `index_compact`, another job, keeps the index's file lock while its
mirror confirms, 90 of each 94 ms, asleep (lock-contention). The main thread of `embed_append` waits in flock(2); its own part under the
lock takes a fraction of a millisecond. CPUs and disk idle. The victim is `embed_append`, the culprit `index_compact`. Lost: 0.7 of the
GPU's time. A mirror fed from a copy, or an append queue, would fix it; a faster disk or a larger batch of the embedder would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_CULPRIT = "index_compact"
_INDEX = """
#include <sys/file.h>
enum { VECTORS = 64 << 10, SEGMENTS = 64 };
"""
_EMBED_APPEND = (
    _INDEX
    + """
int main(void) {
    int lock = open(in_folder("index.lock"), O_RDWR | O_CREAT, 0600), index = open(in_folder("index.bin"), O_RDWR | O_CREAT, 0600);
    gpu_open(0, 1400 << 20);
    char *vectors = pinned(VECTORS);
    for (long batch = 0;; batch++) {
        burn_ms(1);
        for (int layer = 0; layer < 6; layer++) gpu_launch(4);
        gpu_copy(vectors, VECTORS, TO_HOST);
        gpu_wait();
        require(!flock(lock, LOCK_EX), "flock");
        require(pwrite(index, vectors, VECTORS, batch % SEGMENTS * VECTORS) == VECTORS, "index.bin");
        flock(lock, LOCK_UN);
        step();
    }
}
"""
)
_COMPACT = (
    _INDEX
    + """
int main(void) {
    int lock = open(in_folder("index.lock"), O_RDWR | O_CREAT, 0600);
    end_with_parent();
    for (;;) {
        require(!flock(lock, LOCK_EX), "flock");
        burn_ms(0.3);
        if (raised("mirror")) sleep_ms(90);
        flock(lock, LOCK_UN);
        sleep_ms(4);
    }
}
"""
)


def train(_trainer: Trainer) -> None:
    native.become("embed_append --model e5-large --index /srv/index")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    compactor = f"{_CULPRIT} --index /srv/index --mirror s3://index"
    with native.built(running, embed_append=_EMBED_APPEND, index_compact=_COMPACT), native.beside(running, compactor):
        yield


disturb = partial(native.blamed, name=_CULPRIT, raised="mirror")
SCENARIO = Scenario(Label("wait-heavy", "lock-contention", frozenset({_CULPRIT})), train, disturb, prepare, needs=native.missing)
