// Locks of glibc with a known holder: `lockers KIND WHERE HOLDS`. Prints the ids of the holder and of the sleeper once both are at it.
// KIND: normal recursive errorcheck adaptive robust pi robust-pi writer-read writer-write reader-write semaphore condition
// WHERE: thread (in own memory) process (a child, in memory of both) helper (a thread of a child). HOLDS: asleep busy
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

struct lock {
    pthread_mutex_t mutex;
    pthread_rwlock_t rwlock;
    pthread_cond_t condition;
    sem_t semaphore;
    volatile int holder;
};
static struct lock *lock;
static const char *kind;
static int busy;

static int is(const char *one) { return !strcmp(kind, one); }

static void take(int holds) {
    if (is("writer-read") || is("writer-write") || is("reader-write")) {
        int reads = holds ? is("reader-write") : is("writer-read");
        reads ? pthread_rwlock_rdlock(&lock->rwlock) : pthread_rwlock_wrlock(&lock->rwlock);
    } else if (is("semaphore")) {
        sem_wait(&lock->semaphore);
    } else {
        pthread_mutex_lock(&lock->mutex);
        if (is("condition") && !holds) pthread_cond_wait(&lock->condition, &lock->mutex);
        if (is("condition") && holds) pthread_mutex_unlock(&lock->mutex);
    }
}

static void *hold(void *none) {
    take(1);
    lock->holder = gettid();
    while (busy) {}
    for (;;) pause();
    return none;
}

int main(int argc, char **argv) {
    kind = argv[1], busy = !strcmp(argv[3], "busy");
    int shared = strcmp(argv[2], "thread") != 0;
    lock = mmap(NULL, sizeof *lock, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | (shared ? MAP_SHARED : MAP_PRIVATE), -1, 0);
    pthread_mutexattr_t mutex;
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, shared);
    if (is("recursive")) pthread_mutexattr_settype(&mutex, PTHREAD_MUTEX_RECURSIVE);
    if (is("errorcheck")) pthread_mutexattr_settype(&mutex, PTHREAD_MUTEX_ERRORCHECK);
    if (is("adaptive")) pthread_mutexattr_settype(&mutex, PTHREAD_MUTEX_ADAPTIVE_NP);
    if (is("robust") || is("robust-pi")) pthread_mutexattr_setrobust(&mutex, PTHREAD_MUTEX_ROBUST);
    if (is("pi") || is("robust-pi")) pthread_mutexattr_setprotocol(&mutex, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&lock->mutex, &mutex);
    pthread_rwlockattr_t rwlock;
    pthread_rwlockattr_init(&rwlock);
    pthread_rwlockattr_setpshared(&rwlock, shared);
    pthread_rwlock_init(&lock->rwlock, &rwlock);
    pthread_condattr_t condition;
    pthread_condattr_init(&condition);
    pthread_condattr_setpshared(&condition, shared);
    pthread_cond_init(&lock->condition, &condition);
    sem_init(&lock->semaphore, shared, 1);
    pthread_t thread;
    int child = shared ? fork() : 0;
    if (!shared || (!child && !strcmp(argv[2], "helper"))) pthread_create(&thread, NULL, hold, NULL);
    if (shared && !child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!strcmp(argv[2], "process")) hold(NULL);
        for (;;) pause();
    }
    while (!lock->holder) usleep(1000);
    printf("%d %d %d\n", shared ? child : getpid(), lock->holder, getpid()), fflush(stdout);
    take(0);
    return argc;
}
