// CUDA C as C++ of the host: what the kernels use of the language.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>

struct Dim {
    unsigned x, y, z;
};

extern thread_local Dim blockIdx, threadIdx, blockDim, gridDim;

// Lets the other threads of the block come to the same place.
void meet_at_barrier();

#define __global__
#define __shared__ static thread_local
#define __syncthreads() meet_at_barrier()

static inline unsigned atomicAdd(unsigned *to, unsigned what)
{
    return __atomic_fetch_add(to, what, __ATOMIC_RELAXED);
}

using std::isfinite;
