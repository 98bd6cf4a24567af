/* A pool of threads for parallel loops.
 *
 * A loop is published as a number of tasks; its caller and the workers take one after the other. So no caller waits
 * for a worker that the system has not scheduled yet. Idle workers yield for a while, then sleep. They are woken on
 * other CPUs than the caller's.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"

/* How often an idle worker yields before it sleeps: about 5 milliseconds. */
#define SPINS 10000
/* More workers would take longer to place than that is worth. */
#define MOST_PLACED 32

typedef void (*task_function)(void *argument, int32_t i);

struct worker {
  struct pool *pool;
  pthread_t thread;
  int is_asleep; /* changes under the pool's mutex */
#ifdef __linux__
  int avoids_cpu;     /* its affinity lacks the CPU of the caller */
  cpu_set_t affinity; /* without that */
#endif
};

struct pool {
  /* Bits 32 to 63: the number of the loop; 16 to 31: its tasks; 0 to 15: how many have been taken. One word, so that
   * nobody takes a task of a loop that has ended. */
  _Alignas(64) _Atomic uint64_t ticket;
  _Alignas(64) _Atomic int32_t unfinished;
  _Alignas(64) _Atomic int32_t sleeping;
  _Alignas(64) atomic_flag is_taken;
  _Atomic task_function task;
  _Atomic(void *) argument;
  atomic_int is_ending;
  pthread_mutex_t mutex;
  pthread_cond_t wake;
  int32_t threads, started;
  pid_t process; /* threads are not copied by a fork */
  struct worker workers[];
};

static int has_tasks(uint64_t ticket) { return (ticket & 0xffff) < (ticket >> 16 & 0xffff); }

/* Runs tasks until all have been taken. */
static void work(struct pool *pool) {
  uint64_t ticket = atomic_load(&pool->ticket);
  while (has_tasks(ticket)) {
    /* These may belong to the next loop, but then the ticket has changed. */
    task_function task = atomic_load_explicit(&pool->task, memory_order_relaxed);
    void *argument = atomic_load_explicit(&pool->argument, memory_order_relaxed);
    if (atomic_compare_exchange_strong(&pool->ticket, &ticket, ticket + 1)) {
      task(argument, (int32_t)(ticket & 0xffff));
      atomic_fetch_sub(&pool->unfinished, 1);
      ticket = atomic_load(&pool->ticket);
    }
  }
}

#ifdef __linux__
/* Takes the caller's CPU out of the affinities of sleeping workers until they have been woken. Linux often wakes a
 * thread on the CPU of the one that wakes it though others are idle, since those of a virtual machine seem taken; then
 * the two share one CPU for 10 milliseconds. */
static void avoid_cpu_of_caller(struct pool *pool) {
  int cpu = sched_getcpu();
  for (int32_t i = 0; cpu >= 0 && i < pool->started && i < MOST_PLACED; i++) {
    struct worker *worker = &pool->workers[i];
    if (!worker->is_asleep ||
        pthread_getaffinity_np(worker->thread, sizeof worker->affinity, &worker->affinity)) {
      continue;
    }
    cpu_set_t others = worker->affinity;
    CPU_CLR((size_t)cpu, &others);
    worker->avoids_cpu = CPU_COUNT(&others) && !pthread_setaffinity_np(worker->thread, sizeof others, &others);
  }
}

/* Undoes that: a worker that has been woken stays on its CPU, but may use all of them. */
static void restore_affinities(struct pool *pool) {
  for (int32_t i = 0; i < pool->started && i < MOST_PLACED; i++) {
    struct worker *worker = &pool->workers[i];
    if (worker->avoids_cpu) {
      worker->avoids_cpu = 0;
      pthread_setaffinity_np(worker->thread, sizeof worker->affinity, &worker->affinity);
    }
  }
}
#else
static void avoid_cpu_of_caller(struct pool *pool) { (void)pool; }

static void restore_affinities(struct pool *pool) { (void)pool; }
#endif

