/* Memory for runs: new boxes, page-locked buffers for copies, and the copies through them that are
   small. What is large, recorded or lent, or does not fit, is left to Python:
   oxide/runtime/memory/memory.py, memory/pinned.py and submission/staging.py. */

#include "core.h"

/* ---- New boxes ---- */

static int set_live(PyObject *device, Allocation *self) {
    PyObject *live = PyObject_GetAttr(device, names.live);
    PyObject *address = live == NULL ? NULL : PyLong_FromUnsignedLongLong(self->address);
    PyObject *entry =
        address == NULL ? NULL : Py_BuildValue("(nOO)", self->nbytes, self->shape, self->dtype);
    int failed = entry == NULL ? -1 : PyObject_SetItem(live, address, entry);
    Py_XDECREF(live);
    Py_XDECREF(address);
    Py_XDECREF(entry);
    return failed;
}

/* Returns an allocation for the run. It counts as the first write, so other streams wait for it. */
static Allocation *allocate(Context *context, Py_ssize_t nbytes, PyObject *shape, PyObject *dtype) {
    Timeline *timeline = context->timeline;
    Allocation *self = (Allocation *)PyType_GenericAlloc((PyTypeObject *)given.Allocation, 0);
    if (self == NULL)
        return NULL;
    if (timeline->device == NULL) {
        Py_DECREF((PyObject *)self);
        return (Allocation *)missing((PyObject *)timeline, "device");
    }
    SET(self->device, timeline->device);
    SET(self->home, timeline);
    SET(self->shape, shape);
    SET(self->dtype, dtype);
    SET(self->visible, context->visible);
    self->nbytes = nbytes;
    if ((self->owners = PyTuple_New(0)) == NULL || (self->claims = PyTuple_New(0)) == NULL)
        goto failed;
    if (nbytes == 0)
        return self;
    PyObject *size = PyLong_FromSsize_t(nbytes);
    PyObject *address = size == NULL ? NULL
                                     : PyObject_CallMethodObjArgs(timeline->driver, names.allocate,
                                                                  size, timeline->handle, NULL);
    Py_XDECREF(size);
    if (address == NULL && PyErr_ExceptionMatches(given.OutOfMemoryError)) {
        PyErr_Clear();
        PyObject *done = METHOD0(self, names.obtain_when_free);
        if (done == NULL)
            goto failed;
        Py_DECREF(done);
        return self;
    }
    if (address == NULL)
        goto failed;
    self->address = PyLong_AsUnsignedLongLong(address);
    Py_DECREF(address);
    if (PyErr_Occurred()) {
        self->address = 0;
        goto failed;
    }
    note_write(self, timeline, ++timeline->position);
    if (set_live(self->device, self) == 0)
        return self;
failed:
    Py_DECREF((PyObject *)self);
    return NULL;
}

static PyObject *core_new_box(PyObject *Py_UNUSED(module), PyObject *const *arguments,
                              Py_ssize_t count) {
    if (count != 3 || !PyObject_TypeCheck(arguments[0], types.context) ||
        !PyTuple_Check(arguments[1]))
        return refuse("new_box takes a context, a shape and a dtype");
    Context *context = (Context *)arguments[0];
    Timeline *timeline = context->timeline;
    PyObject *shape = arguments[1], *dtype = arguments[2];
    if (!IS_NONE(context->recording) || !IS_NONE(context->lender) || timeline == NULL ||
        timeline->device == NULL || timeline->driver == NULL || timeline->handle == NULL)
        return PyObject_CallFunctionObjArgs(given.new_box, arguments[0], shape, dtype, NULL);
    Py_ssize_t size, nbytes;
    int fits = measure(shape, dtype, &size, &nbytes);
    if (fits < 0)
        return NULL;
    if (!fits) /* Python says so */
        return PyObject_CallFunctionObjArgs(given.new_box, arguments[0], shape, dtype, NULL);
    Box *box = (Box *)PyType_GenericAlloc((PyTypeObject *)given.DeviceBox, 0);
    if (box == NULL)
        return NULL;
    if ((box->allocation = allocate(context, nbytes, shape, dtype)) == NULL) {
        Py_DECREF((PyObject *)box);
        return NULL;
    }
    SET(box->shape, shape);
    SET(box->dtype, dtype);
    box->size = size;
    box->nbytes = nbytes;
    box->address = box->allocation->address;
    return (PyObject *)box;
}

