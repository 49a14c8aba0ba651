/* What the files of the extension share. It uses the limited API, so one build serves every version
   of Python.

   The pattern: a C type has the fields of an object and its few hot methods. The Python class of
   the same name derives from it and has everything else: docstrings, slow paths and every error
   message. oxide/_core_twin.py has the same types in Python; it is the specification, and says
   what each method does. Docstrings here are those of the package's public classes, and of what
   only C has.

   The rules, which the comments of the code do not repeat:
   - A field of an object type is NULL until it is set: a subclass may have forgotten
   ``super().__init__``. So code that reads a field of another object tests it, and raises TypeError
   by ``missing()``.
   - A field that C casts to one of the structs below is read-only to Python, or is checked where it
   is read.
   - Between two calls into Python no pointer is kept to what a field refers to, unless a reference
   is held.
   - A finaliser runs no Python code but C functions of Python's own, such as ``deque.append``. It
   keeps the exception that is on its way. */

#ifndef OXIDE_CORE_H
#define OXIDE_CORE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#define IS_NONE(object) ((object) == NULL || (PyObject *)(object) == Py_None)
#define FAST(function) ((PyCFunction)(void (*)(void))(function))
#define METHOD0(object, name) PyObject_CallMethodObjArgs((PyObject *)(object), name, NULL)
#define METHOD1(object, name, first) \
    PyObject_CallMethodObjArgs((PyObject *)(object), name, (PyObject *)(first), NULL)

/* Sets a field to a new reference to ``value``, or to NULL. */
#define SET(field, value) \
    do { \
        PyObject *old_ = (PyObject *)(field), *new_ = (PyObject *)(value); \
        Py_XINCREF(new_); \
        (field) = (void *)new_; \
        Py_XDECREF(old_); \
    } while (0)

/* ---- The objects ---- */

typedef struct {
    PyObject_HEAD PyObject *tracer;
} Points;

typedef struct {
    PyObject_HEAD PyThread_type_lock lock;
    unsigned long owner; /* of the thread that holds it, if ``count`` is not 0 */
    int count;
} Lock;

typedef struct {
    PyObject_HEAD PyObject *drop;
} Dropping;

typedef struct {
    PyObject_HEAD unsigned long long address;
} Handle;

typedef struct {
    PyObject_HEAD unsigned long long address;
    long long shared_limit, parameter_bytes;
    char reports, plain;
} Function;

typedef struct {
    PyObject_HEAD
        /* the addresses of the driver's functions */
        unsigned long long launch_kernel,
        launch_graph, stream_query, event_query, event_record, event_synchronize;
} Calls;

typedef struct {
    PyObject_HEAD PyObject *device, *driver, *runtime, *handle, *end, *marks, *loaded, *queues,
        *in_flight, *completed;
    long long position, seen;
    Py_ssize_t look_at;
    char named;
} Timeline;

typedef struct {
    PyObject_HEAD Timeline *timeline;
    PyObject *event;
    long long position;
} Mark;

typedef struct {
    PyObject_HEAD PyObject *device, *home, *shape, *dtype, *known, *owners, *claims, *visible,
        *more_reads;
    Timeline *written_by,
        *read_by; /* ``read_by`` stands for the first reader since the last write */
    long long written_at, read_at;
    unsigned long long address;
    Py_ssize_t nbytes;
    char exported, adopted;
} Allocation;

typedef struct {
    PyObject_HEAD Allocation *allocation;
    PyObject *shape, *strides, *dtype, *argument, *known;
    Py_ssize_t offset, size, nbytes;
    unsigned long long address;
} Box;

typedef struct {
    PyObject_HEAD PyObject *dtype, *bits, *fits, *last, *last_words, *last_piece, *parts, *judged,
        *type, *converted;
    int kind, ndim, components, before, number;
    Py_ssize_t alignment, most;
} Slot;

typedef struct {
    PyObject_HEAD PyObject *slots, *end, *fitting, *holds, *special, *reference, *outputs,
        *captured, *shape, *config;
    Slot **array; /* of the slots, whose references the tuple ``slots`` holds */
    int count;
    char ready, reaches_less, inferred;
} Plan;

