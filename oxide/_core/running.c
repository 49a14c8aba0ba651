/* Runs: the context that an operation executes in, its submission, and the future that a task
   awaits. oxide/runtime/submission/submission.py and awaiting/future.py explain them. Every failure
   is handled there. */

#include "core.h"
#include <time.h>

#define SHARE_SECONDS 2e-3 /* the time for frees at a submission, as in loop/pace.py */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---- ExecutionContext ---- */

FIELDS_OF(Context, AT(Context, stream), AT(Context, visible), AT(Context, device),
          AT(Context, recording), AT(Context, place), AT(Context, traced), AT(Context, copies),
          AT(Context, waitless), AT(Context, renewed), AT(Context, lender), AT(Context, runtime),
          AT(Context, driver), AT(Context, joined), AT(Context, kept), AT(Context, faults),
          AT(Context, if_given_up), AT(Context, report), AT(Context, using), AT(Context, declared),
          AT(Context, timeline))

static PyMemberDef context_members[] = {
    {"stream", T_OBJECT_EX, AT(Context, stream), READONLY, NULL},
    {"visible", T_OBJECT, AT(Context, visible), 0, NULL},
    {"device", T_OBJECT_EX, AT(Context, device), READONLY, NULL},
    {"recording", T_OBJECT, AT(Context, recording), 0, NULL},
    {"place", T_OBJECT, AT(Context, place), 0, NULL},
    {"traced", T_OBJECT, AT(Context, traced), 0, NULL},
    {"copies", T_OBJECT, AT(Context, copies), 0, NULL},
    {"waitless", T_OBJECT_EX, AT(Context, waitless), 0, NULL},
    {"renewed", T_OBJECT, AT(Context, renewed), 0, NULL},
    {"lender", T_OBJECT, AT(Context, lender), 0, NULL},
    {"runtime", T_OBJECT_EX, AT(Context, runtime), READONLY, NULL},
    {"driver", T_OBJECT_EX, AT(Context, driver), 0, NULL},
    {"timeline", T_OBJECT_EX, AT(Context, timeline), READONLY, NULL},
    {"_joined", T_OBJECT_EX, AT(Context, joined), 0, NULL},
    {"_kept", T_OBJECT_EX, AT(Context, kept), READONLY, NULL},
    {"_faults", T_OBJECT_EX, AT(Context, faults), READONLY, NULL},
    {"_if_given_up", T_OBJECT_EX, AT(Context, if_given_up), 0, NULL},
    {"_report", T_OBJECT, AT(Context, report), 0, NULL},
    {"_using", T_OBJECT, AT(Context, using), 0, NULL},
    {"_declared", T_OBJECT, AT(Context, declared), 0, NULL},
    {"levels", T_INT, AT(Context, levels), 0, NULL},
    {NULL},
};

static PyObject *empty_tuple, *empty_string;

static int set_context(Context *self, PyObject *stream, PyObject *recording, PyObject *visible) {
    PyObject *found = PyObject_GetAttr(stream, names._timeline);
    if (found == NULL)
        return -1;
    Timeline *timeline = (Timeline *)found;
    if (!PyObject_TypeCheck(found, types.timeline) || timeline->device == NULL ||
        timeline->driver == NULL || timeline->runtime == NULL) {
        Py_DECREF(found);
        return LACKS(stream, "_timeline");
    }
    SET(self->kept, NULL);
    SET(self->faults, NULL);
    SET(self->timeline, timeline);
    Py_DECREF(found);
    SET(self->stream, stream);
    SET(self->device, timeline->device);
    SET(self->runtime, timeline->runtime);
    SET(self->driver, timeline->driver);
    if (!IS_NONE(recording)) {
        SET(self->recording, recording);
        SET(self->driver, recording);
    }
    if (!IS_NONE(visible)) {
        SET(self->visible, visible);
        PyObject *run = PyObject_GetAttr(visible, names.run);
        PyObject *driver = run == NULL ? NULL : METHOD1(self->driver, names.for_run, run);
        Py_XDECREF(run);
        if (driver == NULL)
            return -1;
        SET(self->driver, driver);
        Py_DECREF(driver);
    }
    self->levels = Py_GetRecursionLimit();
    SET(self->joined, empty_tuple);
    SET(self->if_given_up, empty_tuple);
    SET(self->declared, empty_tuple);
    SET(self->waitless, empty_string);
    self->kept = PyList_New(0);
    self->faults = PyList_New(0);
    return self->kept == NULL || self->faults == NULL ? -1 : 0;
}

static int context_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *known[] = {"stream", "recording", "visible", NULL};
    PyObject *stream, *recording = NULL, *visible = NULL;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|OO", known, &stream, &recording,
                                     &visible) ||
        is_made(object, ((Context *)object)->timeline))
        return -1;
    return set_context((Context *)object, stream, recording, visible);
}

#define MOST_USES (1 << 30)

