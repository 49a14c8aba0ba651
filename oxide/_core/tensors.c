/* DLPack tensors that consumers release: a deleter that any thread may call at any time, with or
   without the GIL. A Python callback would lose an exception that is being raised while an array is
   dropped. */

#include "core.h"
#include <stdatomic.h>

/* Before each tensor lie the capsule's name, and a link. oxide/interop/dlpack.py fills them
 * in. */
#define HEADER_BYTES 32
#define ALIVE ((int64_t)-1)

static atomic_llong
    last; /* the address of the tensor that was released last; its link leads to the one before */

static void release(void *tensor) {
    int64_t *link = (int64_t *)tensor - 1;
    if (*link != ALIVE)
        return;
    long long before = atomic_load(&last);
    do {
        *link = before;
    } while (!atomic_compare_exchange_weak(&last, &before, (long long)(intptr_t)tensor));
}

/* Releases the tensor only if no consumer has taken it: taking it renames the capsule. */
static void drop_capsule(PyObject *capsule) {
    const char *name = PyCapsule_GetName(capsule);
    char *tensor = PyCapsule_GetPointer(capsule, name);
    if (name == tensor - HEADER_BYTES)
        release(tensor);
}

static long long collected; /* the value of ``last`` when Python asked for it */

int tensors_were_released(void) {
    return atomic_load(&last) != collected;
}

static PyObject *released(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
    collected = atomic_load(&last);
    return PyLong_FromLongLong(collected);
}

static PyMethodDef methods[] = {
    {"released", released, METH_NOARGS, "released()\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

int add_tensors(PyObject *module) {
    if (PyModule_AddFunctions(module, methods) < 0 ||
        PyModule_AddIntConstant(module, "HEADER_BYTES", HEADER_BYTES) < 0)
        return -1;
    if (add_address(module, "RELEASE", (const void *)release) < 0)
        return -1;
    return add_address(module, "DROP_CAPSULE", (const void *)drop_capsule);
}
