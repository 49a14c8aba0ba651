/* Copies of host memory: by the device's host-function thread in stream order, and by threads that
   help it. oxide/runtime/memory/moves.py describes the protocol of the helpers. */

#include "core.h"
#include <string.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

struct pool;

/* A copy to make. Python fills in the row (oxide/runtime/memory/moves.py). */
struct row {
    char *destination;
    const char *source;
    int64_t length;
    struct pool *pool; /* of share_copy; move does not read it */
};

static void move(void *argument) {
    struct row *row = argument;
    memcpy(row->destination, row->source, (size_t)row->length);
}

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#define HAS_HELPERS 1

/* Shared by all threads of a pool, and never freed: the threads outlive the interpreter. What
   several threads change has a cache line of its own. */
#define LINE _Alignas(64)

struct pool {
    LINE atomic_uint generation; /* idle helpers wait for its change */
    LINE atomic_uint busy;
    LINE atomic_uint open;
    LINE atomic_llong next;
    LINE atomic_llong inside;
    LINE int64_t piece;
    long helpers;
    long looks;
    LINE struct row job;
};

static void pause_briefly(void) {
#if defined(__x86_64__)
    _mm_pause();
#else
    __asm__ volatile("isb");
#endif
}

/* A memcpy by non-temporal stores, for data that the device reads next and this processor does not.
   When it returns, the bytes are visible to other threads and to the device.

   An ordinary store first reads the cache line that it will overwrite. So a copy through the cache
   moves three bytes for each byte copied, and evicts the program's data. memcpy uses such stores
   only for copies of megabytes, and the pieces are of 128 KiB. GB/s on an H100's machine, with
   memcpy and with this, medians of 36 alternating runs: one upload of 64 MiB at a time 21.7
   and 30.3, of an array that is not in the cache 18.5 and 23.8; four uploads at a time 42.0
   and 40.5, 35.9 and 38.4. Prefetching the source made it slower. */
static void stream_bytes(char *destination, const char *source, int64_t length) {
#if defined(__x86_64__)
    int64_t head = (int64_t)(-(uintptr_t)destination & 63);
    if (head > length)
        head = length;
    memcpy(destination, source, (size_t)head);
    int64_t end = head + ((length - head) & -64);
    for (int64_t at = head; at < end; at += 64) {
        const __m128i *from = (const __m128i *)(source + at);
        __m128i *to = (__m128i *)(destination + at);
        __m128i first = _mm_loadu_si128(from), second = _mm_loadu_si128(from + 1);
        __m128i third = _mm_loadu_si128(from + 2), fourth = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, first);
        _mm_stream_si128(to + 1, second);
        _mm_stream_si128(to + 2, third);
        _mm_stream_si128(to + 3, fourth);
    }
    memcpy(destination + end, source + end, (size_t)(length - end));
    _mm_sfence();
#else
    memcpy(destination, source, (size_t)length);
#endif
}

static void copy_pieces(struct pool *pool) {
    for (;;) {
        int64_t begin = atomic_fetch_add(&pool->next, pool->piece);
        int64_t left = pool->job.length - begin;
        if (left <= 0)
            return;
        stream_bytes(pool->job.destination + begin, pool->job.source + begin,
                     left < pool->piece ? left : pool->piece);
    }
}

static void share_copy(void *argument) {
    struct row *row = argument;
    struct pool *pool = row->pool;
    unsigned idle = 0;
    if (!atomic_compare_exchange_strong(&pool->busy, &idle, 1)) {
        stream_bytes(row->destination, row->source, row->length);
        return;
    }
    pool->job = *row;
    atomic_store(&pool->next, 0);
    atomic_store(&pool->open, 1);
    atomic_fetch_add(&pool->generation, 1);
    syscall(SYS_futex, &pool->generation, FUTEX_WAKE_PRIVATE, (int)pool->helpers, NULL, NULL, 0);
    copy_pieces(pool);
    atomic_store(&pool->open, 0);
    for (long looked = 0; atomic_load(&pool->inside) != 0;) {
        if (looked < pool->looks) {
            pause_briefly();
            looked++;
        } else {
            sched_yield(); /* a helper has not finished, and may be waiting for this core */
        }
    }
    atomic_store(&pool->busy, 0);
}

static void *help(void *argument) {
    struct pool *pool = argument;
    for (;;) {
        unsigned generation = atomic_load(&pool->generation);
        atomic_fetch_add(&pool->inside, 1);
        if (atomic_load(&pool->open))
            copy_pieces(pool);
        atomic_fetch_sub(&pool->inside, 1);
        for (long looked = 0; atomic_load(&pool->generation) == generation; looked++) {
            if (looked == pool->looks) {
                syscall(SYS_futex, &pool->generation, FUTEX_WAIT_PRIVATE, generation, NULL, NULL,
                        0);
                break;
            }
            pause_briefly();
        }
    }
    return NULL;
}

static PyObject *start_helpers(PyObject *Py_UNUSED(module), PyObject *arguments) {
    long helpers, looks;
    long long piece;
    if (!PyArg_ParseTuple(arguments, "lLl:start_helpers", &helpers, &piece, &looks))
        return NULL;
    if (helpers < 1 || piece < 1 || looks < 0) {
        PyErr_SetString(
            PyExc_ValueError,
            "start_helpers takes 1 helper or more, pieces of 1 byte or more, and looks");
        return NULL;
    }
    struct pool *pool = aligned_alloc(_Alignof(struct pool), sizeof *pool);
    if (pool == NULL)
        return PyErr_NoMemory();
    memset(pool, 0, sizeof *pool);
    pool->helpers = helpers;
    pool->piece = piece;
    pool->looks = looks;
    long started = 0;
    pthread_t thread;
    while (started < helpers && pthread_create(&thread, NULL, help, pool) == 0) {
        pthread_detach(thread);
        started++;
    }
    return Py_BuildValue("Nl", PyLong_FromVoidPtr(pool), started);
}
#endif

static PyObject *copy(PyObject *Py_UNUSED(module), PyObject *address) {
    struct row *row = PyLong_AsVoidPtr(address);
    if (row == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "copy takes the address of a row");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
#ifdef HAS_HELPERS
    if (row->pool != NULL)
        share_copy(row);
    else
#endif
        move(row);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"copy", copy, METH_O, "copy(row, /)\n--\n\n"},
#ifdef HAS_HELPERS
    {"start_helpers", start_helpers, METH_VARARGS,
     "start_helpers(helpers, piece, looks, /)\n--\n\nStarts threads that help with copies, which "
     "they share by pieces "
     "of some bytes, and that look so often for the next one before they sleep. Returns the "
     "address of their pool, for "
     "rows, and how many could be started."},
#endif
    {NULL, NULL, 0, NULL},
};

int add_copies(PyObject *module) {
    if (PyModule_AddFunctions(module, methods) < 0)
        return -1;
#ifdef HAS_HELPERS
    if (add_address(module, "SHARE_COPY", (const void *)share_copy) < 0)
        return -1;
#else
    if (PyModule_AddObjectRef(module, "start_helpers", Py_None) < 0 || PyModule_AddIntConstant(module, "SHARE_COPY", 0) < 0)
        return -1;
#endif
    if (PyModule_AddIntConstant(module, "ROW_BYTES", sizeof(struct row)) < 0)
        return -1;
    return add_address(module, "MOVE", (const void *)move);
}
