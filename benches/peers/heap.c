// Counts the bytes that are live on the heap, and the most there were, as rekindle-alloc does: for LD_PRELOAD, on glibc.
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static atomic_long live, most;

static void add(long bytes) {
    long now = atomic_fetch_add(&live, bytes) + bytes, before = most;
    while (now > before && !atomic_compare_exchange_weak(&most, &before, now)) {}
}

static void *taken(void *place) {
    add(malloc_usable_size(place));
    return place;
}

long heap_live(void) { return live; }
long heap_peak(void) { return most; }
void heap_restart(void) { most = live; }

void *malloc(size_t bytes) { return taken(__libc_malloc(bytes)); }
void *calloc(size_t count, size_t bytes) { return taken(__libc_calloc(count, bytes)); }
void *memalign(size_t to, size_t bytes) { return taken(__libc_memalign(to, bytes)); }
void *aligned_alloc(size_t to, size_t bytes) { return memalign(to, bytes); }

int posix_memalign(void **place, size_t to, size_t bytes) {
    *place = memalign(to, bytes);
    return *place ? 0 : ENOMEM;
}

void *realloc(void *place, size_t bytes) {
    long before = malloc_usable_size(place);
    void *moved = __libc_realloc(place, bytes);
    if (moved || !bytes) add((long)malloc_usable_size(moved) - before);
    return moved;
}

void free(void *place) {
    add(-(long)malloc_usable_size(place));
    __libc_free(place);
}