typedef struct {
    PyObject_HEAD PyObject *grid, *block, *shared;
    unsigned sizes[7]; /* of the grid, of the block, and the bytes of shared memory */
} Config;

typedef struct {
    PyObject_HEAD PyObject *kernel, *config, *plan;
    char simple;
} Configured;

typedef struct {
    PyObject_HEAD PyObject *records, *give_back, *launches;
    unsigned long long address;
} Report;

typedef struct {
    PyObject_HEAD PyObject *stream, *visible, *device, *recording, *place, *traced, *copies,
        *waitless, *renewed, *lender;
    PyObject *runtime, *driver, *joined, *kept, *faults, *if_given_up, *report, *using, *declared;
    Timeline *timeline;
    int levels;
} Context;

typedef struct {
    PyObject_HEAD PyObject *built, *placement;
    char unused, used, placed;
} Operation;

typedef struct {
    Operation base;
    PyObject *kernel, *config, *arguments, *plan, *special, *known, *held, *parts;
    PyObject *params,
        *device; /* of a launch that is bound: the parameters without the fault record's address */
    int reads, writes;
    Allocation **uses, *few[4];
    char composed, bound;
} Launch;

typedef struct {
    Operation base;
    PyObject *source, *name, *function, *origin;
    int stage;
    char kind, copies;
} Stage;

typedef struct {
    Operation base;
    PyObject *parts;
} Zip;

typedef struct {
    Operation base;
    PyObject *parts;
    Py_ssize_t index;
} Element;

typedef struct {
    Operation base;
    PyObject *result;
} Value;

typedef struct {
    PyObject_HEAD PyObject *operation, *context, *inner, *result, *results, *place, *data;
    long long at, copies;
} Frame;

typedef struct {
    PyObject_HEAD PyObject *operation, *context, *frames, *part, *given, *stop, *ending, *result;
} Walk;

typedef struct {
    PyObject_HEAD PyObject *mark, *result, *title, *faults, *reclaimer, *visible;
    char open;
} Submission;

typedef struct {
    Dropping base;
    PyObject *submissions; /* a deque */
    Py_ssize_t ask_at;
} Loose;

typedef struct {
    PyObject_HEAD long long number;
    double spent, usual;
    char gives_up, defers, compiles_now, works_for_run;
} Turn;

typedef struct {
    PyObject_HEAD PyObject *operation, *stream, *submission, *paused, *state, *result, *error,
        *trace;
    Lock *lock;
    int waiting;
} Future;

typedef struct {
    PyObject_HEAD PyObject *last,
        *arrays; /* by stream: the number and the position of its last copy */
    long long count, recorded;
} HostCopies;

typedef struct {
    PyObject_HEAD PyObject *exported, *memory;
    unsigned long long address, page;
    Py_ssize_t nbytes;
    long long user; /* the number of the buffer that owns it; 0: free */
} Block;

typedef struct {
    PyObject_HEAD PyObject *free,
        *returned; /* by size: lists of blocks; and blocks that were given back, with their users */
    Lock *lock;
    long long last_user;
} Pool;

typedef struct {
    PyObject_HEAD Pool *pool;
    Block *block;
    unsigned long long address;
    Py_ssize_t nbytes;
    long long number;
} Buffer;

typedef struct {
    PyObject_HEAD PyObject *page, *kernels, *place;
    unsigned long long address; /* of the launch's record */
} GraphReport;

typedef struct {
    Dropping base;
    PyObject *handle, *kernels, *page, *inputs, *at_launch, *last, *first;
    Allocation **uses;
    Lock *lock;
    unsigned long long record; /* the address of the graph's own fault record; 0: no kernels */
    int reads, writes, used;
    char fills_host, plain;
} Captured;

typedef struct {
    Operation base;
    PyObject *graph, *sources;
} GraphLaunch;

/* ---- What the module holds: types, and the classes and functions of Python that ``setup`` has
 * given ---- */