/* Calls order_before or order_after with the allocations of two lists. */
static int order(Context *self, PyObject *reads, PyObject *writes,
                 int (*function)(Context *, Allocation **, int, int)) {
    if (self->timeline == NULL)
        return LACKS(self, "timeline");
    PyObject *lists[] = {reads, writes};
    Py_ssize_t sizes[2];
    if ((sizes[0] = PySequence_Size(reads)) < 0 || (sizes[1] = PySequence_Size(writes)) < 0)
        return -1;
    Allocation *few[8], **uses = few;
    if (sizes[0] > MOST_USES || sizes[1] > MOST_USES) {
        PyErr_SetString(PyExc_OverflowError,
                        "a step uses too much memory: more objects than it can list");
        return -1;
    }
    size_t count = (size_t)(sizes[0] + sizes[1]), taken = 0;
    if (count > sizeof few / sizeof *few && (uses = PyMem_Malloc(count * sizeof *uses)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int failed = 0;
    for (int list = 0; list < 2; list++)
        for (Py_ssize_t i = 0; !failed && i < sizes[list]; i++) {
            PyObject *used = PySequence_GetItem(lists[list], i);
            if (used == NULL || allocation_of(used) == NULL) {
                Py_XDECREF(used);
                failed = -1;
            } else {
                uses[taken++] = (Allocation *)used;
            }
        }
    if (!failed)
        failed = function(self, uses, (int)sizes[0], (int)sizes[1]);
    while (taken > 0)
        Py_DECREF((PyObject *)uses[--taken]);
    if (uses != few)
        PyMem_Free(uses);
    return failed;
}

static PyObject *context_begin(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    Context *self = (Context *)object;
    if (count != 2)
        return refuse("begin takes the memory that is read and the memory that is written");
    if (!IS_NONE(self->recording))
        return PyObject_CallMethodObjArgs(self->recording, names.note_uses, arguments[0],
                                          arguments[1], NULL);
    PyObject *using = PyTuple_Pack(2, arguments[0], arguments[1]);
    if (using == NULL)
        return NULL;
    SET(self->using, using);
    Py_DECREF(using);
    return order(self, arguments[0], arguments[1], order_before) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *context_end(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *known[] = {"reads", "writes", "submitted", NULL};
    Context *self = (Context *)object;
    PyObject *reads, *writes;
    int submitted;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO$p", known, &reads, &writes,
                                     &submitted))
        return NULL;
    if (!IS_NONE(self->recording))
        return METHOD0(self->recording, names.uses_noted);
    if (submitted) {
        if (order(self, reads, writes, order_after) < 0)
            return NULL;
        Py_CLEAR(self->using);
    }
    Py_RETURN_NONE;
}

static PyObject *context_note_host_copy(PyObject *self, PyObject *const *arguments,
                                        Py_ssize_t count) {
    if (count > 1)
        return refuse("note_host_copy takes an array, or nothing");
    return note_host_copy((Context *)self, count > 0 ? arguments[0] : Py_None) < 0
               ? NULL
               : Py_NewRef(Py_None);
}

static PyMethodDef context_methods[] = {
    {"note_host_copy", FAST(context_note_host_copy), METH_FASTCALL,
     "note_host_copy($self, array=None, /)\n--\n\n"
     "Counts a copy to host memory that was just submitted or recorded. ``array`` is the new array "
     "that it fills, if\n"
     "it fills one."},
    {"begin", FAST(context_begin), METH_FASTCALL,
     "begin(reads, writes)\n--\n\n"
     "Does the same as entering ``ordered``, but makes no object, which saves time. Call it with "
     "the lock held. Work\n"
     "submitted between this call and ``end`` is ordered after the buffers' earlier uses. In a "
     "capture, this holds\n"
     "for each launch of the graph."},
    {"end", FAST(context_end), METH_VARARGS | METH_KEYWORDS,
     "end(reads, writes, *, submitted)\n--\n\n"
     "Orders later uses of the buffers after the work since ``begin``, if it was ``submitted``. "
     "Another library's\n"
     "memory may be imported again after its boxes are gone, so its entry in ``AddressRanges`` is "
     "kept until this\n"
     "run ends."},
    {NULL, NULL, 0, NULL},
};

/* ---- What is checked before a run ---- */

/* Raises OrderingError if the calling thread holds one of the two locks, or is one of the driver's.
 */
static int refuse_inside(void) {
    int inside = lock_is_mine(runtime_lock);
    if (!inside && given.driver_lock_is_owned != NULL) {
        PyObject *owned = PyObject_CallNoArgs(given.driver_lock_is_owned);
        inside = owned == NULL ? -1 : PyObject_IsTrue(owned);
        Py_XDECREF(owned);
    }
    if (inside == 0 && given.driver_threads != NULL && PySet_Size(given.driver_threads) > 0) {
        PyObject *me = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
        inside = me == NULL ? -1 : PySet_Contains(given.driver_threads, me);
        Py_XDECREF(me);
    }
    if (inside > 0)
        raise_error(PyObject_CallNoArgs(given.held_error));
    return inside == 0 ? 0 : -1;
}

static PyObject *core_refuse_inside(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
    return refuse_inside() < 0 ? NULL : Py_NewRef(Py_None);
}

/* Returns whether one of several queues, but for the one left out, has anything, or -1. */
static int any_waits(PyObject *queues, PyObject *left_out) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(queues); i++) {
        PyObject *queue = PyTuple_GetItem(queues, i);
        Py_ssize_t size = queue == left_out ? 0 : PyObject_Size(queue);
        if (size != 0)
            return size < 0 ? -1 : 1;
    }
    return 0;
}

/* Frees dropped memory of a runtime that only its own stream has used. Returns 0 if nothing else is
   to be swept, 1 if Python must sweep, and -1 with an interrupt. */
