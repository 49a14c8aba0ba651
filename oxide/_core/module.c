/* oxide._core: what the runtime needs of machine code. oxide/_core_twin.py has the same names in Python. */

#include "core.h"

int add_address(PyObject *module, const char *name, const void *address) {
    PyObject *number = PyLong_FromVoidPtr((void *)address);
    int failed = number == NULL ? -1 : PyModule_AddObjectRef(module, name, number);
    Py_XDECREF(number);
    return failed;
}

/* The callbacks and the list of released tensors are the process's. */
static int only_main_interpreter(PyObject *module) {
    (void)module;
    int64_t number = PyInterpreterState_GetID(PyInterpreterState_Get());
    if (number == 0)
        return 0;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ImportError, "oxide works in the main interpreter only");
    return -1;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, only_main_interpreter}, {Py_mod_exec, add_alarms},  {Py_mod_exec, add_copies},
    {Py_mod_exec, add_crash_reports},     {Py_mod_exec, add_tensors}, {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "oxide._core",
    .m_doc = "What the runtime needs of machine code.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__core(void) {
    return PyModuleDef_Init(&definition);
}