typedef struct {
    PyTypeObject *points, *lock, *dropping, *handle, *function, *calls, *timeline, *mark,
        *allocation, *box, *slot, *plan, *config, *configured, *report, *context, *operation,
        *launch, *stage, *zip, *element, *value, *frame, *walk, *submission, *loose, *turn, *future,
        *host_copies, *block, *pool, *buffer, *graph_report, *captured, *graph_launch;
} Types;
extern Types types;

/* X(name): an object of Python that ``setup(name=…)`` gives. */
/* clang-format off */
#define GIVEN(X) \
    X(Allocation) X(AndThen) X(Arc) X(Config) X(Context) X(CoroutineType) X(DeviceBox) \
    X(DeviceLostError) X(FaultPage) X(FaultReport) X(FunctionType) X(GraphFaultReport) X(Held) \
    X(HostCopies) X(KernelLaunch) X(Map) X(Mark) X(OutOfMemoryError) X(OxideError) X(PinnedBuffer) \
    X(Submission) X(TooDeep) X(Turn) X(Walk) X(capture) X(complain) X(complete) X(copy_host) \
    X(deque) X(downloads) X(driver_lock_is_owned) X(driver_threads) X(dropped) X(executing) \
    X(failed_to_execute) X(give_up) X(give_up_blocked) X(handed_out) X(held_error) X(idle) \
    X(is_ended) X(is_interrupt) X(launch_failed) X(name_part) X(ndarray) X(new_box) X(new_visible) \
    X(note_array) X(origin) X(partial) X(placed_elsewhere) X(poisons) X(raise_fault) \
    X(refuse_coroutine) X(refuse_element) X(refuse_in_capture) X(refuse_stage) X(refuse_waiting) \
    X(report_unused) X(require_operation) X(run_in_python) X(submit_slowly) X(unused)
/* clang-format on */

/* X(name): a string that C looks up. */
/* clang-format off */
#define NAMES(X) \
    X(__code__) X(__qualname__) X(_bracketed) X(_built) X(_call_slow) X(_captured) X(_caught) \
    X(_check_reach) X(_complete) X(_composed) X(_execute_otherwise) X(_execute_slowly) \
    X(_fill_slowly) X(_freeing) X(_launch_slowly) X(_let_go) X(_make) X(_may_download) \
    X(_returned) X(_start_slowly) X(_timeline) X(_updated) X(abandon) X(add) X(address) \
    X(allocate) X(and_then) X(and_then_with_context) X(append) X(array) X(as_argument) X(base) \
    X(built) X(claimed) X(clear) X(co_flags) X(co_qualname) X(consume) X(copy_to_device) \
    X(copy_to_host) X(count) X(counters) X(drops_work) X(execute) X(fault_records) X(for_run) \
    X(free) X(itemsize) X(known_to_others) X(latest) X(launch) X(launch_failure) X(launch_graph) \
    X(launches) X(live) X(look_ahead) X(lost) X(map) X(name) X(nbytes) X(note_uses) \
    X(obtain_when_free) X(order_read) X(order_write) X(ordering) X(packed) X(pinned) X(pop) \
    X(popleft) X(query_event) X(query_stream) X(raise_if_lost) X(raise_lost) X(reclaimer) \
    X(record_event) X(reports) X(require_data) X(run) X(settle) X(spare_events) X(step) X(stop) \
    X(strict) X(sweep) X(synchronize_event) X(take_event) X(takes) X(title) X(traced_name) X(type) \
    X(used_by_others) X(uses_noted) X(value) X(visible) X(wait_for_joined) X(waits_avoided) \
    X(words) X(zip)
/* clang-format on */

typedef struct {
#define FIELD(name) PyObject *name;
    GIVEN(FIELD)
#undef FIELD
} Given;
extern Given given;

typedef struct {
#define FIELD(name) PyObject *name;
    NAMES(FIELD)
#undef FIELD
} Names;
extern Names names;

