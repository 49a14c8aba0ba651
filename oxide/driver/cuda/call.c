/* Calls of the driver from C, which add 0.1 us to the driver's own time. In Python most of the time of these calls is
   spent around the driver. cuLaunchKernel takes 1.4 us more, because cuda.bindings converts twelve Python arguments one
   by one and returns a tuple, and because the parameters must be copied into a packet. cuStreamQuery takes 1.1 us more,
   because its result is converted to a member of an enum.

   Only the compiled form of the package has this module; driver.py, with submission_memory.py, does the same in Python.
   This module needs no header of CUDA: the caller looks up the driver's functions and passes their addresses. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef int (*Launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                      void **extra);
typedef int (*OfOne)(void *handle);
typedef int (*OfTwo)(void *first, void *second);

/* The driver's names for the entries of `extra`, which describe the parameters as one packed buffer. */
#define BUFFER_POINTER ((void *)1)
#define BUFFER_SIZE ((void *)2)
#define END ((void *)0)

static int size_of(PyObject *number, unsigned *result) {
    unsigned long size = PyLong_AsUnsignedLong(number);
    if (size == (unsigned long)-1 && PyErr_Occurred())
        return -1;
    if (size > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a size of the grid, the block or the shared memory is beyond 32 bits");
        return -1;
    }
    *result = (unsigned)size;
    return 0;
}

static int sizes(PyObject *tuple, unsigned result[3]) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 3) {
        PyErr_SetString(PyExc_TypeError, "grid and block are tuples of three ints");
        return -1;
    }
    for (int axis = 0; axis < 3; axis++)
        if (size_of(PyTuple_GET_ITEM(tuple, axis), &result[axis]) < 0)
            return -1;
    return 0;
}

static int address(PyObject *number, void **result) {
    *result = PyLong_AsVoidPtr(number);
    return *result == NULL && PyErr_Occurred() ? -1 : 0;
}

static int function(PyObject *number, void **result) {
    if (address(number, result) < 0)
        return -1;
    if (*result == NULL) {
        PyErr_SetString(PyExc_ValueError, "entry is no address of a function");
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(launch_doc,
             "launch(entry, function, grid, block, shared_bytes, params, stream)\n--\n\n"
             "Calls the cuLaunchKernel at address `entry` with the packed bytes `params`, without the GIL, and returns\n"
             "its error code. `function` is the address of a CUfunction, `stream` that of a CUstream.");

static PyObject *launch(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    void *entry, *kernel, *stream;
    unsigned grid[3], block[3], shared_bytes;
    if (count != 7) {
        PyErr_Format(PyExc_TypeError, "launch takes 7 arguments, got %zd", count);
        return NULL;
    }
    if (function(arguments[0], &entry) < 0 || address(arguments[1], &kernel) < 0 || sizes(arguments[2], grid) < 0 ||
        sizes(arguments[3], block) < 0 || size_of(arguments[4], &shared_bytes) < 0 ||
        address(arguments[6], &stream) < 0)
        return NULL;
    if (!PyBytes_Check(arguments[5])) {
        PyErr_SetString(PyExc_TypeError, "params are bytes");
        return NULL;
    }
    size_t nbytes = (size_t)PyBytes_GET_SIZE(arguments[5]);
    void *extra[] = {BUFFER_POINTER, PyBytes_AS_STRING(arguments[5]), BUFFER_SIZE, &nbytes, END};
    int code;
    /* The call may wait for the device when too much work is in flight, and the device may wait for a Python host
       function. */
    Py_BEGIN_ALLOW_THREADS;
    code = ((Launch)entry)(kernel, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes,
                           stream, NULL, extra);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(code);
}

PyDoc_STRVAR(call_doc,
             "call(entry, first, second=None, /)\n--\n\n"
             "Calls the driver's function at address `entry` with one or two handles, without the GIL, and returns its\n"
             "error code. A handle is the address of a CUevent or a CUstream.");

static PyObject *call(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    void *entry, *first, *second = NULL;
    if (count != 2 && count != 3) {
        PyErr_Format(PyExc_TypeError, "call takes a function and one or two handles, got %zd arguments", count);
        return NULL;
    }
    if (function(arguments[0], &entry) < 0 || address(arguments[1], &first) < 0 ||
        (count == 3 && address(arguments[2], &second) < 0))
        return NULL;
    int code;
    /* The call may wait for the device, or for a lock of a thread that waits for the device. The device may wait for a
       Python host function, as in `launch`. */
    Py_BEGIN_ALLOW_THREADS;
    code = count == 2 ? ((OfOne)entry)(first) : ((OfTwo)entry)(first, second);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(code);
}

static PyMethodDef methods[] = {
    {"call", (PyCFunction)(void (*)(void))call, METH_FASTCALL, call_doc},
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL, launch_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "call", "The CUDA driver, called from C.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_call(void) { return PyModuleDef_Init(&definition); }
