/* Operations, and the walk that executes them: a stack of frames, so no recursion of C.
   oxide/runtime/submission/walk.py explains it. The loop here goes on until the walk has its result
   or an exception is raised, which Python handles. */

#include "core.h"

/* ---- Operation ---- */

FIELDS_OF(Operation, AT(Operation, built), AT(Operation, placement))

static PyMemberDef operation_members[] = {
    {"_unused", T_BOOL, AT(Operation, unused), 0, NULL},
    {"_used", T_BOOL, AT(Operation, used), 0, NULL},
    {"_placed", T_BOOL, AT(Operation, placed), 0, NULL},
    {"_placement", T_OBJECT_EX, AT(Operation, placement), 0, NULL},
    {"_built", T_OBJECT, AT(Operation, built), 0, NULL},
    {NULL},
};

static void operation_finalize(PyObject *self) {
    Operation *operation = (Operation *)self;
    if (operation->unused && !operation->used)
        finalize_unused(self);
}

int mark_used(PyObject *operation) {
    if (PyObject_TypeCheck(operation, types.operation)) {
        ((Operation *)operation)->used = 1;
        return 0;
    }
    return drop_result(METHOD0(operation, names.consume));
}

/* Tells the tracer, if there is one, that an operation is built. */
int note_built(Operation *self) {
    if (IS_NONE(points->tracer))
        return 0;
    PyObject *built = METHOD0(points->tracer, names.built);
    if (built == NULL)
        return -1;
    SET(self->built, built);
    Py_DECREF(built);
    return 0;
}

/* What every constructor ends with: the parts, a tuple or NULL, are used, and the operation itself
 * is not. */
int begin_operation(Operation *self, PyObject *parts) {
    for (Py_ssize_t i = 0; parts != NULL && i < PyTuple_Size(parts); i++)
        if (mark_used(PyTuple_GetItem(parts, i)) < 0)
            return -1;
    self->unused = 1;
    return note_built(self);
}

static int operation_init(PyObject *self, PyObject *arguments, PyObject *keywords) {
    return has_keywords(self, keywords) ? -1 : begin_operation((Operation *)self, arguments);
}

static PyObject *operation_consume(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    ((Operation *)self)->used = 1;
    Py_RETURN_NONE;
}

static void place_as(Operation *self, PyObject *object) {
    Operation *other = (Operation *)object;
    if (PyObject_TypeCheck(object, types.operation) && other->placed) {
        self->placed = 1;
        SET(self->placement, other->placement);
    }
}

static PyObject *operation_place_as(PyObject *self, PyObject *other) {
    place_as((Operation *)self, other);
    Py_RETURN_NONE;
}

/* What is known of an operation's copies to host memory: nothing copies; it copies, and no function
   of the program comes behind; or Python has to look. */
enum { NO_COPIES, COPIES, UNKNOWN };

static int copies_of(PyObject *operation) {
    while (PyObject_TypeCheck(operation, types.element)) {
        PyObject *parts = ((Element *)operation)->parts;
        if (parts == NULL || PyTuple_Size(parts) != 1)
            return UNKNOWN;
        operation = PyTuple_GetItem(parts, 0);
    }
    if (PyObject_TypeCheck(operation, types.stage))
        return ((Stage *)operation)->copies;
    if (PyObject_TypeCheck(operation, types.value))
        return NO_COPIES;
    if (PyObject_TypeCheck(operation, types.launch))
        return ((Launch *)operation)->parts == NULL ? NO_COPIES : UNKNOWN;
    if (PyObject_TypeCheck(operation, types.graph_launch) &&
        ((GraphLaunch *)operation)->sources != NULL &&
        PyTuple_Size(((GraphLaunch *)operation)->sources) == 0) {
        PyObject *captured = PyObject_GetAttr(((GraphLaunch *)operation)->graph, names._captured);
        int fills = captured == NULL ? -1
                    : PyObject_TypeCheck(captured, types.captured)
                        ? ((Captured *)captured)->fills_host
                        : UNKNOWN;
        Py_XDECREF(captured);
        return fills;
    }
    if (!PyObject_TypeCheck(operation, types.zip)) {
        int may = is_true(operation, names._may_download);
        return may > 0 ? UNKNOWN : may;
    }
    PyObject *parts = ((Zip *)operation)->parts;
    int all = NO_COPIES;
    for (Py_ssize_t i = 0; parts != NULL && i < PyTuple_Size(parts); i++) {
        PyObject *part = PyTuple_GetItem(parts, i);
        /* no recursion: a zip of zips is looked at by Python */
        int one = PyObject_TypeCheck(part, types.zip) || PyObject_TypeCheck(part, types.element)
                      ? UNKNOWN
                      : copies_of(part);
        if (one < 0)
            return one;
        all = one > all ? one : all;
    }
    return all;
}

/* Returns 0 if an operation is known to have no function behind a copy to host memory, 1 if it may
 * have one, or -1. */
int may_wait(PyObject *operation) {
    int copies = copies_of(operation);
    return copies < 0 ? -1 : copies == UNKNOWN;
}

/* ---- Stage ---- */

enum { MAP, INSPECT, AND_THEN, WITH_CONTEXT };

FIELDS_OF(Stage, AT(Operation, built), AT(Operation, placement), AT(Stage, source), AT(Stage, name),
          AT(Stage, function), AT(Stage, origin))

