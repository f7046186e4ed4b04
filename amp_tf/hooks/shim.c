/* Registers a TensorFlow graph optimizer that hands each graph to a callback, here one written in
 * Python.
 *
 * Source of the interface: tensorflow/c/experimental/grappler/grappler.h and
 * tensorflow/c/tf_buffer.h, the same from TensorFlow 2.16 to 2.21. Their few structs are declared
 * here, and no symbol of TensorFlow is used, so that one small library loads into every TensorFlow
 * build. One registration serves one device type: the same source is compiled once for each
 * (AMP_TF_DEVICE_TYPE).
 *
 * Whatever goes wrong, TensorFlow gets its own graph back: no callback set, callback failed, out of
 * memory, a child forked after graphs were visited (whose copy of the interpreter and of amp_tf may
 * hold locks that nobody will release), an interpreter that is held by a call which waits for this
 * very graph. So it does where the name of the graph says that it belongs to an input pipeline; no
 * lock is needed for that.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct TF_Status TF_Status;
typedef struct TF_GrapplerItem TF_GrapplerItem;

typedef struct {
  const void *data;
  size_t length;
  void (*data_deallocator)(void *data, size_t length);
} TF_Buffer;

typedef struct {
  size_t struct_size;
  void *ext;
  /* TF_TriState each; 0 leaves TensorFlow's own optimizers as the user configured them. */
  int toggles[19];
} TP_OptimizerConfigs;

/* Of the toggles: on GPUs, TensorFlow's layout optimizer moves convolutions to NCHW where they are
 * float32, and it runs once, before any plugin. What becomes 16 bit afterwards wants NHWC, as
 * tensor cores do, and would keep NCHW and the Transposes around it. So it is off. TensorFlow
 * copies the toggles when it registers the plugin, before anybody may ask which GPUs there are, and
 * keeps them as long as the process lives. Both device types have the same, or TensorFlow warns at
 * each graph with nodes on both; for nodes on CPUs it does nothing unless it is told to. */
enum { LAYOUT_OPTIMIZER = 12, TF_TriState_Off = 1 };

typedef struct {
  size_t struct_size;
  void *ext;
  void *(*create_func)(void); /* optional, unused: the optimizer has no state of its own */
  void (*optimize_func)(void *, const TF_Buffer *, const TF_GrapplerItem *, TF_Buffer *,
                        TF_Status *);
  void (*destroy_func)(void *);
} TP_Optimizer;

typedef struct {
  size_t struct_size;
  void *ext;
  int32_t major_version;
  int32_t minor_version;
  int32_t patch_version;
  const char *device_type;
  TP_OptimizerConfigs *optimizer_configs;
  TP_Optimizer *optimizer;
} TP_OptimizerRegistrationParams;

/* Gets a serialized GraphDef, valid during the call, and which thread of TensorFlow waits for it.
 * Calls amp_tf_emit(output, …) with the new graph, or does not, and the graph stays as it is. */
typedef void (*amp_tf_callback)(const void *graph, size_t length, const TF_GrapplerItem *item,
                                TF_Buffer *output, uintptr_t thread);

static _Atomic(amp_tf_callback) current_callback = NULL;
static atomic_int running = 0;
static atomic_int registered = 0;
static _Atomic(pid_t) owner = 0; /* the process that visits graphs */
static atomic_int visited = 0;   /* whether it ever did */

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* How to take the interpreter: CPython's PyGILState_Check, _Ensure and _Release, so that no symbol
 * of Python is used. */
typedef struct {
  int (*check)(void);
  int (*ensure)(void);
  void (*release)(int);
} amp_tf_gil;

/* What TensorFlow optimizes has a name: a function's, or "tf_graph" for a session's. The C API does
 * not give it. In TensorFlow's class GrapplerItem (core/grappler/grappler_item.h) it is the first
 * field, a std::string of libstdc++, behind the pointer to the virtual functions. */
typedef struct {
  const void *virtual_functions;
  const char *name;
  size_t length;
  union {
    char here[16];   /* the text itself, if it is shorter */
    size_t capacity; /* else */
  } rest;
} amp_tf_item;

