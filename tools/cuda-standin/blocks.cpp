// Runs a kernel: block after block, thread after thread. Where threads of a block meet at a
// barrier, each is a fiber: it goes on when all others have come there.
#include "standin.h"

#include <cstdlib>
#include <vector>

thread_local Dim blockIdx, threadIdx, blockDim, gridDim;

// Saves the stack at `*save`, and goes on with another one (x86-64, System V).
extern "C" void switch_stack(void **save, void *to);
asm(R"(.text
.globl switch_stack
switch_stack:
    push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
    ret
)");

namespace {

const size_t STACK = 32768;

struct Fiber {
    void *stack;
    Dim index;
    bool ended;
};

struct Block {
    std::vector<Fiber> fibers;
    void *home;
    unsigned at;
    const Kernel *kernel;
    const void *bound;
};

thread_local Block *block;

void fiber_main()
{
    Block *own = block;
    own->kernel->thread(own->bound);
    Fiber &fiber = own->fibers[own->at];
    fiber.ended = true;
    switch_stack(&fiber.stack, own->home);
    abort();
}

void begin(Fiber &fiber, char *stack)
{
    void **top = (void **)(stack + STACK - 64);
    *--top = nullptr;
    *--top = (void *)fiber_main;
    for (int saved = 0; saved < 6; saved++)
        *--top = nullptr;
    fiber.stack = top;
}

void run_block(const Kernel *kernel, const void *bound, Dim size)
{
    static thread_local std::vector<char *> stacks;
    unsigned threads = size.x * size.y * size.z;
    while (stacks.size() < threads)
        stacks.push_back((char *)aligned_alloc(64, STACK));
    Block own;
    own.fibers.resize(threads);
    own.kernel = kernel;
    own.bound = bound;
    block = &own;
    for (unsigned i = 0; i < threads; i++) {
        own.fibers[i] = {nullptr, {i % size.x, i / size.x % size.y, i / size.x / size.y}, false};
        begin(own.fibers[i], stacks[i]);
    }
    for (unsigned left = threads; left > 0;) {
        unsigned ended = 0, waiting = 0;
        for (own.at = 0; own.at < threads; own.at++) {
            Fiber &fiber = own.fibers[own.at];
            if (fiber.ended)
                continue;
            threadIdx = fiber.index;
            switch_stack(&own.home, fiber.stack);
            (fiber.ended ? ended : waiting)++;
        }
        left -= ended;
        if (ended && waiting)
            violation("%s: threads of a block ended while others wait at __syncthreads", kernel->name);
    }
    block = nullptr;
}

// One after the other: none waits for another.
void run_threads(const Kernel *kernel, const void *bound, Dim size)
{
    for (unsigned z = 0; z < size.z; z++)
        for (unsigned y = 0; y < size.y; y++)
            for (unsigned x = 0; x < size.x; x++) {
                threadIdx = {x, y, z};
                kernel->thread(bound);
            }
}

} // namespace

void meet_at_barrier()
{
    Block *own = block;
    switch_stack(&own->fibers[own->at].stack, own->home);
}

void run_kernel(const Kernel *kernel, const void *bound, Dim grid, Dim size)
{
    gridDim = grid;
    blockDim = size;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = {x, y, z};
                if (kernel->meets)
                    run_block(kernel, bound, size);
                else
                    run_threads(kernel, bound, size);
            }
}
