// The kernels by name, with what a launch needs to know of each.
#pragma once
#include <cstddef>
#include <cstdint>

// The host's address of a device address.
typedef void *(*Translate)(uint64_t);

struct Kernel {
    const char *name;
    // Its arguments: bytes of each, and whether it is an address.
    unsigned arguments;
    const unsigned *bytes;
    const bool *is_address;
    // Whether threads of a block meet at barriers in it.
    bool meets;
    // Makes a call of it out of `values`, in memory of `bound_bytes`.
    size_t bound_bytes;
    void (*bind)(void **values, Translate, void *bound);
    // Runs one thread of it.
    void (*thread)(const void *bound);
};

extern const Kernel kernels[];
extern const unsigned kernel_count;