static int free_at_home(PyObject *runtime, PyObject *queues) {
    double until = now() + SHARE_SECONDS;
    while (PyObject_Size(given.dropped) > 0) {
        PyObject *found = METHOD0(given.dropped, names.popleft);
        if (found == NULL) { /* another thread took it */
            PyErr_Clear();
            return 1;
        }
        Allocation *dropped = (Allocation *)found;
        Timeline *home =
            PyObject_TypeCheck(found, types.allocation) ? (Timeline *)dropped->home : NULL;
        int simple = home != NULL && PyObject_TypeCheck((PyObject *)home, types.timeline) &&
                     !dropped->adopted && !dropped->exported && dropped->written_by == home &&
                     dropped->more_reads == NULL &&
                     (dropped->read_by == NULL || dropped->read_by == home) && dropped->address &&
                     home->device != NULL && home->driver != NULL && home->runtime == runtime;
        if (!simple) {
            PyObject *back = METHOD1(given.dropped, names.append, found);
            Py_XDECREF(back);
            Py_DECREF(found);
            return back == NULL ? -1 : 1;
        }
        Py_INCREF((PyObject *)home);
        PyObject *address = PyLong_FromUnsignedLongLong(dropped->address);
        PyObject *live = address == NULL ? NULL : PyObject_GetAttr(home->device, names.live);
        PyObject *reclaimer =
            live == NULL ? NULL : PyObject_GetAttr(home->runtime, names.reclaimer);
        PyObject *freeing = reclaimer == NULL ? NULL : PyObject_GetAttr(reclaimer, names._freeing);
        PyObject *before = freeing == NULL ? NULL : PyLong_FromLongLong(++home->position);
        PyObject *done = NULL;
        Py_CLEAR(dropped->visible); /* the program can no longer observe the run through it */
        if (before != NULL && PyDict_SetItem(freeing, (PyObject *)home, before) == 0) {
            if (PyDict_DelItem(live, address) < 0)
                PyErr_Clear();
            dropped->address = 0; /* before the call: another thread, which is handing it over, must
                                     not free it, too */
            done =
                PyObject_CallMethodObjArgs(home->driver, names.free, address, home->handle, NULL);
        }
        int refused = done == NULL && PyErr_ExceptionMatches(given.OxideError) &&
                      !PyErr_ExceptionMatches(given.DeviceLostError);
        int interrupted = done == NULL && !PyErr_ExceptionMatches(given.OxideError);
        if (done == NULL && !interrupted)
            PyErr_Clear();
        if (done != NULL) {
            PyObject *position = PyLong_FromLongLong(++home->position);
            if (position == NULL || PyDict_SetItem(freeing, (PyObject *)home, position) < 0)
                interrupted = 1;
            Py_XDECREF(position);
        } else if (refused) {
            dropped->address = PyLong_AsUnsignedLongLong(address);
        }
        if (done == NULL && dropped->address) { /* it is not freed: Python finalises it only once */
            PyObject *type, *error, *trace;
            PyErr_Fetch(&type, &error, &trace);
            Py_XDECREF(METHOD1(given.dropped, names.append, found));
            PyErr_Restore(type, error, trace);
        }
        Py_DECREF((PyObject *)home);
        Py_XDECREF(address);
        Py_XDECREF(live);
        Py_XDECREF(reclaimer);
        Py_XDECREF(freeing);
        Py_XDECREF(before);
        Py_XDECREF(done);
        Py_DECREF(found);
        if (interrupted)
            return -1;
        if (refused)
            return 1;
        if (now() >= until) /* the next submission goes on */
            return 0;
    }
    return any_waits(queues, NULL);
}

/* Lets the reclaimer free what was dropped. */
static int sweep(Timeline *timeline) {
    PyObject *queues = timeline->queues;
    if (queues == NULL || !PyTuple_Check(queues))
        return LACKS(timeline, "_queues");
    Py_INCREF(queues);
    int pending = any_waits(queues, NULL);
    /* Python asks for the other work first: a free makes a stream busy, and the work would seem to
     * run still */
    if (pending > 0 && any_waits(queues, given.dropped) == 0 && !tensors_were_released())
        pending = free_at_home(timeline->runtime, queues);
    if (pending > 0) {
        PyObject *reclaimer = timeline->runtime == NULL
                                  ? missing((PyObject *)timeline, "_runtime")
                                  : PyObject_GetAttr(timeline->runtime, names.reclaimer);
        PyObject *done = reclaimer == NULL ? NULL : METHOD0(reclaimer, names.sweep);
        pending = done == NULL ? -1 : 0;
        Py_XDECREF(reclaimer);
        Py_XDECREF(done);
    }
    Py_DECREF(queues);
    return pending;
}

static Context *context_for(PyObject *operation, PyObject *stream, PyObject *visible, int sweeps) {
    if (mark_used(operation) < 0 || refuse_inside() < 0)
        return NULL;
    PyObject *capture = PyObject_CallNoArgs(given.capture);
    if (capture != NULL && capture != Py_None) {
        PyObject *allowed = PyObject_CallNoArgs(given.refuse_in_capture);
        Py_DECREF(capture);
        capture = allowed;
    }
    if (capture == NULL)
        return NULL;
    Py_DECREF(capture);
    Context *context = (Context *)PyType_GenericAlloc((PyTypeObject *)given.Context, 0);
    if (context == NULL)
        return NULL;
    if (set_context(context, stream, NULL, visible) < 0 || raise_if_lost(context->device) < 0 ||
        (sweeps && sweep(context->timeline) < 0))
        Py_CLEAR(context);
    return context;
}

static PyObject *core_context_for(PyObject *Py_UNUSED(module), PyObject *arguments,
                                  PyObject *keywords) {
    static char *known[] = {"operation", "stream", "visible", "sweeps", NULL};
    PyObject *operation, *stream, *visible = NULL;
    int sweeps = 1;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO|O$p", known, &operation, &stream,
                                     &visible, &sweeps))
        return NULL;
    return (PyObject *)context_for(operation, stream, visible, sweeps);
}

