// Memory of the device, at addresses at which the host has none, and memory of the host that is
// registered.
#include "standin.h"

#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

const size_t PAGE = 4096, ALIGN = 256;
// A NaN, which no kernel writes.
const char RUBBISH[] = "\xde\xad\xc0\x7f";

std::map<Address, Memory> allocations;
std::map<uintptr_t, size_t> registrations;
std::multiset<std::pair<uintptr_t, size_t>> host_uses;

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

void *reserve(size_t bytes)
{
    return mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

// Maps its file, and gives it addresses of the device.
bool map(Allocation &memory, size_t pages, size_t rounded)
{
    memory.mapping = (char *)reserve(memory.mapped);
    char *first = memory.mapping + PAGE;
    void *at = mmap(first, pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory.file, 0);
    // Its end lies at a guard, in the host's memory and in the device's addresses.
    memory.memory = first + (pages - rounded);
    memory.address = (Address)reserve(memory.mapped) + PAGE + (pages - rounded);
    return at == first;
}

// Takes it away, once no work uses it.
void unmap(Allocation &memory)
{
    while (memory.uses)
        usleep(100);
    // The device's addresses stay reserved: none is given twice.
    munmap(memory.mapping, memory.mapped);
    close(memory.file);
}

} // namespace

Result allocate(Context *context, size_t bytes, Address *address)
{
    if (bytes == 0)
        return INVALID_VALUE;
    if (bytes > (size_t)setting("STANDIN_MEMORY", 8l << 30))
        return OUT_OF_MEMORY;
    size_t rounded = round_up(bytes, ALIGN), pages = round_up(rounded, PAGE);
    auto memory = std::make_shared<Allocation>();
    memory->context = context;
    memory->bytes = bytes;
    memory->mapped = pages + 2 * PAGE;
    // A file, which another process can open by an IPC handle.
    memory->file = memfd_create("device memory", MFD_CLOEXEC);
    if (memory->file < 0 || ftruncate(memory->file, pages) || !map(*memory, pages, rounded))
        return OUT_OF_MEMORY;
    char *first = memory->mapping + PAGE;
    for (size_t at = 0; at + 4 <= pages; at += 4)
        memcpy(first + at, RUBBISH, 4);
    LOCK;
    allocations[memory->address] = memory;
    *address = memory->address;
    return OK;
}

Result free_memory(Context *context, Address address)
{
    Memory memory;
    {
        LOCK;
        auto found = allocations.find(address);
        if (found == allocations.end() || !found->second->live) {
            violation("cuMemFree of %#lx, which is not allocated", address);
            return INVALID_VALUE;
        }
        memory = found->second;
        if (memory->context != context)
            violation("cuMemFree in another context than it was allocated in");
        if (memory->imported)
            violation("cuMemFree of %#lx, which another process has allocated", address);
        if (memory->uses)
            violation("cuMemFree of %#lx while work on a stream uses it", address);
        for (size_t at = round_up(memory->bytes, 4); at + 4 <= round_up(memory->bytes, ALIGN); at += 4)
            if (memcmp(memory->memory + at, RUBBISH, 4)) {
                violation("words were written behind %#lx+%zu", address, memory->bytes);
                break;
            }
        memory->live = false;
    }
    unmap(*memory);
    return OK;
}

void export_memory(const Memory &memory, char handle[64])
{
    snprintf(handle, 64, "%d %d %zu", getpid(), memory->file, memory->bytes);
}

Result import_memory(Context *context, const char handle[64], Address *address)
{
    int process, file;
    auto memory = std::make_shared<Allocation>();
    if (sscanf(handle, "%d %d %zu", &process, &file, &memory->bytes) != 3)
        return INVALID_VALUE;
    if (process == getpid()) {
        violation("cuIpcOpenMemHandle of memory of this process");
        return INVALID_CONTEXT;
    }
    std::string name = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
    memory->file = open(name.c_str(), O_RDWR | O_CLOEXEC);
    if (memory->file < 0)
        return INVALID_VALUE;
    size_t rounded = round_up(memory->bytes, ALIGN), pages = round_up(rounded, PAGE);
    memory->context = context;
    memory->imported = true;
    memory->mapped = pages + 2 * PAGE;
    if (!map(*memory, pages, rounded))
        return OUT_OF_MEMORY;
    LOCK;
    allocations[memory->address] = memory;
    *address = memory->address;
    return OK;
}