/* ---- Page-locked memory ---- */

FIELDS_OF(Block, AT(Block, exported), AT(Block, memory))

static PyMemberDef block_members[] = {
    {"address", T_ULONGLONG, AT(Block, address), 0, NULL},
    {"nbytes", T_PYSSIZET, AT(Block, nbytes), 0, NULL},
    {"page", T_ULONGLONG, AT(Block, page), 0, NULL},
    {"user", T_LONGLONG, AT(Block, user), 0, NULL},
    {"exported", T_OBJECT, AT(Block, exported), 0, NULL},
    {"memory", T_OBJECT, AT(Block, memory), 0, NULL},
    {NULL},
};

FIELDS_OF(Pool, AT(Pool, free), AT(Pool, returned), AT(Pool, lock))

static PyMemberDef pool_members[] = {
    {"_free", T_OBJECT_EX, AT(Pool, free), READONLY, NULL},
    {"_returned", T_OBJECT_EX, AT(Pool, returned), READONLY, NULL},
    {"_lock", T_OBJECT_EX, AT(Pool, lock), READONLY, NULL},
    {NULL},
};

static PyObject *pool_new(PyTypeObject *type, PyObject *Py_UNUSED(arguments),
                          PyObject *Py_UNUSED(keywords)) {
    Pool *self = (Pool *)PyType_GenericAlloc(type, 0);
    if (self != NULL &&
        ((self->free = PyDict_New()) == NULL ||
         (self->returned = PyObject_CallNoArgs(given.deque)) == NULL ||
         (self->lock = (Lock *)PyObject_CallNoArgs((PyObject *)types.lock)) == NULL))
        Py_CLEAR(self);
    return (PyObject *)self;
}

FIELDS_OF(Buffer, AT(Buffer, pool), AT(Buffer, block))

static PyMemberDef buffer_members[] = {
    {"_pool", T_OBJECT_EX, AT(Buffer, pool), READONLY, NULL},
    {"_block", T_OBJECT_EX, AT(Buffer, block), READONLY, NULL},
    {"address", T_ULONGLONG, AT(Buffer, address), READONLY, NULL},
    {"nbytes", T_PYSSIZET, AT(Buffer, nbytes), READONLY, NULL},
    {NULL},
};

static void set_buffer(Buffer *self, Pool *pool, Block *block, Py_ssize_t nbytes) {
    SET(self->pool, pool);
    SET(self->block, block);
    self->address = block->address;
    self->nbytes = nbytes;
    self->number = block->user = ++pool->last_user;
}

static int holds(Block *block, Py_ssize_t nbytes) {
    return block->address != 0 && nbytes >= 0 && nbytes <= block->nbytes;
}

static int buffer_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *known[] = {"pool", "block", "nbytes", NULL};
    PyObject *pool, *block;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!O!n", known, types.pool, &pool,
                                     types.block, &block, &nbytes) ||
        is_made(object, ((Buffer *)object)->block))
        return -1;
    if (!holds((Block *)block, nbytes)) {
        PyErr_SetString(PyExc_ValueError, "a buffer is not larger than its block");
        return -1;
    }
    set_buffer((Buffer *)object, (Pool *)pool, (Block *)block, nbytes);
    return 0;
}

/* A dropped buffer's block returns to the pool by one append to a queue. */
static int give_block_back(PyObject *object) {
    Buffer *self = (Buffer *)object;
    if (self->pool == NULL || self->block == NULL || self->pool->returned == NULL)
        return 0;
    PyObject *entry = Py_BuildValue("(OL)", (PyObject *)self->block, self->number);
    PyObject *done = entry == NULL ? NULL : METHOD1(self->pool->returned, names.append, entry);
    Py_XDECREF(entry);
    return drop_result(done);
}
FINALIZER(buffer_finalize, give_block_back)

