/* The uses of memory: time lines number what is submitted to streams, marks are points in them, and
   an allocation knows its last write and the reads since. oxide/runtime/ordering/timeline.py and
   memory.py explain them. */

#include "core.h"

/* ---- Timeline ---- */

FIELDS_OF(Timeline, AT(Timeline, device), AT(Timeline, driver), AT(Timeline, runtime),
          AT(Timeline, handle), AT(Timeline, end), AT(Timeline, marks), AT(Timeline, loaded),
          AT(Timeline, queues), AT(Timeline, in_flight), AT(Timeline, completed))

static PyMemberDef timeline_members[] = {
    {"device", T_OBJECT_EX, AT(Timeline, device), 0, NULL},
    {"driver", T_OBJECT_EX, AT(Timeline, driver), 0, NULL},
    {"_runtime", T_OBJECT_EX, AT(Timeline, runtime), 0, NULL},
    {"handle", T_OBJECT_EX, AT(Timeline, handle), 0, NULL},
    {"_loaded", T_OBJECT, AT(Timeline, loaded), 0, NULL},
    {"_queues", T_OBJECT_EX, AT(Timeline, queues), 0, NULL},
    {"_in_flight", T_OBJECT_EX, AT(Timeline, in_flight), 0, NULL},
    {"_completed", T_OBJECT_EX, AT(Timeline, completed), 0, NULL},
    {"_marks", T_OBJECT_EX, AT(Timeline, marks), READONLY, NULL},
    {"_look_at", T_PYSSIZET, AT(Timeline, look_at), 0, NULL},
    {"_named", T_BOOL, AT(Timeline, named), 0, NULL},
    {"seen", T_LONGLONG, AT(Timeline, seen), 0, NULL},
    {NULL},
};

