/* oxide._core: what the runtime needs of machine code. oxide/_core_twin.py has the same names in
 * Python. */

#include "core.h"
#include <stdarg.h>

Types types;
Given given;
Names names;
Points *points;
Py_ssize_t record_bytes, small_bytes;
Lock *runtime_lock;

int add_address(PyObject *module, const char *name, const void *address) {
    PyObject *number = PyLong_FromVoidPtr((void *)address);
    int failed = number == NULL ? -1 : PyModule_AddObjectRef(module, name, number);
    Py_XDECREF(number);
    return failed;
}

int add_kinds(PyObject *module, const Kind *kinds, size_t count) {
    for (const Kind *kind = kinds; kind < kinds + count; kind++) {
        PyType_Spec spec = {kind->name, (int)kind->size, 0, kind->flags, kind->slots};
        PyObject *base = kind->base == NULL ? NULL : (PyObject *)*kind->base;
        *kind->place = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, base);
        if (*kind->place == NULL || PyModule_AddType(module, *kind->place) < 0)
            return -1;
    }
    return 0;
}

int traverse_fields(PyObject *self, const size_t *offsets, size_t count, visitproc visit,
                    void *arg) {
    Py_VISIT(Py_TYPE(self));
    for (size_t i = 0; i < count; i++)
        Py_VISIT(*(PyObject **)((char *)self + offsets[i]));
    return 0;
}

int clear_fields(PyObject *self, const size_t *offsets, size_t count) {
    for (size_t i = 0; i < count; i++)
        Py_CLEAR(*(PyObject **)((char *)self + offsets[i]));
    return 0;
}

void free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

PyObject *missing(PyObject *object, const char *field) {
    PyErr_Format(
        PyExc_TypeError,
        "%R has no %s: its class has not called super().__init__(), or its %s is of another type",
        Py_TYPE(object), field, field);
    return NULL;
}

void *refuse(const char *message) {
    PyErr_SetString(PyExc_TypeError, message);
    return NULL;
}

int drop_result(PyObject *result) {
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

int is_true(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL)
        return -1;
    int truth = PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth;
}

int is_equal(PyObject *object, PyObject *other) {
    Py_INCREF(object);
    Py_INCREF(other);
    int equal = PyObject_RichCompareBool(object, other, Py_EQ);
    Py_DECREF(object);
    Py_DECREF(other);
    return equal;
}

int has_keywords(PyObject *self, PyObject *keywords) {
    if (keywords == NULL || PyDict_Size(keywords) == 0)
        return 0;
    PyErr_Format(PyExc_TypeError, "%R takes no keywords", Py_TYPE(self));
    return 1;
}

int is_made(PyObject *self, void *field) {
    if (field == NULL)
        return 0;
    PyErr_Format(PyExc_TypeError, "%R is made once", Py_TYPE(self));
    return 1;
}

Py_ssize_t list_size(PyObject *list) {
    return list != NULL && PyList_Check(list) ? PyList_Size(list) : 0;
}

PyObject *caught_error(void) {
    if (!PyErr_Occurred()) /* what always raises has not */
        PyErr_SetString(PyExc_SystemError, "oxide: a call has failed without an exception");
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL)
        PyException_SetTraceback(error, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return error;
}

void *raise_error(PyObject *error) {
    PyObject *trace = NULL;
    if (error != NULL && PyExceptionInstance_Check(error))
        trace = PyException_GetTraceback(error);
    if (trace != NULL) {
        PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), error, trace);
    } else if (error != NULL) {
        PyErr_Clear();
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return NULL;
}

PyObject *handle_error(PyObject *object, PyObject *name, ...) {
    PyObject *error = caught_error(), *context = PyException_GetContext(error), *result = NULL;
    PyObject *arguments = PyList_New(0), *each;
    int failed = arguments == NULL;
    va_list objects;
    va_start(objects, name);
    while (!failed && (each = va_arg(objects, PyObject *)) != NULL)
        failed = PyList_Append(arguments, each) < 0;
    va_end(objects);
    failed = failed || PyList_Append(arguments, error) < 0;
    PyObject *tuple = failed ? NULL : PyList_AsTuple(arguments);
    PyObject *function = tuple == NULL  ? NULL
                         : name == NULL ? Py_NewRef(object)
                                        : PyObject_GetAttr(object, name);
    if (function != NULL)
        result = PyObject_CallObject(function, tuple);
    Py_XDECREF(function);
    Py_XDECREF(tuple);
    Py_XDECREF(arguments);
    if (result == NULL && PyErr_Occurred()) {
        PyObject *raised = caught_error();
        if (raised == error)
            PyException_SetContext(error, Py_XNewRef(context));
        raise_error(raised);
    }
    Py_XDECREF(context);
    Py_DECREF(error);
    return result;
}

/* ---- Points: the tracer in force ---- */

FIELDS_OF(Points, AT(Points, tracer))
static PyMemberDef points_members[] = {{"tracer", T_OBJECT, AT(Points, tracer), 0, NULL}, {NULL}};