static PyMemberDef stage_members[] = {
    {"source", T_OBJECT_EX, AT(Stage, source), READONLY, NULL},
    {"_name", T_OBJECT_EX, AT(Stage, name), READONLY, NULL},
    {"_function", T_OBJECT_EX, AT(Stage, function), READONLY, NULL},
    {"stage", T_INT, AT(Stage, stage), READONLY, NULL},
    {NULL},
};

/* What is known of code objects, for the few that a program's chains are made of. */
static struct {
    PyObject *code, *name;
    int is_async;
} known_codes[64];

/* Returns the entry of a code object, or -1 with an error. */
static int know_code(PyObject *code) {
    int place = (int)(((uintptr_t)code >> 5) % (sizeof known_codes / sizeof *known_codes));
    if (known_codes[place].code == code)
        return place;
    PyObject *flags = PyObject_GetAttr(code, names.co_flags);
    PyObject *name = flags == NULL ? NULL : PyObject_GetAttr(code, names.co_qualname);
    if (name != NULL) {
        known_codes[place].is_async = (PyLong_AsLong(flags) & 0x80) != 0; /* CO_COROUTINE */
        SET(known_codes[place].name, name);
        SET(known_codes[place].code, code);
    }
    Py_XDECREF(flags);
    Py_XDECREF(name);
    if (name == NULL)
        return -1;
    return known_codes[place].code == code
               ? place
               : know_code(code); /* the end of the old one may have run Python */
}

/* Returns the part of a function that notes need: its code object or its name. Sets ``is_async``
 * for an async function. */
static PyObject *origin_of(PyObject *function, int *is_async) {
    *is_async = 0;
    if ((PyObject *)Py_TYPE(function) == given.FunctionType) {
        PyObject *code = PyObject_GetAttr(function, names.__code__);
        int place = code == NULL ? -1 : know_code(code);
        PyObject *name = place < 0 ? NULL : PyObject_GetAttr(function, names.__qualname__);
        if (name != NULL)
            *is_async = known_codes[place].is_async;
        int same = name != NULL && known_codes[place].name == name;
        Py_XDECREF(name);
        if (same)
            return code;
        Py_XDECREF(code);
        if (name == NULL)
            return NULL;
    }
    return PyObject_CallFunctionObjArgs(given.origin, function, NULL);
}

/* By this check and ``is_made`` a chain has an end: an operation is made once, after its source
 * was. Raises TypeError. */
static int is_bare(PyObject *source) {
    int bare = PyObject_TypeCheck(source, types.stage)     ? ((Stage *)source)->source == NULL
               : PyObject_TypeCheck(source, types.element) ? ((Element *)source)->parts == NULL
                                                           : 0;
    if (bare)
        missing(source, "source");
    return bare;
}

/* Fills a new stage. Returns 0, or -1 with an error; the source counts as used in either case. */
static int set_stage(Stage *self, PyObject *source, PyObject *function, PyObject *name, int kind) {
    if (!PyObject_TypeCheck(source, types.operation))
        return LACKS(source, "and_then");
    if (is_made((PyObject *)self, self->source) || is_bare(source))
        return -1;
    Operation *before = (Operation *)source;
    int is_async = 0;
    before->used = 1; /* a failed use counts as a use: dropping the operation does not warn */
    PyObject *origin = PyCallable_Check(function) ? origin_of(function, &is_async) : NULL;
    if (origin == NULL || is_async) {
        Py_XDECREF(origin);
        if (PyErr_Occurred())
            return -1;
        PyObject *refused = PyObject_CallFunctionObjArgs(given.refuse_stage, function, name, NULL);
        Py_XDECREF(refused);
        if (refused != NULL)
            PyErr_SetString(PyExc_TypeError, "a stage takes a function");
        return -1;
    }
    int copies = copies_of(source);
    if (function == given.downloads)
        copies = copies == NO_COPIES ? COPIES : copies;
    else if (copies == COPIES || (PyObject *)Py_TYPE(function) == given.partial)
        copies = UNKNOWN;
    if (copies < 0) {
        Py_DECREF(origin);
        return -1;
    }
    SET(self->origin, origin);
    Py_DECREF(origin);
    SET(self->source, source);
    SET(self->function, function);
    SET(self->name, name);
    self->kind = (char)kind;
    self->copies = (char)copies;
    self->stage = PyObject_TypeCheck(source, types.stage) ? ((Stage *)source)->stage + 1 : 2;
    self->base.unused = 1;
    place_as(&self->base, source);        /* a chain is on one device */
    SET(self->base.built, before->built); /* and was built where it begins */
    return 0;
}

static int stage_init(PyObject *self, PyObject *arguments, PyObject *keywords) {
    PyObject *source, *function, *name;
    int kind;
    if (has_keywords(self, keywords) ||
        !PyArg_ParseTuple(arguments, "OOUi", &source, &function, &name, &kind))
        return -1;
    return set_stage((Stage *)self, source, function, name, kind);
}

static PyObject *new_stage(PyObject *type, PyObject *source, PyObject *function, PyObject *name,
                           int kind) {
    Stage *stage = (Stage *)PyType_GenericAlloc((PyTypeObject *)type, 0);
    if (stage != NULL && set_stage(stage, source, function, name, kind) < 0)
        Py_CLEAR(stage);
    return (PyObject *)stage;
}