static PyObject *timeline_new(PyTypeObject *type, PyObject *Py_UNUSED(arguments),
                              PyObject *Py_UNUSED(keywords)) {
    Timeline *self = (Timeline *)PyType_GenericAlloc(type, 0);
    if (self != NULL && (self->marks = PyList_New(0)) == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyObject *timeline_end(PyObject *self, void *Py_UNUSED(closure)) {
    PyObject *end = ((Timeline *)self)->end;
    return Py_NewRef(end == NULL ? Py_None : end);
}

static int timeline_set_end(PyObject *self, PyObject *end, void *Py_UNUSED(closure)) {
    if (!IS_NONE(end) && !PyObject_TypeCheck(end, types.mark))
        return REFUSED("end is a mark or None");
    SET(((Timeline *)self)->end, end == Py_None ? NULL : end);
    return 0;
}

static PyGetSetDef timeline_properties[] = {{"end", timeline_end, timeline_set_end, NULL, NULL},
                                            {NULL}};

static PyObject *timeline_advance(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    return PyLong_FromLongLong(++((Timeline *)self)->position);
}

/* Returns a spare event of the device, or a new one. */
PyObject *take_event(PyObject *device) {
    PyObject *spare = PyObject_GetAttr(device, names.spare_events);
    PyObject *event = spare == NULL ? NULL : METHOD0(spare, names.popleft);
    Py_XDECREF(spare);
    if (event == NULL && spare != NULL && PyErr_ExceptionMatches(PyExc_IndexError)) {
        PyErr_Clear();
        event = METHOD0(device, names.take_event);
    }
    return event;
}

/* Lets an event be recorded again. Keeps the exception that is on its way. */
int spare_event(PyObject *device, PyObject *event) {
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyObject *spare = PyObject_GetAttr(device, names.spare_events);
    PyObject *done = spare == NULL ? NULL : METHOD1(spare, names.append, event);
    Py_XDECREF(spare);
    Py_XDECREF(done);
    if (type != NULL)
        PyErr_Restore(type, error, trace);
    return done == NULL ? -1 : 0;
}

/* After a call of the driver has failed: if the device is lost, has it raise its loss. */
void raise_if_loss(PyObject *device) {
    if (given.DeviceLostError != NULL && PyErr_ExceptionMatches(given.DeviceLostError))
        Py_XDECREF(handle_error(device, names.raise_lost, NULL)); /* it always raises */
}

int raise_if_lost(PyObject *device) {
    PyObject *lost = PyObject_GetAttr(device, names.lost);
    if (lost == NULL)
        return -1;
    Py_DECREF(lost);
    return lost == Py_None ? 0 : drop_result(METHOD0(device, names.raise_if_lost));
}

/* Records an event for a mark. */
static int record(Timeline *self, Mark *mark) {
    if (self->device == NULL || self->driver == NULL || self->handle == NULL)
        return LACKS(self, "device");
    PyObject *device = Py_NewRef(self->device), *event = take_event(device);
    int failed = event == NULL ? -1
                               : drop_result(PyObject_CallMethodObjArgs(
                                     self->driver, names.record_event, event, self->handle, NULL));
    if (!failed) {
        SET(mark->event, event);
    } else if (event != NULL) {
        spare_event(device, event);
        raise_if_loss(device);
    }
    Py_XDECREF(event);
    Py_DECREF(device);
    return failed;
}

static int close_timeline(Timeline *self) {
    if (self->end == NULL)
        return 0;
    if (lock_take(runtime_lock) < 0)
        return -1;
    int failed = 0;
    Mark *end = (Mark *)self->end;
    if (end != NULL) {
        Py_INCREF((PyObject *)end);
        if (end->position > self->seen && end->event == NULL)
            failed = record(self, end);
        if (!failed)
            Py_CLEAR(self->end);
    }
    lock_release(runtime_lock);
    Py_XDECREF((PyObject *)end);
    return failed;
}

static PyObject *timeline_close(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    return close_timeline((Timeline *)self) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *timeline_record(PyObject *self, PyObject *mark) {
    if (!PyObject_TypeCheck(mark, types.mark))
        return missing(mark, "event");
    return record((Timeline *)self, (Mark *)mark) < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *mark_now(Timeline *self) {
    if (close_timeline(self) < 0)
        return NULL;
    Py_ssize_t count = PyList_Size(self->marks);
    if (count >=
        self->look_at) { /* a stream that serves as a branch has marks that no thread waits for */
        PyObject *done = METHOD0(self, names.look_ahead);
        if (done == NULL)
            return NULL;
        Py_DECREF(done);
        count = 4 * PyList_Size(self->marks);
        self->look_at = count > 64 ? count : 64;
    }
    PyObject *ordering = self->runtime == NULL ? missing((PyObject *)self, "_runtime")
                                               : PyObject_GetAttr(self->runtime, names.ordering);
    if (ordering == NULL)
        return NULL;
    /* strict ordering refuses a use that is not known to have ended, so the mark gets its event at
     * once */
    int event = self->named || ordering == names.strict || is_equal(ordering, names.strict) != 0;
    Py_DECREF(ordering);
    if (PyErr_Occurred())
        return NULL;
    Mark *mark = (Mark *)PyType_GenericAlloc((PyTypeObject *)given.Mark, 0);
    if (mark == NULL || lock_take(runtime_lock) < 0) {
        Py_XDECREF((PyObject *)mark);
        return NULL;
    }
    Py_INCREF((PyObject *)self);
    mark->timeline = self;
    mark->position = ++self->position;
    int failed = event ? record(self, mark) : 0;
    if (!failed && !event)
        SET(self->end, mark);
    if (!failed)
        failed = PyList_Append(self->marks, (PyObject *)mark);
    lock_release(runtime_lock);
    if (failed)
        Py_CLEAR(mark);
    return (PyObject *)mark;
}

static PyObject *timeline_mark(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    return mark_now((Timeline *)self);
}

int note_passed(Timeline *self, long long position) {
    if (lock_take(runtime_lock) < 0)
        return -1;
    if (position > self->seen)
        self->seen = position;
    if (self->end != NULL && ((Mark *)self->end)->position <= self->seen)
        Py_CLEAR(self->end); /* it is in ``marks``, too: nothing is freed */
    Py_ssize_t passed = 0, count = PyList_Size(self->marks);
    while (passed < count) {
        PyObject *mark = PyList_GetItem(self->marks, passed);
        if (!PyObject_TypeCheck(mark, types.mark) || ((Mark *)mark)->position > self->seen)
            break;
        passed++;
    }
    PyObject *dropped = passed ? PyList_GetSlice(self->marks, 0, passed) : NULL;
    int failed =
        passed && (dropped == NULL || PyList_SetSlice(self->marks, 0, passed, NULL) < 0) ? -1 : 0;
    lock_release(runtime_lock);
    Py_XDECREF(dropped); /* after the lock is released, as each drop runs a finaliser */
    return failed;
}

static PyObject *timeline_note_passed(PyObject *self, PyObject *number) {
    long long position = PyLong_AsLongLong(number);
    if ((position == -1 && PyErr_Occurred()) || note_passed((Timeline *)self, position) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Queries the driver: returns whether the device is past the mark, or -1 with the error of the
 * stream's work. */
static int ask(Timeline *self, Mark *mark) {
    if (self->device == NULL || self->driver == NULL || self->handle == NULL)
        return LACKS(self, "device");
    PyObject *device = Py_NewRef(self->device), *answer = NULL;
    PyObject *event = IS_NONE(mark->event) ? NULL : Py_NewRef(mark->event);
    long long position = mark->position;
    if (raise_if_lost(device) == 0) {
        answer = event == NULL ? METHOD1(self->driver, names.query_stream, self->handle)
                               : METHOD1(self->driver, names.query_event, event);
        if (answer == NULL)
            raise_if_loss(device);
    }
    int passed = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    Py_XDECREF(event);
    Py_DECREF(device);
    return passed > 0 && note_passed(self, position) < 0 ? -1 : passed;
}

static PyObject *timeline_ask(PyObject *self, PyObject *mark) {
    if (!PyObject_TypeCheck(mark, types.mark))
        return missing(mark, "event");
    int passed = ask((Timeline *)self, (Mark *)mark);
    return passed < 0 ? NULL : PyBool_FromLong(passed);
}

static PyMethodDef timeline_methods[] = {
    {"advance", timeline_advance, METH_NOARGS, "advance()\n--\n\n"},
    {"mark", timeline_mark, METH_NOARGS, "mark()\n--\n\n"},
    {"close", timeline_close, METH_NOARGS, "close()\n--\n\n"},
    {"_record", timeline_record, METH_O, "_record(mark)\n--\n\n"},
    {"note_passed", timeline_note_passed, METH_O, "note_passed(position)\n--\n\n"},
    {"ask", timeline_ask, METH_O, "ask(mark)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

/* ---- Mark ---- */

FIELDS_OF(Mark, AT(Mark, timeline), AT(Mark, event))

static PyMemberDef mark_members[] = {
    {"timeline", T_OBJECT_EX, AT(Mark, timeline), READONLY, NULL},
    {"position", T_LONGLONG, AT(Mark, position), READONLY, NULL},
    {"event", T_OBJECT, AT(Mark, event), 0, NULL},
    {NULL},
};

static int mark_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *known[] = {"timeline", "position", NULL};
    PyObject *timeline;
    long long position;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!L", known, types.timeline, &timeline,
                                     &position) ||
        is_made(object, ((Mark *)object)->timeline))
        return -1;
    SET(((Mark *)object)->timeline, timeline);
    ((Mark *)object)->position = position;
    return 0;
}

/* When a mark is dropped, its event becomes free, and may be recorded again for another mark. */
static int spare_mark(PyObject *object) {
    Mark *self = (Mark *)object;
    if (IS_NONE(self->event) || self->timeline == NULL || self->timeline->device == NULL)
        return 0;
    return spare_event(self->timeline->device, self->event);
}
FINALIZER(mark_finalize, spare_mark)

int mark_passed(Mark *self) {
    Timeline *timeline = self->timeline;
    if (timeline == NULL)
        return LACKS(self, "timeline");
    if (self->position <= timeline->seen)
        return 1;
    int passed = ask(timeline, self);
    if (passed > 0 && PyList_Size(timeline->marks) > 8) {
        PyObject *done = METHOD0(timeline, names.look_ahead);
        if (done == NULL)
            return -1;
        Py_DECREF(done);
    }
    return passed;
}

static PyObject *mark_passed_method(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    int passed = mark_passed((Mark *)self);
    return passed < 0 ? NULL : PyBool_FromLong(passed);
}

static PyMethodDef mark_methods[] = {
    {"passed", mark_passed_method, METH_NOARGS, "passed()\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

/* ---- Allocation ---- */

FIELDS_OF(Allocation, AT(Allocation, device), AT(Allocation, home), AT(Allocation, shape),
          AT(Allocation, dtype), AT(Allocation, known), AT(Allocation, owners),
          AT(Allocation, claims), AT(Allocation, visible), AT(Allocation, more_reads),
          AT(Allocation, written_by), AT(Allocation, read_by))

static PyMemberDef allocation_members[] = {
    {"device", T_OBJECT_EX, AT(Allocation, device), 0, NULL},
    {"home", T_OBJECT_EX, AT(Allocation, home), 0, NULL},
    {"shape", T_OBJECT_EX, AT(Allocation, shape), 0, NULL},
    {"dtype", T_OBJECT, AT(Allocation, dtype), 0, NULL},
    {"known", T_OBJECT, AT(Allocation, known), 0, NULL},
    {"owners", T_OBJECT_EX, AT(Allocation, owners), 0, NULL},
    {"claims", T_OBJECT_EX, AT(Allocation, claims), 0, NULL},
    {"visible", T_OBJECT, AT(Allocation, visible), 0, NULL},
    {"written_by", T_OBJECT, AT(Allocation, written_by), READONLY, NULL},
    {"_written_at", T_LONGLONG, AT(Allocation, written_at), READONLY, NULL},
    {"address", T_ULONGLONG, AT(Allocation, address), 0, NULL},
    {"nbytes", T_PYSSIZET, AT(Allocation, nbytes), 0, NULL},
    {"exported", T_BOOL, AT(Allocation, exported), 0, NULL},
    {"adopted", T_BOOL, AT(Allocation, adopted), 0, NULL},
    {NULL},
};

/* The first reader comes first: the waits for the readers are submitted in this order. */
static PyObject *allocation_reads(PyObject *object, void *Py_UNUSED(closure)) {
    Allocation *self = (Allocation *)object;
    PyObject *reads = PyDict_New();
    if (reads != NULL && self->read_by != NULL) {
        PyObject *position = PyLong_FromLongLong(self->read_at);
        if (position == NULL || PyDict_SetItem(reads, (PyObject *)self->read_by, position) < 0)
            Py_CLEAR(reads);
        Py_XDECREF(position);
    }
    if (reads != NULL && self->more_reads != NULL && PyDict_Update(reads, self->more_reads) < 0)
        Py_CLEAR(reads);
    return reads;
}

static PyGetSetDef allocation_properties[] = {{"reads", allocation_reads, NULL, NULL, NULL},
                                              {NULL}};

static int note_read(Allocation *self, Timeline *timeline, long long position) {
    if (self->read_by == timeline || self->read_by == NULL) {
        if (self->read_by == NULL)
            SET(self->read_by, timeline);
        self->read_at = position;
        return 0;
    }
    if (self->more_reads == NULL && (self->more_reads = PyDict_New()) == NULL)
        return -1;
    PyObject *number = PyLong_FromLongLong(position);
    int failed =
        number == NULL ? -1 : PyDict_SetItem(self->more_reads, (PyObject *)timeline, number);
    Py_XDECREF(number);
    return failed;
}

void note_write(Allocation *self, Timeline *timeline, long long position) {
    if (self->written_by != timeline)
        SET(self->written_by, timeline);
    self->written_at = position;
    Py_CLEAR(self->read_by);
    Py_CLEAR(self->more_reads);
}

static int use_of(PyObject *const *arguments, Py_ssize_t count, long long *position) {
    if (count != 2 || !PyObject_TypeCheck(arguments[0], types.timeline))
        return REFUSED("a use is a timeline and a position");
    *position = PyLong_AsLongLong(arguments[1]);
    return *position == -1 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *allocation_note_read(PyObject *self, PyObject *const *arguments,
                                      Py_ssize_t count) {
    long long position;
    if (use_of(arguments, count, &position) < 0 ||
        note_read((Allocation *)self, (Timeline *)arguments[0], position) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *allocation_note_write(PyObject *self, PyObject *const *arguments,
                                       Py_ssize_t count) {
    long long position;
    if (use_of(arguments, count, &position) < 0)
        return NULL;
    note_write((Allocation *)self, (Timeline *)arguments[0], position);
    Py_RETURN_NONE;
}

/* A dropped allocation joins a queue, from which the reclaimer frees its memory. Python finalises
 * it only once. */
static int drop_allocation(PyObject *self) {
    if (((Allocation *)self)->address == 0 || given.dropped == NULL)
        return 0;
    return drop_result(METHOD1(given.dropped, names.append, self));
}
FINALIZER(allocation_finalize, drop_allocation)

static PyMethodDef allocation_methods[] = {
    {"note_read", FAST(allocation_note_read), METH_FASTCALL,
     "note_read(timeline, position)\n--\n\n"},
    {"note_write", FAST(allocation_note_write), METH_FASTCALL,
     "note_write(timeline, position)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

/* ---- Box ---- */

FIELDS_OF(Box, AT(Box, allocation), AT(Box, shape), AT(Box, strides), AT(Box, dtype),
          AT(Box, argument), AT(Box, known))

static PyMemberDef box_members[] = {
    {"shape", T_OBJECT_EX, AT(Box, shape), READONLY, "The length of each axis."},
    {"dtype", T_OBJECT_EX, AT(Box, dtype), READONLY, "The elements' type."},
    {"size", T_PYSSIZET, AT(Box, size), READONLY, "The number of elements."},
    {"nbytes", T_PYSSIZET, AT(Box, nbytes), READONLY, "The size in bytes."},
    {"ptr", T_ULONGLONG, AT(Box, address), READONLY,
     "The first element's address, 0 for an empty box. Work that is not submitted through oxide "
     "must be ordered by its\n"
     "submitter."},
    {"_allocation", T_OBJECT_EX, AT(Box, allocation), READONLY, NULL},
    {"_shape", T_OBJECT_EX, AT(Box, shape), READONLY, NULL},
    {"_strides", T_OBJECT, AT(Box, strides), READONLY, NULL},
    {"_dtype", T_OBJECT_EX, AT(Box, dtype), READONLY, NULL},
    {"_argument", T_OBJECT, AT(Box, argument), 0, NULL},
    {"_known", T_OBJECT, AT(Box, known), 0, NULL},
    {"_offset", T_PYSSIZET, AT(Box, offset), READONLY, NULL},
    {"_size", T_PYSSIZET, AT(Box, size), READONLY, NULL},
    {"_nbytes", T_PYSSIZET, AT(Box, nbytes), READONLY, NULL},
    {"_ptr", T_ULONGLONG, AT(Box, address), READONLY, NULL},
    {NULL},
};

static PyObject *box_device(PyObject *self, void *Py_UNUSED(closure)) {
    Allocation *allocation = ((Box *)self)->allocation;
    return allocation == NULL || allocation->device == NULL ? missing(self, "device")
                                                            : Py_NewRef(allocation->device);
}

static PyGetSetDef box_properties[] = {
    {"device", box_device, NULL, "The device whose memory the box is in.", NULL},
    {NULL},
};

int measure(PyObject *shape, PyObject *dtype, Py_ssize_t *size, Py_ssize_t *nbytes) {
    PyObject *item = PyObject_GetAttr(dtype, names.itemsize);
    Py_ssize_t itemsize = item == NULL ? -1 : PyLong_AsSsize_t(item);
    Py_XDECREF(item);
    int fits = itemsize >= 0;
    *size = 1;
    for (Py_ssize_t axis = 0; fits && axis < PyTuple_Size(shape); axis++) {
        Py_ssize_t length = PyLong_AsSsize_t(PyTuple_GetItem(shape, axis));
        fits = length >= 0 && !__builtin_mul_overflow(*size, length, size);
    }
    fits = fits && !__builtin_mul_overflow(*size, itemsize, nbytes);
    if (!PyErr_Occurred())
        return fits;
    if (!PyErr_ExceptionMatches(PyExc_OverflowError))
        return -1;
    PyErr_Clear();
    return 0;
}

static int box_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *known[] = {"allocation", "shape", "dtype", "offset", "strides", NULL};
    Box *self = (Box *)object;
    PyObject *allocation, *shape, *dtype, *strides = Py_None;
    Py_ssize_t offset = 0, size, nbytes;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!O!O|nO", known, types.allocation,
                                     &allocation, &PyTuple_Type, &shape, &dtype, &offset,
                                     &strides) ||
        is_made(object, self->allocation))
        return -1;
    int fits = measure(shape, dtype, &size, &nbytes);
    if (fits == 0)
        PyErr_Format(PyExc_ValueError,
                     "memory has no shape %R: a length is negative, or their product is too large",
                     shape);
    if (fits <= 0)
        return -1;
    SET(self->allocation, allocation);
    SET(self->shape, shape);
    SET(self->dtype, dtype);
    SET(self->strides, strides == Py_None ? NULL : strides);
    self->offset = offset;
    self->size = size;
    self->nbytes = nbytes;
    self->address = nbytes ? self->allocation->address + (unsigned long long)offset : 0;
    return 0;
}

/* ---- The order of uses ---- */

Allocation *allocation_of(PyObject *object) {
    if (!PyObject_TypeCheck(object, types.allocation)) {
        missing(object, "address");
        return NULL;
    }
    return (Allocation *)object;
}

PyObject *list_uses(Allocation **uses, int from, int to) {
    PyObject *list = PyList_New(0);
    for (int i = from; list != NULL && i < to; i++)
        if (PyList_Append(list, (PyObject *)uses[i]) < 0)
            Py_CLEAR(list);
    return list;
}

int visit_uses(Allocation **uses, int count, visitproc visit, void *arg) {
    for (int i = 0; i < count; i++)
        Py_VISIT((PyObject *)uses[i]);
    return 0;
}

void drop_uses(Allocation **uses, int count) {
    for (int i = 0; i < count; i++)
        Py_DECREF((PyObject *)uses[i]);
}

static int set_used_by_others(PyObject *visible) {
    PyObject *run = PyObject_GetAttr(visible, names.run);
    int failed = run == NULL ? -1 : PyObject_SetAttr(run, names.used_by_others, Py_True);
    Py_XDECREF(run);
    return failed;
}

static int waits_avoided(Timeline *timeline) {
    PyObject *counters = timeline->runtime == NULL
                             ? missing((PyObject *)timeline, "_runtime")
                             : PyObject_GetAttr(timeline->runtime, names.counters);
    PyObject *counter = counters == NULL ? NULL : PyObject_GetAttr(counters, names.waits_avoided);
    PyObject *done = counter == NULL ? NULL : METHOD0(counter, names.add);
    Py_XDECREF(counters);
    Py_XDECREF(counter);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Most memory is used on a single stream, or was last used by work that is over. */
static int order_use(Timeline *timeline, Allocation *used, int writes) {
    Timeline *writer = used->written_by, *reader = used->read_by;
    int claimed = used->claims != NULL &&
                  PyTuple_Size(used->claims) != 0; /* -1 for another type: the slow path */
    int after_reads =
        !writes || (used->more_reads == NULL && (reader == NULL || reader == timeline));
    if (PyErr_Occurred())
        PyErr_Clear();
    if (writer == timeline && !claimed && after_reads)
        return 0;
    if (!claimed && after_reads && writer != NULL && used->written_at <= writer->seen)
        return waits_avoided(timeline);
    return drop_result(METHOD1(used, writes ? names.order_write : names.order_read, timeline));
}

/* Orders work that is about to be submitted after earlier uses of its memory. Call it with the lock
 * held. */
int order_before(Context *context, Allocation **uses, int reads, int writes) {
    Timeline *timeline = context->timeline;
    if (close_timeline(timeline) < 0)
        return -1;
    for (int i = 0; i < reads + writes; i++)
        if (order_use(timeline, uses[i], i >= reads) < 0)
            return -1;
    int failed = 0;
    PyObject *visible = Py_XNewRef(context->visible);
    if (!IS_NONE(visible))
        for (int i = reads; !failed && i < reads + writes; i++)
            if (uses[i]->visible != visible)
                failed = set_used_by_others(visible);
    Py_XDECREF(visible);
    return failed;
}

/* Orders later uses of the memory after the work that was just submitted. Call it with the lock
 * held. */
int order_after(Context *context, Allocation **uses, int reads, int writes) {
    Timeline *timeline = context->timeline;
    long long position = ++timeline->position;
    for (int i = 0; i < reads + writes; i++) {
        Allocation *used = uses[i];
        if (used->adopted) { /* it may be imported again after its boxes are gone: its entry is kept
                                until the run ends */
            PyObject *known = METHOD0(used, names.known_to_others);
            if (known != NULL && context->kept == NULL)
                missing((PyObject *)context, "_kept");
            int failed =
                known == NULL || context->kept == NULL ? -1 : PyList_Append(context->kept, known);
            Py_XDECREF(known);
            if (failed)
                return -1;
        }
        if (!IS_NONE(used->visible) && used->visible != context->visible &&
            set_used_by_others(used->visible) < 0)
            return -1;
        if (i >= reads)
            note_write(used, timeline, position);
        else if (note_read(used, timeline, position) < 0)
            return -1;
    }
    return 0;
}

int submit_ordered(Context *context, Allocation **uses, int reads, int writes, Submit call,
                   void *work, int always) {
    if (lock_take(runtime_lock) < 0)
        return -1;
    PyObject *driver = Py_XNewRef(context->driver), *handle = Py_XNewRef(context->timeline->handle);
    int failed = driver == NULL || handle == NULL ? LACKS(context, "driver")
                                                  : order_before(context, uses, reads, writes);
    if (!failed) {
        failed = call(driver, handle, work);
        PyObject *error = failed ? caught_error() : NULL;
        if (error == NULL || always || was_interrupted(error))
            failed |= order_after(context, uses, reads, writes);
        raise_error(error);
    }
    lock_release(runtime_lock);
    Py_XDECREF(driver);
    Py_XDECREF(handle);
    return failed ? -1 : 0;
}

int add_ordering(PyObject *module) {
    PyType_Slot timeline[] = {
        {Py_tp_new, timeline_new},
        {Py_tp_members, timeline_members},
        {Py_tp_getset, timeline_properties},
        {Py_tp_methods, timeline_methods},
        SLOTS_OF(Timeline),
        {0, NULL},
    };
    PyType_Slot mark[] = {
        {Py_tp_init, mark_init},
        {Py_tp_members, mark_members},
        {Py_tp_methods, mark_methods},
        {Py_tp_finalize, mark_finalize},
        SLOTS_OF(Mark),
        {0, NULL},
    };
    PyType_Slot allocation[] = {
        {Py_tp_members, allocation_members},
        {Py_tp_getset, allocation_properties},
        {Py_tp_methods, allocation_methods},
        {Py_tp_finalize, allocation_finalize},
        SLOTS_OF(Allocation),
        {0, NULL},
    };
    PyType_Slot box[] = {
        {Py_tp_init, box_init},
        {Py_tp_members, box_members},
        {Py_tp_getset, box_properties},
        {Py_tp_doc, "DeviceBox(allocation, shape, dtype, offset=0, strides=None)\n--\n\nAn array "
                    "in device memory."},
        SLOTS_OF(Box),
        {0, NULL},
    };
    const Kind kinds[] = {
        {&types.timeline, "oxide._core.Timeline", sizeof(Timeline), COLLECTED, timeline},
        {&types.mark, "oxide._core.Mark", sizeof(Mark), COLLECTED, mark},
        {&types.allocation, "oxide._core.Allocation", sizeof(Allocation), COLLECTED, allocation},
        {&types.box, "oxide._core.DeviceBox", sizeof(Box), COLLECTED, box},
    };
    return ADD_KINDS(module, kinds);
}