Result close_imported(Address address)
{
    Memory memory;
    {
        LOCK;
        auto found = allocations.find(address);
        if (found == allocations.end() || !found->second->live || !found->second->imported) {
            violation("cuIpcCloseMemHandle of %#lx, which was not opened", address);
            return INVALID_VALUE;
        }
        memory = found->second;
        if (memory->uses)
            violation("cuIpcCloseMemHandle of %#lx while work on a stream uses it", address);
        memory->live = false;
    }
    unmap(*memory);
    return OK;
}

Memory memory_at(Address address, size_t bytes, const char *caller)
{
    LOCK;
    auto next = allocations.upper_bound(address);
    if (next == allocations.begin()) {
        violation("%s: %#lx is no address of the device", caller, address);
        return nullptr;
    }
    Memory memory = std::prev(next)->second;
    if (address + bytes > memory->address + memory->bytes) {
        violation("%s: %#lx+%zu is outside of all memory of the device", caller, address, bytes);
        return nullptr;
    }
    if (!memory->live) {
        violation("%s: %#lx was freed", caller, address);
        return nullptr;
    }
    return memory;
}

void *host_address(Address address)
{
    Memory memory = memory_at(address, 0, "a kernel");
    return memory ? memory->memory + (address - memory->address) : nullptr;
}

bool is_mapped(Range range, bool writable)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[600], rights[8];
    uintptr_t at = range.at, from, to, end = range.at + range.bytes;
    while (at < end && fgets(line, sizeof line, maps)) {
        bool read = sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3;
        if (read && from <= at && at < to && rights[0] == 'r' && (!writable || rights[1] == 'w'))
            at = to;
    }
    fclose(maps);
    return at >= end;
}

int registered(Range range)
{
    LOCK;
    for (auto [at, bytes] : registrations) {
        if (at <= range.at && range.at + range.bytes <= at + bytes)
            return 1;
        if (range.at < at + bytes && at < range.at + range.bytes)
            return -1;
    }
    return 0;
}

Result register_host(Range range)
{
    LOCK;
    if (range.bytes == 0)
        return INVALID_VALUE;
    if (!is_mapped(range, true)) {
        violation("cuMemHostRegister of memory that cannot be written");
        return INVALID_VALUE;
    }
    for (auto [at, bytes] : registrations)
        if (range.at < at + bytes && at < range.at + range.bytes)
            return HOST_MEMORY_ALREADY_REGISTERED;
    registrations[range.at] = range.bytes;
    return OK;
}

Result unregister_host(uintptr_t at)
{
    LOCK;
    auto found = registrations.find(at);
    if (found == registrations.end()) {
        violation("cuMemHostUnregister of %#lx, which is not registered", at);
        return HOST_MEMORY_NOT_REGISTERED;
    }
    Range range = {at, found->second};
    for (auto [used, bytes] : host_uses)
        if (used < at + range.bytes && at < used + bytes) {
            violation("cuMemHostUnregister of %#lx while a copy on a stream uses it", at);
            break;
        }
    if (!is_mapped(range, true))
        violation("cuMemHostUnregister of %#lx after it was unmapped", at);
    registrations.erase(found);
    return OK;
}

void use_host(Range range, int more)
{
    LOCK;
    auto key = std::make_pair(range.at, range.bytes);
    if (more > 0)
        host_uses.insert(key);
    else
        host_uses.erase(host_uses.find(key));
}

bool copy_checked(char *to, const char *from, size_t bytes)
{
    const size_t most = 1 << 16;
    while (bytes) {
        size_t part = bytes < most ? bytes : most;
        struct iovec there = {to, part}, here = {(void *)from, part};
        ssize_t copied = process_vm_readv(getpid(), &there, 1, &here, 1, 0);
        if (copied <= 0)
            return false;
        to += copied, from += copied, bytes -= copied;
    }
    return true;
}

void left_memory(std::string &line)
{
    LOCK;
    size_t live = 0;
    for (auto &[at, memory] : allocations)
        live += memory->live;
    line += "; left: " + std::to_string(live) + " allocations, " + std::to_string(registrations.size()) +
            " registered";
}

void memory_of_context_goes(Context *context)
{
    LOCK;
    for (auto &[at, memory] : allocations)
        if (memory->live && memory->context == context)
            violation("a context goes while memory %#lx+%zu of it is there", at, memory->bytes);
}