enum { LONGEST_NAME = 4096 };

/* The name, or NULL where the class is another than the one above. */
static const char *name_of(const TF_GrapplerItem *given) {
  const amp_tf_item *item = (const amp_tf_item *)given;
  if (item == NULL || item->name == NULL || item->length == 0 || item->length > LONGEST_NAME)
    return NULL;
  if (item->name == item->rest.here) {
    if (item->length >= sizeof item->rest.here) return NULL;
  } else if (item->rest.capacity < item->length || item->rest.capacity < sizeof item->rest.here) {
    return NULL;
  }
  return item->name[item->length] == 0 ? item->name : NULL;
}

/* How the names of functions begin whose graphs stay as they are, and of those among them that do
 * not. */
static const char *const *left_out = NULL;
static const char *const *but_not = NULL;

static int begins_with_one(const char *name, const char *const *beginnings) {
  for (; beginnings != NULL && *beginnings != NULL; ++beginnings)
    if (strncmp(name, *beginnings, strlen(*beginnings)) == 0) return 1;
  return 0;
}

/* Visits that left the graph as it was: how many, by reason, and the name of the first. */
enum { PIPELINE, NAMELESS, CONVERTER, LOCKED, REASONS };
enum { NAME_SIZE = 256 };
static atomic_int skipped[REASONS];
static char first_skipped[REASONS][NAME_SIZE];

static void skip(int reason, const char *name) {
  if (atomic_fetch_add(&skipped[reason], 1) == 0 && name != NULL)
    strncpy(first_skipped[reason], name, NAME_SIZE - 1);
}

/* Each visit of a graph runs on a thread of its own, for two reasons.
 *
 * Some calls from Python run graphs on other threads and hold the interpreter until these are done:
 * TFLite's converter does. A callback would wait for the interpreter and the call for the callback.
 * Nothing says who holds it, so a thread that nobody waits for takes it; where it does not get it
 * in time, the graph stays as it is. While one such thread waits, other graphs do not wait at all.
 * Two things show that time is up. The converter is at work, as its callers say. Or the process has
 * used less than a twentieth of a CPU all the time for as long as a slow disk or network would not
 * take, although this thread was awake often enough to tell: a call that waits for graphs computes
 * nothing.
 *
 * And Python runs the program's signal handlers on the main thread alone, in whatever Python code
 * that is executing. What a handler raises (sys.exit on SIGTERM, a timeout on SIGALRM) would end in
 * the callback, not in the program. */
#define WINDOW_MS 500    /* over which used CPU time is measured */
#define CONVERTER_MS 100 /* after which the converter, if it is at work, has the interpreter */
#define BUSY_FACTOR 10   /* how many times the patience is enough even if other threads compute */
static amp_tf_gil gil = {NULL, NULL, NULL};
static int64_t patience_ms = 0;
/* Threads that did not get the interpreter in time and still wait for it. */
static atomic_int late = 0;
static atomic_int converting = 0; /* calls of TFLite's converter that are under way */

enum { ASKING, GOT, GIVEN_UP };

typedef struct {
  atomic_int stage;
  amp_tf_callback callback;
  const TF_Buffer *graph;
  const TF_GrapplerItem *item;
  TF_Buffer *output;
  uintptr_t thread;
} amp_tf_visit;

static void call(const amp_tf_visit *visit) {
  visit->callback(visit->graph->data, visit->graph->length, visit->item, visit->output,
                  visit->thread);
}

static void *take_gil_and_call(void *given) {
  amp_tf_visit *visit = given;
  const int held = gil.ensure();
  int expected = ASKING;
  if (atomic_compare_exchange_strong(&visit->stage, &expected, GOT)) {
    call(visit);
  } else {
    atomic_fetch_sub(&late, 1);
    free(visit);
  }
  gil.release(held);
  return NULL;
}

static int64_t cpu_ms(void) {
  struct timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return (int64_t)used.tv_sec * 1000 + used.tv_nsec / 1000000;
}