static PyObject *points_new(PyTypeObject *type, PyObject *Py_UNUSED(arguments),
                            PyObject *Py_UNUSED(keywords)) {
    PyObject *made = points == NULL ? PyType_GenericAlloc(type, 0) : (PyObject *)points;
    Py_XINCREF(made);
    points = (Points *)made; /* there is one, which the module keeps */
    return made;
}

/* ---- What Python gives ---- */

static const struct {
    const char *name;
    PyObject **place;
} givens[] = {
#define ENTRY(name) {#name, &given.name},
    GIVEN(ENTRY)
#undef ENTRY
};

static const struct {
    const char *name;
    PyObject **place;
} strings[] = {
#define ENTRY(name) {#name, &names.name},
    NAMES(ENTRY)
#undef ENTRY
};

/* The classes whose objects C casts to its structs. */
static const struct {
    PyObject **place;
    PyTypeObject **base;
} classes[] = {
    {&given.Allocation, &types.allocation},
    {&given.AndThen, &types.stage},
    {&given.Config, &types.config},
    {&given.Context, &types.context},
    {&given.DeviceBox, &types.box},
    {&given.FaultReport, &types.report},
    {&given.GraphFaultReport, &types.graph_report},
    {&given.HostCopies, &types.host_copies},
    {&given.KernelLaunch, &types.launch},
    {&given.Map, &types.stage},
    {&given.Mark, &types.mark},
    {&given.PinnedBuffer, &types.buffer},
    {&given.Submission, &types.submission},
    {&given.Walk, &types.walk},
};

static int fits(PyObject **place, PyObject *value) {
    if (place == &given.FaultPage || place == &given.ndarray)
        return PyType_Check(value);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (classes[i].place == place)
            return PyType_Check(value) && PyType_IsSubtype((PyTypeObject *)value, *classes[i].base);
    return 1;
}

static PyObject *setup(PyObject *Py_UNUSED(module), PyObject *arguments, PyObject *keywords) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    if (PyTuple_Size(arguments) != 0)
        return refuse("setup takes keywords");
    while (keywords != NULL && PyDict_Next(keywords, &at, &key, &value)) {
        size_t found = 0;
        Py_ssize_t *size =
            PyUnicode_CompareWithASCIIString(key, "record_bytes") == 0  ? &record_bytes
            : PyUnicode_CompareWithASCIIString(key, "small_bytes") == 0 ? &small_bytes
                                                                        : NULL;
        if (size != NULL) {
            *size = PyLong_AsSsize_t(value);
            if (*size == -1 && PyErr_Occurred())
                return NULL;
            continue;
        }
        while (found < sizeof givens / sizeof *givens &&
               PyUnicode_CompareWithASCIIString(key, givens[found].name) != 0)
            found++;
        if (found == sizeof givens / sizeof *givens) {
            PyErr_Format(PyExc_TypeError, "setup: the core knows no %R", key);
            return NULL;
        }
        if (!fits(givens[found].place, value)) {
            PyErr_Format(PyExc_TypeError, "setup: %R is no class of the core's type", value);
            return NULL;
        }
        SET(*givens[found].place, value);
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"setup", (PyCFunction)(void (*)(void))setup, METH_VARARGS | METH_KEYWORDS,
     "setup(**given)\n--\n\nGives the core classes and functions of the runtime, by name."},
    {NULL, NULL, 0, NULL},
};

/* The callbacks, the list of released tensors and the types are the process's. */
static int only_once(PyObject *Py_UNUSED(module)) {
    int64_t number = PyInterpreterState_GetID(PyInterpreterState_Get());
    if (number != 0 || types.points != NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ImportError, number
                                                   ? "oxide works in the main interpreter only"
                                                   : "oxide._core is imported once in a process");
        return -1;
    }
    return 0;
}

static int add_all(PyObject *module) {
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
        if ((*strings[i].place = PyUnicode_InternFromString(strings[i].name)) == NULL)
            return -1;
    PyType_Slot slots[] = {
        {Py_tp_new, points_new}, {Py_tp_members, points_members}, SLOTS_OF(Points), {0, NULL}};
    const Kind kinds[] = {
        {&types.points, "oxide._core.Points", sizeof(Points), COLLECTED & ~Py_TPFLAGS_BASETYPE,
         slots},
    };
    if (ADD_KINDS(module, kinds) < 0 || PyModule_AddFunctions(module, methods) < 0)
        return -1;
    PyObject *made = PyObject_CallNoArgs((PyObject *)types.points);
    int failed = made == NULL ? -1 : PyModule_AddObjectRef(module, "points", made);
    Py_XDECREF(made);
    return failed;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, only_once},         {Py_mod_exec, add_all},
    {Py_mod_exec, add_alarms},        {Py_mod_exec, add_copies},
    {Py_mod_exec, add_crash_reports}, {Py_mod_exec, add_tensors},
    {Py_mod_exec, add_finalisers},    {Py_mod_exec, add_locks},
    {Py_mod_exec, add_ordering},      {Py_mod_exec, add_binding},
    {Py_mod_exec, add_walking},       {Py_mod_exec, add_launching},
    {Py_mod_exec, add_running},       {Py_mod_exec, add_memory},
    {Py_mod_exec, add_graphs},        {0, NULL},
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
