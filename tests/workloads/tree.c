/* A tree of idle processes under whatever name it is compiled to: NAME SECONDS WIDE DEEP THREADS [COMM]. The first has WIDE children, each of
 * THREADS threads; below the last of them, each is the child of the one before, stand DEEP more. COMM is what all but the first are called.
 * Prints "up" when all are there. Ends by itself after SECONDS, or with its parent. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static void *rest(void *unused) {
    (void)unused;
    for (;;) pause();
    return NULL;
}

static void live(int seconds, int threads, const char *comm) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm((unsigned)seconds);
    if (comm) prctl(PR_SET_NAME, comm);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 16384);
    for (int i = 1; i < threads; i++) {
        pthread_t thread;
        pthread_create(&thread, &small, rest, NULL);
    }
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    int seconds = atoi(argv[1]), wide = atoi(argv[2]), deep = atoi(argv[3]), threads = atoi(argv[4]);
    const char *comm = argc > 5 ? argv[5] : NULL;
    int up[2];
    char byte = 0;
    if (pipe(up)) return 1;
    live(seconds, 1, NULL);
    for (int i = 0; i < wide; i++) {
        if (fork()) continue;
        live(seconds, threads, comm);
        for (int level = 0; i == wide - 1 && level < deep; level++) {
            if (fork()) break;
            live(seconds, 1, comm);
            if (level == deep - 1 && write(up[1], &byte, 1) != 1) return 1;
        }
        if (!(i == wide - 1 && deep) && write(up[1], &byte, 1) != 1) return 1;
        rest(NULL);
    }
    for (int i = 0; i < wide; i++)
        if (read(up[0], &byte, 1) != 1) return 1;
    puts("up");
    fflush(stdout);
    rest(NULL);
    return 0;
}
