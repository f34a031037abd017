/* A tree of idle processes under whatever name it is compiled to: NAME SECONDS WIDE DEEP THREADS COMM. The first has WIDE children, each of
 * THREADS threads; below the last of them, each the child of the one before, stand DEEP more, in each of which it runs anew: forks of forks
 * of forks get slower and slower. COMM is what all but the first are called. Prints "up" when all are there. Ends by itself after SECONDS,
 * or with its parent. */
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

static int told[2];

static void tell(void) {
    char byte = 0;
    if (write(told[1], &byte, 1) != 1) _exit(1);
}

/* NAME SECONDS COMM WRITE_END LEVELS */
static void nest(char **argv) {
    int seconds = atoi(argv[1]), levels = atoi(argv[4]);
    told[1] = atoi(argv[3]);
    live(seconds, 1, argv[2]);
    if (levels == 0) tell();
    if (levels > 0 && fork() == 0) {
        char left[16];
        snprintf(left, sizeof left, "%d", levels - 1);
        argv[4] = left;
        execv("/proc/self/exe", argv);
        _exit(1);
    }
    rest(NULL);
}

int main(int argc, char **argv) {
    if (argc == 5) nest(argv);
    if (argc != 6) return 2;
    int seconds = atoi(argv[1]), wide = atoi(argv[2]), deep = atoi(argv[3]), threads = atoi(argv[4]);
    if (pipe(told)) return 1;
    live(seconds, 1, NULL);
    for (int i = 0; i < wide; i++) {
        if (fork()) continue;
        live(seconds, threads, argv[5]);
        int nests = i == wide - 1 && deep > 0;
        if (!nests) tell();
        if (nests && fork() == 0) {
            char end[16], levels[16];
            snprintf(end, sizeof end, "%d", told[1]);
            snprintf(levels, sizeof levels, "%d", deep - 1);
            execl("/proc/self/exe", argv[0], argv[1], argv[5], end, levels, (char *)NULL);
            _exit(1);
        }
        rest(NULL);
    }
    char byte;
    for (int i = 0; i < wide; i++)
        if (read(told[0], &byte, 1) != 1) return 1;
    puts("up");
    fflush(stdout);
    rest(NULL);
    return 0;
}