/* Returns the one argument of a method, ``function``, which may be given by its name. */
static PyObject *function_of(const char *method, PyObject *const *arguments, Py_ssize_t count,
                             PyObject *keywords) {
    Py_ssize_t named = keywords == NULL ? 0 : PyTuple_Size(keywords);
    if (count + named == 1 && (named == 0 || PyUnicode_CompareWithASCIIString(
                                                 PyTuple_GetItem(keywords, 0), "function") == 0))
        return arguments[0];
    PyErr_Format(PyExc_TypeError, "%s takes one argument, function; got %zd", method,
                 count + named);
    return NULL;
}

#define CHAIN(method, type, kind) \
    static PyObject *operation_##method(PyObject *self, PyObject *const *arguments, \
                                        Py_ssize_t count, PyObject *keywords) { \
        PyObject *function = function_of(#method, arguments, count, keywords); \
        return function == NULL ? NULL \
                                : new_stage(given.type, self, function, names.method, kind); \
    }
CHAIN(and_then, AndThen, AND_THEN)
CHAIN(and_then_with_context, AndThen, WITH_CONTEXT)
CHAIN(map, Map, MAP)

static PyMethodDef operation_methods[] = {
    {"consume", operation_consume, METH_NOARGS,
     "consume()\n--\n\nMarks the operation as used, so that dropping it does not warn."},
    {"place_as", operation_place_as, METH_O,
     "place_as(other)\n--\n\nPlaces this operation on the device that ``other`` was placed on, if "
     "any."},
    {"and_then", FAST(operation_and_then), METH_FASTCALL | METH_KEYWORDS,
     "and_then($self, function)\n--\n\n"
     "Runs this operation, then the operation ``function(result)``, on the same stream.\n\n"
     "``function`` is called when this operation has been submitted. Boxes in the result are "
     "handles, whose data may\n"
     "be in flight. Host arrays are filled: if this operation copies to the host, the run waits "
     "for its copies before\n"
     "the function is called (``d2h``, ``h2d`` and ``memcpy`` themselves do not wait). Running "
     "raises ``TypeError`` if\n"
     "the function does not return an operation."},
    {"and_then_with_context", FAST(operation_and_then_with_context), METH_FASTCALL | METH_KEYWORDS,
     "and_then_with_context($self, function)\n--\n\n"
     "Runs this operation, then ``function(context, result)``: ``and_then`` with the execution "
     "context."},
    {"map", FAST(operation_map), METH_FASTCALL | METH_KEYWORDS,
     "map($self, function)\n--\n\n"
     "Yields ``function(result)``, computed on the host without device work. As for ``and_then``, "
     "boxes are handles\n"
     "whose data may be in flight, and host arrays are filled."},
    {NULL, NULL, 0, NULL},
};

/* ---- Frame ---- */

FIELDS_OF(Frame, AT(Frame, operation), AT(Frame, context), AT(Frame, inner), AT(Frame, result),
          AT(Frame, results), AT(Frame, place), AT(Frame, data))

static PyMemberDef frame_members[] = {
    {"operation", T_OBJECT_EX, AT(Frame, operation), READONLY, NULL},
    {"context", T_OBJECT_EX, AT(Frame, context), 0, NULL},
    {"inner", T_OBJECT_EX, AT(Frame, inner), 0, NULL},
    {"result", T_OBJECT_EX, AT(Frame, result), 0, NULL},
    {"results", T_OBJECT_EX, AT(Frame, results), 0, NULL},
    {"place", T_OBJECT_EX, AT(Frame, place), 0, NULL},
    {"data", T_OBJECT_EX, AT(Frame, data), 0, NULL},
    {"at", T_LONGLONG, AT(Frame, at), 0, NULL},
    {"copies", T_LONGLONG, AT(Frame, copies), 0, NULL},
    {NULL},
};

static Context *context_of(PyObject *object) {
    if (object == NULL || !PyObject_TypeCheck(object, types.context))
        return refuse("a walk runs in an ExecutionContext");
    return (Context *)object;
}

/* ---- The steps of the operations that C knows. They return the part to begin, None at the end, or
 * NULL. ---- */

enum { BEGIN, RUNS, KEPT }; /* the states of a chain, as in combinators.py */

static int set_place(Context *context, PyObject *kind, PyObject *detail, long long number,
                     PyObject *outer) {
    PyObject *count = PyLong_FromLongLong(number);
    PyObject *place = count == NULL
                          ? NULL
                          : PyTuple_Pack(4, kind, detail, count, outer == NULL ? Py_None : outer);
    if (place != NULL)
        SET(context->place, place);
    Py_XDECREF(count);
    return drop_result(place);
}

/* Sets ``count`` to the number of the run's copies to host memory so far. */
static int count_copies(PyObject *copies, long long *count) {
    if (PyObject_TypeCheck(copies, types.host_copies)) {
        *count = ((HostCopies *)copies)->count;
        return 0;
    }
    return LACKS(copies, "count");
}

static PyObject *begin_chain(Stage *self, Frame *frame, Context *context) {
    PyObject *stages = PyList_New(0), *source = (PyObject *)self;
    while (stages != NULL && source != NULL && PyObject_TypeCheck(source, types.stage)) {
        if (PyList_Append(stages, source) < 0)
            Py_CLEAR(stages);
        source = ((Stage *)source)->source;
    }
    if (stages == NULL)
        return NULL;
    SET(frame->results, stages);
    Py_DECREF(stages);
    if (source == NULL)
        return missing((PyObject *)self, "source");
    SET(frame->place, context->place == NULL ? Py_None : context->place);
    SET(frame->data, Py_None);
    frame->at = RUNS;
    if (!IS_NONE(context->copies) && count_copies(context->copies, &frame->copies) < 0)
        return NULL;
    return Py_NewRef(source);
}

/* Waits, if the run has copied to host memory since the chain began and the function may look at
 * the copy. */
static int require_data(Stage *stage, Frame *frame, Context *context, PyObject *result) {
    if (IS_NONE(context->copies))
        return 0;
    PyObject *copies = Py_NewRef(context->copies);
    long long number;
    int failed = count_copies(copies, &number);
    if (!failed && number > frame->copies) {
        SET(frame->data, Py_None);
        failed = drop_result(PyObject_CallMethodObjArgs((PyObject *)stage, names.require_data,
                                                        frame, copies, result, NULL));
    }
    Py_DECREF(copies);
    return failed;
}

static PyObject *step_chain(PyObject *self, Frame *frame, Context *context, PyObject *result) {
    if (frame->at == BEGIN)
        return begin_chain((Stage *)self, frame, context);
    if (frame->results == NULL || !PyList_Check(frame->results))
        return missing((PyObject *)frame, "results");
    result = frame->at == KEPT ? frame->result : result;
    result = Py_NewRef(result == NULL ? Py_None : result);
    frame->at = RUNS;
    PyObject *stages = Py_NewRef(frame->results), *part = NULL;
    Py_ssize_t left = PyList_Size(stages);
    while (left > 0 && part == NULL) {
        Stage *stage = (Stage *)Py_XNewRef(PyList_GetItem(stages, left - 1));
        PyObject *next = NULL;
        if (stage == NULL || !PyObject_TypeCheck((PyObject *)stage, types.stage) ||
            stage->function == NULL) {
            if (stage != NULL)
                missing((PyObject *)stage, "function");
        } else if (require_data(stage, frame, context, result) == 0) {
            SET(frame->data, stage);
            if (set_place(context, stage->name, stage->origin, stage->stage, frame->place) == 0)
                next = stage->kind == WITH_CONTEXT
                           ? PyObject_CallFunctionObjArgs(stage->function, (PyObject *)context,
                                                          result, NULL)
                           : PyObject_CallFunctionObjArgs(stage->function, result, NULL);
        }
        if (next != NULL && (stage->kind == MAP || stage->kind == INSPECT)) {
            if ((PyObject *)Py_TYPE(next) == given.CoroutineType) {
                PyObject *refused = PyObject_CallFunctionObjArgs(
                    given.refuse_coroutine, next, stage->function, stage->name, NULL);
                Py_CLEAR(next);
                Py_XDECREF(refused);
            } else if (stage->kind == MAP) {
                Py_DECREF(result);
                result = Py_NewRef(next);
            }
            Py_XDECREF(next);
            if (next != NULL && PyList_SetSlice(stages, left - 1, left, NULL) < 0)
                next = NULL;
            left = next == NULL ? -1 : left - 1;
        } else if (next != NULL) {
            if (PyList_SetSlice(stages, left - 1, left, NULL) == 0)
                part = PyObject_TypeCheck(next, types.operation)
                           ? Py_NewRef(next)
                           : PyObject_CallFunctionObjArgs(given.require_operation, next,
                                                          stage->name, NULL);
            Py_DECREF(next);
            left = part == NULL ? -1 : left - 1;
        } else {
            left = -1;
        }
        Py_XDECREF((PyObject *)stage);
    }
    Py_DECREF(stages);
    if (left < 0 &&
        part == NULL) { /* called again after a stop, with the result that the next stage gets */
        frame->at = KEPT;
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        SET(frame->result, result);
        PyErr_Restore(type, error, trace);
    } else if (part == NULL) {
        SET(context->place, frame->place == Py_None ? NULL : frame->place);
        SET(frame->result, result);
        part = Py_NewRef(Py_None);
    }
    Py_DECREF(result);
    return part;
}

static PyObject *step_zip(PyObject *self, Frame *frame, Context *context, PyObject *result) {
    PyObject *parts = ((Zip *)self)->parts;
    if (parts == NULL)
        return missing(self, "_parts");
    Py_ssize_t count = PyTuple_Size(parts);
    if (frame->at == 0) {
        PyObject *results = PyList_New(0);
        if (results == NULL)
            return NULL;
        SET(frame->results, results);
        Py_DECREF(results);
        SET(frame->place, context->place == NULL ? Py_None : context->place);
        SET(frame->data, Py_None);
    } else if (frame->at < 0 || frame->results == NULL || !PyList_Check(frame->results)) {
        return missing((PyObject *)frame, "results");
    } else if (PyList_Append(frame->results, result == NULL ? Py_None : result) < 0) {
        return NULL;
    }
    if (frame->at < count) {
        Py_ssize_t at = (Py_ssize_t)frame->at++;
        PyObject *number = PyLong_FromSsize_t(count);
        int failed =
            number == NULL ? -1 : set_place(context, names.zip, number, at + 1, frame->place);
        Py_XDECREF(number);
        return failed ? NULL : Py_NewRef(PyTuple_GetItem(parts, at));
    }
    SET(context->place, frame->place == Py_None ? NULL : frame->place);
    if (!IS_NONE(frame->data)) {
        if (!PyExceptionInstance_Check(frame->data))
            return missing((PyObject *)frame, "data");
        return raise_error(Py_NewRef(frame->data));
    }
    PyObject *results = PyList_AsTuple(frame->results);
    if (results == NULL)
        return NULL;
    SET(frame->result, results);
    Py_DECREF(results);
    Py_RETURN_NONE;
}

static PyObject *step_element(PyObject *object, Frame *frame, Context *Py_UNUSED(context),
                              PyObject *result) {
    Element *self = (Element *)object;
    if (self->parts == NULL || PyTuple_Size(self->parts) != 1)
        return missing((PyObject *)self, "_parts");
    if (frame->at == 0) {
        frame->at = 1;
        return Py_NewRef(PyTuple_GetItem(self->parts, 0));
    }
    Py_ssize_t count = result != NULL && PyTuple_Check(result) ? PyTuple_Size(result) : -1;
    Py_ssize_t index = self->index < 0 && count > 0 ? self->index + count : self->index;
    if (index < 0 || index >= count) {
        PyObject *number = PyLong_FromSsize_t(self->index);
        PyObject *refused =
            number == NULL ? NULL
                           : PyObject_CallFunctionObjArgs(given.refuse_element, number,
                                                          result == NULL ? Py_None : result, NULL);
        Py_XDECREF(number);
        Py_XDECREF(refused);
        return NULL;
    }
    SET(frame->result, PyTuple_GetItem(result, index));
    Py_RETURN_NONE;
}

/* Calls one of the three with the frame's context, of which it holds a reference: Python may set
 * the field meanwhile. */
typedef PyObject *(*Step)(PyObject *, Frame *, Context *, PyObject *);

static PyObject *in_context(Step step, PyObject *self, Frame *frame, PyObject *result) {
    Context *context = context_of(frame->context);
    if (context == NULL)
        return NULL;
    Py_INCREF((PyObject *)context);
    PyObject *part = step(self, frame, context, result);
    Py_DECREF((PyObject *)context);
    return part;
}

static PyObject *step(Frame *frame, PyObject *result) {
    PyObject *operation = frame->operation;
    if (operation == NULL)
        return missing((PyObject *)frame, "operation");
    if (PyObject_TypeCheck(operation, types.stage))
        return in_context(step_chain, operation, frame, result);
    if (PyObject_TypeCheck(operation, types.zip))
        return in_context(step_zip, operation, frame, result);
    if (PyObject_TypeCheck(operation, types.element))
        return in_context(step_element, operation, frame, result);
    return PyObject_CallMethodObjArgs(operation, names.step, frame,
                                      result == NULL ? Py_None : result, NULL);
}

#define STEP(type) \
    static PyObject *type##_step(PyObject *self, PyObject *const *arguments, Py_ssize_t count) { \
        if (count != 2 || !PyObject_TypeCheck(arguments[0], types.frame)) { \
            PyErr_SetString(PyExc_TypeError, "step takes a frame and a result"); \
            return NULL; \
        } \
        return in_context(step_##type, self, (Frame *)arguments[0], arguments[1]); \
    } \
    static PyMethodDef type##_methods[] = { \
        {"step", FAST(type##_step), METH_FASTCALL, \
         "step(frame, result)\n--\n\nContinues the operation: see walk.py."}, \
        {NULL, NULL, 0, NULL}, \
    };
STEP(chain)
STEP(zip)
STEP(element)

/* ---- Zip, Element, Value ---- */

FIELDS_OF(Zip, AT(Operation, built), AT(Operation, placement), AT(Zip, parts))
static PyMemberDef zip_members[] = {{"_parts", T_OBJECT_EX, AT(Zip, parts), READONLY, NULL},
                                    {NULL}};

static int zip_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    Zip *self = (Zip *)object;
    PyObject *parts;
    if (has_keywords(object, keywords) || !PyArg_ParseTuple(arguments, "O!", &PyTuple_Type, &parts))
        return -1;
    Py_ssize_t count = PyTuple_Size(parts);
    int same = count > 0;
    for (Py_ssize_t i = 0; i < count; i++)
        if (!PyObject_TypeCheck(PyTuple_GetItem(parts, i), types.operation))
            return LACKS(PyTuple_GetItem(parts, i), "and_then");
    for (Py_ssize_t i = 0; same > 0 && i < count; i++) {
        Operation *part = (Operation *)PyTuple_GetItem(parts, i),
                  *first = (Operation *)PyTuple_GetItem(parts, 0);
        same = part->placed && part->placement != NULL && first->placement != NULL
                   ? is_equal(part->placement, first->placement)
                   : 0;
    }
    if (same < 0 || is_made((PyObject *)self, self->parts))
        return -1;
    SET(self->parts, parts);
    if (begin_operation(&self->base, parts) < 0)
        return -1;
    if (same)
        place_as(&self->base, PyTuple_GetItem(parts, 0));
    return 0;
}

