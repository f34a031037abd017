/* A job whose steps are counted, to see what watching costs it: watched LIBCUDA COUNTER PER_S SCENE [FUNCTION…].
 *
 * Scenes: calls (the functions in turn, PER_S calls a second), loop (a step computes 5 ms, makes 20 calls and sleeps 1 ms), pipe and futex
 * (two threads on one CPU wake one another, PER_S switches a second), yield (two threads on one CPU, one of which yields after each turn), ring
 * (16 threads on all CPUs pass a byte on through pipes). Every 4 ms another thread spins for half a millisecond on the same CPU, without any
 * of this, as a measure of the CPU's speed: gputop samples the main thread only. COUNTER is a file for four 64-bit counters: turns, their CPU
 * time in ns, spins, their CPU time in ns.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef int (*call)(void *, const void *, uint64_t, void *);

enum { TURNS, TURNS_NS, SPINS, SPINS_NS, COUNTERS };
static volatile uint64_t *count;
static call calls[16];
static int number;
static uint64_t work;
static int there[2], here[2];
static uint32_t word;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void spin(uint64_t times) {
  for (uint64_t i = 0; i < times; i++)
    __asm__ volatile("" : "+r"(i)); /* in a register: stores would be as fast as the caches let them */
}

static void make_call(uint64_t at) { calls[at % number](0, 0, 0, 0); }

static void one_call(void) {
  make_call(*count);
  spin(work);
  ++*count;
}

static void one_step(void) {
  spin(work);
  for (int i = 0; i < 20; i++)
    make_call(i);
  usleep(1000);
  ++*count;
}

static void pass_pipe(void) {
  char byte = 0;
  spin(work);
  if (write(there[1], &byte, 1) != 1 || read(here[0], &byte, 1) != 1)
    exit(1);
  *count += 2;
}

static void *answer_pipe(void *unused) {
  char byte;
  (void)unused;
  while (read(there[0], &byte, 1) == 1) {
    spin(work);
    if (write(here[1], &byte, 1) != 1)
      exit(1);
  }
  return 0;
}

static void turn_futex(uint32_t mine, uint32_t other) {
  while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) != mine)
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, other, 0, 0, 0);
  spin(work);
  __atomic_store_n(&word, other, __ATOMIC_RELEASE);
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
}

static void pass_futex(void) {
  turn_futex(0, 1);
  *count += 2;
}

static void *__attribute__((noreturn)) answer_futex(void *unused) {
  (void)unused;
  for (;;)
    turn_futex(1, 0);
}

static void yield_once(void) {
  spin(work);
  sched_yield();
  *count += 2;
}

static void *__attribute__((noreturn)) yield_for_ever(void *unused) {
  (void)unused;
  for (;;)
    sched_yield();
}

enum { RING = 16 };
static int ring[RING][2];

static void *__attribute__((noreturn)) pass_on(void *number) {
  char byte;
  for (uint64_t i = (uint64_t)number;;) {
    if (read(ring[i][0], &byte, 1) != 1 || (spin(work), write(ring[(i + 1) % RING][1], &byte, 1)) != 1)
      exit(1);
  }
}

static void go_round(void) {
  char byte = 0;
  spin(work);
  if (write(ring[1][1], &byte, 1) != 1 || read(ring[0][0], &byte, 1) != 1)
    exit(1);
  *count += RING;
}

static uint64_t cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static sem_t spin_now, spun;

static void *__attribute__((noreturn)) spin_when_told(void *cpu) {
  for (cpu_set_t cpus;;) {
    struct timespec began, ended;
    sem_wait(&spin_now);
    CPU_ZERO(&cpus);
    CPU_SET(*(volatile int *)cpu, &cpus);
    sched_setaffinity(0, sizeof(cpus), &cpus);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &began);
    spin(2000000);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ended);
    count[SPINS] += 2000000;
    count[SPINS_NS] += (ended.tv_sec - began.tv_sec) * 1000000000ll + ended.tv_nsec - began.tv_nsec;
    sem_post(&spun);
  }
}

/* Times `turn` so often a second as wanted. */
static void calibrate(void (*turn)(void), uint64_t per_turn, double per_s) {
  for (int round = 0; round < 4; round++) {
    uint64_t begin = now_ns(), first = *count, ns;
    while ((ns = now_ns() - begin) < 100000000)
      turn();
    double want_ns = 1e9 / per_s * per_turn, takes_ns = (double)ns * per_turn / (*count - first);
    double spin_ns;
    begin = now_ns();
    spin(1000000);
    spin_ns = (now_ns() - begin) / 1e6;
    double more = (want_ns - takes_ns) / spin_ns / (per_turn > 1 && turn != yield_once ? per_turn : 1);
    work = (double)work + more > 0 ? (uint64_t)((double)work + more) : 0;
  }
}

int main(int argc, char **argv) {
  void *library = dlopen(argv[1], RTLD_NOW);
  int file = open(argv[2], O_RDWR);
  double per_s = atof(argv[3]);
  void (*turn)(void) = one_call;
  static int cpu;
  pthread_t thread;
  if (!library || file < 0 || argc < 5)
    return 1;
  count = mmap(0, 8 * COUNTERS, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  for (int i = 5; i < argc; i++)
    calls[number++] = (call)dlsym(library, argv[i]);
  if (!strcmp(argv[4], "loop"))
    turn = one_step;
  if (!strcmp(argv[4], "pipe") || !strcmp(argv[4], "futex") || !strcmp(argv[4], "yield")) {
    int with_pipe = argv[4][0] == 'p', yields = argv[4][0] == 'y';
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(sched_getcpu(), &cpus);
    sched_setaffinity(0, sizeof(cpus), &cpus);
    turn = yields ? yield_once : with_pipe ? pass_pipe : pass_futex;
    if (pipe(there) || pipe(here) || pthread_create(&thread, 0, yields ? yield_for_ever : with_pipe ? answer_pipe : answer_futex, 0))
      return 1;
  }
  if (!strcmp(argv[4], "ring")) {
    turn = go_round;
    for (uint64_t i = 0; i < RING; i++)
      if (pipe(ring[i]))
        return 1;
    for (uint64_t i = 1; i < RING; i++)
      if (pthread_create(&thread, 0, pass_on, (void *)i))
        return 1;
  }
  calibrate(turn, turn == go_round ? RING : turn == pass_pipe || turn == pass_futex || turn == yield_once ? 2 : 1, per_s);
  sem_init(&spin_now, 0, 0);
  sem_init(&spun, 0, 0);
  if (pthread_create(&thread, 0, spin_when_told, &cpu))
    return 1;
  puts("ready");
  fflush(stdout);
  for (;;) {
    uint64_t until = now_ns() + 4000000, began = cpu_ns();
    while (now_ns() < until)
      turn();
    count[TURNS_NS] += cpu_ns() - began;
    cpu = sched_getcpu();
    sem_post(&spin_now);
    sem_wait(&spun);
  }
}
