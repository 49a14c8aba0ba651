/* Binds the arguments of launches. oxide/runtime/launching/binding.py explains the plan of a
   specialization, whose slots say how each argument is bound. What is not an exact match, or not in
   order, is left to Python. */

#include "core.h"

enum { SLICE, DISJOINT, TILES, SCALAR, LIFTED, ARGUMENT, OTHER };

/* Floats beyond this may not fit an f32, which Python judges. */
#define SAFE_FLOAT 3.4028234663852886e38

/* ``Slot.number``: the kind of a number and its size in bytes. */
enum { SIGNED = 1 << 8, UNSIGNED = 2 << 8, FLOAT = 3 << 8 };

/* ---- Slot ---- */

FIELDS_OF(Slot, AT(Slot, dtype), AT(Slot, bits), AT(Slot, fits), AT(Slot, last),
          AT(Slot, last_words), AT(Slot, last_piece), AT(Slot, parts), AT(Slot, judged),
          AT(Slot, type), AT(Slot, converted))

static PyMemberDef slot_members[] = {
    {"kind", T_INT, AT(Slot, kind), 0, NULL},
    {"dtype", T_OBJECT, AT(Slot, dtype), 0, NULL},
    {"bits", T_OBJECT, AT(Slot, bits), 0, NULL},
    {"alignment", T_PYSSIZET, AT(Slot, alignment), 0, NULL},
    {"ndim", T_INT, AT(Slot, ndim), 0, NULL},
    {"components", T_INT, AT(Slot, components), 0, NULL},
    {"number", T_INT, AT(Slot, number), 0, NULL},
    {"type", T_OBJECT, AT(Slot, type), 0, NULL},
    {"converted", T_OBJECT, AT(Slot, converted), 0, NULL},
    {"most", T_PYSSIZET, AT(Slot, most), 0, NULL},
    {"fits", T_OBJECT, AT(Slot, fits), 0, NULL},
    {"before", T_INT, AT(Slot, before), 0, NULL},
    {"parts", T_OBJECT_EX, AT(Slot, parts), 0, NULL},
    {"judged", T_OBJECT_EX, AT(Slot, judged), 0, NULL},
    {"last", T_OBJECT, AT(Slot, last), 0, NULL},
    {"last_piece", T_OBJECT, AT(Slot, last_piece), 0, NULL},
    {"last_words", T_OBJECT, AT(Slot, last_words), 0, NULL},
    {NULL},
};

/* ---- Plan ---- */

FIELDS_OF(Plan, AT(Plan, slots), AT(Plan, end), AT(Plan, fitting), AT(Plan, holds),
          AT(Plan, special), AT(Plan, reference), AT(Plan, outputs), AT(Plan, captured),
          AT(Plan, shape), AT(Plan, config))

static void free_plan(PyObject *object) {
    PyObject_GC_UnTrack(object);
    PyMem_Free(((Plan *)object)->array);
    ((Plan *)object)->array = NULL;
    Plan_clear(object);
    free_object(object);
}

static int clear_plan(PyObject *object) {
    ((Plan *)object)->ready = 0;
    return Plan_clear(object);
}

static PyMemberDef plan_members[] = {
    {"slots", T_OBJECT_EX, AT(Plan, slots), READONLY, NULL},
    {"end", T_OBJECT_EX, AT(Plan, end), READONLY, NULL},
    {"special", T_OBJECT_EX, AT(Plan, special), 0, NULL},
    {"reference", T_OBJECT_EX, AT(Plan, reference), 0, NULL},
    {"fitting", T_OBJECT, AT(Plan, fitting), 0, NULL},
    {"holds", T_OBJECT, AT(Plan, holds), 0, NULL},
    {"outputs", T_OBJECT_EX, AT(Plan, outputs), READONLY, NULL},
    {"captured", T_OBJECT_EX, AT(Plan, captured), READONLY, NULL},
    {"short", T_BOOL, AT(Plan, reaches_less), 0, NULL},
    {"inferred_shape", T_OBJECT, AT(Plan, shape), 0, NULL},
    {"inferred", T_OBJECT, AT(Plan, config), 0, NULL},
    {NULL},
};

/* compile(slots, outputs, captured, end, bound): ``bound`` is False for a plan whose launches C
 * does not make whole. */