FIELDS_OF(Element, AT(Operation, built), AT(Operation, placement), AT(Element, parts))
static PyMemberDef element_members[] = {
    {"_parts", T_OBJECT_EX, AT(Element, parts), READONLY, NULL},
    {"_index", T_PYSSIZET, AT(Element, index), READONLY, NULL},
    {NULL},
};

static int element_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    Element *self = (Element *)object;
    PyObject *source;
    Py_ssize_t index;
    if (has_keywords(object, keywords) ||
        !PyArg_ParseTuple(arguments, "O!n", types.operation, &source, &index) ||
        is_made(object, self->parts) || is_bare(source))
        return -1;
    PyObject *parts = PyTuple_Pack(1, source);
    if (parts == NULL)
        return -1;
    SET(self->parts, parts);
    self->index = index;
    place_as(&self->base, source);
    int failed = begin_operation(&self->base, parts);
    Py_DECREF(parts);
    return failed;
}

FIELDS_OF(Value, AT(Operation, built), AT(Operation, placement), AT(Value, result))
static PyMemberDef value_members[] = {{"_result", T_OBJECT_EX, AT(Value, result), READONLY, NULL},
                                      {NULL}};

static int value_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    PyObject *result;
    if (has_keywords(object, keywords) || !PyArg_ParseTuple(arguments, "O", &result))
        return -1;
    SET(((Value *)object)->result, result);
    return begin_operation((Operation *)object, NULL);
}