/* Puts the block of an entry, a pair of it and its user, into the list of its size. */
static int collect_block(Pool *self, PyObject *entry) {
    PyObject *found =
        PyTuple_Check(entry) && PyTuple_Size(entry) == 2 ? PyTuple_GetItem(entry, 0) : NULL;
    if (found == NULL || !PyObject_TypeCheck(found, types.block))
        return LACKS(self->returned, "block");
    Block *block = (Block *)found;
    long long user = PyLong_AsLongLong(PyTuple_GetItem(entry, 1));
    if (user == -1 && PyErr_Occurred())
        return -1;
    if (block->user != user)
        return 0;
    PyObject *size = PyLong_FromSsize_t(block->nbytes);
    if (size == NULL)
        return -1;
    PyObject *blocks = Py_XNewRef(PyDict_GetItemWithError(self->free, size));
    if (blocks == NULL && !PyErr_Occurred() && (blocks = PyList_New(0)) != NULL &&
        PyDict_SetItem(self->free, size, blocks) < 0)
        Py_CLEAR(blocks);
    Py_DECREF(size);
    int failed = blocks == NULL ? -1 : PyList_Append(blocks, found);
    Py_XDECREF(blocks);
    if (!failed)
        block->user = 0;
    return failed;
}

/* Puts the blocks that were given back into their lists. Runs no Python, so no other thread comes
 * in between. */
static int collect(Pool *self) {
    Py_ssize_t left;
    while ((left = PyObject_Size(self->returned)) > 0) {
        PyObject *entry = METHOD0(self->returned, names.popleft);
        if (entry == NULL)
            return -1;
        int failed = collect_block(self, entry);
        if (failed && PyErr_ExceptionMatches(PyExc_MemoryError)) { /* the block is not lost */
            PyObject *type, *error, *trace;
            PyErr_Fetch(&type, &error, &trace);
            Py_XDECREF(METHOD1(self->returned, names.append, entry));
            PyErr_Restore(type, error, trace);
        }
        Py_DECREF(entry);
        if (failed)
            return -1;
    }
    return left < 0 ? -1 : 0;
}

/* The size of the smallest class that holds ``nbytes``, as in pinned.py. */
static Py_ssize_t capacity_of(Py_ssize_t nbytes) {
    Py_ssize_t power = 256;
    while (power < nbytes)
        power *= 2; /* the class, up to a page */
    if (nbytes <= 4096)
        return power;
    Py_ssize_t step = power / 16 > 4096 ? power / 16 : 4096;
    return (nbytes + step - 1) / step * step;
}

/* Returns a buffer on a free block of the class of ``nbytes``, or NULL without an exception if
   there is none, or if another thread uses the pool. */
static Buffer *take_buffer(Pool *self, Py_ssize_t nbytes) {
    if (self->lock == NULL || self->lock->count != 0 || self->free == NULL ||
        self->returned == NULL || nbytes <= 0 || nbytes > PY_SSIZE_T_MAX / 4 || collect(self) < 0)
        return NULL;
    PyObject *size = PyLong_FromSsize_t(capacity_of(nbytes));
    PyObject *blocks = size == NULL ? NULL : PyDict_GetItemWithError(self->free, size);
    Py_XDECREF(size);
    if (blocks == NULL || !PyList_Check(blocks))
        return NULL;
    Buffer *buffer = NULL;
    int failed = 0;
    Py_INCREF(blocks);
    for (Py_ssize_t count; !failed && buffer == NULL && (count = PyList_Size(blocks)) > 0;) {
        Block *block = (Block *)Py_NewRef(PyList_GetItem(blocks, count - 1));
        if (PyObject_TypeCheck((PyObject *)block, types.block) && block->user == 0 &&
            holds(block, nbytes)) {
            buffer = (Buffer *)PyType_GenericAlloc((PyTypeObject *)given.PinnedBuffer, 0);
            /* the allocation may have run a collection, and so anything */
            failed = buffer == NULL || self->lock->count != 0 || block->user != 0;
            if (!failed)
                set_buffer(buffer, self, block, nbytes);
        }
        if (!failed && PyList_Size(blocks) == count)
            failed = PyList_SetSlice(blocks, count - 1, count, NULL) < 0;
        Py_DECREF((PyObject *)block);
    }
    Py_DECREF(blocks);
    if (failed)
        Py_CLEAR(buffer);
    return buffer;
}

static PyObject *pool_take(PyObject *self, PyObject *nbytes) {
    Py_ssize_t size = PyLong_AsSsize_t(nbytes);
    if (size == -1 && PyErr_Occurred())
        return NULL;
    Buffer *buffer = take_buffer((Pool *)self, size);
    if (buffer == NULL && PyErr_Occurred())
        return NULL;
    return buffer == NULL ? Py_NewRef(Py_None) : (PyObject *)buffer;
}

