"""A recommender in C pulls its embeddings from a parameter server over TCP, whose maintenance thread takes the table's mutex, too.

Truth: the GPU has nothing to do most of the time (input-bound) because the thread `ps_snapshot` of `ps_shard`, from some moment on, ships
what has changed to a replica and waits for its answer with the mutex held, 90 of each 96 ms, most of it asleep (lock-contention). The
threads of `ps_shard` that answer pulls wait for the mutex in futex(2); both pulling threads of `ctr_worker` wait for them in recv(2), its
main thread for a batch. CPUs and network are free. The victim is `ctr_worker`; that who holds the lock is a thread of the server itself
leaves nobody to blame. Lost: 0.7 of the GPU's time. A snapshot that copies under the mutex and ships without it would fix it; more pulling
threads, a nearer server or a faster network would not.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_PULL = """
#include "tcp.h"
enum { TABLES = 8, ROWS = 24 << 10, PULLERS = 2 };
"""
_PS_SHARD = (
    _PULL
    + """
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static char rows[ROWS];

static void *answer(void *client) {
    int fd = (int)(intptr_t)client, number;
    name_thread("ps_pull");
    while (read_all(fd, &number, sizeof number)) {
        pthread_mutex_lock(&table);
        burn_ms(0.5);
        pthread_mutex_unlock(&table);
        if (!write_all(fd, rows, ROWS)) break;
    }
    return NULL;
}

static void *snapshot(void *unused) {
    name_thread("ps_snapshot");
    for (;;) {
        pthread_mutex_lock(&table);
        burn_ms(0.5);
        if (raised("replica")) burn_ms(15), sleep_ms(75);
        pthread_mutex_unlock(&table);
        sleep_ms(6);
    }
    return unused;
}

int main(void) {
    int listener = tcp_listening("ps");
    end_with_parent();
    run_thread(snapshot, NULL);
    for (;;) run_thread(answer, (void *)(intptr_t)tcp_accepted(listener));
}
"""
)
_CTR_WORKER = (
    _PULL
    + """
struct batch { char rows[TABLES][ROWS]; };
QUEUE(spare, 4);
QUEUE(pulled, 2);

static void *pull(void *unused) {
    int server = tcp_connected_to("ps");
    name_thread("ctr_pull");
    for (;;) {
        struct batch *batch = get(&spare);
        for (int number = 0; number < TABLES; number++) {
            require(write_all(server, &number, sizeof number), "write");
            require(read_all(server, batch->rows[number], ROWS), "read");
        }
        put(&pulled, batch);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 900 << 20);
    for (int i = 0; i < 4; i++) put(&spare, pinned(sizeof(struct batch)));
    for (int i = 0; i < PULLERS; i++) run_thread(pull, NULL);
    for (;;) {
        struct batch *batch = get(&pulled);
        gpu_copy(batch, sizeof *batch, TO_DEVICE);
        for (int layer = 0; layer < 6; layer++) gpu_launch(4);
        gpu_wait();
        put(&spare, batch);
        step();
    }
}
"""
)


def train(_trainer: Trainer) -> None:
    native.start("ps_shard --shard 0 --rows 80000000", start_new_session=True)
    native.become("ctr_worker --ps 127.0.0.1 --tables 8")


disturb = partial(native.flag, name="replica")
prepare = partial(native.built, ps_shard=_PS_SHARD, ctr_worker=_CTR_WORKER)
SCENARIO = Scenario(Label("input-bound", "lock-contention"), train, disturb, prepare, needs=native.missing)