extern Points *points;
extern Lock *runtime_lock;
extern Py_ssize_t record_bytes; /* the size of a kernel's fault record */
extern Py_ssize_t small_bytes;  /* the largest upload that is copied when it is submitted */

/* ---- Functions ---- */

/* Adds the address of a function to a module, as an int. */
int add_address(PyObject *module, const char *name, const void *address);

/* Makes types of ``size`` bytes, and adds them to the module. Each is kept at ``place``. */
typedef struct {
    PyTypeObject **place;
    const char *name;
    size_t size;
    unsigned flags;
    PyType_Slot *slots;
    PyTypeObject **base;
} Kind;
int add_kinds(PyObject *module, const Kind *kinds, size_t count);
#define ADD_KINDS(module, kinds) add_kinds(module, kinds, sizeof kinds / sizeof *kinds)

/* Traverses, clears and frees an object whose references are at ``offsets``. */
int traverse_fields(PyObject *self, const size_t *offsets, size_t count, visitproc visit,
                    void *arg);
int clear_fields(PyObject *self, const size_t *offsets, size_t count);
void free_object(PyObject *self);

#define UNUSED __attribute__((unused))
#define COLLECTED (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC)
#define AT(T, field) offsetof(T, field)
#define FIELDS_OF(T, ...) \
    static const size_t T##_fields[] = {__VA_ARGS__}; \
    UNUSED static int T##_traverse(PyObject *self, visitproc visit, void *arg) { \
        return traverse_fields(self, T##_fields, sizeof T##_fields / sizeof *T##_fields, visit, \
                               arg); \
    } \
    UNUSED static int T##_clear(PyObject *self) { \
        return clear_fields(self, T##_fields, sizeof T##_fields / sizeof *T##_fields); \
    } \
    UNUSED static void T##_dealloc(PyObject *self) { \
        PyObject_GC_UnTrack(self); \
        T##_clear(self); \
        free_object(self); \
    }
#define SLOTS_OF(T) \
    {Py_tp_traverse, T##_traverse}, {Py_tp_clear, T##_clear}, { \
        Py_tp_dealloc, T##_dealloc \
    }

/* Raises TypeError for an object whose field was never set, and returns NULL. */
PyObject *missing(PyObject *object, const char *field);
#define LACKS(object, field) (missing((PyObject *)(object), field), -1)

/* Raises TypeError, and returns NULL or -1. */
void *refuse(const char *message);
#define REFUSED(message) (refuse(message), -1)

/* Drops the result of a call that only succeeds or fails. Returns 0, or -1 for NULL. */
int drop_result(PyObject *result);

/* Returns the attribute's truth, or -1. */
int is_true(PyObject *object, PyObject *name);

/* Returns whether two objects are equal, or -1. Holds references to them: their ``__eq__`` may drop
 * the last others. */
int is_equal(PyObject *object, PyObject *other);

/* Each returns 1 with TypeError, or 0: for a constructor that takes no keywords, and for one that
   has set ``field`` before. */
int has_keywords(PyObject *self, PyObject *keywords);
int is_made(PyObject *self, void *field);

/* Returns the size of a list, and 0 for anything else: a field that Python may have set to it, or
 * deleted. */
Py_ssize_t list_size(PyObject *list);

/* locks.c. ``lock_take`` waits without the GIL, and handles signals meanwhile. */
int lock_take(Lock *lock);
void lock_release(Lock *lock);
int lock_is_mine(Lock *lock);

/* ordering.c */
/* Submits by ``call``, with the lock held, work that is ordered after earlier uses of its memory,
   and before later ones. After an interrupt the work may have been submitted; ``always``: after
   every error. The caller has references to the allocations. */
typedef int (*Submit)(PyObject *driver, PyObject *handle, void *work);
int submit_ordered(Context *context, Allocation **uses, int reads, int writes, Submit call,
                   void *work, int always);
