/* A signal handler that names the kernel whose code was running. It calls only what a handler may
   call: write and sigaction. oxide/runtime/awaiting/loading.py says when it is installed. */

#define _GNU_SOURCE /* the names of the program counter's register */
#include "core.h"

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

struct kernel {
    uintptr_t first, end;
    const char *text;
    size_t length;
};

/* Never freed once it is in force, and its first ``count`` kernels never changed: a handler may be
   reading them. */
struct table {
    size_t room;
    atomic_size_t count;
    struct kernel kernels[];
};

static _Atomic(struct table *) in_force;
static const int signals[] = {SIGSEGV, SIGBUS};
static struct sigaction before[2];

static void report(int number, siginfo_t *Py_UNUSED(information), void *context) {
#if defined(__x86_64__)
    uintptr_t counter = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#else
    uintptr_t counter = (uintptr_t)((ucontext_t *)context)->uc_mcontext.pc;
#endif
    struct table *table = atomic_load(&in_force);
    for (size_t left = atomic_load(&table->count); left-- > 0;) {
        struct kernel *kernel = &table->kernels[left];
        if (kernel->first <= counter && counter < kernel->end) {
            ssize_t ignored = write(STDERR_FILENO, kernel->text, kernel->length);
            (void)ignored;
            break;
        }
    }
    /* The instruction runs and fails again: then the signal's previous action handles the failure.
     */
    sigaction(number, &before[number == SIGSEGV ? 0 : 1], NULL);
}

static PyObject *watch_kernel(PyObject *Py_UNUSED(module), PyObject *arguments) {
    unsigned long long first, end;
    const char *text;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(arguments, "KKy#:watch_kernel", &first, &end, &text, &length))
        return NULL;
    struct table *old = atomic_load(&in_force), *table = old;
    size_t count = old == NULL ? 0 : atomic_load(&old->count);
    if (old == NULL || count == old->room) {
        size_t room = 2 * count + 16;
        table = calloc(1, sizeof *table + room * sizeof(struct kernel));
        if (table == NULL)
            return PyErr_NoMemory();
        table->room = room;
    }
    char *kept = malloc((size_t)length + 1);
    if (kept == NULL) {
        if (table != old)
            free(table);
        return PyErr_NoMemory();
    }
    memcpy(kept, text, (size_t)length);
    if (table != old && count > 0)
        memcpy(table->kernels, old->kernels, count * sizeof(struct kernel));
    table->kernels[count] = (struct kernel){(uintptr_t)first, (uintptr_t)end, kept, (size_t)length};
    atomic_store(&table->count, count + 1);
    atomic_store(&in_force, table);
    if (old == NULL) {
        struct sigaction action = {.sa_sigaction = report, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        for (int each = 0; each < 2; each++)
            sigaction(signals[each], &action, &before[each]);
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"watch_kernel", watch_kernel, METH_VARARGS,
     "watch_kernel(first, end, text, /)\n--\n\nHas a signal that ends the process write bytes of "
     "text before, if it "
     "comes at an address from first to end. Call it with a lock held."},
    {NULL, NULL, 0, NULL},
};

int add_crash_reports(PyObject *module) {
    return PyModule_AddFunctions(module, methods);
}
#else
int add_crash_reports(PyObject *module) {
    return PyModule_AddObjectRef(module, "watch_kernel", Py_None);
}
#endif
