/* Launches: what a bound launch submits, the records in which its kernel reports a fault, and the
   driver's functions, which are called by address: no header of CUDA is needed. In Python most of
   the time of these calls is spent around the driver. */

#include "core.h"

enum { RECORDS = 8 }; /* the launches that one report serves */

/* ---- The driver's functions ---- */

typedef int (*LaunchKernel)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned shared_bytes, void *stream, void **parameters, void **extra);
typedef int (*OfOne)(void *handle);
typedef int (*OfTwo)(void *first, void *second);

/* The driver's names for the entries of `extra`, which describe the parameters as one packed
 * buffer. */
#define BUFFER_POINTER ((void *)1)
#define BUFFER_SIZE ((void *)2)
#define END ((void *)0)

/* The call may wait for the device when too much work is in flight, and the device may wait for a
   Python host function. */
int launch_kernel(unsigned long long entry, unsigned long long function, const unsigned *sizes,
                  void *params, size_t nbytes, unsigned long long stream) {
    void *extra[] = {BUFFER_POINTER, params, BUFFER_SIZE, &nbytes, END};
    int code;
    Py_BEGIN_ALLOW_THREADS;
    code = ((LaunchKernel)(uintptr_t)entry)((void *)(uintptr_t)function, sizes[0], sizes[1],
                                            sizes[2], sizes[3], sizes[4], sizes[5], sizes[6],
                                            (void *)(uintptr_t)stream, NULL, extra);
    Py_END_ALLOW_THREADS;
    return code;
}

