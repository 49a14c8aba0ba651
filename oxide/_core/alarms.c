/* The callback that wakes an event loop. It takes no lock, allocates nothing and does not use
 * Python. */

#include "core.h"
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

/* Never freed: a late callback may read it. */
struct alarm {
    int descriptor;
};

static void notify(void *argument) {
    const uint64_t one = 1;
    ssize_t ignored = write(((struct alarm *)argument)->descriptor, &one, sizeof one);
    (void)ignored; /* a full descriptor is readable already */
}

static PyObject *make_alarm(PyObject *Py_UNUSED(module), PyObject *descriptor) {
    long number = PyLong_AsLong(descriptor);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    if (number < 0 || number > INT_MAX) {
        PyErr_SetString(PyExc_ValueError, "alarm takes a file descriptor");
        return NULL;
    }
    struct alarm *made = malloc(sizeof *made);
    if (made == NULL)
        return PyErr_NoMemory();
    made->descriptor = (int)number;
    return PyLong_FromVoidPtr(made);
}

static PyMethodDef methods[] = {
    {"alarm", make_alarm, METH_O, "alarm(descriptor, /)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

int add_alarms(PyObject *module) {
    if (PyModule_AddFunctions(module, methods) < 0)
        return -1;
    return add_address(module, "NOTIFY", (const void *)notify);
}