int order_before(Context *context, Allocation **uses, int reads, int writes);
int order_after(Context *context, Allocation **uses, int reads, int writes);
PyObject *mark_now(Timeline *timeline);
int mark_passed(Mark *mark);
int note_passed(Timeline *timeline, long long position);
void note_write(Allocation *allocation, Timeline *timeline, long long position);
PyObject *take_event(PyObject *device);
int spare_event(PyObject *device, PyObject *event);
void raise_if_loss(PyObject *device);
int raise_if_lost(PyObject *device);
Allocation *allocation_of(PyObject *object);
/* Of an array of allocations, with a reference each: a list of some, a visit, and the end of all.
 */
PyObject *list_uses(Allocation **uses, int from, int to);
int visit_uses(Allocation **uses, int count, visitproc visit, void *arg);
void drop_uses(Allocation **uses, int count);
/* Sets the number of elements of a shape, and their bytes. Returns 1, 0 if no memory has that size,
 * or -1 with an error. */
int measure(PyObject *shape, PyObject *dtype, Py_ssize_t *size, Py_ssize_t *nbytes);

/* binding.c: returns 1 if the arguments are bound to the launch, 0 if they need a closer look, -1
 * with an error. */
int bind_arguments(Plan *plan, PyObject *arguments, Launch *launch);
/* Reads a size, or the three of a grid or a block. Returns 0, or -1 with an exception. */
int size_of(PyObject *number, unsigned *result);
int sizes_of(PyObject *tuple, unsigned *result);

/* launching.c. ``was_interrupted``: whether an error may have come between any two steps of the
   package's own code, from a signal handler. */
int was_interrupted(PyObject *error);
PyObject *launch_execute(Launch *launch, Context *context);
int launch_kernel(unsigned long long entry, unsigned long long function, const unsigned *sizes,
                  void *params, size_t nbytes, unsigned long long stream);
PyObject *new_report(PyObject *pool);
int faults_claimed(PyObject *report);

/* memory.c */
int note_host_copy(Context *context, PyObject *array);

/* graphs.c */
PyObject *execute_graph_launch(GraphLaunch *self, Context *context);

/* walking.c */
int begin_operation(Operation *self, PyObject *parts);
int note_built(Operation *self);
int may_wait(PyObject *operation);
PyObject *run_through(PyObject *operation, Context *context);
PyObject *execute_alone(PyObject *operation, Context *context);
int mark_used(PyObject *operation);
PyObject *new_walk(PyObject *operation, Context *context);
int walk_on(PyObject *walk); /* as ``Walk.advance``: returns 1 with the result, or -1 */

/* finalisers.c */
void finalize_unused(PyObject *self);
/* Calls what a finaliser does, and reports its error. Keeps the exception that is on its way. */
void finalize_by(int (*function)(PyObject *), PyObject *self);
#define FINALIZER(name, function) \
    static void name(PyObject *self) { \
        finalize_by(function, self); \
    }

/* module.c: takes the exception that is raised, with its traceback. */
PyObject *caught_error(void);
/* Raises an error and drops the reference to it. One that was raised before keeps its context,
 * which
 * ``raise`` would replace by the exception that the caller handles. Returns NULL; with NULL, the
 * exception in force stays. */
void *raise_error(PyObject *error);
/* Has Python handle the exception that is raised: calls the method ``name`` of ``object``, or
   ``object`` itself if ``name`` is NULL, with objects up to NULL, and with the exception. If Python
   raises it again, it keeps its context. */
PyObject *handle_error(PyObject *object, PyObject *name, ...);

/* tensors.c: returns whether consumers have released tensors since Python last collected them. */
int tensors_were_released(void);

/* Each adds the types and functions of one file to the module. Returns 0, or -1 with an exception.
 */
int add_alarms(PyObject *module);
int add_binding(PyObject *module);
int add_copies(PyObject *module);
int add_crash_reports(PyObject *module);
int add_finalisers(PyObject *module);
int add_graphs(PyObject *module);
int add_launching(PyObject *module);
int add_locks(PyObject *module);
int add_memory(PyObject *module);
int add_ordering(PyObject *module);
int add_running(PyObject *module);
int add_tensors(PyObject *module);
int add_walking(PyObject *module);

#endif
