/* A reentrant lock that code in C takes as cheaply as a test. While it waits, it handles signals,
   as the locks of
   ``threading`` do: Ctrl-C ends the wait. */

#include "core.h"

int lock_is_mine(Lock *lock) {
    return lock->count > 0 && lock->owner == PyThread_get_thread_ident();
}

int lock_take(Lock *lock) {
    unsigned long me = PyThread_get_thread_ident();
    if (lock->count > 0 && lock->owner == me) {
        lock->count++;
        return 0;
    }
    if (!PyThread_acquire_lock(lock->lock, NOWAIT_LOCK)) {
        PyLockStatus status;
        do {
            Py_BEGIN_ALLOW_THREADS;
            status = PyThread_acquire_lock_timed(lock->lock, -1, 1);
            Py_END_ALLOW_THREADS;
            if (status == PY_LOCK_INTR && PyErr_CheckSignals() < 0)
                return -1;
        } while (status != PY_LOCK_ACQUIRED);
    }
    lock->owner = me;
    lock->count = 1;
    return 0;
}

void lock_release(Lock *lock) {
    if (--lock->count == 0)
        PyThread_release_lock(lock->lock);
}

static PyObject *lock_new(PyTypeObject *type, PyObject *Py_UNUSED(arguments),
                          PyObject *Py_UNUSED(keywords)) {
    Lock *self = (Lock *)PyType_GenericAlloc(type, 0);
    if (self != NULL && (self->lock = PyThread_allocate_lock()) == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void lock_dealloc(PyObject *object) {
    Lock *self = (Lock *)object;
    if (self->lock != NULL) {
        if (self->count > 0)
            PyThread_release_lock(self->lock);
        PyThread_free_lock(self->lock);
    }
    free_object(object);
}

static PyObject *lock_enter(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    return lock_take((Lock *)self) < 0 ? NULL : Py_NewRef(Py_True);
}

static PyObject *lock_leave(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    if (!lock_is_mine((Lock *)self)) {
        PyErr_SetString(PyExc_RuntimeError, "cannot release un-acquired lock");
        return NULL;
    }
    lock_release((Lock *)self);
    Py_RETURN_NONE;
}

static PyObject *lock_exit(PyObject *self, PyObject *const *Py_UNUSED(arguments),
                           Py_ssize_t Py_UNUSED(count)) {
    return lock_leave(self, NULL);
}

static PyObject *lock_owned(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    return PyBool_FromLong(lock_is_mine((Lock *)self));
}

static PyObject *lock_renew(PyObject *object, PyObject *Py_UNUSED(nothing)) {
    Lock *self = (Lock *)object;
    PyThread_type_lock lock =
        PyThread_allocate_lock(); /* the old one's state is that of a thread that is gone */
    if (lock == NULL)
        return PyErr_NoMemory();
    self->lock = lock;
    self->count = 0;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"acquire", lock_enter, METH_NOARGS, "acquire()\n--\n\n"},
    {"release", lock_leave, METH_NOARGS, "release()\n--\n\n"},
    {"__enter__", lock_enter, METH_NOARGS, NULL},
    {"__exit__", FAST(lock_exit), METH_FASTCALL, NULL},
    {"_is_owned", lock_owned, METH_NOARGS, "_is_owned()\n--\n\n"},
    {"_at_fork_reinit", lock_renew, METH_NOARGS, "_at_fork_reinit()\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

int add_locks(PyObject *module) {
    PyType_Slot slots[] = {
        {Py_tp_new, lock_new},
        {Py_tp_dealloc, lock_dealloc},
        {Py_tp_methods, methods},
        {Py_tp_doc, "A reentrant lock."},
        {0, NULL},
    };
    const Kind kinds[] = {
        {&types.lock, "oxide._core.Lock", sizeof(Lock), Py_TPFLAGS_DEFAULT, slots},
    };
    if (ADD_KINDS(module, kinds) < 0)
        return -1;
    runtime_lock = (Lock *)PyObject_CallNoArgs((PyObject *)types.lock);
    return runtime_lock == NULL
               ? -1
               : PyModule_AddObjectRef(module, "RUNTIME_LOCK", (PyObject *)runtime_lock);
}
