/* Launches of graphs. oxide/runtime/operations/graph.py explains them, and the record in which a
   launch reports a fault. A launch that takes more than the graph itself, such as inputs, uploads
   or a new page of records, is Python's. */

#include "core.h"

enum { PAGE_RECORDS = 64 }; /* the launches of a graph that one page serves */

/* ---- GraphFaultReport: the record of one launch of a graph ---- */

FIELDS_OF(GraphReport, AT(GraphReport, page), AT(GraphReport, kernels), AT(GraphReport, place))

static PyMemberDef report_members[] = {
    {"_page", T_OBJECT_EX, AT(GraphReport, page), READONLY, NULL},
    {"_kernels", T_OBJECT_EX, AT(GraphReport, kernels), READONLY, NULL},
    {"_graph_place", T_OBJECT, AT(GraphReport, place), READONLY, NULL},
    {"_address", T_ULONGLONG, AT(GraphReport, address), READONLY, NULL},
    {NULL},
};

static int set_report(GraphReport *self, PyObject *page, long long number, PyObject *kernels,
                      PyObject *place) {
    if (page == NULL || given.FaultPage == NULL ||
        !PyObject_TypeCheck(page, (PyTypeObject *)given.FaultPage) || number < 0 ||
        number >= PAGE_RECORDS) {
        PyErr_Format(PyExc_TypeError, "the record of a launch is one of the %d of a FaultPage",
                     PAGE_RECORDS);
        return -1;
    }
    PyObject *address = PyObject_GetAttr(page, names.address);
    unsigned long long first = address == NULL ? 0 : PyLong_AsUnsignedLongLong(address);
    Py_XDECREF(address);
    if (PyErr_Occurred())
        return -1;
    self->address = first + (unsigned long long)number * (unsigned long long)record_bytes;
    SET(self->page, page); /* which keeps the memory */
    SET(self->kernels, kernels);
    SET(self->place, place);
    return 0;
}

static int report_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *known[] = {"page", "number", "kernels", "graph_place", NULL};
    PyObject *page, *kernels, *place;
    long long number;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OLOO", known, &page, &number, &kernels,
                                     &place))
        return -1;
    return set_report((GraphReport *)object, page, number, kernels, place);
}

static PyObject *report_claimed(PyObject *object, PyObject *Py_UNUSED(nothing)) {
    GraphReport *self = (GraphReport *)object;
    return PyBool_FromLong(self->page != NULL && self->address &&
                           *(volatile uint32_t *)(uintptr_t)self->address != 0);
}

