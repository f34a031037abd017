/* Burns CPU under whatever name it is compiled to: NAME SECONDS THREADS [DUTY_PCT [PERIOD_MS]]. Ends by itself (SECONDS may be 0.3), or with its parent. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long duty = 100, period_ms = 50;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *burn(void *unused) {
    (void)unused;
    for (volatile unsigned long work = 0;;) {
        double until = now() + (double)(duty * period_ms) / 1e5;
        while (now() < until)
            for (int i = 0; i < 10000; i++) work += (unsigned long)i;
        if (duty < 100) usleep((useconds_t)(10 * period_ms * (100 - duty)));
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    double seconds = atof(argv[1]);
    struct itimerval end = {.it_value = {(time_t)seconds, (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)}};
    setitimer(ITIMER_REAL, &end, NULL);
    if (argc > 3) duty = atol(argv[3]);
    if (argc > 4) period_ms = atol(argv[4]);
    for (int i = 1; i < atoi(argv[2]); i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, burn, NULL);
    }
    burn(NULL);
    return 0;
}
