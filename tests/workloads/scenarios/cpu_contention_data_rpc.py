"""A data service on the same host sends batches to a trainer in C over TCP, until a colleague's Spark executors take the CPUs.

Truth: the GPU starves (input-bound) because `batch_service`, one thread that needs 12 ms of CPU for a batch of 17 ms on the GPU, has to
share the CPUs with four executors, `java`, each a session of its own with as many busy threads as there are CPUs, and gets a third of a CPU
or less (cpu-contention). The trainer `efficientdet` sleeps: its receiving thread in recv(2), its main thread for a batch. The service's own
work is what it was. Victims are `batch_service` and `efficientdet`, the culprits are the four `java`. Lost: more than half of the GPU's
time. Fewer executors, or a lower priority for them, would fix it; a faster network would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from tests.workloads import native
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_HOG, _EXECUTORS = "java", 4
_BATCH = """
#include "tcp.h"
enum { BATCH = 384 << 10 };
"""
_BATCH_SERVICE = (
    _BATCH
    + """
int main(void) {
    int listener = tcp_listening("batches"), trainer = tcp_accepted(listener), asked;
    char *batch = calloc(BATCH, 1);
    end_with_parent();
    while (read_all(trainer, &asked, sizeof asked)) {
        burn_ms(12);
        memset(batch, asked, 4096);
        if (!write_all(trainer, batch, BATCH)) return 1;
    }
    return 0;
}
"""
)
_EFFICIENTDET = (
    _BATCH
    + """
QUEUE(spare, 4);
QUEUE(received, 2);

static void *receive(void *unused) {
    int service = tcp_connected_to("batches"), asked = 0;
    name_thread("batch_client");
    require(write_all(service, &asked, sizeof asked), "ask");  /* one ahead */
    for (;; asked++) {
        void *batch = get(&spare);
        require(write_all(service, &asked, sizeof asked) && read_all(service, batch, BATCH), "service");
        put(&received, batch);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 1200 << 20);
    for (int i = 0; i < 4; i++) put(&spare, pinned(BATCH));
    run_thread(receive, NULL);
    for (;;) {
        void *batch = get(&received);
        gpu_copy(batch, BATCH, TO_DEVICE);
        for (int layer = 0; layer < 5; layer++) gpu_launch(3.4);
        gpu_wait();
        put(&spare, batch);
        step();
    }
}
"""
)


def train(_trainer: Trainer) -> None:
    native.start("batch_service --listen 127.0.0.1 --pipeline coco", start_new_session=True)
    native.become("efficientdet --data-service 127.0.0.1")


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(_EXECUTORS):
            stack.enter_context(hogs(running, {_HOG: cpus()}))
        yield


prepare = partial(native.built, batch_service=_BATCH_SERVICE, efficientdet=_EFFICIENTDET)
SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset({_HOG})), train, disturb, prepare, needs=native.missing)