/* ---- Submission ---- */

FIELDS_OF(Submission, AT(Submission, mark), AT(Submission, result), AT(Submission, title),
          AT(Submission, faults), AT(Submission, reclaimer), AT(Submission, visible))

static PyMemberDef submission_members[] = {
    {"mark", T_OBJECT_EX, AT(Submission, mark), READONLY, NULL},
    {"result_in_flight", T_OBJECT_EX, AT(Submission, result), READONLY, NULL},
    {"faults", T_OBJECT_EX, AT(Submission, faults), READONLY, NULL},
    {"_title", T_OBJECT_EX, AT(Submission, title), READONLY, NULL},
    {"_open", T_BOOL, AT(Submission, open), READONLY, NULL},
    {NULL},
};

/* Hands the submission's memory to the limbo, by one call of a C function. */
static int abandon(Submission *self) {
    PyObject *run =
        IS_NONE(self->visible) ? Py_NewRef(Py_None) : PyObject_GetAttr(self->visible, names.run);
    PyObject *entry = run == NULL ? NULL : PyTuple_Pack(2, self->mark, run);
    PyObject *done = entry == NULL ? NULL : METHOD1(self->reclaimer, names.abandon, entry);
    Py_XDECREF(run);
    Py_XDECREF(entry);
    Py_XDECREF(done);
    self->open = 0;
    return done == NULL ? -1 : 0;
}

static int abandon_open(PyObject *object) {
    Submission *self = (Submission *)object;
    return self->open && self->mark != NULL && self->reclaimer != NULL ? abandon(self) : 0;
}
FINALIZER(submission_finalize, abandon_open)

static PyObject *submission_abandon(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    return abandon_open(self) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *title_of(PyObject *operation) {
    if ((PyObject *)Py_TYPE(operation) == given.KernelLaunch ||
        PyObject_TypeCheck(operation, types.graph_launch))
        return Py_NewRef(operation);
    if (PyObject_TypeCheck(operation, types.stage) || PyObject_TypeCheck(operation, types.zip) ||
        PyObject_TypeCheck(operation, types.element) || PyObject_TypeCheck(operation, types.value))
        return Py_NewRef((PyObject *)Py_TYPE(operation)); /* a class keeps no data alive */
    return METHOD0(operation, names.title);
}

/* Waits for joined streams, and ends the uses that the run has declared, before ``position``. */
static int wait_for_joined(Context *context) {
    if (context->joined == empty_tuple || context->joined == NULL)
        return 0;
    return drop_result(METHOD0(context, names.wait_for_joined));
}

static int settle(Context *context, long long position) {
    if (!IS_NONE(context->declared) && context->declared != empty_tuple) {
        PyObject *number = PyLong_FromLongLong(position);
        PyObject *done = number == NULL ? NULL : METHOD1(context, names.settle, number);
        Py_XDECREF(number);
        Py_XDECREF(done);
        if (done == NULL)
            return -1;
    }
    SET(context->declared, NULL);
    return 0;
}

static int set_submission(Submission *self, Context *context, PyObject *result, PyObject *title) {
    if (context->timeline == NULL || context->kept == NULL || context->faults == NULL)
        return LACKS(context, "timeline");
    SET(self->result, result);
    SET(self->title, title);
    SET(self->faults, context->faults);
    SET(self->visible, context->visible);
    if ((self->reclaimer = PyObject_GetAttr(context->runtime, names.reclaimer)) == NULL ||
        wait_for_joined(context) < 0 || (self->mark = mark_now(context->timeline)) == NULL ||
        settle(context, ((Mark *)self->mark)->position) < 0)
        return -1;
    /* a run with a token must not keep its result alive: see reclaim.py */
    if (IS_NONE(context->visible) && PyList_Append(context->kept, result) < 0)
        return -1;
    if (PyList_Append(context->kept, context->faults) < 0)
        return -1;
    self->open = 1; /* before the hold: abandoning a mark that is not held does nothing */
    PyObject *table = context->timeline->in_flight;
    if (table == NULL || !PyDict_Check(table))
        return LACKS(context->timeline, "_in_flight");
    return PyDict_SetItem(table, self->mark, context->kept);
}

static int submission_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *known[] = {"context", "result", "title", NULL};
    PyObject *context, *result, *title;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!OO", known, types.context, &context,
                                     &result, &title) ||
        is_made(object, ((Submission *)object)->reclaimer))
        return -1;
    return set_submission((Submission *)object, (Context *)context, result, title);
}

static int count_completed(Timeline *timeline) {
    return drop_result(timeline->completed == NULL ? missing((PyObject *)timeline, "_completed")
                                                   : PyObject_CallNoArgs(timeline->completed));
}

/* Raises the fault that a kernel reported, with the operation's name. */
static int raise_faults(PyObject *faults, PyObject *title, PyObject *operation,
                        Timeline *timeline) {
    for (Py_ssize_t i = 0; i < PyList_Size(faults); i++) {
        PyObject *report = Py_NewRef(PyList_GetItem(faults, i));
        int claimed = faults_claimed(report);
        if (claimed > 0) {
            PyObject *named = title != NULL ? Py_NewRef(title) : title_of(operation);
            PyObject *done = named == NULL
                                 ? NULL
                                 : PyObject_CallFunctionObjArgs(given.raise_fault, report, named,
                                                                (PyObject *)timeline, NULL);
            Py_XDECREF(named);
            claimed = done == NULL ? -1 : 0;
            Py_XDECREF(done);
        }
        Py_DECREF(report);
        if (claimed < 0)
            return -1;
    }
    return 0;
}

