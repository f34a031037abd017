"""An embedding server in C++ style, a thread for each connection and one for the GPU; a crawler sends twelve pages at once, now and then.

Truth: idle, none. A burst of twelve is worked on without a gap and answered at once; the GPU then has nothing until the crawler has the
next pages, over a second later. Connection threads sleep in read(2) at the crawler's sockets. The GPU works a sixth of the time, nothing is
lost, and nobody is a victim or to blame.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_PAGE = "enum { PAGES = 12, PAGE = 6000, VECTOR = 4096 };"
_TRITONSERVER = (
    _PAGE
    + """
struct request { int client; sem_t done; char page[PAGE]; };
QUEUE(asked, 32);

static void *serve(void *connection) {
    struct request *request = connection;
    char vector[VECTOR] = {0};
    name_thread("grpc_worker");
    while (read_all(request->client, request->page, PAGE)) {
        burn_ms(0.4);  /* word pieces */
        put(&asked, request);
        sem_wait(&request->done);
        if (!write_all(request->client, vector, VECTOR)) break;
    }
    return NULL;
}

static void *accept_all(void *unused) {
    int listener = bound_at("grpc.sock", SOCK_STREAM);
    name_thread("grpc_accept");
    for (;;) {
        struct request *request = calloc(1, sizeof *request);
        request->client = accept(listener, NULL, NULL);
        sem_init(&request->done, 0, 0);
        run_thread(serve, request);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 900 << 20);
    char *ids = pinned(PAGE);
    run_thread(accept_all, NULL);
    for (;;) {
        struct request *request = get(&asked);
        memcpy(ids, request->page, PAGE);
        gpu_copy(ids, PAGE, TO_DEVICE);
        for (int layer = 0; layer < 6; layer++) gpu_launch(3);
        gpu_copy(ids, VECTOR, TO_HOST);
        gpu_wait();
        sem_post(&request->done);
        step();
    }
}
"""
)
_CRAWLER = (
    _PAGE
    + """
int main(void) {
    int servers[PAGES];
    char page[PAGE], vector[VECTOR];
    end_with_parent();
    for (int i = 0; i < PAGES; i++) servers[i] = connected_to("grpc.sock", SOCK_STREAM);
    memset(page, 'x', sizeof page);
    for (;;) {
        for (int i = 0; i < PAGES; i++) write_all(servers[i], page, PAGE);
        for (int i = 0; i < PAGES; i++) if (!read_all(servers[i], vector, VECTOR)) return 0;
        sleep_ms(1100);
    }
}
"""
)


def train(_trainer: Trainer) -> None:
    native.start("crawler --seed https://example.org --batch 12")
    native.become("tritonserver --model-repository=/models --backend-config=tensorrt,coalesce=1")


prepare = partial(native.built, tritonserver=_TRITONSERVER, crawler=_CRAWLER)
SCENARIO = Scenario(Label("idle", "none"), train, prepare=prepare, needs=native.missing)
