/* Finalisers that run no Python. Python checks for signals when it enters a function, so Ctrl-C may
   arrive in a
   ``__del__``: it would be printed and lost, and the rest of the finaliser not run. */

#include "core.h"

void finalize_by(int (*function)(PyObject *), PyObject *self) {
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (function(self) < 0)
        PyErr_WriteUnraisable(self);
    PyErr_Restore(type, error, trace);
}

/* ---- Dropping: an object that makes one call of a C function when it is dropped ---- */

FIELDS_OF(Dropping, AT(Dropping, drop))
static PyMemberDef dropping_members[] = {{"_drop", T_OBJECT, AT(Dropping, drop), 0, NULL}, {NULL}};

static int call_drop(PyObject *self) {
    PyObject *drop = ((Dropping *)self)->drop;
    if (IS_NONE(drop))
        return 0;
    Py_INCREF(drop);
    int failed = drop_result(PyObject_CallNoArgs(drop));
    Py_DECREF(drop);
    return failed;
}
FINALIZER(dropping_finalize, call_drop)

/* ---- Calls that Python makes soon, in the main thread, between two bytecodes, as it calls a
   signal handler. So an interrupt during the call reaches the program. ---- */

static PyObject *waiting; /* a list of pairs of a function and its argument */
static char asked, reports;

static int call_waiting(void *Py_UNUSED(nothing)) {
    asked = 0;
    while (PyList_Size(waiting) > 0) {
        PyObject *call = Py_NewRef(PyList_GetItem(waiting, 0));
        if (PyList_SetSlice(waiting, 0, 1, NULL) < 0) {
            Py_DECREF(call);
            return -1;
        }
        PyObject *function = PyTuple_GetItem(call, 0), *argument = PyTuple_GetItem(call, 1);
        if (function == given.report_unused)
            reports = 0;
        PyObject *done =
            PyObject_CallFunctionObjArgs(function, argument == Py_None ? NULL : argument, NULL);
        Py_DECREF(call);
        if (done == NULL) {
            if (PyList_Size(waiting) > 0)
                asked = Py_AddPendingCall(call_waiting, NULL) == 0;
            return -1;
        }
        Py_DECREF(done);
    }
    return 0;
}

static int call_soon(PyObject *function, PyObject *argument) {
    PyObject *call = PyTuple_Pack(2, function, argument);
    int failed = call == NULL ? -1 : PyList_Append(waiting, call);
    Py_XDECREF(call);
    if (!failed && !asked)
        asked = Py_AddPendingCall(call_waiting, NULL) == 0; /* if not, the next call asks again */
    return failed;
}

static PyObject *core_call_soon(PyObject *Py_UNUSED(module), PyObject *const *arguments,
                                Py_ssize_t count) {
    if (count != 2)
        return refuse("call_soon takes a function and its argument");
    return call_soon(arguments[0], arguments[1]) < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- Unused objects: recorded here, and warned of soon, by unrun.py ---- */

/* Appends the object and the place that drops it to the list of unused objects, and has them
   reported soon. When the interpreter is ending, warns at once. */
static int note_dropped(PyObject *object) {
    if (given.unused == NULL || given.report_unused == NULL)
        return 0;
    if (given.is_ended != NULL && PyList_Size(given.is_ended) > 0) {
        return drop_result(PyObject_CallFunctionObjArgs(given.complain, object, NULL));
    }
    /* Not ``sys._getframe()``: on CPython 3.11 a collection may run while a call of a coroutine
       function moves its frame to the new coroutine, and it returns the old one. This function
       skips a frame that is not complete. */
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    PyObject *entry = frame == NULL ? Py_BuildValue("(OOi)", object, Py_None, 0)
                                    : Py_BuildValue("(OOi)", object, (PyObject *)frame,
                                                    PyFrame_GetLineNumber(frame));
    Py_XDECREF((PyObject *)frame);
    int failed = entry == NULL ? -1 : PyList_Append(given.unused, entry);
    Py_XDECREF(entry);
    if (!failed && !reports)
        failed = call_soon(given.report_unused, Py_None);
    reports = !failed;
    return failed;
}

void finalize_unused(PyObject *self) {
    finalize_by(note_dropped, self);
}

static PyObject *note(PyObject *Py_UNUSED(module), PyObject *object) {
    return note_dropped(object) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"call_soon", FAST(core_call_soon), METH_FASTCALL, "call_soon(function, argument)\n--\n\n"},
    {"note_dropped", note, METH_O, "note_dropped(object)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

int add_finalisers(PyObject *module) {
    PyType_Slot slots[] = {
        {Py_tp_members, dropping_members},
        {Py_tp_finalize, dropping_finalize},
        {Py_tp_doc, "An object that calls ``_drop()``, a C function, when it is dropped. Without "
                    "one it is dropped silently."},
        SLOTS_OF(Dropping),
        {0, NULL},
    };
    if ((waiting = PyList_New(0)) == NULL)
        return -1;
    const Kind kinds[] = {
        {&types.dropping, "oxide._core.Dropping", sizeof(Dropping), COLLECTED, slots},
    };
    return ADD_KINDS(module, kinds) < 0 ? -1 : PyModule_AddFunctions(module, methods);
}
