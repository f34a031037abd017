"""`llama-server` of llama.cpp in C: one native process, threads for HTTP, the main thread loads the model and then computes for all slots.

It listens from its start on, and answers 503 until the model is loaded. Requests for which no slot is free are deferred. With `--metrics`
it counts as llama.cpp does.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.workloads import native, serving
from tests.workloads.runner import Running

_SERVER = r"""
#include "tcp.h"
enum { MOST = 16 };
struct request { int client, prompt, left, made; struct request *next; };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER, came = PTHREAD_COND_INITIALIZER;
static struct request *slots[MOST], *first, **last = &first;
static int parallel, deferred, processing, loaded;
static long prompt_tokens, predicted, decodes, busy_slots;
static double prompt_s, predict_s;

static const char *flag(int argc, char **argv, const char *name) {
    for (int i = 1; i + 1 < argc; i++) if (!strcmp(argv[i], name)) return argv[i + 1];
    return "0";
}

/* Pieces of words, greedy, each looked up by its hash. */
static int tokenize(const char *text) {
    static uint32_t vocabulary[1 << 16];
    int count = 0;
    for (const char *at = text; *at; count++) {
        uint32_t hash = 2166136261u;
        int length = 0, found = 1;
        for (; at[length] && length < 12; length++) {
            hash = (hash ^ (unsigned char)at[length]) * 16777619u;
            if (vocabulary[hash >> 16] != hash) vocabulary[hash >> 16] = hash;
            else found = length + 1;
            if (length && at[length] == ' ') break;
        }
        at += found < 4 && length >= 4 ? 4 : found;
        if (at > text + strlen(text)) break;
    }
    return count;
}

static void respond(int client, const char *status, const char *type, const char *body) {
    char head[256];
    static const char format[] = "HTTP/1.1 %s\r\nServer: llama.cpp\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n";
    int length = snprintf(head, sizeof head, format, status, type, strlen(body));
    if (write_all(client, head, (size_t)length)) write_all(client, body, strlen(body));
}

static void metrics(int client) {
    char body[2048];
    pthread_mutex_lock(&lock);
    double busy = (double)busy_slots / (double)(decodes + !decodes);
    snprintf(body, sizeof body,
             "# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total %ld\n"
             "# TYPE llamacpp:prompt_seconds_total counter\nllamacpp:prompt_seconds_total %.3f\n"
             "# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total %ld\n"
             "# TYPE llamacpp:tokens_predicted_seconds_total counter\nllamacpp:tokens_predicted_seconds_total %.3f\n"
             "# TYPE llamacpp:n_decode_total counter\nllamacpp:n_decode_total %ld\n"
             "# TYPE llamacpp:n_busy_slots_per_decode gauge\nllamacpp:n_busy_slots_per_decode %.3f\n"
             "# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing %d\n"
             "# TYPE llamacpp:requests_deferred gauge\nllamacpp:requests_deferred %d\n",
             prompt_tokens, prompt_s, predicted, predict_s, decodes, busy, processing, deferred);
    pthread_mutex_unlock(&lock);
    respond(client, "200 OK", "text/plain; version=0.0.4", body);
}

