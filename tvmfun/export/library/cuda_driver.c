/* Opens NVIDIA's driver. */
#include "cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "buffers.h"

/* The first with all of the functions but the new ones, with conditional nodes within each other, and with those of
 * several bodies. */
#define OLDEST 12000
#define CONDITIONS 12040
#define SWITCHES 12080

struct cuda_driver tvmfun_driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int is_open;

static void *library; /* never closed: the driver has threads */

static tvmfun_status look_up(void) {
#define LOOK_UP(name, parameters)                                                                                 \
  {                                                                                                               \
    void *found = dlsym(library, #name);                                                                          \
    if (!found) {                                                                                                 \
      return tvmfun_fail(TVMFUN_NO_DEVICE, "NVIDIA's driver is too old: it lacks %s, CUDA 12 or newer has it", #name); \
    }                                                                                                             \
    memcpy(&tvmfun_driver.name, &found, sizeof found); /* ISO C does not convert to pointers to functions */      \
  }
  CUDA_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
#define LOOK_UP_NEW(name, parameters)                      \
  {                                                        \
    void *found = dlsym(library, #name);                   \
    memcpy(&tvmfun_driver.name, &found, sizeof found);     \
  }
  CUDA_NEW_FUNCTIONS(LOOK_UP_NEW)
#undef LOOK_UP_NEW
  return TVMFUN_OK;
}

int tvmfun_has_conditions(void) {
  return tvmfun_driver.version >= CONDITIONS && tvmfun_driver.cuGraphConditionalHandleCreate &&
         tvmfun_driver.cuGraphAddNode_v2;
}

int tvmfun_has_switches(void) { return tvmfun_has_conditions() && tvmfun_driver.version >= SWITCHES; }

static tvmfun_status open_driver(void) {
  if (!library) {
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  }
  if (!library) {
    return tvmfun_fail(TVMFUN_NO_DEVICE, "NVIDIA's driver is not installed: %s", dlerror());
  }
  tvmfun_status status = look_up();
  int version = 0;
  if (!status) {
    status = tvmfun_cuda_check(tvmfun_driver.cuInit(0), TVMFUN_NO_DEVICE, "NVIDIA's driver finds no GPU", "cuInit");
  }
  if (!status) {
    status = tvmfun_cuda_check(tvmfun_driver.cuDriverGetVersion(&version), TVMFUN_NO_DEVICE,
                               "NVIDIA's driver has no version", "cuDriverGetVersion");
  }
  if (!status && version < OLDEST) {
    status = tvmfun_fail(TVMFUN_NO_DEVICE, "NVIDIA's driver is too old: it is for CUDA %d.%d, 12.0 is needed",
                         version / 1000, version % 1000 / 10);
  }
  tvmfun_driver.version = version;
  return status;
}

tvmfun_status tvmfun_open_driver(void) {
  pthread_mutex_lock(&lock);
  tvmfun_status status = is_open ? TVMFUN_OK : open_driver();
  is_open = !status;
  pthread_mutex_unlock(&lock);
  return status;
}

tvmfun_status tvmfun_cuda_check(int code, tvmfun_status status, const char *what, const char *name) {
  if (!code) {
    return TVMFUN_OK;
  }
  const char *error = NULL;
  if (tvmfun_driver.cuGetErrorName(code, &error) || !error) {
    error = "an unknown error";
  }
  status = code == CUDA_OUT_OF_MEMORY ? TVMFUN_OUT_OF_MEMORY : code == CUDA_NO_CODE ? TVMFUN_WRONG_ARCHITECTURE : status;
  return tvmfun_fail(status, "%s: %s of %s (%d)", what, error, name, code);
}