static PyObject *plan_compile(PyObject *object, PyObject *arguments) {
    Plan *self = (Plan *)object;
    PyObject *slots, *outputs, *captured, *end;
    int bound;
    if (!PyArg_ParseTuple(arguments, "O!O!O!Sp", &PyTuple_Type, &slots, &PyTuple_Type, &outputs,
                          &PyTuple_Type, &captured, &end, &bound))
        return NULL;
    if (self->array != NULL)
        return refuse("a plan is compiled once");
    Py_ssize_t count = PyTuple_Size(slots);
    Slot **array = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *array);
    if (array == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        array[i] = (Slot *)PyTuple_GetItem(slots, i);
        if (!PyObject_TypeCheck((PyObject *)array[i], types.slot) || array[i]->judged == NULL ||
            array[i]->parts == NULL) {
            PyMem_Free(array);
            return missing(slots, "slot");
        }
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(outputs); i++) {
        Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GetItem(outputs, i));
        if (place < 0 || place >= count) {
            PyMem_Free(array);
            return PyErr_Occurred() ? NULL : missing(outputs, "place");
        }
    }
    self->array = array;
    self->count = (int)count;
    SET(self->slots, slots);
    SET(self->outputs, outputs);
    SET(self->captured, captured);
    SET(self->end, end);
    self->ready = (char)bound;
    Py_RETURN_NONE;
}

static PyMethodDef plan_methods[] = {
    {"compile", plan_compile, METH_VARARGS,
     "compile(slots, outputs, captured, end, bound)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

/* ---- LaunchConfig ---- */

FIELDS_OF(Config, AT(Config, grid), AT(Config, block), AT(Config, shared))

static PyMemberDef config_members[] = {
    {"_grid", T_OBJECT_EX, AT(Config, grid), READONLY, NULL},
    {"_block", T_OBJECT_EX, AT(Config, block), READONLY, NULL},
    {"_shared_mem_bytes", T_OBJECT_EX, AT(Config, shared), READONLY, NULL},
    {NULL},
};

int size_of(PyObject *number, unsigned *result) {
    unsigned long size = PyLong_AsUnsignedLong(number);
    if (size == (unsigned long)-1 && PyErr_Occurred())
        return -1;
    if (size > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError,
                        "a size of the grid, the block or the shared memory is beyond 32 bits");
        return -1;
    }
    *result = (unsigned)size;
    return 0;
}

int sizes_of(PyObject *tuple, unsigned *result) {
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != 3)
        return REFUSED("grid and block are tuples of three ints");
    for (int axis = 0; axis < 3; axis++)
        if (size_of(PyTuple_GetItem(tuple, axis), &result[axis]) < 0)
            return -1;
    return 0;
}

/* Reads an int, or a tuple of one to three, without a call of Python. Returns 0 if it needs a
 * closer look. */
static int plain_sizes(PyObject *given_size, unsigned *sizes, const unsigned *most) {
    Py_ssize_t axes = PyTuple_CheckExact(given_size) ? PyTuple_Size(given_size) : 1;
    sizes[0] = sizes[1] = sizes[2] = 1;
    for (Py_ssize_t axis = 0; axis < axes; axis++) {
        PyObject *number =
            PyTuple_CheckExact(given_size) ? PyTuple_GetItem(given_size, axis) : given_size;
        int overflow;
        if (axis > 2 || !PyLong_CheckExact(number))
            return 0;
        long long size = PyLong_AsLongLongAndOverflow(number, &overflow);
        if (overflow || size < 1 || size > most[axis])
            return 0;
        sizes[axis] = (unsigned)size;
    }
    return axes > 0;
}

/* Returns a configuration of a grid and a block that are in order, or NULL, perhaps without an
 * exception. */