static PyMethodDef report_methods[] = {
    {"claimed", report_claimed, METH_NOARGS, "claimed()\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

/* ---- Captured: a graph's handle, and everything that the device needs while it runs ---- */

FIELDS_OF(Captured, AT(Dropping, drop), AT(Captured, handle), AT(Captured, kernels),
          AT(Captured, page), AT(Captured, inputs), AT(Captured, at_launch), AT(Captured, last),
          AT(Captured, first), AT(Captured, lock))

static int traverse_captured(PyObject *object, visitproc visit, void *arg) {
    Captured *self = (Captured *)object;
    int stopped = visit_uses(self->uses, self->reads + self->writes, visit, arg);
    return stopped ? stopped : Captured_traverse(object, visit, arg);
}

static int clear_captured(PyObject *object) {
    Captured *self = (Captured *)object;
    int count = self->reads + self->writes;
    Allocation **uses = self->uses;
    self->plain = 0;
    self->reads = self->writes = 0;
    self->uses = NULL;
    drop_uses(uses, count);
    PyMem_Free(uses);
    return Captured_clear(object);
}

static void free_captured(PyObject *object) {
    PyObject_GC_UnTrack(object);
    clear_captured(object);
    free_object(object);
}

static PyMemberDef captured_members[] = {
    {"_handle", T_OBJECT_EX, AT(Captured, handle), 0, NULL},
    {"_kernels", T_OBJECT_EX, AT(Captured, kernels), 0, NULL},
    {"_page", T_OBJECT, AT(Captured, page), 0, NULL},
    {"_used", T_INT, AT(Captured, used), 0, NULL},
    {"_record", T_ULONGLONG, AT(Captured, record), 0, NULL},
    {"_at_launch", T_OBJECT_EX, AT(Captured, at_launch), 0, NULL},
    {"_last", T_OBJECT, AT(Captured, last), 0, NULL},
    {"_lock", T_OBJECT_EX, AT(Captured, lock), READONLY, NULL},
    {"first", T_OBJECT, AT(Captured, first), 0, NULL},
    {"inputs", T_OBJECT_EX, AT(Captured, inputs), 0, NULL},
    {"fills_host", T_BOOL, AT(Captured, fills_host), 0, NULL},
    {NULL},
};

static PyObject *captured_reads(PyObject *self, void *Py_UNUSED(closure)) {
    return list_uses(((Captured *)self)->uses, 0, ((Captured *)self)->reads);
}

static PyObject *captured_writes(PyObject *self, void *Py_UNUSED(closure)) {
    Captured *captured = (Captured *)self;
    return list_uses(captured->uses, captured->reads, captured->reads + captured->writes);
}

static PyGetSetDef captured_properties[] = {
    {"_reads", captured_reads, NULL, NULL, NULL},
    {"_writes", captured_writes, NULL, NULL, NULL},
    {NULL},
};

/* _set_uses(reads, writes, plain): ``plain`` is False for a graph whose launches do more than
 * launch it. */
static PyObject *captured_set_uses(PyObject *object, PyObject *arguments) {
    Captured *self = (Captured *)object;
    PyObject *lists[2];
    int plain;
    if (!PyArg_ParseTuple(arguments, "O!O!p", &PyList_Type, &lists[0], &PyList_Type, &lists[1],
                          &plain))
        return NULL;
    if (self->lock == NULL &&
        (self->lock = (Lock *)PyObject_CallNoArgs((PyObject *)types.lock)) == NULL)
        return NULL;
    Py_ssize_t reads = PyList_Size(lists[0]), writes = PyList_Size(lists[1]);
    if (self->uses != NULL || reads + writes > INT32_MAX)
        return refuse("the uses of a graph are set once");
    for (Py_ssize_t i = 0; i < reads + writes; i++)
        if (allocation_of(PyList_GetItem(lists[i >= reads], i >= reads ? i - reads : i)) == NULL)
            return NULL;
    self->uses = PyMem_Malloc((size_t)(reads + writes + 1) * sizeof *self->uses);
    if (self->uses == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < reads + writes; i++)
        self->uses[i] =
            (Allocation *)Py_NewRef(PyList_GetItem(lists[i >= reads], i >= reads ? i - reads : i));
    self->reads = (int)reads;
    self->writes = (int)writes;
    self->plain = (char)plain;
    Py_RETURN_NONE;
}

static int submit_graph(PyObject *driver, PyObject *stream, void *handle) {
    return drop_result(
        PyObject_CallMethodObjArgs(driver, names.launch_graph, handle, stream, NULL));
}

/* Submits a launch, with the graph's lock held. */
static int launch(Captured *self, Context *context) {
    PyObject *page = self->page; /* until the submission has succeeded, the graph has none */
    self->page = NULL;
    if (self->record) {
        GraphReport *report =
            (GraphReport *)PyType_GenericAlloc((PyTypeObject *)given.GraphFaultReport, 0);
        int failed = report == NULL ||
                     set_report(report, page, self->used, self->kernels, context->place) < 0 ||
                     PyList_Append(context->faults, (PyObject *)report) < 0;
        Py_XDECREF((PyObject *)report);
        if (failed) {
            Py_XDECREF(page);
            return -1;
        }
        SET(context->report,
            NULL); /* later launches get a new report, which is checked after this one */
    }
    PyObject *handle = Py_XNewRef(self->handle);
    int failed = handle == NULL ? LACKS(self, "_handle")
                                : submit_ordered(context, self->uses, self->reads, self->writes,
                                                 submit_graph, handle, 1);
    Py_XDECREF(handle);
    if (!failed && self->fills_host) {
        failed = note_host_copy(context, Py_None);
        if (!failed && IS_NONE(self->first)) {
            PyObject *first =
                Py_BuildValue("(OL)", (PyObject *)context->timeline, ++context->timeline->position);
            SET(self->first, first);
            Py_XDECREF(first);
            failed = first == NULL ? -1 : 0;
        }
    }
    /* a full page is dropped here; it can be used again once its launches are over */
    if (!failed && self->used + 1 < PAGE_RECORDS) {
        self->used++;
        SET(self->page, page);
        Py_XDECREF(page);
        return 0;
    }
    Py_XDECREF(page);
    return failed;
}

/* Returns whether a launch is the graph's alone, and its record one of the page. */
static int is_plain(Captured *self) {
    return self->plain && (!self->record || !IS_NONE(self->page)) && IS_NONE(self->last) &&
           self->handle != NULL;
}

static PyObject *captured_launch(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    Captured *self = (Captured *)object;
    if (count != 2 || !PyObject_TypeCheck(arguments[0], types.context))
        return refuse("a launch takes a context and the sources of the inputs");
    Context *context = (Context *)arguments[0];
    if (context->kept == NULL || context->faults == NULL || context->timeline == NULL ||
        context->driver == NULL)
        return missing(arguments[0], "timeline");
    if (PyList_Append(context->kept, object) < 0)
        return NULL;
    if (!is_plain(self) || PyObject_Size(arguments[1]) != 0 || lock_is_mine(self->lock) ||
        !IS_NONE(context->recording))
        return PyErr_Occurred() ? NULL
                                : PyObject_CallMethodObjArgs(object, names._launch_slowly,
                                                             arguments[0], arguments[1], NULL);
    if (lock_take(self->lock) < 0)
        return NULL;
    int failed;
    if (!is_plain(self)) { /* another thread's launch has failed meanwhile, or filled the page */
        lock_release(self->lock);
        return PyObject_CallMethodObjArgs(object, names._launch_slowly, arguments[0], arguments[1],
                                          NULL);
    }
    failed = launch(self, context);
    lock_release(self->lock);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef captured_methods[] = {
    {"_set_uses", captured_set_uses, METH_VARARGS, "_set_uses(reads, writes, plain)\n--\n\n"},
    {"launch", FAST(captured_launch), METH_FASTCALL, "launch(context, sources)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

/* ---- GraphLaunch ---- */

FIELDS_OF(GraphLaunch, AT(Operation, built), AT(Operation, placement), AT(GraphLaunch, graph),
          AT(GraphLaunch, sources))

static PyMemberDef launch_members[] = {
    {"_graph", T_OBJECT_EX, AT(GraphLaunch, graph), READONLY, NULL},
    {"_sources", T_OBJECT_EX, AT(GraphLaunch, sources), READONLY, NULL},
    {NULL},
};

static int launch_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    GraphLaunch *self = (GraphLaunch *)object;
    PyObject *graph, *device, *sources;
    if (has_keywords(object, keywords) ||
        !PyArg_ParseTuple(arguments, "OOO!", &graph, &device, &PyTuple_Type, &sources) ||
        is_made(object, self->graph))
        return -1;
    SET(self->graph, graph);
    SET(self->sources, sources);
    self->base.placed = 1;
    SET(self->base.placement, device);
    return begin_operation(&self->base, NULL);
}

PyObject *execute_graph_launch(GraphLaunch *self, Context *context) {
    if (self->graph == NULL || self->sources == NULL)
        return missing((PyObject *)self, "_graph");
    PyObject *captured = PyObject_GetAttr(self->graph, names._captured);
    PyObject *updated = captured == NULL ? NULL : PyObject_GetAttr(self->graph, names._updated);
    PyObject *done = NULL;
    if (updated == Py_None && PyTuple_Size(self->sources) == 0 &&
        PyObject_TypeCheck(captured, types.captured) && IS_NONE(context->recording)) {
        PyObject *given_to[] = {(PyObject *)context, self->sources};
        done = captured_launch(captured, given_to, 2);
    } else if (updated != NULL) {
        done = METHOD1(self, names._execute_slowly, context);
    }
    Py_XDECREF(captured);
    Py_XDECREF(updated);
    return done;
}

static PyObject *graph_launch_execute(PyObject *self, PyObject *context) {
    if (!PyObject_TypeCheck(context, types.context))
        return refuse("a launch is executed in an ExecutionContext");
    return execute_graph_launch((GraphLaunch *)self, (Context *)context);
}

static PyMethodDef launch_methods[] = {
    {"execute", graph_launch_execute, METH_O, "execute(context)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

int add_graphs(PyObject *module) {
    PyType_Slot report[] = {
        {Py_tp_init, report_init},
        {Py_tp_members, report_members},
        {Py_tp_methods, report_methods},
        SLOTS_OF(GraphReport),
        {0, NULL},
    };
    PyType_Slot captured[] = {
        {Py_tp_members, captured_members},
        {Py_tp_getset, captured_properties},
        {Py_tp_methods, captured_methods},
        {Py_tp_traverse, traverse_captured},
        {Py_tp_clear, clear_captured},
        {Py_tp_dealloc, free_captured},
        {0, NULL},
    };
    PyType_Slot launch[] = {
        {Py_tp_init, launch_init},
        {Py_tp_members, launch_members},
        {Py_tp_methods, launch_methods},
        SLOTS_OF(GraphLaunch),
        {0, NULL},
    };
    const Kind kinds[] = {
        {&types.graph_report, "oxide._core.GraphFaultReport", sizeof(GraphReport), COLLECTED,
         report},
        {&types.captured, "oxide._core.Captured", sizeof(Captured), COLLECTED, captured,
         &types.dropping},
        {&types.graph_launch, "oxide._core.GraphLaunch", sizeof(GraphLaunch), COLLECTED, launch,
         &types.operation},
    };
    if (ADD_KINDS(module, kinds) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "PAGE_RECORDS", PAGE_RECORDS);
}
