"""The pool of exported libraries under the thread sanitizer: every task once, callers at the same time, forks."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tvmfun.export import INCLUDE

PROGRAM = """
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "internal.h"

enum { LOOPS = 2000, TASKS = 7, CALLERS = 3 };

struct loop {
  int ran[TASKS];
};

static void task(void *argument, int32_t i) { ((struct loop *)argument)->ran[i]++; }

/* Workers are woken on other CPUs than their caller's, and may use all of them again. */
static void check_affinities(const cpu_set_t *all) {
  DIR *threads = opendir("/proc/self/task");
  for (struct dirent *entry; threads && (entry = readdir(threads));) {
    cpu_set_t own;
    int thread = atoi(entry->d_name);
    if (thread && !sched_getaffinity(thread, sizeof own, &own) && !CPU_EQUAL(&own, all)) abort();
  }
  if (threads) closedir(threads);
}

static void *call(void *argument) {
  struct pool *pool = argument;
  long together = 0;
  for (int n = 0; n < LOOPS; n++) {
    struct loop loop = {{0}};
    int count = 1 + n % TASKS;
    if (tvmfun_pool_take(pool)) {
      tvmfun_pool_for(pool, count, task, &loop);
      tvmfun_pool_release(pool);
      together++;
    } else {
      for (int i = 0; i < count; i++) task(&loop, i);
    }
    for (int i = 0; i < TASKS; i++) {
      if (loop.ran[i] != (i < count)) abort();
    }
    if (n % 100 == 0) usleep(10000); /* the workers fall asleep */
  }
  return (void *)together;
}

int main(void) {
  cpu_set_t all;
  sched_getaffinity(0, sizeof all, &all);
  for (int round = 0; round < 5; round++) {
    struct pool *pool = tvmfun_pool_create(round + 1);
    pthread_t callers[CALLERS];
    for (int i = 0; i < CALLERS; i++) pthread_create(&callers[i], NULL, call, pool);
    long together = 0;
    for (int i = 0; i < CALLERS; i++) {
      void *result;
      pthread_join(callers[i], &result);
      together += (long)result;
    }
    if (!together) return 1;
    check_affinities(&all);
    pid_t child = fork();
    if (!child) {
      int is_refused = !tvmfun_pool_take(pool); /* its threads are not here */
      tvmfun_pool_destroy(pool);
      _exit(is_refused ? 0 : 1);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) return 2;
    tvmfun_pool_destroy(pool);
  }
  puts("done");
  return 0;
}
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc"), reason="there is no gcc")
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_every_task_runs_once(tmp_path, sanitizer):
    library = INCLUDE.parent / "library"
    (tmp_path / "program.c").write_text(PROGRAM)
    options = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", f"-fsanitize={sanitizer}", "-Wall", "-Wextra", "-Werror"]
    sources = [tmp_path / "program.c", library / "pool.c"]
    command = ["gcc", *options, f"-I{INCLUDE}", f"-I{library}", *sources, "-o", tmp_path / "program", "-lpthread"]
    subprocess.run(command, check=True)
    process = subprocess.run([tmp_path / "program"], capture_output=True, text=True, timeout=300)
    assert (process.returncode, process.stdout) == (0, "done\n"), process.stderr
