"""A model server in C with two models, each with a thread that batches, under steady load from two gateways; later one asks for more.

Truth: healthy. Both models have requests waiting all the time, and the GPU works for one or the other without a gap. From some moment on
the second gateway sends twice as long requests, 1.2 ms of parsing instead of 0.6, which is done by the threads of its connections long
before the GPU is free. That requests wait for the GPU is what a full server looks like: it is the GPU that is busy. Steps are as long as
ever, nobody is a victim or to blame, and there is nothing to fix.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_WIRE = """
#include "tcp.h"
enum { MODELS = 2, CONNECTIONS = 12, REQUEST = 8 << 10, ANSWER = 1 << 10, MOST = 4 };
"""
_MODEL_SERVER = (
    _WIRE
    + """
struct request { int client; sem_t done; char body[REQUEST]; };
static struct queue asked[MODELS];
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static void *connection(void *client) {
    struct request *request = calloc(1, sizeof *request);
    char answer[ANSWER] = {0};
    request->client = (int)(intptr_t)client;
    sem_init(&request->done, 0, 0);
    name_thread("http_conn");
    while (read_all(request->client, request->body, REQUEST)) {
        burn_ms(request->body[1] ? 1.2 : 0.6);
        put(&asked[(int)request->body[0]], request);
        while (sem_wait(&request->done)) {}
        if (!write_all(request->client, answer, ANSWER)) break;
    }
    return NULL;
}

static void *infer(void *queue) {
    struct request *batch[MOST];
    char *input = pinned(MOST * REQUEST);
    name_thread("model_instance");
    for (;;) {
        for (int i = 0; i < MOST; i++) batch[i] = get(queue);
        gpu_copy(input, MOST * REQUEST, TO_DEVICE);
        for (int layer = 0; layer < 6; layer++) gpu_launch(4);
        gpu_wait();
        for (int i = 0; i < MOST; i++) sem_post(&batch[i]->done);
        pthread_mutex_lock(&counting);
        step();
        pthread_mutex_unlock(&counting);
    }
    return NULL;
}

int main(void) {
    int listener = tcp_listening("http");
    gpu_open(0, 1800 << 20);
    for (int i = 0; i < MODELS; i++) {
        pthread_mutex_init(&asked[i].lock, NULL), pthread_cond_init(&asked[i].changed, NULL);
        asked[i].room = 32;
        run_thread(infer, &asked[i]);
    }
    for (;;) run_thread(connection, (void *)(intptr_t)tcp_accepted(listener));
}
"""
)
_GATEWAY = (
    _WIRE
    + """
static void *ask(void *model) {
    int server = tcp_connected_to("http");
    char request[REQUEST] = {(char)(intptr_t)model}, answer[ANSWER];
    for (;;) {
        request[1] = model && raised("longer");
        if (!write_all(server, request, REQUEST) || !read_all(server, answer, ANSWER)) return NULL;
    }
}

int main(int argc, char **argv) {
    intptr_t model = atoi(argv[argc - 1]);
    end_with_parent();
    for (int i = 1; i < CONNECTIONS; i++) run_thread(ask, (void *)model);
    ask((void *)model);
}
"""
)


def train(_trainer: Trainer) -> None:
    for model in range(2):
        native.start(f"gateway --upstream 127.0.0.1 --model {model}", start_new_session=True)
    native.become("model_server --repository /models --http 8000")


disturb = partial(native.flag, name="longer")
prepare = partial(native.built, model_server=_MODEL_SERVER, gateway=_GATEWAY)
SCENARIO = Scenario(HEALTHY, train, disturb, prepare, needs=native.missing)
