"""A genome aligner in C: four threads seed reads for the GPU from one hash table; the table begins to be kept up under its one mutex.

Truth: the GPU starves (input-bound) because from some moment on the four seeding threads of `gpu_aligner` do all of a chunk's work with the
table's mutex held (lock-contention): the work is the same 13 ms of CPU as before, but three of them wait in futex(2) while one works, and
one CPU idles. The victim is `gpu_aligner`, nobody else takes part. Lost: 0.4 of the GPU's time. A table that is split, or read without a
lock, would fix it; more threads would not.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario, cpus

_ALIGNER = """
enum { CHUNK = 128 << 10, THREADS = 4, CHUNKS = 3 };
QUEUE(spare, 10);
QUEUE(seeded, 4);
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;

static void *seed(void *unused) {
    name_thread("seeding");
    for (;;) {
        void *chunk = get(&spare);
        int all = raised("learn");
        burn_ms(all ? 0.5 : 12.5);
        pthread_mutex_lock(&table);
        burn_ms(all ? 12.5 : 0.5);
        pthread_mutex_unlock(&table);
        put(&seeded, chunk);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 3500u << 20);
    for (int i = 0; i < 10; i++) put(&spare, pinned(CHUNK));
    for (int i = 0; i < THREADS; i++) run_thread(seed, NULL);
    for (;;) {
        for (int i = 0; i < CHUNKS; i++) {
            void *chunk = get(&seeded);
            gpu_copy(chunk, CHUNK, TO_DEVICE);
            gpu_launch(8);
            gpu_wait();
            put(&spare, chunk);
        }
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("gpu_aligner mem -t 4 GRCh38.fa HG002_R1.fastq.gz HG002_R2.fastq.gz")


disturb, prepare = partial(native.flag, name="learn"), partial(native.built, gpu_aligner=_ALIGNER)
_NEEDS_TWO = "two CPUs are needed: on one it makes no difference"
SCENARIO = Scenario(
    Label("input-bound", "lock-contention"), train, disturb, prepare, needs=lambda: native.missing() or ("" if cpus() > 1 else _NEEDS_TWO)
)