static int address(PyObject *number, unsigned long long *result) {
    *result = PyLong_AsUnsignedLongLong(number);
    return *result == (unsigned long long)-1 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *core_launch(PyObject *Py_UNUSED(module), PyObject *const *arguments,
                             Py_ssize_t count) {
    unsigned long long function, kernel, stream;
    unsigned sizes[7];
    char *params;
    Py_ssize_t nbytes;
    if (count != 7) {
        PyErr_Format(PyExc_TypeError, "launch takes 7 arguments, got %zd", count);
        return NULL;
    }
    if (address(arguments[0], &function) < 0 || address(arguments[1], &kernel) < 0 ||
        sizes_of(arguments[2], sizes) < 0 || sizes_of(arguments[3], sizes + 3) < 0 ||
        size_of(arguments[4], sizes + 6) < 0 ||
        PyBytes_AsStringAndSize(arguments[5], &params, &nbytes) < 0 ||
        address(arguments[6], &stream) < 0)
        return NULL;
    if (function == 0) {
        PyErr_SetString(PyExc_ValueError, "entry is no address of a function");
        return NULL;
    }
    return PyLong_FromLong(launch_kernel(function, kernel, sizes, params, (size_t)nbytes, stream));
}

/* ---- The handles of a driver whose functions C calls ---- */

static PyMemberDef handle_members[] = {{"address", T_ULONGLONG, AT(Handle, address), 0, NULL},
                                       {NULL}};

static PyMemberDef function_members[] = {
    {"address", T_ULONGLONG, AT(Function, address), 0, NULL},
    {"shared_limit", T_LONGLONG, AT(Function, shared_limit), 0, NULL},
    {"parameter_bytes", T_LONGLONG, AT(Function, parameter_bytes), 0, NULL},
    {"reports", T_BOOL, AT(Function, reports), 0, NULL},
    {"plain", T_BOOL, AT(Function, plain), 0, NULL},
    {NULL},
};

static PyMemberDef calls_members[] = {
    {"_launch_kernel", T_ULONGLONG, AT(Calls, launch_kernel), 0, NULL},
    {"_launch_graph", T_ULONGLONG, AT(Calls, launch_graph), 0, NULL},
    {"_stream_query", T_ULONGLONG, AT(Calls, stream_query), 0, NULL},
    {"_event_query", T_ULONGLONG, AT(Calls, event_query), 0, NULL},
    {"_event_record", T_ULONGLONG, AT(Calls, event_record), 0, NULL},
    {"_event_synchronize", T_ULONGLONG, AT(Calls, event_synchronize), 0, NULL},
    {NULL},
};

enum { NOT_READY = 600 }; /* CUDA_ERROR_NOT_READY */

/* Calls a function with one or two handles, without the GIL. Returns its code if it is ``may_be``
   or 0, otherwise -1 with the driver's exception. */
static int call_with(PyObject *self, unsigned long long function, PyObject *first, PyObject *second,
                     int may_be, const char *name) {
    if (!function || !PyObject_TypeCheck(first, types.handle) ||
        (second != NULL && !PyObject_TypeCheck(second, types.handle))) {
        PyErr_Format(PyExc_TypeError, "%s takes handles of the driver's", name);
        return -1;
    }
    void *one = (void *)(uintptr_t)((Handle *)first)->address;
    void *two = second == NULL ? NULL : (void *)(uintptr_t)((Handle *)second)->address;
    int code;
    Py_INCREF(self); /* another thread may drop the driver meanwhile */
    Py_BEGIN_ALLOW_THREADS;
    code =
        second == NULL ? ((OfOne)(uintptr_t)function)(one) : ((OfTwo)(uintptr_t)function)(one, two);
    Py_END_ALLOW_THREADS;
    if (code != 0 && code != may_be) {
        raise_error(PyObject_CallMethod(self, "call_failure", "is", code, name));
        code = -1;
    }
    Py_DECREF(self);
    return code;
}

static PyObject *query_stream(PyObject *self, PyObject *stream) {
    int code =
        call_with(self, ((Calls *)self)->stream_query, stream, NULL, NOT_READY, "cuStreamQuery");
    return code < 0 ? NULL : PyBool_FromLong(code == 0);
}

static PyObject *query_event(PyObject *self, PyObject *event) {
    int code =
        call_with(self, ((Calls *)self)->event_query, event, NULL, NOT_READY, "cuEventQuery");
    return code < 0 ? NULL : PyBool_FromLong(code == 0);
}

static PyObject *synchronize_event(PyObject *self, PyObject *event) {
    int code =
        call_with(self, ((Calls *)self)->event_synchronize, event, NULL, 0, "cuEventSynchronize");
    return code < 0 ? NULL : Py_NewRef(Py_None);
}

/* Calls a function with the two handles that a method has been given. */
static PyObject *call_with_two(PyObject *self, unsigned long long function,
                               PyObject *const *handles, Py_ssize_t count, const char *name) {
    if (count != 2) {
        PyErr_Format(PyExc_TypeError, "%s takes two handles, got %zd arguments", name, count);
        return NULL;
    }
    return call_with(self, function, handles[0], handles[1], 0, name) < 0 ? NULL
                                                                          : Py_NewRef(Py_None);
}

static PyObject *record_event(PyObject *self, PyObject *const *handles, Py_ssize_t count) {
    return call_with_two(self, ((Calls *)self)->event_record, handles, count, "cuEventRecord");
}

static PyObject *launch_graph(PyObject *self, PyObject *const *handles, Py_ssize_t count) {
    return call_with_two(self, ((Calls *)self)->launch_graph, handles, count, "cuGraphLaunch");
}

static PyMethodDef calls_methods[] = {
    {"query_stream", query_stream, METH_O, "query_stream(stream)\n--\n\n"},
    {"query_event", query_event, METH_O, "query_event(event)\n--\n\n"},
    {"record_event", FAST(record_event), METH_FASTCALL, "record_event(event, stream)\n--\n\n"},
    {"synchronize_event", synchronize_event, METH_O, "synchronize_event(event)\n--\n\n"},
    {"launch_graph", FAST(launch_graph), METH_FASTCALL, "launch_graph(graph, stream)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

/* ---- FaultReport ---- */

FIELDS_OF(Report, AT(Report, records), AT(Report, give_back), AT(Report, launches))

static PyMemberDef report_members[] = {
    {"_records", T_OBJECT_EX, AT(Report, records), READONLY, NULL},
    {"_launches", T_OBJECT_EX, AT(Report, launches), READONLY, NULL},
    {NULL},
};

static int give_records_back(PyObject *object) {
    Report *self = (Report *)object;
    if (self->records == NULL || self->give_back == NULL)
        return 0;
    return drop_result(PyObject_CallFunctionObjArgs(self->give_back, self->records, NULL));
}
FINALIZER(report_finalize, give_records_back)

/* Returns a report with free records, which it takes from the pool in one step: no interrupt can
 * lose them. */
PyObject *new_report(PyObject *pool) {
    PyObject *returned = PyObject_GetAttr(pool, names._returned);
    if (returned == NULL)
        return NULL;
    Report *self = (Report *)PyType_GenericAlloc((PyTypeObject *)given.FaultReport, 0);
    if (self == NULL || (self->launches = PyList_New(0)) == NULL ||
        (self->give_back = PyObject_GetAttr(returned, names.append)) == NULL)
        goto failed;
    while ((self->records = METHOD0(returned, names.popleft)) == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_IndexError))
            goto failed;
        PyErr_Clear();
        PyObject *made = METHOD0(pool, names._make);
        if (made == NULL)
            goto failed;
        Py_DECREF(made);
    }
    PyObject *number = PyObject_GetAttr(self->records, names.address);
    if (number == NULL || address(number, &self->address) < 0) {
        Py_XDECREF(number);
        goto failed;
    }
    Py_DECREF(number);
    Py_DECREF(returned);
    return (PyObject *)self;
failed:
    Py_DECREF(returned);
    Py_XDECREF((PyObject *)self);
    return NULL;
}

static Py_ssize_t launches_of(Report *self) {
    return self->launches == NULL ? RECORDS : PyList_Size(self->launches) / 2;
}

static volatile uint32_t *flag_of(Report *self, Py_ssize_t number) {
    return (volatile uint32_t *)(uintptr_t)(self->address + (unsigned long long)number *
                                                                (unsigned long long)record_bytes);
}

/* Assigns the next record to a launch: sets ``word`` to its address. The caller has references to
 * both. */
static int next_word(Report *self, PyObject *special, PyObject *place, uint64_t *word) {
    Py_ssize_t number = launches_of(self);
    if (number >= RECORDS || self->address == 0)
        return LACKS(self, "record");
    if (*flag_of(self, number)) { /* an earlier launch claimed it; an unclaimed record is zero */
        PyObject *at = PyLong_FromSsize_t(number),
                 *done = at == NULL ? NULL : METHOD1(self->records, names.clear, at);
        Py_XDECREF(at);
        Py_XDECREF(done);
        if (done == NULL)
            return -1;
    }
    if (PyList_Append(self->launches, special) < 0)
        return -1;
    if (PyList_Append(self->launches, place == NULL ? Py_None : place) <
        0) { /* the list is one of pairs */
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        if (PyList_SetSlice(self->launches, 2 * number, 2 * number + 1, NULL) < 0)
            PyErr_Clear();
        PyErr_Restore(type, error, trace);
        return -1;
    }
    *word = (uint64_t)(uintptr_t)flag_of(self, number);
    return 0;
}

static PyObject *report_next_word(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    uint64_t word;
    if (count != 2)
        return refuse("next_word takes a specialization and a place");
    return next_word((Report *)self, arguments[0], arguments[1], &word) < 0
               ? NULL
               : PyBytes_FromStringAndSize((char *)&word, sizeof word);
}

static int report_is_claimed(Report *self) {
    for (Py_ssize_t number = 0; self->address && number < launches_of(self); number++)
        if (*flag_of(self, number))
            return 1;
    return 0;
}

static PyObject *report_claimed(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    return PyBool_FromLong(report_is_claimed((Report *)self));
}

static PyObject *report_full(PyObject *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(launches_of((Report *)self) >= RECORDS);
}

int faults_claimed(PyObject *report) {
    if ((PyObject *)Py_TYPE(report) == given.FaultReport)
        return report_is_claimed((Report *)report);
    PyObject *answer = METHOD0(report, names.claimed);
    int claimed = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return claimed;
}

static PyMethodDef report_methods[] = {
    {"next_word", FAST(report_next_word), METH_FASTCALL, "next_word(special, place)\n--\n\n"},
    {"claimed", report_claimed, METH_NOARGS, "claimed()\n--\n\n"},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef report_properties[] = {
    {"is_full", report_full, NULL, "Returns whether every record has a launch.", NULL},
    {NULL},
};

static PyObject *core_new_report(PyObject *Py_UNUSED(module), PyObject *pool) {
    return new_report(pool);
}

/* Returns the report for the next launch of a run, as a new reference. */
static Report *report_for(Context *context) {
    Report *report = (Report *)context->report;
    if (!IS_NONE(report) && (PyObject *)Py_TYPE((PyObject *)report) == given.FaultReport &&
        launches_of(report) < RECORDS)
        return (Report *)Py_NewRef((PyObject *)report);
    PyObject *pool = context->runtime == NULL
                         ? missing((PyObject *)context, "runtime")
                         : PyObject_GetAttr(context->runtime, names.fault_records);
    report = pool == NULL ? NULL : (Report *)new_report(pool);
    Py_XDECREF(pool);
    if (report != NULL && context->faults == NULL)
        missing((PyObject *)context, "_faults");
    if (report != NULL &&
        (context->faults == NULL || PyList_Append(context->faults, (PyObject *)report) < 0))
        Py_CLEAR(report);
    if (report != NULL)
        SET(context->report, report);
    return report;
}

/* ---- Launch ---- */

FIELDS_OF(Launch, AT(Operation, built), AT(Operation, placement), AT(Launch, kernel),
          AT(Launch, config), AT(Launch, arguments), AT(Launch, plan), AT(Launch, special),
          AT(Launch, known), AT(Launch, held), AT(Launch, parts), AT(Launch, params),
          AT(Launch, device))

static int traverse_launch(PyObject *object, visitproc visit, void *arg) {
    Launch *self = (Launch *)object;
    int stopped = visit_uses(self->uses, self->reads + self->writes, visit, arg);
    return stopped ? stopped : Launch_traverse(object, visit, arg);
}

static int clear_launch(PyObject *object) {
    Launch *self = (Launch *)object;
    Allocation **uses = self->uses;
    int count = self->reads + self->writes;
    self->bound = 0;
    self->reads = self->writes = 0;
    drop_uses(uses, count);
    if (uses != self->few)
        PyMem_Free(uses);
    self->uses = self->few;
    return Launch_clear(object);
}

static void free_launch(PyObject *object) {
    PyObject_GC_UnTrack(object);
    clear_launch(object);
    free_object(object);
}

static PyMemberDef launch_members[] = {
    {"_kernel", T_OBJECT_EX, AT(Launch, kernel), 0, NULL},
    {"_config", T_OBJECT, AT(Launch, config), 0, NULL},
    {"_arguments", T_OBJECT_EX, AT(Launch, arguments), 0, NULL},
    {"_plan", T_OBJECT_EX, AT(Launch, plan), 0, NULL},
    {"_specialization", T_OBJECT_EX, AT(Launch, special), 0, NULL},
    {"_known", T_OBJECT, AT(Launch, known), 0, NULL},
    {"_held", T_OBJECT, AT(Launch, held), 0, NULL},
    {"_composed", T_BOOL, AT(Launch, composed), 0, NULL},
    {"_bound", T_BOOL, AT(Launch, bound), READONLY, NULL},
    {"_params", T_OBJECT_EX, AT(Launch, params), READONLY, NULL},
    {"_bound_device", T_OBJECT, AT(Launch, device), READONLY, NULL},
    {NULL},
};

static PyObject *launch_new(PyTypeObject *type, PyObject *Py_UNUSED(arguments),
                            PyObject *Py_UNUSED(keywords)) {
    Launch *self = (Launch *)PyType_GenericAlloc(type, 0);
    if (self != NULL)
        self->uses = self->few;
    return (PyObject *)self;
}

static PyObject *launch_reads(PyObject *self, void *Py_UNUSED(closure)) {
    return list_uses(((Launch *)self)->uses, 0, ((Launch *)self)->reads);
}

static PyObject *launch_writes(PyObject *self, void *Py_UNUSED(closure)) {
    Launch *launch = (Launch *)self;
    return list_uses(launch->uses, launch->reads, launch->reads + launch->writes);
}

static PyObject *launch_parts(PyObject *self, void *Py_UNUSED(closure)) {
    PyObject *parts = ((Launch *)self)->parts;
    return parts == NULL ? PyTuple_New(0) : Py_NewRef(parts);
}

static int launch_set_parts(PyObject *self, PyObject *parts, void *Py_UNUSED(closure)) {
    if (parts == NULL || !PyTuple_Check(parts))
        return REFUSED("the parts of a launch are a tuple");
    SET(((Launch *)self)->parts, parts);
    return 0;
}

static PyGetSetDef launch_properties[] = {
    {"_parts", launch_parts, launch_set_parts, NULL, NULL},
    {"_reads", launch_reads, NULL, NULL, NULL},
    {"_writes", launch_writes, NULL, NULL, NULL},
    {NULL},
};

static PyObject *launch_bind(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    if (count != 2 || !PyObject_TypeCheck(arguments[0], types.plan) || !PyTuple_Check(arguments[1]))
        return refuse("bind takes a plan and a tuple of arguments");
    int bound = bind_arguments((Plan *)arguments[0], arguments[1], (Launch *)self);
    return bound < 0 ? NULL : PyBool_FromLong(bound);
}

/* A launch, and what it submits with references of the caller's. */
typedef struct {
    Launch *launch;
    PyObject *function;
    Config *config;
    uint64_t word;
} Bound;

static int call_driver(PyObject *driver, PyObject *handle, Bound *bound) {
    PyObject *function = bound->function;
    Config *config = bound->config;
    uint64_t word = bound->word;
    char *params, few[1024], *buffer = few;
    Py_ssize_t nbytes;
    if (PyBytes_AsStringAndSize(bound->launch->params, &params, &nbytes) < 0)
        return -1;
    size_t size = (size_t)nbytes + sizeof word;
    if (PyObject_TypeCheck(function, types.function) && PyObject_TypeCheck(driver, types.calls) &&
        PyObject_TypeCheck(handle, types.handle)) {
        Function *kernel = (Function *)function;
        Calls *calls = (Calls *)driver;
        if (kernel->plain && calls->launch_kernel &&
            (long long)config->sizes[6] <= kernel->shared_limit &&
            (long long)size >= kernel->parameter_bytes) {
            if (size > sizeof few && (buffer = PyMem_Malloc(size)) == NULL) {
                PyErr_NoMemory();
                return -1;
            }
            memcpy(buffer, params, (size_t)nbytes);
            memcpy(buffer + nbytes, &word, sizeof word);
            int code = launch_kernel(calls->launch_kernel, kernel->address, config->sizes, buffer,
                                     size, ((Handle *)handle)->address);
            if (buffer != few)
                PyMem_Free(buffer);
            if (code == 0)
                return 0;
            PyObject *number = PyLong_FromLong(code);
            PyObject *failed =
                number == NULL
                    ? NULL
                    : PyObject_CallMethodObjArgs(driver, names.launch_failure, number, function,
                                                 config->grid, config->block, config->shared, NULL);
            Py_XDECREF(number);
            raise_error(failed);
            return -1;
        }
    }
    PyObject *whole = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (whole == NULL)
        return -1;
    char *at = PyBytes_AsString(whole);
    memcpy(at, params, (size_t)nbytes);
    memcpy(at + nbytes, &word, sizeof word);
    PyObject *done = PyObject_CallMethodObjArgs(driver, names.launch, function, config->grid,
                                                config->block, config->shared, whole, handle, NULL);
    Py_DECREF(whole);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int submit_launch(PyObject *driver, PyObject *handle, void *work) {
    Bound *bound = work;
    PyObject *kernel = bound->launch->kernel == NULL ? Py_None : bound->launch->kernel;
    if (call_driver(driver, handle, bound) == 0)
        return 0;
    Py_XDECREF(handle_error(given.launch_failed, NULL, kernel, NULL)); /* it always raises */
    return -1;
}

int was_interrupted(PyObject *error) {
    PyObject *answer = PyObject_CallFunctionObjArgs(given.is_interrupt, error, NULL);
    int truth = answer == NULL ? 1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    PyErr_Clear();
    return truth != 0;
}

/* Submits what is bound. The caller has references to the objects. */
static PyObject *execute_bound(Launch *self, Context *context, PyObject *function, Config *config) {
    if (PyList_Append(context->kept, function) < 0) /* from here on, the run holds a reference */
        return NULL;
    int reports = PyObject_TypeCheck(function, types.function) ? ((Function *)function)->reports
                                                               : is_true(function, names.reports);
    uint64_t word = 0;
    if (reports < 0)
        return NULL;
    if (reports) {
        Report *report = report_for(context);
        PyObject *special = Py_NewRef(self->special == NULL ? Py_None : self->special),
                 *place = Py_XNewRef(context->place);
        int failed = report == NULL ? -1 : next_word(report, special, place, &word);
        Py_XDECREF((PyObject *)report);
        Py_DECREF(special);
        Py_XDECREF(place);
        if (failed)
            return NULL;
    }
    Bound bound = {self, function, config, word};
    return submit_ordered(context, self->uses, self->reads, self->writes, submit_launch, &bound, 0)
               ? NULL
           : self->arguments == NULL ? missing((PyObject *)self, "_arguments")
                                     : Py_NewRef(self->arguments);
}

/* Tells the run that a trace notes how much memory a launch uses. */
static int tell_size(Launch *self, PyObject *run) {
    Py_ssize_t total = 0;
    for (int i = 0; i < self->reads + self->writes; i++)
        total += self->uses[i]->nbytes;
    PyObject *number = PyLong_FromSsize_t(total);
    int failed = number == NULL || PyObject_SetAttr(run, names.nbytes, number) < 0;
    Py_XDECREF(number);
    return failed ? -1 : 0;
}

PyObject *launch_execute(Launch *self, Context *context) {
    Timeline *timeline = context->timeline;
    Plan *plan = (Plan *)self->plan;
    if (!self->bound || !IS_NONE(context->recording) || !IS_NONE(context->lender) ||
        (self->device != NULL && self->device != context->device) || plan == NULL ||
        timeline == NULL || IS_NONE(self->config) ||
        !PyObject_TypeCheck(self->config, types.config) ||
        !PyObject_TypeCheck(self->plan, types.plan) || timeline->loaded == NULL ||
        timeline->handle == NULL || context->driver == NULL || context->kept == NULL ||
        self->arguments == NULL || self->kernel == NULL)
        return METHOD1(self, names._execute_otherwise, context);
    PyObject *function = plan->reference == NULL || !PyDict_Check(timeline->loaded)
                             ? NULL
                             : PyDict_GetItemWithError(timeline->loaded, plan->reference);
    if (function == NULL)
        return PyErr_Occurred() ? NULL : METHOD1(self, names._execute_otherwise, context);
    Config *config = (Config *)Py_NewRef(self->config);
    PyObject *run = Py_XNewRef(context->traced), *result = NULL;
    Py_INCREF(function);
    if (IS_NONE(run) || tell_size(self, run) == 0)
        result = execute_bound(self, context, function, config);
    Py_DECREF(function);
    Py_DECREF((PyObject *)config);
    Py_XDECREF(run);
    return result;
}

static PyObject *launch_execute_method(PyObject *self, PyObject *context) {
    if (!PyObject_TypeCheck(context, types.context))
        return refuse("a launch is executed in an ExecutionContext");
    return launch_execute((Launch *)self, (Context *)context);
}

static PyMethodDef launch_methods[] = {
    {"bind", FAST(launch_bind), METH_FASTCALL,
     "bind(plan, arguments)\n--\n\nBinds the arguments. Returns False if they need a closer look."},
    {"execute", launch_execute_method, METH_O,
     "execute(context)\n--\n\nSubmits the launch, and returns its arguments."},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef functions[] = {
    {"launch", FAST(core_launch), METH_FASTCALL,
     "launch(entry, function, grid, block, shared_bytes, params, stream)\n--\n\n"},
    {"new_report", core_new_report, METH_O, "new_report(pool)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

int add_launching(PyObject *module) {
    PyType_Slot handle[] = {{Py_tp_members, handle_members}, {0, NULL}};
    PyType_Slot function[] = {{Py_tp_members, function_members}, {0, NULL}};
    PyType_Slot calls[] = {
        {Py_tp_members, calls_members}, {Py_tp_methods, calls_methods}, {0, NULL}};
    PyType_Slot report[] = {
        {Py_tp_members, report_members},
        {Py_tp_methods, report_methods},
        {Py_tp_getset, report_properties},
        {Py_tp_finalize, report_finalize},
        SLOTS_OF(Report),
        {0, NULL},
    };
    PyType_Slot launch[] = {
        {Py_tp_new, launch_new},           {Py_tp_members, launch_members},
        {Py_tp_getset, launch_properties}, {Py_tp_methods, launch_methods},
        {Py_tp_traverse, traverse_launch}, {Py_tp_clear, clear_launch},
        {Py_tp_dealloc, free_launch},      {0, NULL},
    };
    unsigned plain = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE;
    const Kind kinds[] = {
        {&types.handle, "oxide._core.Handle", sizeof(Handle), plain, handle},
        {&types.function, "oxide._core.Function", sizeof(Function), plain, function},
        {&types.calls, "oxide._core.Calls", sizeof(Calls), plain, calls},
        {&types.report, "oxide._core.FaultReport", sizeof(Report), COLLECTED, report},
        {&types.launch, "oxide._core.Launch", sizeof(Launch), COLLECTED, launch, &types.operation},
    };
    if (ADD_KINDS(module, kinds) < 0)
        return -1;
    if (PyModule_AddIntConstant(module, "REPORT_RECORDS", RECORDS) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