/* Waits until the visit's own thread has the interpreter, or time is up. Returns why it is, if it
 * is. */
static int wait_while_asking(const amp_tf_visit *visit) {
  const int64_t begin = now_ms();
  int64_t now = begin, since = begin, used = cpu_ms(), idle = 0;
  int awake = 0;
  while (atomic_load(&visit->stage) == ASKING) {
    /* Mostly it is there at once; looking all the time would itself be work. */
    const struct timespec pause = {0, now - begin < 10 ? 100000 : 2000000};
    nanosleep(&pause, NULL);
    now = now_ms();
    ++awake;
    if (atomic_load(&converting) > 0 && now - begin >= CONVERTER_MS) return CONVERTER;
    if (now - begin >= patience_ms * BUSY_FACTOR) return LOCKED;
    if (now - since < WINDOW_MS) continue;
    const int is_idle = awake > WINDOW_MS / 5 && cpu_ms() - used < WINDOW_MS / 20;
    idle = is_idle ? idle + now - since : 0;
    if (idle >= patience_ms) return LOCKED;
    since = now, used = cpu_ms(), awake = 0;
  }
  return LOCKED; /* which nobody reads: the visit is made */
}

/* Waits for the visit's own thread, which ends or gives up; counts the latter. Frees the visit. */
static void wait_for(pthread_t thread, amp_tf_visit *visit, const char *name) {
  const int reason = wait_while_asking(visit);
  int expected = ASKING;
  if (atomic_compare_exchange_strong(&visit->stage, &expected, GIVEN_UP)) {
    /* The other thread subtracts it again, perhaps before, and frees the visit. */
    atomic_fetch_add(&late, 1);
    pthread_detach(thread);
    skip(reason, name);
    return;
  }
  pthread_join(thread, NULL);
  free(visit);
}

/* Runs the callback; on this thread if it holds the interpreter already, or if there can be no
 * other. */
static void visit_graph(amp_tf_visit now, const char *name) {
  if (gil.check == NULL || gil.check()) {
    call(&now);
    return;
  }
  if (atomic_load(&late) > 0) {
    skip(atomic_load(&converting) > 0 ? CONVERTER : LOCKED, name);
    return;
  }
  amp_tf_visit *visit = malloc(sizeof *visit);
  pthread_t thread;
  if (visit == NULL) return;
  *visit = now;
  if (pthread_create(&thread, NULL, take_gil_and_call, visit) != 0) {
    free(visit);
    call(&now);
    return;
  }
  wait_for(thread, visit, name);
}

static void free_data(void *data, size_t length) {
  (void)length;
  free(data);
}

/* Copies a graph into the output. Returns 1, or 0 if memory ran out (the graph then stays as it
 * is). */
EXPORT int amp_tf_emit(TF_Buffer *output, const void *graph, size_t length) {
  void *copy = length ? malloc(length) : NULL;
  if (copy == NULL) return 0;
  memcpy(copy, graph, length);
  if (output->data_deallocator) output->data_deallocator((void *)output->data, output->length);
  output->data = copy;
  output->length = length;
  output->data_deallocator = free_data;
  return 1;
}

/* Whether TensorFlow has taken this library's optimizer. It aborts the process on a second
 * registration. */
EXPORT int amp_tf_registered(void) { return atomic_load(&registered); }

/* Sets how the interpreter is taken, and how long a visit waits for it while the process computes
 * nothing. To be called before the first callback is set. */
EXPORT void amp_tf_set_gil(amp_tf_gil functions, int idle_ms) {
  gil = functions;
  patience_ms = idle_ms;
}

/* Sets which functions are left out, by the beginnings of their names: two arrays that end with
 * NULL and live as long as the process. To be called before the first callback is set. */
EXPORT void amp_tf_leave_out(const char *const *beginnings, const char *const *exceptions) {
  left_out = beginnings;
  but_not = exceptions;
}

/* Tells that a call of TFLite's converter begins (1) or ends (-1). */
EXPORT void amp_tf_converting(int change) { atomic_fetch_add(&converting, change); }