static PyObject *finish(Submission *self) {
    Mark *mark = (Mark *)self->mark;
    if (mark == NULL || self->reclaimer == NULL || self->faults == NULL || mark->timeline == NULL)
        return missing((PyObject *)self, "mark");
    if (self->open) {
        if (mark->timeline->in_flight == NULL)
            return missing((PyObject *)mark->timeline, "_in_flight");
        /* only one thread finds the mark there, and counts it */
        PyObject *kept = PyObject_CallMethodObjArgs(mark->timeline->in_flight, names.pop,
                                                    self->mark, Py_None, NULL);
        if (kept == NULL)
            return NULL;
        int held = kept != Py_None;
        self->open = 0;
        Py_DECREF(kept);
        if (held && count_completed(mark->timeline) < 0)
            return NULL;
    }
    if (raise_faults(self->faults, self->title, NULL, mark->timeline) < 0)
        return NULL;
    return self->result == NULL ? missing((PyObject *)self, "result") : Py_NewRef(self->result);
}

static PyObject *submission_finish(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    return finish((Submission *)self);
}

/* Returns whether the device is past the submission and no kernel failed, or -1 with an interrupt.
 */
static int finished_well(Submission *self) {
    int passed = -1;
    if (self->mark == NULL || !PyObject_TypeCheck(self->mark, types.mark))
        missing((PyObject *)self, "mark");
    else
        passed = mark_passed((Mark *)self->mark);
    PyObject *result = passed > 0 ? finish(self) : NULL;
    Py_XDECREF(result);
    if (passed == 0 || result != NULL)
        return passed;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear();
    return 0;
}

static PyObject *submission_finished_well(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    int well = finished_well((Submission *)self);
    return well < 0 ? NULL : PyBool_FromLong(well);
}