static void sleep_until_called(struct worker *worker) {
  struct pool *pool = worker->pool;
  /* A caller looks at `sleeping` after it has published tasks, and a sleeper at the tasks after it has counted itself. */
  pthread_mutex_lock(&pool->mutex);
  atomic_fetch_add(&pool->sleeping, 1);
  while (!has_tasks(atomic_load(&pool->ticket)) && !atomic_load(&pool->is_ending)) {
    worker->is_asleep = 1;
    pthread_cond_wait(&pool->wake, &pool->mutex);
    worker->is_asleep = 0;
  }
  atomic_fetch_sub(&pool->sleeping, 1);
  pthread_mutex_unlock(&pool->mutex);
}

static void *run_worker(void *argument) {
  struct worker *worker = argument;
  struct pool *pool = worker->pool;
  int32_t spins = 0;
  while (!atomic_load(&pool->is_ending)) {
    if (has_tasks(atomic_load(&pool->ticket))) {
      work(pool);
      spins = 0;
    } else if (spins++ < SPINS) {
      sched_yield();
    } else {
      sleep_until_called(worker);
      spins = 0;
    }
  }
  return NULL;
}

static void wake_all(struct pool *pool) {
  pthread_mutex_lock(&pool->mutex);
  avoid_cpu_of_caller(pool);
  pthread_cond_broadcast(&pool->wake);
  pthread_mutex_unlock(&pool->mutex);
  restore_affinities(pool); /* only now: a worker may have waited for the mutex */
}

struct pool *tvmfun_pool_create(int32_t threads) {
  size_t nbytes = sizeof(struct pool) + sizeof(struct worker) * (size_t)threads;
  struct pool *pool = NULL;
  if (posix_memalign((void **)&pool, 64, nbytes)) {
    return NULL;
  }
  atomic_init(&pool->ticket, 0);
  atomic_init(&pool->unfinished, 0);
  atomic_init(&pool->sleeping, 0);
  atomic_init(&pool->is_ending, 0);
  atomic_init(&pool->task, NULL);
  atomic_init(&pool->argument, NULL);
  atomic_flag_clear(&pool->is_taken);
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->wake, NULL);
  pool->threads = threads;
  pool->started = 0;
  pool->process = getpid();
  return pool;
}

void tvmfun_pool_destroy(struct pool *pool) {
  if (!pool) {
    return;
  }
  if (pool->process == getpid()) {
    atomic_store(&pool->is_ending, 1);
    wake_all(pool);
    for (int32_t i = 0; i < pool->started; i++) {
      pthread_join(pool->workers[i].thread, NULL);
    }
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
  }
  free(pool);
}

int tvmfun_pool_take(struct pool *pool) {
  return pool->process == getpid() && !atomic_flag_test_and_set(&pool->is_taken);
}

void tvmfun_pool_release(struct pool *pool) { atomic_flag_clear(&pool->is_taken); }

/* Where a thread cannot be started, the others do its tasks. */
static void start(struct pool *pool) {
  while (pool->started < pool->threads - 1) {
    struct worker *worker = &pool->workers[pool->started];
    *worker = (struct worker){.pool = pool};
    if (pthread_create(&worker->thread, NULL, run_worker, worker)) {
      return;
    }
    pool->started++;
  }
}

void tvmfun_pool_for(void *context, int32_t count, task_function task, void *argument) {
  struct pool *pool = context;
  if (!pool->started) {
    start(pool);
  }
  atomic_store_explicit(&pool->task, task, memory_order_relaxed);
  atomic_store_explicit(&pool->argument, argument, memory_order_relaxed);
  atomic_store(&pool->unfinished, count);
  uint64_t number = (atomic_load(&pool->ticket) >> 32) + 1;
  atomic_store(&pool->ticket, number << 32 | (uint64_t)count << 16);
  if (atomic_load(&pool->sleeping)) {
    wake_all(pool);
  }
  work(pool);
  while (atomic_load(&pool->unfinished)) {
    sched_yield();
  }
}
