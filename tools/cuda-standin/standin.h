// What the parts of the stand-in share: its checks, its memory, its streams.
#pragma once
#include "kernels.h"
#include "shim.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

typedef int Result;
typedef uint64_t Address;
typedef uint64_t Handle;

enum : Result {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
};

// checks.cpp

long setting(const char *name, long otherwise);
// The caller broke a contract.
void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
// The result that STANDIN_FAIL wants of this call; 0: none.
Result planned(const char *name);
// Says at the end what is left.
void report_at_exit();

// One lock for all tables. No work of a stream runs under it.
extern std::recursive_mutex tables;
#define LOCK std::lock_guard<std::recursive_mutex> lock_(tables)

// blocks.cpp

void run_kernel(const Kernel *, const void *bound, Dim grid, Dim size);

// memory.cpp

struct Context {
    int device;
    int retained = 0;
    bool alive = true;
    // The error that ends it.
    std::atomic<Result> failed{0};
};

struct Allocation {
    Context *context;
    Address address;
    size_t bytes;
    // Where the host has it, and the whole mapping with its guards.
    char *memory, *mapping;
    size_t mapped;
    // What has it, for other processes.
    int file = -1;
    bool live = true;
    // Opened by a handle of another process.
    bool imported = false;
    // Work on streams that uses it.
    std::atomic<int> uses{0};
};
typedef std::shared_ptr<Allocation> Memory;

struct Range {
    uintptr_t at;
    size_t bytes;
};

Result allocate(Context *, size_t bytes, Address *);
Result free_memory(Context *, Address);
// CUipcMemHandle: here process, file and bytes, as text.
struct IpcHandle {
    char bytes[64];
};
void export_memory(const Memory &, char handle[64]);
Result import_memory(Context *, const char handle[64], Address *);
Result close_imported(Address);
// The allocation around `bytes` at an address; null: none, which is a violation of `caller`.
Memory memory_at(Address, size_t bytes, const char *caller);
void *host_address(Address);
bool is_mapped(Range, bool writable);
// 1: within a registered range; 0: outside of all; -1: across the end of one.
int registered(Range);
Result register_host(Range);
Result unregister_host(uintptr_t);
// Notes, and forgets, that work uses memory of the host.
void use_host(Range, int more);
// Copies, or gives false where there is no memory.
bool copy_checked(char *to, const char *from, size_t bytes);
void left_memory(std::string &);
void memory_of_context_goes(Context *);

// streams.cpp

struct Moment {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_done = false;
};

struct Work {
    const char *what = "";
    std::function<Result()> run;
    std::shared_ptr<Moment> signals, waits;
    std::vector<Memory> uses;
    std::vector<Range> host;
};

struct Stream {
    Context *context;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Work> work;
    bool busy = false, ends = false;
    std::mt19937_64 random;
    std::thread thread;
};
typedef std::shared_ptr<Stream> StreamRef;

// Of this thread, and of a handle: null and a violation of `caller` where there is none.
Context *current_context(const char *caller);
StreamRef stream_of(Handle, Context *, const char *caller);
StreamRef new_stream(Context *);
void put(Stream &, Work);
void drain(Stream &);
bool is_idle(Stream &);
void stop(Stream &);