/* How many visits left the graph as it was for a reason, and the name of the first graph. */
EXPORT int amp_tf_skipped(int reason, const char **name) {
  *name = first_skipped[reason];
  return atomic_load(&skipped[reason]);
}

/* Sets the callback; NULL removes it and waits up to wait_ms for the calls that are still inside
 * it. Returns how many are. The caller must not hold a lock that a callback needs (ctypes releases
 * the GIL around this call). */
EXPORT int amp_tf_set_callback(amp_tf_callback callback, int wait_ms) {
  const pid_t pid = getpid();
  const int forked = atomic_load(&owner) != 0 && atomic_load(&owner) != pid;
  const struct timespec pause = {0, 1000000};
  atomic_store(&current_callback, callback);
  if (callback != NULL) {
    if (forked) { /* calls of the parent's threads, which do not exist here */
      atomic_store(&running, 0);
      atomic_store(&late, 0);
    }
    atomic_store(&owner, pid);
    return 0;
  }
  if (forked) return 0;
  for (; wait_ms > 0 && atomic_load(&running) > 0; --wait_ms) nanosleep(&pause, NULL);
  return atomic_load(&running);
}

/* Whether graphs of this process are visited. A child forked from one that only imported TensorFlow
 * takes the callback over: no visit in the parent can have left a lock taken. After a first graph
 * TensorFlow's own threads are missing in a child, too. */
static int is_owner(void) {
  const pid_t pid = getpid();
  if (atomic_load(&owner) != pid) {
    if (atomic_load(&visited)) return 0;
    atomic_store(&owner, pid);
  }
  atomic_store(&visited, 1);
  return 1;
}

static void optimize(void *state, const TF_Buffer *graph, const TF_GrapplerItem *item,
                     TF_Buffer *output, TF_Status *status) {
  (void)state;
  (void)status; /* arrives as OK and stays so */
  if (is_owner()) {
    /* Counted before the callback is read: whoever removes it sees either this call or no callback.
     */
    atomic_fetch_add(&running, 1);
    amp_tf_callback callback = atomic_load(&current_callback);
    const char *name = name_of(item);
    if (callback == NULL) {
      /* nothing to do */
    } else if (name == NULL) {
      skip(NAMELESS, NULL);
    } else if (begins_with_one(name, left_out) && !begins_with_one(name, but_not)) {
      skip(PIPELINE, name);
    } else {
      const amp_tf_visit visit = {ASKING, callback, graph,
                                  item,   output,   (uintptr_t)syscall(SYS_gettid)};
      visit_graph(visit, name);
    }
    atomic_fetch_sub(&running, 1);
  }
  if (output->data == NULL) {
    /* The input outlives the parsing of the output (CGraphOptimizer::Optimize), so nothing is
     * copied. */
    output->data = graph->data;
    output->length = graph->length;
    output->data_deallocator = NULL;
  }
}

/* TensorFlow says how large its structs are and which version they have. */
static int is_known_interface(const TP_OptimizerRegistrationParams *params) {
  return params->struct_size == sizeof(TP_OptimizerRegistrationParams) &&
         params->major_version == 0 && params->minor_version == 0 && params->patch_version == 1 &&
         params->optimizer_configs->struct_size ==
             offsetof(TP_OptimizerConfigs, toggles) + sizeof(int[19]) &&
         params->optimizer->struct_size == sizeof(TP_Optimizer);
}

EXPORT void TF_InitGraph(TP_OptimizerRegistrationParams *params, TF_Status *status) {
  (void)status;
  /* Without a device type TensorFlow refuses the plugin with an error, which Python turns into a
   * warning. */
  if (!is_known_interface(params)) return;
  params->device_type = AMP_TF_DEVICE_TYPE;
  params->optimizer->create_func = NULL;
  params->optimizer->optimize_func = optimize;
  params->optimizer->destroy_func = NULL;
  params->optimizer_configs->toggles[LAYOUT_OPTIMIZER] = TF_TriState_Off;
  atomic_store(&registered, 1);
}
