/* What the files of the extension share. It uses the limited API, so one build serves every version of Python. */

#ifndef OXIDE_CORE_H
#define OXIDE_CORE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>

/* Adds the address of a function to a module, as an int. */
int add_address(PyObject *module, const char *name, const void *address);

/* Each adds the functions and the addresses of one file to the module. Returns 0, or -1 with an exception. */
int add_alarms(PyObject *module);
int add_copies(PyObject *module);
int add_crash_reports(PyObject *module);
int add_tensors(PyObject *module);

#endif