static void complete(int client, char *body) {
    static const char head[] = "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    static const char piece[] = "data: {\"index\":0,\"content\":\" word\",\"stop\":false}\n\n";
    char *most = strstr(body, "\"max_tokens\": ");
    struct request request = {.client = client, .prompt = tokenize(body), .left = most ? atoi(most + 14) : 16};
    if (!write_all(client, head, sizeof head - 1)) return;
    pthread_mutex_lock(&lock);
    *last = &request, last = &request.next, deferred++;
    pthread_cond_signal(&came);
    for (int sent = 0, alive = 1; request.left || sent < request.made;) {
        while (sent == request.made) pthread_cond_wait(&changed, &lock);
        int ready = request.made;
        pthread_mutex_unlock(&lock);
        for (; sent < ready; sent++) alive = alive && write_all(client, piece, sizeof piece - 1);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
}

static void *serve(void *argument) {
    int client = (int)(intptr_t)argument;
    size_t room = 1 << 20, have = 0;
    char *text = calloc(1, room + 1), *end = NULL;
    name_thread("llama-server");
    while (!end && have < room) {
        ssize_t n = read(client, text + have, room - have);
        if (n <= 0) break;
        have += (size_t)n, text[have] = 0;
        end = strstr(text, "\r\n\r\n");
    }
    if (end) {
        char *length = strcasestr(text, "content-length:");
        size_t whole = (size_t)(end + 4 - text) + (length && length < end ? (size_t)atol(length + 15) : 0);
        if (whole <= room && have < whole && !read_all(client, text + have, whole - have)) whole = 0;
        if (!loaded)
            respond(client, "503 Service Unavailable", "application/json",
                    "{\"error\":{\"message\":\"Loading model\",\"type\":\"unavailable_error\",\"code\":503}}");
        else if (!strncmp(text, "GET /metrics", 12)) metrics(client);
        else if (!strncmp(text, "POST", 4)) complete(client, end + 4);
        else respond(client, "200 OK", "application/json", "{\"status\":\"ok\"}");
    }
    free(text);
    close(client);
    return NULL;
}

static void *listening(void *argument) {
    int listener = (int)(intptr_t)argument;
    for (;;) run_thread(serve, (void *)(intptr_t)tcp_accepted(listener));
    return NULL;
}

static void load(const char *model, size_t bytes) {
    enum { PIECE = 1 << 20 };
    int file = open(model, O_RDONLY);
    char *piece = pinned(PIECE);
    require(file >= 0, model);
    for (size_t at = 0; at < bytes && read_all(file, piece, PIECE); at += PIECE) gpu_copy(piece, PIECE, TO_DEVICE);
    gpu_wait();
    close(file);
}

int main(int argc, char **argv) {
    double pass_ms = atof(getenv("PASS_MS"));
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    address.sin_port = htons((unsigned short)atoi(flag(argc, argv, "--port")));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    require(!bind(listener, (struct sockaddr *)&address, sizeof address) && !listen(listener, 128), "listen");
    signal(SIGPIPE, SIG_IGN);
    parallel = atoi(flag(argc, argv, "-np"));
    run_thread(listening, (void *)(intptr_t)listener);
    gpu_open(0, 2000u << 20);
    if (getenv("MODEL_BYTES")) puts("ready"), fflush(stdout), load(in_folder("samples"), (size_t)atol(getenv("MODEL_BYTES")));
    for (loaded = 1;;) {
        int prompts = 0;
        pthread_mutex_lock(&lock);
        for (processing = 0;;) {
            for (int i = 0; i < parallel; i++) {
                if (!slots[i] && first) {
                    slots[i] = first, deferred--, prompts += first->prompt;
                    if (!(first = first->next)) last = &first;
                }
                processing += slots[i] != NULL;
            }
            if (processing) break;
            pthread_cond_wait(&came, &lock);
        }
        pthread_mutex_unlock(&lock);
        double began = now_s();
        for (int layer = 0; layer < 8; layer++) gpu_launch((pass_ms + prompts / 100.0) / 8);
        gpu_wait();
        burn_ms(0.5);  /* samplers */
        pthread_mutex_lock(&lock);
        prompt_tokens += prompts, decodes++, busy_slots += processing, predicted += processing;
        *(prompts ? &prompt_s : &predict_s) += now_s() - began;
        for (int i = 0; i < parallel; i++) {
            if (!slots[i]) continue;
            slots[i]->made++;
            if (!--slots[i]->left) slots[i] = NULL;
        }
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        step();
    }
}
"""


def built(running: Running) -> AbstractContextManager[None]:
    """The program, in the workload's folder."""
    return native.built(running, **{"llama-server": _SERVER})


def command(*flags: str, port: str = "") -> str:
    """How it is started, by the process that it replaces, or beside at a ``port``."""
    return " ".join(("llama-server -m /models/Qwen3-8B-Q4_K_M.gguf -ngl 99 --metrics --port", port or str(serving.port()), *flags))