static PyMethodDef submission_methods[] = {
    {"finished_well", submission_finished_well, METH_NOARGS, "finished_well()\n--\n\n"},
    {"finish", submission_finish, METH_NOARGS, "finish()\n--\n\n"},
    {"abandon", submission_abandon, METH_NOARGS, "abandon()\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

/* ---- Runs ---- */

/* After a failure: has Python clean up, and raises the error. */
static PyObject *give_up(Context *context, PyObject *operation) {
    Py_XDECREF(handle_error(given.give_up, NULL, context, operation, NULL)); /* it always raises */
    return NULL;
}

static PyObject *new_submission(Context *context, PyObject *operation, PyObject *result) {
    PyObject *title = title_of(operation);
    Submission *self = title == NULL
                           ? NULL
                           : (Submission *)PyType_GenericAlloc((PyTypeObject *)given.Submission, 0);
    if (self != NULL && set_submission(self, context, result, title) < 0)
        Py_CLEAR(self);
    Py_XDECREF(title);
    return (PyObject *)self;
}

static PyObject *submit(PyObject *operation, PyObject *stream, PyObject *visible) {
    Context *context = context_for(operation, stream, visible, 1);
    if (context == NULL)
        return NULL;
    PyObject *walk = NULL, *made = NULL, *result = execute_alone(operation, context);
    if (result == NULL && (walk = new_walk(operation, context)) != NULL && !PyErr_Occurred() &&
        IS_NONE(points->tracer) && walk_on(walk) > 0)
        result = Py_XNewRef(((Walk *)walk)->result);
    if (result != NULL && (made = new_submission(context, operation, result)) == NULL) {
        give_up(context, operation);
    } else if (made == NULL && walk == NULL) {
        give_up(context, operation);
    } else if (made == NULL) {
        made = PyErr_Occurred()
                   ? handle_error(given.submit_slowly, NULL, walk, NULL)
                   : PyObject_CallFunctionObjArgs(given.submit_slowly, walk, Py_None, NULL);
    }
    Py_XDECREF(result);
    Py_XDECREF(walk);
    Py_DECREF((PyObject *)context);
    return made;
}

static PyObject *core_submit(PyObject *Py_UNUSED(module), PyObject *const *arguments,
                             Py_ssize_t count) {
    if (count != 2 && count != 3)
        return refuse("submit takes an operation, a stream, and perhaps a run");
    PyObject *visible = NULL;
    if (count == 3 && arguments[2] != Py_None &&
        (visible = METHOD0(arguments[2], names.visible)) == NULL)
        return NULL;
    PyObject *made = submit(arguments[0], arguments[1], visible);
    Py_XDECREF(visible);
    return made;
}

static PyObject *core_submit_at_once(PyObject *Py_UNUSED(module), PyObject *const *arguments,
                                     Py_ssize_t count) {
    if (count != 3)
        return refuse("submit_at_once takes an operation, a stream and a call");
    PyObject *operation = arguments[0];
    int waits = may_wait(operation);
    if (waits > 0) {
        waits = drop_result(
            PyObject_CallFunctionObjArgs(given.refuse_waiting, operation, arguments[2], NULL));
    }
    Context *context = waits < 0 ? NULL : context_for(operation, arguments[1], NULL, 1);
    if (context == NULL)
        return NULL;
    SET(context->waitless, arguments[2]);
    PyObject *result = run_through(operation, context), *made = NULL;
    if (result != NULL && !IS_NONE(context->copies)) {
        PyObject *other = PyObject_CallFunctionObjArgs(given.handed_out, result, context->copies,
                                                       arguments[1], NULL);
        Py_DECREF(result);
        result = other;
    }
    if (result != NULL)
        made = new_submission(context, operation, result);
    if (made == NULL)
        give_up(context, operation);
    Py_XDECREF(result);
    Py_DECREF((PyObject *)context);
    return made;
}

/* Blocks the thread until the device is past ``position``. Waits for an event, not the stream:
   another thread may submit work that waits for this thread. */
static int synchronize_on(Timeline *timeline, long long position, PyObject *device) {
    PyObject *event = take_event(device);
    if (event == NULL)
        return -1;
    PyObject *done = PyObject_CallMethodObjArgs(timeline->driver, names.record_event, event,
                                                timeline->handle, NULL);
    if (done != NULL) {
        Py_DECREF(done);
        done = METHOD1(timeline->driver, names.synchronize_event, event);
    }
    Py_XDECREF(done);
    int failed = spare_event(device, event);
    Py_DECREF(event);
    if (done == NULL)
        raise_if_loss(device);
    return done == NULL || failed ? -1 : note_passed(timeline, position);
}

static int synchronize_past(Timeline *timeline, long long position) {
    PyObject *device = Py_XNewRef(timeline->device);
    if (device == NULL)
        return LACKS(timeline, "device");
    int failed = synchronize_on(timeline, position, device);
    Py_DECREF(device);
    return failed;
}

static PyObject *core_run_blocking(PyObject *Py_UNUSED(module), PyObject *const *arguments,
                                   Py_ssize_t count) {
    if (count != 2 && count != 3)
        return refuse("run_blocking takes an operation, a stream, and perhaps a lender");
    PyObject *operation = arguments[0];
    Context *context = context_for(operation, arguments[1], NULL, 1);
    if (context == NULL)
        return NULL;
    if (count == 3)
        SET(context->lender, arguments[2]);
    PyObject *result = run_through(operation, context);
    Timeline *timeline = (Timeline *)Py_NewRef((PyObject *)context->timeline);
    long long position = 0;
    if (result == NULL || wait_for_joined(context) < 0 ||
        settle(context, position = ++timeline->position) < 0) {
        give_up(context, operation);
        Py_CLEAR(result);
        Py_DECREF((PyObject *)context);
        Py_DECREF((PyObject *)timeline);
        return NULL;
    }
    PyObject *kept = Py_NewRef(context->kept), *faults = Py_NewRef(context->faults);
    Py_DECREF(
        (PyObject *)context); /* its objects are freed while the device works, and not afterwards */
    if (synchronize_past(timeline, position) < 0) {
        Py_XDECREF(handle_error(given.give_up_blocked, NULL, operation, timeline, kept, faults,
                                result, NULL)); /* it always raises */
        Py_CLEAR(result);
    } else if (count_completed(timeline) < 0 ||
               raise_faults(faults, NULL, operation, timeline) < 0) {
        Py_CLEAR(result);
    }
    Py_DECREF(kept);
    Py_DECREF(faults);
    Py_DECREF((PyObject *)timeline);
    return result;
}

/* ---- LooseResults: the submissions of ``async_on`` to a stream ---- */

FIELDS_OF(Loose, AT(Dropping, drop), AT(Loose, submissions))

static PyMemberDef loose_members[] = {
    {"_submissions", T_OBJECT_EX, AT(Loose, submissions), 0, NULL},
    {"_ask_at", T_PYSSIZET, AT(Loose, ask_at), 0, NULL},
    {NULL},
};

static PyObject *loose_adopt(PyObject *object, PyObject *submission) {
    Loose *self = (Loose *)object;
    if (self->submissions == NULL)
        return missing(object, "_submissions");
    if (lock_take(runtime_lock) < 0)
        return NULL;
    Py_ssize_t size = PyObject_Size(self->submissions);
    PyObject *done = size < 0              ? NULL
                     : size < self->ask_at ? Py_NewRef(Py_None)
                                           : METHOD0(object, names._let_go);
    if (done != NULL) {
        Py_DECREF(done);
        done = self->submissions == NULL ? missing(object, "_submissions")
                                         : METHOD1(self->submissions, names.append, submission);
    }
    lock_release(runtime_lock);
    return done;
}

static PyMethodDef loose_methods[] = {
    {"adopt", loose_adopt, METH_O, "adopt(submission)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

/* ---- Turn ---- */

static PyMemberDef turn_members[] = {
    {"number", T_LONGLONG, AT(Turn, number), 0, NULL},
    {"spent", T_DOUBLE, AT(Turn, spent), 0, NULL},
    {"_usual", T_DOUBLE, AT(Turn, usual), 0, NULL},
    {"gives_up", T_BOOL, AT(Turn, gives_up), 0, NULL},
    {"defers", T_BOOL, AT(Turn, defers), 0, NULL},
    {"compiles_now", T_BOOL, AT(Turn, compiles_now), 0, NULL},
    {"works_for_run", T_BOOL, AT(Turn, works_for_run), 0, NULL},
    {NULL},
};

static PyObject *turn_new(PyTypeObject *type, PyObject *Py_UNUSED(arguments),
                          PyObject *Py_UNUSED(keywords)) {
    Turn *self = (Turn *)PyType_GenericAlloc(type, 0);
    if (self != NULL)
        self->usual = 20e-6;
    return (PyObject *)self;
}

static PyObject *turn_next(PyObject *object, PyObject *Py_UNUSED(nothing)) {
    ((Turn *)object)->number++;
    ((Turn *)object)->spent = 0;
    Py_RETURN_NONE;
}

static PyObject *turn_over(PyObject *object, PyObject *number) {
    long long before = PyLong_AsLongLong(number);
    if (before == -1 && PyErr_Occurred())
        return NULL;
    return ((Turn *)object)->number == before ? turn_next(object, NULL) : Py_NewRef(Py_None);
}

static PyMethodDef turn_methods[] = {
    {"over", turn_over, METH_O, "over(number)\n--\n\n"},
    {"next", turn_next, METH_NOARGS, "next()\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

static PyObject *turn_key;

static PyObject *current_turn(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
    PyObject *of_thread = PyThreadState_GetDict();
    if (of_thread == NULL)
        return PyErr_NoMemory();
    PyObject *turn = PyDict_GetItemWithError(of_thread, turn_key);
    if (turn != NULL)
        return Py_NewRef(turn);
    turn = PyErr_Occurred() ? NULL : PyObject_CallNoArgs(given.Turn);
    if (turn != NULL && PyDict_SetItem(of_thread, turn_key, turn) < 0)
        Py_CLEAR(turn);
    return turn;
}

/* ---- DeviceFuture ---- */

FIELDS_OF(Future, AT(Future, operation), AT(Future, stream), AT(Future, submission),
          AT(Future, paused), AT(Future, state), AT(Future, result), AT(Future, error),
          AT(Future, trace), AT(Future, lock))

static PyMemberDef future_members[] = {
    {"_operation", T_OBJECT, AT(Future, operation), 0, NULL},
    {"_stream", T_OBJECT_EX, AT(Future, stream), READONLY, NULL},
    {"_submission", T_OBJECT, AT(Future, submission), 0, NULL},
    {"_paused", T_OBJECT, AT(Future, paused), 0, NULL},
    {"_state", T_OBJECT_EX, AT(Future, state), 0, NULL},
    {"_result", T_OBJECT_EX, AT(Future, result), 0, NULL},
    {"_error", T_OBJECT, AT(Future, error), 0, NULL},
    {"_trace", T_OBJECT, AT(Future, trace), 0, NULL},
    {"_lock", T_OBJECT_EX, AT(Future, lock), READONLY, NULL},
    {"_waiting", T_INT, AT(Future, waiting), 0, NULL},
    {NULL},
};

static int future_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *known[] = {"operation", "stream", NULL};
    Future *self = (Future *)object;
    PyObject *operation, *stream;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO", known, &operation, &stream) ||
        is_made(object, self->lock))
        return -1;
    if ((self->lock = (Lock *)PyObject_CallNoArgs((PyObject *)types.lock)) == NULL)
        return -1;
    SET(self->operation, operation);
    SET(self->stream, stream);
    SET(self->state, given.idle);
    return 0;
}

/* Submits an idle future, with its lock held. Returns None, the reason of a stop, or NULL with an
 * exception. */
static PyObject *start_idle(Future *self, Turn *turn) {
    PyObject *operation = Py_NewRef(self->operation), *made = NULL, *stop = NULL;
    SET(self->state, given.executing);
    double begun = now();
    char gave_up = turn->gives_up;
    turn->gives_up = 1;
    int drops = is_true(self->stream, names.drops_work);
    PyObject *visible = drops > 0 ? PyObject_CallNoArgs(given.new_visible) : NULL;
    if (drops == 0 || visible != NULL)
        made = submit(operation, self->stream, visible);
    Py_XDECREF(visible);
    Py_DECREF(operation);
    turn->gives_up = gave_up;
    double seconds = now() - begun;
    turn->spent += seconds;
    turn->usual += (seconds - turn->usual) / 8;
    if (made == NULL) {
        PyObject *error = caught_error();
        PyObject *done = METHOD1(self, names._complete, error);
        if (done != NULL && PyErr_GivenExceptionMatches(error, PyExc_Exception))
            stop = Py_NewRef(Py_None);
        else if (done != NULL) /* such as KeyboardInterrupt inside a function of and_then */
            raise_error(Py_NewRef(error));
        Py_XDECREF(done);
        Py_DECREF(error);
        return stop;
    }
    if ((PyObject *)Py_TYPE(made) == given.Submission) {
        SET(self->submission, made);
        stop = Py_NewRef(Py_None);
    } else {
        SET(self->paused, made);
        stop = PyObject_GetAttr(made, names.stop);
    }
    Py_DECREF(made);
    SET(self->operation, NULL);
    return stop;
}

static PyObject *future_start(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    Future *self = (Future *)object;
    if (count > 1)
        return refuse("start takes a turn, or nothing");
    if (!IS_NONE(self->submission) || self->state == given.complete)
        Py_RETURN_NONE;
    PyObject *turn =
        count > 0 && arguments[0] != Py_None ? Py_NewRef(arguments[0]) : current_turn(NULL, NULL);
    if (turn == NULL)
        return NULL;
    PyObject *stop;
    if (self->state == given.idle && self->lock != NULL && self->lock->count == 0 &&
        !IS_NONE(self->operation) && self->stream != NULL && PyObject_TypeCheck(turn, types.turn) &&
        lock_take(self->lock) == 0) {
        /* another thread may have had the lock, although its count was 0: it takes it, and then the
         * GIL */
        int still = self->state == given.idle && !IS_NONE(self->operation);
        stop = still ? start_idle(self, (Turn *)turn) : NULL;
        lock_release(self->lock);
        if (!still)
            stop = METHOD1(self, names._start_slowly, turn);
    } else {
        stop = PyErr_Occurred() ? NULL : METHOD1(self, names._start_slowly, turn);
    }
    Py_DECREF(turn);
    return stop;
}

static PyObject *future_outcome(PyObject *object, PyObject *Py_UNUSED(nothing)) {
    Future *self = (Future *)object;
    if (self->state != given.complete && self->lock != NULL) {
        if (lock_take(self->lock) <
            0) /* so that the work is counted before any thread has the result */
            return NULL;
        PyObject *submission = IS_NONE(self->submission) ? NULL : Py_NewRef(self->submission),
                 *interrupt = NULL;
        if (submission != NULL && PyObject_TypeCheck(submission, types.submission)) {
            PyObject *result = finish((Submission *)submission);
            if (result == NULL) {
                PyObject *error = caught_error();
                if (PyErr_GivenExceptionMatches(error, PyExc_Exception)) {
                    SET(self->error, error);
                    PyObject *trace = PyException_GetTraceback(error);
                    SET(self->trace, trace);
                    Py_XDECREF(trace);
                    Py_DECREF(error);
                } else {
                    interrupt = error;
                }
            } else {
                SET(self->result, result);
                Py_DECREF(result);
            }
            if (interrupt == NULL) {
                SET(self->submission, NULL);
                SET(self->state, given.complete);
            }
        }
        lock_release(self->lock);
        Py_XDECREF(submission);
        if (interrupt != NULL)
            return raise_error(interrupt);
    }
    if (!IS_NONE(self->error)) {
        PyObject *error = Py_NewRef(self->error);
        if (!PyExceptionInstance_Check(error))
            missing(object, "_error");
        else if (PyException_SetTraceback(error, self->trace == NULL ? Py_None : self->trace) == 0)
            return raise_error(error);
        Py_DECREF(error);
        return NULL;
    }
    return self->result == NULL ? missing(object, "result") : Py_NewRef(self->result);
}

static PyObject *future_consume(PyObject *object, PyObject *Py_UNUSED(nothing)) {
    PyObject *operation = ((Future *)object)->operation;
    return !IS_NONE(operation) && mark_used(operation) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef future_methods[] = {
    {"start", FAST(future_start), METH_FASTCALL,
     "start($self, turn=None, /)\n--\n\n"
     "Begins to submit the work, or continues if the run is paused, until all of it is submitted "
     "or the walk stops.\n"
     "Returns the reason of the stop, and None if the work is submitted or the outcome is known. "
     "The time of the\n"
     "submission counts in ``turn``, by default the calling thread's turn. An error of the "
     "submission becomes the\n"
     "outcome."},
    {"outcome", future_outcome, METH_NOARGS,
     "outcome()\n--\n\nReturns the result or raises the error. Do not call it before the device is "
     "past the submission."},
    {"consume", future_consume, METH_NOARGS,
     "consume()\n--\n\nMarks the operation as used, so that dropping it does not warn."},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef functions[] = {
    {"refuse_inside", core_refuse_inside, METH_NOARGS, "refuse_inside()\n--\n\n"},
    {"context_for", FAST(core_context_for), METH_VARARGS | METH_KEYWORDS,
     "context_for(operation, stream, visible=None, *, sweeps=True)\n--\n\n"},
    {"submit", FAST(core_submit), METH_FASTCALL, "submit(operation, stream, run=None)\n--\n\n"},
    {"submit_at_once", FAST(core_submit_at_once), METH_FASTCALL,
     "submit_at_once(operation, stream, call)\n--\n\n"},
    {"run_blocking", FAST(core_run_blocking), METH_FASTCALL,
     "run_blocking(operation, stream, lender=None)\n--\n\n"},
    {"current_turn", current_turn, METH_NOARGS, "current_turn()\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

int add_running(PyObject *module) {
    PyType_Slot context[] = {
        {Py_tp_doc, "ExecutionContext(stream, recording=None, visible=None)\n--\n\nThe context of "
                    "one execution."},
        {Py_tp_init, context_init},
        {Py_tp_members, context_members},
        {Py_tp_methods, context_methods},
        SLOTS_OF(Context),
        {0, NULL},
    };
    PyType_Slot submission[] = {
        {Py_tp_init, submission_init},
        {Py_tp_members, submission_members},
        {Py_tp_methods, submission_methods},
        {Py_tp_finalize, submission_finalize},
        SLOTS_OF(Submission),
        {0, NULL},
    };
    PyType_Slot loose[] = {
        {Py_tp_members, loose_members},
        {Py_tp_methods, loose_methods},
        SLOTS_OF(Loose),
        {0, NULL},
    };
    PyType_Slot turn[] = {{Py_tp_new, turn_new},
                          {Py_tp_members, turn_members},
                          {Py_tp_methods, turn_methods},
                          {0, NULL}};
    PyType_Slot future[] = {
        {Py_tp_doc, "DeviceFuture(operation, stream)\n--\n\nAn operation bound to a stream."},
        {Py_tp_init, future_init},
        {Py_tp_members, future_members},
        {Py_tp_methods, future_methods},
        SLOTS_OF(Future),
        {0, NULL},
    };
    empty_tuple = PyTuple_New(0);
    empty_string = PyUnicode_InternFromString("");
    turn_key = PyUnicode_FromString("oxide turn");
    if (empty_tuple == NULL || empty_string == NULL || turn_key == NULL)
        return -1;
    const Kind kinds[] = {
        {&types.context, "oxide._core.ExecutionContext", sizeof(Context), COLLECTED, context},
        {&types.submission, "oxide._core.Submission", sizeof(Submission), COLLECTED, submission},
        {&types.loose, "oxide._core.LooseResults", sizeof(Loose), COLLECTED, loose,
         &types.dropping},
        {&types.turn, "oxide._core.Turn", sizeof(Turn), Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
         turn},
        {&types.future, "oxide._core.DeviceFuture", sizeof(Future), COLLECTED, future},
    };
    if (ADD_KINDS(module, kinds) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