static PyMethodDef pool_methods[] = {
    {"take", pool_take, METH_O, "take(nbytes)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

/* Copies a C-contiguous array into the buffer. Returns 1 if it is done, 0 if Python must do it, -1
 * with an error. */
static int fill(Buffer *self, PyObject *array) {
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS) <
        0) { /* not contiguous, or of a type that has no buffer */
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return -1;
        PyErr_Clear();
        return 0;
    }
    int fits = view.len <= self->nbytes;
    if (fits)
        memmove((void *)(uintptr_t)self->address, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return fits;
}

static PyObject *buffer_fill(PyObject *object, PyObject *array) {
    int filled = ((Buffer *)object)->block == NULL ? 0 : fill((Buffer *)object, array);
    if (filled == 0)
        return METHOD1(object, names._fill_slowly, array);
    return filled < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef buffer_methods[] = {
    {"fill", buffer_fill, METH_O, "fill(array)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

/* ---- Copies ---- */

FIELDS_OF(HostCopies, AT(HostCopies, last), AT(HostCopies, arrays))

static PyMemberDef host_copies_members[] = {
    {"count", T_LONGLONG, AT(HostCopies, count), 0, NULL},
    {"recorded", T_LONGLONG, AT(HostCopies, recorded), 0, NULL},
    {"_last", T_OBJECT_EX, AT(HostCopies, last), READONLY, NULL},
    {"arrays", T_OBJECT_EX, AT(HostCopies, arrays), READONLY, NULL},
    {NULL},
};

static PyObject *host_copies_new(PyTypeObject *type, PyObject *Py_UNUSED(arguments),
                                 PyObject *Py_UNUSED(keywords)) {
    HostCopies *self = (HostCopies *)PyType_GenericAlloc(type, 0);
    if (self != NULL &&
        ((self->last = PyDict_New()) == NULL || (self->arrays = PyList_New(0)) == NULL))
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* Counts a copy that was submitted to a stream, at or before ``position``. */
static int add_copy(HostCopies *self, PyObject *timeline, long long position) {
    PyObject *entry = PyDict_GetItemWithError(self->last, timeline);
    if (entry == NULL && PyErr_Occurred())
        return -1;
    if (entry != NULL && (!PyTuple_Check(entry) || PyTuple_Size(entry) != 2))
        return LACKS(self, "_last");
    long long before = entry == NULL ? 0 : PyLong_AsLongLong(PyTuple_GetItem(entry, 1));
    if (before == -1 && PyErr_Occurred())
        return -1;
    entry = Py_BuildValue("(LL)", self->count + 1, before > position ? before : position);
    int failed = entry == NULL ? -1 : PyDict_SetItem(self->last, timeline, entry);
    Py_XDECREF(entry);
    self->count += !failed;
    return failed;
}

static PyObject *host_copies_add(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    long long position = count == 2 ? PyLong_AsLongLong(arguments[1]) : -1;
    if (count != 2 || (position == -1 && PyErr_Occurred())) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "add takes a timeline and a position");
        return NULL;
    }
    return add_copy((HostCopies *)self, arguments[0], position) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef host_copies_methods[] = {
    {"add", FAST(host_copies_add), METH_FASTCALL, "add(timeline, position)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

int note_host_copy(Context *context, PyObject *array) {
    if (IS_NONE(context->copies)) {
        PyObject *made = PyObject_CallNoArgs(given.HostCopies);
        if (made == NULL)
            return -1;
        SET(context->copies, made);
        Py_DECREF(made);
    }
    HostCopies *copies = (HostCopies *)context->copies;
    if (!PyObject_TypeCheck((PyObject *)copies, types.host_copies) || context->timeline == NULL)
        return LACKS(context, "copies");
    int failed = 0;
    Py_INCREF((PyObject *)copies);
    if (!IS_NONE(context->recording))
        copies->recorded = ++copies->count;
    else
        failed = add_copy(copies, (PyObject *)context->timeline, ++context->timeline->position);
    Py_DECREF((PyObject *)copies);
    if (failed)
        return -1;
    Py_ssize_t named =
        array == Py_None || context->waitless == NULL ? 0 : PyObject_Size(context->waitless);
    if (named <= 0)
        return (int)named;
    return drop_result(
        PyObject_CallFunctionObjArgs(given.note_array, (PyObject *)context, array, NULL));
}

typedef struct {
    PyObject *address, *host, *size;
    int up;
} Copy;

static int submit_copy(PyObject *driver, PyObject *handle, void *work) {
    Copy *copy = work;
    return drop_result(copy->up
                           ? PyObject_CallMethodObjArgs(driver, names.copy_to_device, copy->address,
                                                        copy->host, copy->size, handle, NULL)
                           : PyObject_CallMethodObjArgs(driver, names.copy_to_host, copy->host,
                                                        copy->address, copy->size, handle, NULL));
}

/* Submits one ordered copy between a box and page-locked memory. */
static int copy_host(Context *context, Box *box, PyObject *host, int up) {
    if (!IS_NONE(context->recording) || box->allocation == NULL || context->timeline == NULL ||
        context->driver == NULL)
        return drop_result(PyObject_CallFunctionObjArgs(given.copy_host, (PyObject *)context,
                                                        (PyObject *)box, host,
                                                        up ? Py_True : Py_False, NULL));
    Copy copy = {PyLong_FromUnsignedLongLong(box->address), host, PyLong_FromSsize_t(box->nbytes),
                 up};
    Allocation *uses[] = {box->allocation};
    int failed = copy.address == NULL || copy.size == NULL
                     ? -1
                     : submit_ordered(context, uses, !up, up, submit_copy, &copy, 0);
    Py_XDECREF(copy.address);
    Py_XDECREF(copy.size);
    return failed;
}

static PyObject *core_copy_host(PyObject *Py_UNUSED(module), PyObject *const *arguments,
                                Py_ssize_t count) {
    if (count != 4 || !PyObject_TypeCheck(arguments[0], types.context) ||
        !PyObject_TypeCheck(arguments[1], types.box))
        return refuse("copy_host takes a context, a box, an address and a direction");
    int up = PyObject_IsTrue(arguments[3]);
    if (up < 0 || copy_host((Context *)arguments[0], (Box *)arguments[1], arguments[2], up) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Returns whether an array lies in page-locked memory of a pool: 1 or 0, or -1 with an error. */
static int is_pinned(PyObject *array) {
    PyObject *base = Py_NewRef(array);
    while (base != NULL && PyObject_TypeCheck(base, (PyTypeObject *)given.ndarray)) {
        if ((PyObject *)Py_TYPE(base) == given.Held) {
            Py_DECREF(base);
            return 1;
        }
        PyObject *next = PyObject_GetAttr(base, names.base);
        Py_DECREF(base);
        base = next;
    }
    int failed = base == NULL ? -1 : 0;
    Py_XDECREF(base);
    return failed;
}

/* Returns a free page-locked buffer of the run's runtime, or NULL, without an exception if there is
 * none. */
static Buffer *free_buffer(Context *context, Py_ssize_t nbytes) {
    PyObject *pool = PyObject_GetAttr(context->runtime, names.pinned);
    Buffer *buffer = pool != NULL && PyObject_TypeCheck(pool, types.pool)
                         ? take_buffer((Pool *)pool, nbytes)
                         : NULL;
    Py_XDECREF(pool);
    return buffer;
}

/* Copies between a box and a buffer, which the run keeps. */
static int copy_buffer(Context *context, Box *box, Buffer *buffer, int up) {
    PyObject *host = PyLong_FromUnsignedLongLong(buffer->address);
    int failed = host == NULL || PyList_Append(context->kept, (PyObject *)buffer) < 0 ||
                 copy_host(context, box, host, up) < 0;
    Py_XDECREF(host);
    return failed ? -1 : 0;
}

static PyObject *core_upload_small(PyObject *Py_UNUSED(module), PyObject *const *arguments,
                                   Py_ssize_t count) {
    if (count != 3 || !PyObject_TypeCheck(arguments[0], types.context) ||
        !PyObject_TypeCheck(arguments[1], types.box))
        return refuse("upload_small takes a context, a box and an array");
    Context *context = (Context *)arguments[0];
    Box *box = (Box *)arguments[1];
    if (!IS_NONE(context->recording) || !IS_NONE(box->strides) || box->nbytes > small_bytes ||
        context->runtime == NULL || context->kept == NULL)
        Py_RETURN_FALSE;
    int pinned = is_pinned(arguments[2]);
    if (pinned != 0)
        return pinned < 0 ? NULL : Py_NewRef(Py_False);
    Buffer *buffer = free_buffer(context, box->nbytes);
    if (buffer == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    int done = fill(buffer, arguments[2]);
    if (done > 0 && copy_buffer(context, box, buffer, 1) < 0)
        done = -1;
    Py_DECREF((PyObject *)buffer);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *core_download_pinned(PyObject *Py_UNUSED(module), PyObject *const *arguments,
                                      Py_ssize_t count) {
    if (count != 2 || !PyObject_TypeCheck(arguments[0], types.context) ||
        !PyObject_TypeCheck(arguments[1], types.box))
        return refuse("download_pinned takes a context and a box");
    Context *context = (Context *)arguments[0];
    Box *box = (Box *)arguments[1];
    if (!IS_NONE(context->recording) || !IS_NONE(box->strides) || box->nbytes <= 0 ||
        box->shape == NULL || box->dtype == NULL || context->runtime == NULL ||
        context->kept == NULL || context->waitless == NULL)
        Py_RETURN_NONE;
    Py_ssize_t named = PyObject_Size(context->waitless);
    if (named < 0)
        return NULL;
    if (named > 0) { /* the program gets an array that is not filled */
        PyObject *poisoned = PyObject_CallNoArgs(given.poisons);
        int answer = poisoned == NULL ? -1 : PyObject_IsTrue(poisoned);
        Py_XDECREF(poisoned);
        if (answer != 0)
            return answer < 0 ? NULL : Py_NewRef(Py_None);
    }
    Buffer *buffer = free_buffer(context, box->nbytes);
    if (buffer == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    PyObject *visible = IS_NONE(context->visible) ? Py_None : context->visible;
    PyObject *array = PyObject_CallMethodObjArgs((PyObject *)buffer, names.array, box->shape,
                                                 box->dtype, visible, NULL);
    if (array != NULL &&
        (copy_buffer(context, box, buffer, 0) < 0 || note_host_copy(context, Py_None) < 0))
        Py_CLEAR(array);
    Py_DECREF((PyObject *)buffer);
    return array;
}

static PyMethodDef functions[] = {
    {"new_box", FAST(core_new_box), METH_FASTCALL, "new_box(context, shape, dtype)\n--\n\n"},
    {"copy_host", FAST(core_copy_host), METH_FASTCALL, "copy_host(context, box, host, up)\n--\n\n"},
    {"upload_small", FAST(core_upload_small), METH_FASTCALL,
     "upload_small(context, box, array)\n--\n\n"},
    {"download_pinned", FAST(core_download_pinned), METH_FASTCALL,
     "download_pinned(context, box)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

int add_memory(PyObject *module) {
    PyType_Slot block[] = {{Py_tp_members, block_members}, SLOTS_OF(Block), {0, NULL}};
    PyType_Slot pool[] = {
        {Py_tp_new, pool_new},
        {Py_tp_members, pool_members},
        {Py_tp_methods, pool_methods},
        SLOTS_OF(Pool),
        {0, NULL},
    };
    PyType_Slot buffer[] = {
        {Py_tp_init, buffer_init},
        {Py_tp_members, buffer_members},
        {Py_tp_methods, buffer_methods},
        {Py_tp_finalize, buffer_finalize},
        SLOTS_OF(Buffer),
        {0, NULL},
    };
    PyType_Slot copies[] = {
        {Py_tp_new, host_copies_new},
        {Py_tp_members, host_copies_members},
        {Py_tp_methods, host_copies_methods},
        SLOTS_OF(HostCopies),
        {0, NULL},
    };
    const Kind kinds[] = {
        {&types.block, "oxide._core.PinnedBlock", sizeof(Block), COLLECTED, block},
        {&types.pool, "oxide._core.PinnedPool", sizeof(Pool), COLLECTED, pool},
        {&types.buffer, "oxide._core.PinnedBuffer", sizeof(Buffer), COLLECTED, buffer},
        {&types.host_copies, "oxide._core.HostCopies", sizeof(HostCopies), COLLECTED, copies},
    };
    if (ADD_KINDS(module, kinds) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