static PyObject *execute_value(Value *self) {
    return self->result == NULL ? missing((PyObject *)self, "result") : Py_NewRef(self->result);
}

static PyObject *value_execute(PyObject *self, PyObject *Py_UNUSED(context)) {
    return execute_value((Value *)self);
}

static PyMethodDef value_methods[] = {
    {"execute", value_execute, METH_O, "execute(context)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

/* ---- Walk ---- */

FIELDS_OF(Walk, AT(Walk, operation), AT(Walk, context), AT(Walk, frames), AT(Walk, part),
          AT(Walk, given), AT(Walk, stop), AT(Walk, ending), AT(Walk, result))

static PyMemberDef walk_members[] = {
    {"operation", T_OBJECT_EX, AT(Walk, operation), READONLY, NULL},
    {"context", T_OBJECT_EX, AT(Walk, context), READONLY, NULL},
    {"_frames", T_OBJECT_EX, AT(Walk, frames), READONLY, NULL},
    {"_part", T_OBJECT, AT(Walk, part), 0, NULL},
    {"_given", T_OBJECT, AT(Walk, given), 0, NULL},
    {"_stop", T_OBJECT, AT(Walk, stop), 0, NULL},
    {"_ending", T_OBJECT, AT(Walk, ending), 0, NULL},
    {"result", T_OBJECT_EX, AT(Walk, result), 0, NULL},
    {NULL},
};

static int set_walk(Walk *self, PyObject *operation, PyObject *context) {
    if ((self->frames = PyList_New(0)) == NULL)
        return -1;
    SET(self->operation, operation);
    SET(self->context, context);
    SET(self->part, operation); /* the operation to begin; None: the last frame is to be stepped */
    return 0;
}

static int walk_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    Walk *self = (Walk *)object;
    PyObject *operation, *context;
    if (has_keywords(object, keywords) ||
        !PyArg_ParseTuple(arguments, "OO!", &operation, types.context, &context) ||
        is_made(object, self->frames))
        return -1;
    return set_walk(self, operation, context);
}

static int is_composed(PyObject *operation) {
    PyTypeObject *type = Py_TYPE(operation);
    if ((PyObject *)type == given.KernelLaunch)
        return ((Launch *)operation)->composed;
    if (PyObject_TypeCheck(operation, types.stage) || PyObject_TypeCheck(operation, types.zip) ||
        PyObject_TypeCheck(operation, types.element))
        return 1;
    if (PyObject_TypeCheck(operation, types.value) ||
        (PyObject_TypeCheck(operation, types.graph_launch) &&
         !IS_NONE(((GraphLaunch *)operation)->sources) &&
         PyTuple_Size(((GraphLaunch *)operation)->sources) == 0))
        return 0;
    return is_true(operation, names._composed);
}

static PyObject *execute(PyObject *operation, Context *context) {
    if ((PyObject *)Py_TYPE(operation) == given.KernelLaunch)
        return launch_execute((Launch *)operation, context);
    if (PyObject_TypeCheck(operation, types.value))
        return execute_value((Value *)operation);
    if (PyObject_TypeCheck(operation, types.graph_launch))
        return execute_graph_launch((GraphLaunch *)operation, context);
    return METHOD1(operation, names.execute, context);
}

/* Makes an operation the part of the traced run that the thread submits now. */
static int tell_tracer(Context *context, PyObject *operation) {
    if (IS_NONE(context->traced))
        return 0;
    PyObject *run = Py_NewRef(context->traced), *built = PyObject_GetAttr(operation, names._built),
             *name = NULL;
    if (built != NULL)
        name = (PyObject *)Py_TYPE(operation) == given.KernelLaunch &&
                       ((Launch *)operation)->kernel != NULL
                   ? PyObject_GetAttr(((Launch *)operation)->kernel, names.name)
                   : METHOD0(operation, names.traced_name);
    int failed = name == NULL || PyObject_SetAttr(run, names.name, name) < 0 ||
                 PyObject_SetAttr(run, names.built, built) < 0;
    Py_XDECREF(name);
    Py_XDECREF(built);
    Py_DECREF(run);
    return failed ? -1 : 0;
}

/* Returns the frame at ``at`` of a walk, whose list Python can change, as a borrowed reference.
 * NULL with an exception. */
static Frame *frame_at(Walk *walk, Py_ssize_t at) {
    PyObject *frame = PyList_GetItem(walk->frames, at);
    if (frame != NULL && !PyObject_TypeCheck(frame, types.frame))
        return (Frame *)missing(frame, "at");
    return (Frame *)frame;
}

/* Tells the tracer that the thread goes on with the operation of the last frame. */
static int tell_tracer_of_frame(Walk *walk) {
    Frame *frame = frame_at(walk, PyList_Size(walk->frames) - 1);
    Context *context = frame == NULL ? NULL : context_of(frame->inner);
    if (context == NULL || frame->operation == NULL)
        return frame == NULL || context == NULL ? -1 : LACKS(frame, "operation");
    Py_INCREF((PyObject *)frame);
    Py_INCREF((PyObject *)context);
    int told = tell_tracer(context, frame->operation);
    Py_DECREF((PyObject *)context);
    Py_DECREF((PyObject *)frame);
    return told;
}

/* Begins ``part``, which is ``walk->part`` unless it is placed elsewhere. Returns 1 if the walk has
   its result, 0 if a frame is to be stepped, -1 with an exception. The caller has references to
   both. */
static int begin(Walk *walk, PyObject *part, Context *context, int traced) {
    if (traced && tell_tracer(context, part) < 0)
        return -1;
    int composed = is_composed(part);
    if (composed < 0)
        return -1;
    Py_ssize_t depth = PyList_Size(walk->frames);
    if (composed) {
        if (depth + 1 >= Py_GetRecursionLimit()) {
            raise_error(PyObject_CallNoArgs(given.TooDeep));
            return -1;
        }
        Frame *frame = (Frame *)PyType_GenericAlloc(types.frame, 0);
        if (frame == NULL)
            return -1;
        SET(frame->operation, part);
        SET(frame->context, context);
        SET(frame->inner, context);
        int failed = PyList_Append(walk->frames, (PyObject *)frame);
        Py_DECREF((PyObject *)frame);
        if (failed)
            return -1;
        Py_CLEAR(walk->part);
        Py_CLEAR(walk->given);
        return 0;
    }
    PyObject *result = execute(part, context);
    if (result == NULL)
        return -1;
    Py_CLEAR(walk->part);
    if (depth == 0)
        SET(walk->result, result);
    else
        SET(walk->given, result);
    Py_DECREF(result);
    if (depth == 0)
        return 1;
    return traced ? tell_tracer_of_frame(walk) : 0;
}

static int begin_part(Walk *walk, Context *context, int traced) {
    if (!PyObject_TypeCheck(walk->part, types.operation))
        return LACKS(walk->part, "execute");
    PyObject *part = Py_NewRef(walk->part);
    Operation *operation = (Operation *)part;
    operation->used = 1;
    if (operation->placed && operation->placement != context->device) {
        PyObject *placed =
            PyObject_CallFunctionObjArgs(given.placed_elsewhere, part, (PyObject *)context, NULL);
        Py_DECREF(part);
        if (placed == NULL)
            return -1;
        part = placed;
        SET(walk->part, part);
    }
    int begun = -1;
    if (PyObject_TypeCheck(part, types.operation))
        begun = begin(walk, part, context, traced);
    else
        missing(part, "execute");
    Py_DECREF(part);
    return begun;
}

/* Steps the last frame, at ``at``. Returns as ``begin`` does. */
static int step_frame(Walk *walk, Py_ssize_t at, int traced) {
    Frame *frame = frame_at(walk, at);
    if (frame == NULL)
        return -1;
    Py_INCREF((PyObject *)frame);
    PyObject *part = step(frame, walk->given);
    int done = part == NULL ? -1 : 0;
    if (done == 0 && part != Py_None) {
        SET(walk->part, part);
        Py_CLEAR(walk->given);
    } else if (done == 0) {
        PyObject *result = Py_XNewRef(frame->result);
        if (result == NULL)
            missing(frame->operation, "result");
        done = result == NULL ? -1 : PyList_SetSlice(walk->frames, at, at + 1, NULL);
        if (result != NULL)
            SET(walk->given, result);
        if (done == 0 && at == 0) {
            SET(walk->result, result);
            Py_CLEAR(walk->given);
            done = 1;
        } else if (done == 0 && traced) {
            done = tell_tracer_of_frame(walk);
        }
        Py_XDECREF(result);
    }
    Py_XDECREF(part);
    Py_DECREF((PyObject *)frame);
    return done;
}

/* Goes on until the walk has its result. Returns -1 with an exception: ``part`` is then the
   operation that has raised it when it was begun, or NULL if the step of the last frame has. */
static int advance(Walk *walk, int traced) {
    if (walk->frames == NULL)
        return LACKS(walk, "frames");
    for (;;) {
        Py_ssize_t depth = PyList_Size(walk->frames);
        int done = 0;
        if (!IS_NONE(walk->part)) {
            Frame *frame = depth ? frame_at(walk, depth - 1) : NULL;
            Context *context = depth == 0      ? context_of(walk->context)
                               : frame == NULL ? NULL
                                               : context_of(frame->inner);
            if (context == NULL)
                return -1;
            Py_INCREF((PyObject *)context);
            done = begin_part(walk, context, traced);
            Py_DECREF((PyObject *)context);
            depth = PyList_Size(walk->frames);
        }
        if (done == 0)
            done = depth > 0 ? step_frame(walk, depth - 1, traced) : LACKS(walk, "part");
        if (done != 0)
            return done;
    }
}

static PyObject *walk_advance(PyObject *self, PyObject *traced) {
    int truth = PyObject_IsTrue(traced);
    return truth < 0 || advance((Walk *)self, truth) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef walk_methods[] = {
    {"advance", walk_advance, METH_O, "advance(traced)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

PyObject *new_walk(PyObject *operation, Context *context) {
    Walk *walk = (Walk *)PyType_GenericAlloc((PyTypeObject *)given.Walk, 0);
    if (walk != NULL && set_walk(walk, operation, (PyObject *)context) < 0)
        Py_CLEAR(walk);
    return (PyObject *)walk;
}

int walk_on(PyObject *walk) {
    return advance((Walk *)walk, 0);
}

/* Executes an operation that needs no walk. Returns NULL with its exception, or without one if it
 * needs a walk. */
PyObject *execute_alone(PyObject *operation, Context *context) {
    if (!IS_NONE(points->tracer) || !PyObject_TypeCheck(operation, types.operation) ||
        ((Operation *)operation)->placed)
        return NULL;
    int composed = is_composed(operation);
    if (composed != 0)
        return NULL;
    ((Operation *)operation)->used = 1;
    return execute(operation, context);
}

/* Executes an operation to its end. Most need no walk. What is traced, and every error and stop, is
 * Python's. */
PyObject *run_through(PyObject *operation, Context *context) {
    if (!IS_NONE(points->tracer) || !PyObject_TypeCheck(operation, types.operation))
        return PyObject_CallFunctionObjArgs(given.run_in_python, operation, (PyObject *)context,
                                            NULL);
    PyObject *alone = execute_alone(operation, context);
    if (alone != NULL)
        return alone;
    if (PyErr_Occurred())
        return handle_error(given.failed_to_execute, NULL, operation, context, NULL);
    Walk *walk = (Walk *)new_walk(operation, context);
    if (walk == NULL)
        return NULL;
    PyObject *result;
    if (advance(walk, 0) > 0)
        result =
            walk->result == NULL ? missing((PyObject *)walk, "result") : Py_NewRef(walk->result);
    else
        result = handle_error((PyObject *)walk, names._caught, NULL);
    Py_DECREF((PyObject *)walk);
    return result;
}

static PyObject *core_run_through(PyObject *Py_UNUSED(module), PyObject *const *arguments,
                                  Py_ssize_t count) {
    if (count != 2 || !PyObject_TypeCheck(arguments[1], types.context))
        return refuse("run_through takes an operation and a context");
    return run_through(arguments[0], (Context *)arguments[1]);
}

static PyMethodDef functions[] = {
    {"run_through", FAST(core_run_through), METH_FASTCALL,
     "run_through(operation, context)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

int add_walking(PyObject *module) {
    PyType_Slot operation[] = {
        {Py_tp_doc, "Operation(*parts)\n--\n\nA lazy operation."},
        {Py_tp_init, operation_init},
        {Py_tp_members, operation_members},
        {Py_tp_methods, operation_methods},
        {Py_tp_finalize, operation_finalize},
        SLOTS_OF(Operation),
        {0, NULL},
    };
    PyType_Slot stage[] = {
        {Py_tp_init, stage_init},
        {Py_tp_members, stage_members},
        {Py_tp_methods, chain_methods},
        SLOTS_OF(Stage),
        {0, NULL},
    };
    PyType_Slot zip[] = {
        {Py_tp_init, zip_init},
        {Py_tp_members, zip_members},
        {Py_tp_methods, zip_methods},
        SLOTS_OF(Zip),
        {0, NULL},
    };
    PyType_Slot element[] = {
        {Py_tp_init, element_init},
        {Py_tp_members, element_members},
        {Py_tp_methods, element_methods},
        SLOTS_OF(Element),
        {0, NULL},
    };
    PyType_Slot value[] = {
        {Py_tp_init, value_init},
        {Py_tp_members, value_members},
        {Py_tp_methods, value_methods},
        SLOTS_OF(Value),
        {0, NULL},
    };
    PyType_Slot frame[] = {{Py_tp_members, frame_members}, SLOTS_OF(Frame), {0, NULL}};
    PyType_Slot walk[] = {
        {Py_tp_init, walk_init},
        {Py_tp_members, walk_members},
        {Py_tp_methods, walk_methods},
        SLOTS_OF(Walk),
        {0, NULL},
    };
    const Kind kinds[] = {
        {&types.operation, "oxide._core.Operation", sizeof(Operation), COLLECTED, operation},
        {&types.frame, "oxide._core.Frame", sizeof(Frame), COLLECTED, frame},
        {&types.walk, "oxide._core.Walk", sizeof(Walk), COLLECTED, walk},
        {&types.stage, "oxide._core.Stage", sizeof(Stage), COLLECTED, stage, &types.operation},
        {&types.zip, "oxide._core.Zip", sizeof(Zip), COLLECTED, zip, &types.operation},
        {&types.element, "oxide._core.Element", sizeof(Element), COLLECTED, element,
         &types.operation},
        {&types.value, "oxide._core.Value", sizeof(Value), COLLECTED, value, &types.operation},
    };
    if (ADD_KINDS(module, kinds) < 0)
        return -1;
    if (PyModule_AddIntMacro(module, MAP) < 0 || PyModule_AddIntMacro(module, INSPECT) < 0 ||
        PyModule_AddIntMacro(module, AND_THEN) < 0 ||
        PyModule_AddIntMacro(module, WITH_CONTEXT) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
