"""Retrieval in C: an index mapped from a file and a reranker on the GPU, in a container whose limit the program's own sessions use up.

Truth: the GPU starves (input-bound) because the sessions that `rag_server` keeps, 560 MB from some moment on, leave the page cache of its
container hardly any of the 600 MB (memory-pressure): pages of the mapped index (192 MB, all of it cached before) are dropped and read
again, and both searching threads wait for major faults. The disk is as fast as ever, no other process takes part. The victim is
`rag_server`, nobody else is to blame. A larger limit, or sessions that end, would fix it; more searching threads or a faster reranker would
not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.workloads import cgroup, native, tight_memory
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_LIMIT_BYTES = 600 << 20
_RAG_SERVER = """
enum { INDEX = 192 << 20, PAGE = 4096, PROBES = 2500, SEARCHERS = 2, PASSAGES = 256 << 10, SESSION = 8 << 20, SESSIONS = 70 };
QUEUE(spare, 5);
QUEUE(found, 2);
static const unsigned char *vectors;

static void *search(void *seed) {
    unsigned random = (unsigned)(uintptr_t)seed;
    name_thread("ivf_search");
    for (;;) {
        unsigned char *passages = get(&spare);
        for (int probe = 0; probe < PROBES; probe++) passages[probe] = vectors[(size_t)(rand_r(&random) % (INDEX / PAGE)) * PAGE];
        burn_ms(3);
        put(&found, passages);
    }
    return NULL;
}

static void *keep_sessions(void *unused) {
    name_thread("sessions");
    while (!raised("users")) sleep_ms(50);
    for (int session = 0; session < SESSIONS; session++) {
        memset(malloc(SESSION), 1 + session, SESSION);
        sleep_ms(5);
    }
    return unused;
}

int main(void) {
    int file = open(in_folder("samples"), O_RDONLY);
    vectors = mmap(NULL, INDEX, PROT_READ, MAP_SHARED, file, 0);
    require(vectors != MAP_FAILED, "mmap");
    madvise((void *)vectors, INDEX, MADV_RANDOM);
    char *block = malloc(1 << 20);
    while (read(file, block, 1 << 20) > 0) {}  /* once through, so that all of it is cached */
    gpu_open(0, 1300 << 20);
    for (int i = 0; i < 5; i++) put(&spare, pinned(PASSAGES));
    for (int i = 0; i < SEARCHERS; i++) run_thread(search, (void *)(uintptr_t)(i + 1));
    run_thread(keep_sessions, NULL);
    for (;;) {
        void *passages = get(&found);
        gpu_copy(passages, PASSAGES, TO_DEVICE);
        for (int layer = 0; layer < 6; layer++) gpu_launch(4);
        gpu_wait();
        put(&spare, passages);
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("rag_server --index passages.ivf --reranker bge-large --port 8080")


@contextmanager
def container(running: Running) -> Iterator[None]:
    with tight_memory.group(running), native.built(running, rag_server=_RAG_SERVER):
        path = Path(running.env["GPUTOP_WORKLOAD_CGROUP"])
        cgroup.limit_memory(path, _LIMIT_BYTES)
        yield
        cgroup.limit_memory(path, 1 << 40)


def missing() -> str:
    return native.missing() or tight_memory.missing()


disturb = partial(native.flag, name="users")
SCENARIO = Scenario(Label("input-bound", "memory-pressure"), train, disturb, container, needs=missing)