static PyObject *new_config(PyObject *grid_and_block) {
    static const unsigned most_blocks[] = {2147483647u, 65535, 65535},
                          most_threads[] = {1024, 1024, 64};
    unsigned sizes[7] = {0};
    if (!plain_sizes(PyTuple_GetItem(grid_and_block, 0), sizes, most_blocks) ||
        !plain_sizes(PyTuple_GetItem(grid_and_block, 1), sizes + 3, most_threads) ||
        (unsigned long long)sizes[3] * sizes[4] * sizes[5] > 1024)
        return NULL;
    Config *self = (Config *)PyType_GenericAlloc((PyTypeObject *)given.Config, 0);
    if (self == NULL)
        return NULL;
    memcpy(self->sizes, sizes, sizeof sizes);
    self->grid = Py_BuildValue("(III)", sizes[0], sizes[1], sizes[2]);
    self->block = Py_BuildValue("(III)", sizes[3], sizes[4], sizes[5]);
    self->shared = PyLong_FromLong(0);
    if (self->grid == NULL || self->block == NULL || self->shared == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* _set(grid, block, shared_mem_bytes): what Python has checked. */
static PyObject *config_set(PyObject *object, PyObject *arguments) {
    Config *self = (Config *)object;
    PyObject *grid, *block, *shared;
    unsigned sizes[7];
    if (!PyArg_ParseTuple(arguments, "OOO!", &grid, &block, &PyLong_Type, &shared))
        return NULL;
    if (sizes_of(grid, sizes) < 0 || sizes_of(block, sizes + 3) < 0 ||
        size_of(shared, sizes + 6) < 0 || is_made(object, self->grid))
        return NULL;
    memcpy(self->sizes, sizes, sizeof sizes);
    SET(self->grid, grid);
    SET(self->block, block);
    SET(self->shared, shared);
    Py_RETURN_NONE;
}

static PyObject *config_equals(PyObject *self, PyObject *other) {
    if (!PyObject_TypeCheck(other, types.config))
        return missing(other, "grid");
    return PyBool_FromLong(memcmp(((Config *)self)->sizes, ((Config *)other)->sizes,
                                  sizeof((Config *)self)->sizes) == 0);
}

static PyMethodDef config_methods[] = {
    {"_set", config_set, METH_VARARGS, "_set(grid, block, shared_mem_bytes)\n--\n\n"},
    {"equals", config_equals, METH_O,
     "equals(other)\n--\n\nReturns whether ``other`` has the same grid, block and dynamic shared "
     "memory."},
    {NULL, NULL, 0, NULL},
};

/* ---- Binding ---- */

typedef struct {
    char few[512], *data;
    size_t size, room;
} Bytes;

/* Returns the place for ``size`` more bytes, or NULL with an exception. */
static char *more(Bytes *bytes, size_t size) {
    if (size > bytes->room - bytes->size) {
        size_t room = 2 * (bytes->size + size);
        char *data = PyMem_Malloc(room);
        if (data == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        memcpy(data, bytes->data, bytes->size);
        if (bytes->data != bytes->few)
            PyMem_Free(bytes->data);
        bytes->data = data;
        bytes->room = room;
    }
    bytes->size += size;
    return bytes->data + bytes->size - size;
}

static int add_bytes(Bytes *bytes, PyObject *piece) {
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(piece, &data, &size) < 0)
        return -1;
    char *place = more(bytes, (size_t)size);
    if (place == NULL)
        return -1;
    memcpy(place, data, (size_t)size);
    return 0;
}

/* Adds the padding before a box's address. */
static int add_padding(Bytes *bytes, Slot *slot) {
    if (slot->before < 0)
        return LACKS(slot, "padding");
    char *place = more(bytes, (size_t)slot->before);
    if (place == NULL)
        return -1;
    memset(place, 0, (size_t)slot->before);
    return 0;
}

static int add_word(Bytes *bytes, uint64_t word) {
    char *place = more(bytes, sizeof word);
    if (place == NULL)
        return -1;
    memcpy(place, &word, sizeof word);
    return 0;
}

typedef struct {
    Allocation *few[8], **all; /* with a reference each */
    int count, room;
} Uses;

static int add_use(Uses *uses, Allocation *allocation) {
    if (uses->count == uses->room) {
        Allocation **all = PyMem_Malloc(2 * (size_t)uses->room * sizeof *all);
        if (all == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        memcpy(all, uses->all, (size_t)uses->count * sizeof *all);
        if (uses->all != uses->few)
            PyMem_Free(uses->all);
        uses->all = all;
        uses->room *= 2;
    }
    Py_INCREF((PyObject *)allocation);
    uses->all[uses->count++] = allocation;
    return 0;
}

static void free_uses(Uses *uses) {
    while (uses->count > 0)
        Py_DECREF((PyObject *)uses->all[--uses->count]);
    if (uses->all != uses->few)
        PyMem_Free(uses->all);
    uses->all = uses->few;
}

/* The state of a binding. */
typedef struct {
    Bytes bytes;
    Uses reads, writes;
    PyObject *holds;    /* the contracts, or NULL */
    PyObject *integers; /* the integers that the contracts name, NULL if there are no contracts */
    PyObject *device;   /* of all boxes */
} Binding;

/* The steps below return 1 if they are done, 0 if the argument needs a closer look, and -1 with an
 * error. */

static int add_integer(Binding *binding, Slot *slot, PyObject *number) {
    if (binding->integers == NULL || list_size(slot->judged) == 0)
        return 1;
    return PyList_Append(binding->integers, number) < 0 ? -1 : 1;
}

static int use(Binding *binding, Uses *uses, Allocation *allocation) {
    if (binding->device == NULL)
        binding->device = Py_XNewRef(allocation->device);
    else if (allocation->device != binding->device)
        return 0;
    return add_use(uses, allocation) < 0 ? -1 : 1;
}

/* Binds an int or a float whose type and value are in order, without a call. */
static int bind_plain_number(Binding *binding, Slot *slot, PyObject *argument) {
    union {
        int64_t whole;
        uint64_t natural;
        float narrow;
        double wide;
    } number;
    int size = slot->number & 255, kind = slot->number - size;
    if (size == 0 || size > (int)sizeof number || (size & (size - 1)) != 0)
        return 0;
    if (kind == FLOAT) {
        if (!PyFloat_CheckExact(argument))
            return 0;
        double value = PyFloat_AsDouble(argument);
        if (!(value >= -SAFE_FLOAT && value <= SAFE_FLOAT))
            return 0;
        if (size == sizeof number.narrow)
            number.narrow = (float)value;
        else
            number.wide = value;
    } else {
        if ((kind != SIGNED && kind != UNSIGNED) || !PyLong_CheckExact(argument))
            return 0;
        int overflow;
        long long value = PyLong_AsLongLongAndOverflow(argument, &overflow);
        int bits = 8 * size - (kind == SIGNED);
        if (overflow || (value < 0 && kind == UNSIGNED))
            return 0;
        if (bits < 63 && (value >= (1LL << bits) || value < -(1LL << bits)))
            return 0;
        number.whole = value; /* little-endian: its first bytes are the number */
    }
    size_t at = binding->bytes.size, padding = (size_t)(-(Py_ssize_t)at & (size - 1));
    char *place = more(&binding->bytes, padding + (size_t)size);
    if (place == NULL)
        return -1;
    memset(place, 0, padding);
    memcpy(place + padding, &number, (size_t)size);
    return add_integer(binding, slot, argument);
}

/* Binds what is no box: a number, a tuple or a function. ``slot.packed(argument)`` returns None if
   it needs a closer look, else its bytes, the words that the contracts may name, and the boxes in
   it. */
static int bind_other(Binding *binding, Slot *slot, PyObject *argument) {
    if (slot->last == argument && argument != NULL && !IS_NONE(slot->last_piece)) {
        if (add_bytes(&binding->bytes, slot->last_piece) < 0)
            return -1;
        return slot->kind == ARGUMENT ? 1 : add_integer(binding, slot, argument);
    }
    PyObject *packed = METHOD1(slot, names.packed, argument);
    if (IS_NONE(packed)) {
        Py_XDECREF(packed);
        return packed == NULL ? -1 : 0;
    }
    PyObject *piece, *words, *boxes;
    int done = -1;
    if (!PyArg_ParseTuple(packed, "SO!O!", &piece, &PyTuple_Type, &words, &PyTuple_Type, &boxes) ||
        add_bytes(&binding->bytes, piece) < 0)
        goto end;
    done = 1;
    for (Py_ssize_t i = 0; done > 0 && i < PyTuple_Size(boxes); i++) {
        PyObject *box = PyTuple_GetItem(boxes, i);
        if (!PyObject_TypeCheck(box, types.box) || ((Box *)box)->allocation == NULL)
            done = LACKS(box, "_allocation");
        else
            done = use(binding, &binding->writes, ((Box *)box)->allocation);
    }
    Py_ssize_t count = slot->kind == LIFTED ? list_size(slot->parts) : PyTuple_Size(words);
    if (slot->kind == ARGUMENT || binding->integers == NULL || list_size(slot->judged) == 0)
        count = 0;
    for (Py_ssize_t i = 0; done > 0 && i < count; i++) {
        Py_ssize_t part =
            slot->kind == LIFTED ? PyLong_AsSsize_t(PyList_GetItem(slot->parts, i)) : i;
        PyObject *word = part < 0 && PyErr_Occurred() ? NULL : PyTuple_GetItem(words, part);
        if (word == NULL || PyList_Append(binding->integers, word) < 0)
            done = -1;
    }
end:
    Py_DECREF(packed);
    return done;
}

/* Binds a box as an array of numba-cuda's. */
static int bind_array(Binding *binding, Slot *slot, Box *box) {
    PyObject *argument =
        IS_NONE(box->argument) ? METHOD0(box, names.as_argument) : Py_NewRef(box->argument);
    PyObject *type = argument == NULL ? NULL : PyObject_GetAttr(argument, names.type);
    PyObject *words = type == NULL ? NULL : PyObject_GetAttr(argument, names.words);
    int done = words == NULL ? -1 : 1;
    if (done > 0 && type != slot->type && (type != slot->converted || type == Py_None)) {
        PyObject *taken = METHOD1(slot, names.takes, type);
        done = taken == NULL ? -1 : PyObject_IsTrue(taken);
        Py_XDECREF(taken);
    }
    if (done > 0)
        done = use(binding, &binding->writes, box->allocation);
    if (done > 0 &&
        (add_padding(&binding->bytes, slot) < 0 || add_bytes(&binding->bytes, words) < 0))
        done = -1;
    Py_XDECREF(argument);
    Py_XDECREF(type);
    Py_XDECREF(words);
    return done;
}

static int bind_box(Binding *binding, Plan *plan, Slot *slot, Box *box) {
    if (box->strides != NULL || box->shape == NULL || box->dtype == NULL || slot->dtype == NULL)
        return 0;
    if (box->dtype != slot->dtype && box->dtype != slot->bits) {
        int same = is_equal(box->dtype, slot->dtype); /* NumPy makes equal ones of one dtype */
        if (same <= 0)
            return same;
    }
    Py_ssize_t axes = PyTuple_Size(box->shape), size = box->size;
    if (slot->components > 1) { /* the last axis is that of a vector's components */
        if (--axes < 0)
            return 0;
        Py_ssize_t last = PyLong_AsSsize_t(PyTuple_GetItem(box->shape, axes));
        if (last == -1 && PyErr_Occurred())
            return -1;
        if (last != slot->components)
            return 0;
        size /= slot->components;
    }
    if (slot->ndim != 1 && slot->ndim != axes)
        return 0;
    Uses *uses = slot->kind == SLICE ? &binding->reads : &binding->writes;
    if (slot->alignment <= 0 || box->address % (unsigned long long)slot->alignment != 0)
        return 0;
    int done = use(binding, uses, box->allocation);
    if (done <= 0)
        return done;
    if (slot->kind != SLICE && size > slot->most) {
        int same = IS_NONE(slot->fits) ? 0 : is_equal(box->shape, slot->fits);
        if (same < 0)
            return -1;
        if (!same)
            plan->reaches_less = 1;
    }
    if (add_padding(&binding->bytes, slot) < 0 || add_word(&binding->bytes, box->address) < 0)
        return -1;
    if (slot->ndim == 1) {
        if (add_word(&binding->bytes, (uint64_t)size) < 0)
            return -1;
        if (binding->integers == NULL || list_size(slot->judged) == 0)
            return 1;
        PyObject *length = PyLong_FromSsize_t(size);
        int failed = length == NULL ? -1 : PyList_Append(binding->integers, length);
        Py_XDECREF(length);
        return failed ? -1 : 1;
    }
    for (int axis = 0; axis < slot->ndim; axis++) {
        unsigned long long length = PyLong_AsUnsignedLongLong(PyTuple_GetItem(box->shape, axis));
        if ((length == (unsigned long long)-1 && PyErr_Occurred()) ||
            add_word(&binding->bytes, length) < 0)
            return -1;
    }
    if (binding->integers == NULL || list_size(slot->judged) == 0)
        return 1;
    for (Py_ssize_t i = 0; i < list_size(slot->parts); i++) {
        Py_ssize_t axis = PyLong_AsSsize_t(PyList_GetItem(slot->parts, i));
        PyObject *length = axis < 0 && PyErr_Occurred() ? NULL : PyTuple_GetItem(box->shape, axis);
        if (length == NULL || PyList_Append(binding->integers, length) < 0)
            return -1;
    }
    return 1;
}

/* Returns the box that an argument is or that its Arc holds, as a new reference, or NULL without an
 * exception. */
static Box *box_of(PyObject *argument) {
    PyObject *box;
    if ((PyObject *)Py_TYPE(argument) == given.Arc) {
        box = PyObject_GetAttr(argument, names.value);
        if (box == NULL)
            PyErr_Clear();
    } else {
        box = Py_NewRef(argument);
    }
    if (box != NULL &&
        ((PyObject *)Py_TYPE(box) != given.DeviceBox || ((Box *)box)->allocation == NULL))
        Py_CLEAR(box);
    return (Box *)box;
}

/* Returns 1 if two outputs share memory, in which case refusals.py decides. */
static int outputs_overlap(Plan *plan, PyObject *arguments) {
    Py_ssize_t count = PyTuple_Size(plan->outputs);
    for (Py_ssize_t i = 1; i < count; i++) {
        Box *one =
            box_of(PyTuple_GetItem(arguments, PyLong_AsSsize_t(PyTuple_GetItem(plan->outputs, i))));
        for (Py_ssize_t j = 0; one != NULL && one->nbytes && j < i; j++) {
            Box *other = box_of(
                PyTuple_GetItem(arguments, PyLong_AsSsize_t(PyTuple_GetItem(plan->outputs, j))));
            int overlap = other != NULL && other->nbytes &&
                          one->address < other->address + (unsigned long long)other->nbytes &&
                          other->address < one->address + (unsigned long long)one->nbytes;
            Py_XDECREF((PyObject *)other);
            if (overlap) {
                Py_DECREF((PyObject *)one);
                return 1;
            }
        }
        Py_XDECREF((PyObject *)one);
    }
    return 0;
}

static int contracts_hold(Binding *binding) {
    PyObject *numbers = PyList_AsTuple(binding->integers);
    PyObject *answer = numbers == NULL ? NULL : PyObject_Call(binding->holds, numbers, NULL);
    Py_XDECREF(numbers);
    if (answer == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_ZeroDivisionError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    int holds = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return holds;
}

static int take_over(Launch *launch, Binding *binding) {
    if (launch->bound) /* by Python that was called meanwhile */
        return 0;
    int reads = binding->reads.count, writes = binding->writes.count;
    Allocation **uses = launch->few;
    if (reads + writes > (int)(sizeof launch->few / sizeof *launch->few) &&
        (uses = PyMem_Malloc((size_t)(reads + writes) * sizeof *uses)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    PyObject *params =
        PyBytes_FromStringAndSize(binding->bytes.data, (Py_ssize_t)binding->bytes.size);
    if (params == NULL) {
        if (uses != launch->few)
            PyMem_Free(uses);
        return -1;
    }
    memcpy(uses, binding->reads.all, (size_t)reads * sizeof *uses);
    memcpy(uses + reads, binding->writes.all, (size_t)writes * sizeof *uses);
    binding->reads.count = binding->writes.count = 0; /* the launch has their references */
    launch->uses = uses;
    launch->reads = reads;
    launch->writes = writes;
    launch->params = params;
    SET(launch->device, binding->device);
    launch->bound = 1;
    return 1;
}

int bind_arguments(Plan *plan, PyObject *arguments, Launch *launch) {
    if (plan->array == NULL || plan->slots == NULL || launch->bound ||
        PyTuple_Size(arguments) != plan->count)
        return 0;
    Binding binding;
    binding.bytes.data = binding.bytes.few;
    binding.bytes.size = 0;
    binding.bytes.room = sizeof binding.bytes.few;
    binding.reads.all = binding.reads.few;
    binding.writes.all = binding.writes.few;
    binding.reads.count = binding.writes.count = 0;
    binding.reads.room = binding.writes.room =
        (int)(sizeof binding.reads.few / sizeof *binding.reads.few);
    binding.device = NULL;
    binding.holds = IS_NONE(plan->holds) ? NULL : Py_NewRef(plan->holds);
    binding.integers = binding.holds == NULL ? NULL : PyList_New(0);
    int done = binding.holds != NULL && binding.integers == NULL ? -1 : 1;
    for (int place = 0; done > 0 && place < plan->count; place++) {
        Slot *slot = plan->array[place];
        PyObject *argument = PyTuple_GetItem(arguments, place);
        if (slot->kind == SCALAR && (done = bind_plain_number(&binding, slot, argument)) != 0)
            continue;
        if (slot->kind == SCALAR || slot->kind == LIFTED) {
            done = bind_other(&binding, slot, argument);
            continue;
        }
        Box *box = slot->kind == OTHER ? NULL : box_of(argument);
        if (box != NULL)
            done = slot->kind == ARGUMENT ? bind_array(&binding, slot, box)
                                          : bind_box(&binding, plan, slot, box);
        else
            done = slot->kind == ARGUMENT ? bind_other(&binding, slot, argument) : 0;
        Py_XDECREF((PyObject *)box);
    }
    for (Py_ssize_t i = 0; done > 0 && i < PyTuple_Size(plan->captured); i++) {
        Box *box = box_of(PyTuple_GetItem(plan->captured, i));
        done = box == NULL ? 0 : use(&binding, &binding.writes, box->allocation);
        Py_XDECREF((PyObject *)box);
    }
    if (done > 0 && PyTuple_Size(plan->outputs) > 1 && outputs_overlap(plan, arguments))
        done = 0;
    if (done > 0 && binding.integers != NULL)
        done = contracts_hold(&binding);
    if (done > 0 && add_bytes(&binding.bytes, plan->end) < 0)
        done = -1;
    if (done > 0)
        done = take_over(launch, &binding);
    free_uses(&binding.reads);
    free_uses(&binding.writes);
    if (binding.bytes.data != binding.bytes.few)
        PyMem_Free(binding.bytes.data);
    Py_XDECREF(binding.integers);
    Py_XDECREF(binding.holds);
    Py_XDECREF(binding.device);
    return done;
}

/* ---- ConfiguredKernel ---- */

FIELDS_OF(Configured, AT(Configured, kernel), AT(Configured, config), AT(Configured, plan))

static PyMemberDef configured_members[] = {
    {"_kernel", T_OBJECT_EX, AT(Configured, kernel), READONLY, NULL},
    {"_config", T_OBJECT, AT(Configured, config), READONLY, NULL},
    {"_plan", T_OBJECT, AT(Configured, plan), 0, NULL},
    {NULL},
};

static int configured_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    Configured *self = (Configured *)object;
    PyObject *kernel, *config;
    if (has_keywords(object, keywords) || !PyArg_ParseTuple(arguments, "OO", &kernel, &config))
        return -1;
    PyObject *checked =
        PyTuple_CheckExact(config) && PyTuple_Size(config) == 2 ? new_config(config) : NULL;
    if (checked == NULL && (config == Py_None || (PyObject *)Py_TYPE(config) == given.Config))
        checked = Py_NewRef(config);
    if (checked == NULL) {
        if (PyErr_Occurred())
            return -1;
        checked = PyObject_CallMethodObjArgs(object, names._bracketed, kernel, config, NULL);
        if (checked == NULL)
            return -1;
        if ((PyObject *)Py_TYPE(checked) != given.Config) {
            Py_DECREF(checked);
            return LACKS(config, "grid");
        }
    }
    PyObject *launches = PyObject_GetAttr(kernel, names.launches);
    PyObject *latest = launches == NULL ? NULL : PyObject_GetAttr(launches, names.latest);
    Py_XDECREF(launches);
    if (latest != NULL) {
        SET(self->kernel, kernel);
        SET(self->config, checked);
        SET(self->plan, latest);
    }
    Py_DECREF(checked);
    Py_XDECREF(latest);
    return latest == NULL ? -1 : 0;
}

/* Returns the configuration that follows from the output, if it is the one of the launch before, as
   a new reference; else NULL. */
static Config *inferred(Plan *plan, PyObject *arguments) {
    if (IS_NONE(plan->config) || IS_NONE(plan->shape) || PyTuple_Size(plan->outputs) < 1 ||
        (PyObject *)Py_TYPE(plan->config) != given.Config)
        return NULL;
    PyObject *config = Py_NewRef(plan->config), *shape = Py_NewRef(plan->shape);
    PyObject *argument =
        PyTuple_GetItem(arguments, PyLong_AsSsize_t(PyTuple_GetItem(plan->outputs, 0)));
    Box *box = argument == NULL ? NULL : box_of(argument);
    int same = box != NULL && box->shape != NULL ? is_equal(box->shape, shape) : 0;
    Py_XDECREF((PyObject *)box);
    Py_DECREF(shape);
    if (PyErr_Occurred())
        PyErr_Clear();
    if (same <= 0)
        Py_CLEAR(config);
    return (Config *)config;
}

/* Makes a launch of a plan that is ready. Returns NULL, with an error or without one, in which case
 * Python makes it. */
static PyObject *new_launch(Configured *self, Plan *plan, PyObject *arguments) {
    Config *config = !IS_NONE(self->config)                   ? (Config *)Py_NewRef(self->config)
                     : PyTuple_Size(arguments) == plan->count ? inferred(plan, arguments)
                                                              : NULL;
    if (config == NULL || IS_NONE(plan->fitting) ||
        !PyObject_TypeCheck(plan->fitting, types.config) ||
        memcmp(((Config *)plan->fitting)->sizes, config->sizes, sizeof config->sizes) != 0) {
        Py_XDECREF((PyObject *)config);
        return NULL;
    }
    Launch *launch = (Launch *)PyType_GenericAlloc((PyTypeObject *)given.KernelLaunch, 0);
    if (launch == NULL) {
        Py_DECREF((PyObject *)config);
        return NULL;
    }
    launch->uses = launch->few;
    launch->config = (PyObject *)config;
    if (bind_arguments(plan, arguments, launch) <= 0) {
        Py_DECREF((PyObject *)launch);
        return NULL;
    }
    SET(launch->kernel, self->kernel);
    SET(launch->arguments, arguments);
    SET(launch->special, plan->special);
    SET(launch->plan, plan);
    if (plan->reaches_less) {
        PyObject *done = METHOD1(launch, names._check_reach, arguments);
        if (done == NULL) {
            Py_DECREF((PyObject *)launch);
            return NULL;
        }
        Py_DECREF(done);
    }
    launch->base.unused = 1;
    if (note_built(&launch->base) < 0)
        Py_CLEAR(launch);
    return (PyObject *)launch;
}

/* Makes the launch, or leaves it to ``_call_slow``. */
static PyObject *configured_call(PyObject *object, PyObject *arguments, PyObject *keywords) {
    Configured *self = (Configured *)object;
    if (!IS_NONE(self->plan) && (keywords == NULL || PyDict_Size(keywords) == 0) &&
        PyObject_TypeCheck(self->plan, types.plan) && ((Plan *)self->plan)->ready) {
        PyObject *plan = Py_NewRef(self->plan);
        PyObject *made = new_launch(self, (Plan *)plan, arguments);
        Py_DECREF(plan);
        if (made != NULL || PyErr_Occurred())
            return made;
    }
    PyObject *slow = PyObject_GetAttr(object, names._call_slow);
    PyObject *made = slow == NULL ? NULL : PyObject_Call(slow, arguments, keywords);
    Py_XDECREF(slow);
    return made;
}

int add_binding(PyObject *module) {
    PyType_Slot slot[] = {{Py_tp_members, slot_members}, SLOTS_OF(Slot), {0, NULL}};
    PyType_Slot plan[] = {
        {Py_tp_members, plan_members},   {Py_tp_methods, plan_methods},
        {Py_tp_traverse, Plan_traverse}, {Py_tp_clear, clear_plan},
        {Py_tp_dealloc, free_plan},      {0, NULL},
    };
    PyType_Slot config[] = {{Py_tp_members, config_members},
                            {Py_tp_methods, config_methods},
                            SLOTS_OF(Config),
                            {0, NULL}};
    PyType_Slot configured[] = {
        {Py_tp_init, configured_init},
        {Py_tp_call, configured_call},
        {Py_tp_members, configured_members},
        SLOTS_OF(Configured),
        {0, NULL},
    };
    const Kind kinds[] = {
        {&types.slot, "oxide._core.ParameterSlot", sizeof(Slot), COLLECTED, slot},
        {&types.plan, "oxide._core.Plan", sizeof(Plan), COLLECTED, plan},
        {&types.config, "oxide._core.LaunchConfig", sizeof(Config), COLLECTED, config},
        {&types.configured, "oxide._core.ConfiguredKernel", sizeof(Configured), COLLECTED,
         configured},
    };
    return ADD_KINDS(module, kinds) < 0 || PyModule_AddIntMacro(module, SLICE) < 0 ||
                   PyModule_AddIntMacro(module, DISJOINT) < 0 ||
                   PyModule_AddIntMacro(module, TILES) < 0 ||
                   PyModule_AddIntMacro(module, SCALAR) < 0 ||
                   PyModule_AddIntMacro(module, LIFTED) < 0 ||
                   PyModule_AddIntMacro(module, ARGUMENT) < 0 ||
                   PyModule_AddIntMacro(module, OTHER) < 0 ||
                   PyModule_AddIntMacro(module, SIGNED) < 0 ||
                   PyModule_AddIntMacro(module, UNSIGNED) < 0 ||
                   PyModule_AddIntMacro(module, FLOAT) < 0
               ? -1
               : 0;
}
