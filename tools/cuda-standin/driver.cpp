// The functions of the driver: what each asks of its caller, and what it does.
#include "standin.h"

#include <cstdio>
#include <cstring>

namespace {

struct Event {
    Context *context;
    // That of the last record.
    std::shared_ptr<Moment> moment;
};

struct Module {
    Context *context;
    // Bytes of the arguments of each entry, by name.
    std::map<std::string, std::vector<unsigned>> entries;
};

struct Function {
    Context *context;
    const Kernel *kernel;
};

bool initialized;
Handle last_handle = 0x5151000000001000;
std::map<Handle, std::shared_ptr<Context>> contexts;
std::map<int, Handle> primary;
std::map<Context *, StreamRef> default_streams;
std::map<Handle, StreamRef> streams;
std::map<Handle, std::shared_ptr<Event>> events;
std::map<Handle, Module> modules;
std::map<Handle, Function> functions;
thread_local Handle current;

int gpus() { return (int)setting("STANDIN_GPUS", 1); }

Handle new_handle() { return last_handle += 64; }

// What every call begins with.
#define ENTER(name)                                                                                \
    LOCK;                                                                                          \
    if (Result wanted = planned(name))                                                             \
        return wanted;                                                                             \
    if (!initialized && strcmp(name, "cuInit")) {                                                  \
        violation("%s before cuInit", name);                                                       \
        return NOT_INITIALIZED;                                                                    \
    }

// The current context, which has to be there and not to have failed.
#define IN_CONTEXT(name)                                                                           \
    ENTER(name)                                                                                    \
    Context *context = current_context(name);                                                      \
    if (!context)                                                                                  \
        return INVALID_CONTEXT;                                                                    \
    if (Result failed = context->failed)                                                           \
        return failed;

} // namespace

Context *current_context(const char *caller)
{
    auto found = contexts.find(current);
    if (found == contexts.end() || !found->second->alive) {
        violation("%s without a context that is there", caller);
        return nullptr;
    }
    return found->second.get();
}

StreamRef stream_of(Handle handle, Context *context, const char *caller)
{
    auto found = streams.find(handle);
    if (found == streams.end()) {
        violation("%s: no such stream", caller);
        return nullptr;
    }
    if (found->second->context != context)
        violation("%s: a stream of another context than the current one", caller);
    return found->second;
}

namespace {

StreamRef default_stream(Context *context)
{
    auto &stream = default_streams[context];
    if (!stream)
        stream = new_stream(context);
    return stream;
}

std::shared_ptr<Event> event_of(Handle handle, const char *caller)
{
    auto found = events.find(handle);
    if (found != events.end())
        return found->second;
    violation("%s: no such event", caller);
    return nullptr;
}

template <class T> void end_of_context(std::map<Handle, T> &table, Context *context)
{
    for (auto at = table.begin(); at != table.end();)
        at = at->second.context == context ? table.erase(at) : std::next(at);
}

void destroy(Context *context)
{
    for (auto &[handle, stream] : streams)
        if (stream->context == context)
            violation("a context goes while a stream of it is there");
    for (auto &[handle, event] : events)
        if (event->context == context)
            violation("a context goes while an event of it is there");
    memory_of_context_goes(context);
    if (auto stream = default_streams[context])
        stop(*stream);
    default_streams.erase(context);
    end_of_context(modules, context);
    end_of_context(functions, context);
    context->alive = false;
}

// Bytes of the parameters in a list of PTX: `.param .u64 a, .param .u32 b`.
std::vector<unsigned> parameters(const std::string &list)
{
    std::vector<unsigned> bytes;
    for (size_t at = 0; (at = list.find(".param .", at)) != std::string::npos; at += 8) {
        std::string kind = list.substr(at + 8, 3);
        bytes.push_back(kind == "u64" ? 8 : kind == "u32" || kind == "f32" ? 4 : 0);
    }
    return bytes;
}

Result read_ptx(const std::string &text, Module &module)
{
    int major = 0, minor = 0;
    size_t version = text.find(".version ");
    if (version == std::string::npos)
        return INVALID_PTX;
    sscanf(text.c_str() + version, ".version %d.%d", &major, &minor);
    if (major * 10 + minor > setting("STANDIN_PTX", 78))
        return UNSUPPORTED_PTX_VERSION;
    const std::string entry = ".visible .entry ";
    for (size_t at = 0; (at = text.find(entry, at)) != std::string::npos;) {
        at += entry.size();
        size_t open = text.find('(', at), close = text.find(')', open);
        module.entries[text.substr(at, open - at)] = parameters(text.substr(open, close - open));
    }
    return OK;
}

const Kernel *kernel_of(const std::string &name, const std::vector<unsigned> &bytes)
{
    for (unsigned i = 0; i < kernel_count; i++) {
        const Kernel &kernel = kernels[i];
        if (name != kernel.name)
            continue;
        std::vector<unsigned> own(kernel.bytes, kernel.bytes + kernel.arguments);
        if (own != bytes)
            violation("%s takes other arguments in PTX than in CUDA C", kernel.name);
        return &kernel;
    }
    return nullptr;
}

// A copy between host and device, on a stream.
Result copy(bool up, Address device, Range host, Handle handle, const char *name)
{
    StreamRef stream;
    bool pageable;
    {
        IN_CONTEXT(name)
        stream = stream_of(handle, context, name);
        Memory memory = memory_at(device, host.bytes, name);
        int kind = registered(host);
        if (!stream || !memory || kind < 0 || !is_mapped(host, !up)) {
            violation("%s: host memory %#lx+%zu cannot be used", name, host.at, host.bytes);
            return INVALID_VALUE;
        }
        if (memory->context != context)
            violation("%s: memory of another context", name);
        pageable = kind == 0;
        char *there = memory->memory + (device - memory->address), *here = (char *)host.at;
        Work work;
        work.what = name;
        work.uses = {memory};
        if (pageable && up) {
            // The driver takes it when it is called.
            auto taken = std::make_shared<std::string>(here, host.bytes);
            work.run = [=] { return memcpy(there, taken->data(), taken->size()), OK; };
        } else {
            work.host = {host};
            work.run = [=] {
                bool copied = copy_checked(up ? there : here, up ? here : there, host.bytes);
                if (!copied)
                    violation("%s: host memory went while the copy was on its stream", name);
                return copied ? OK : ILLEGAL_ADDRESS;
            };
        }
        put(*stream, std::move(work));
    }
    // Down to memory that is not registered, the call is the copy.
    if (pageable && !up)
        drain(*stream);
    return stream->context->failed;
}

} // namespace

extern "C" {

Result cuInit(unsigned flags)
{
    ENTER("cuInit")
    initialized = true;
    report_at_exit();
    return flags ? INVALID_VALUE : OK;
}

Result cuDriverGetVersion(int *version)
{
    *version = 11080;
    return OK;
}

Result cuGetErrorName(Result result, const char **name)
{
    static const std::map<Result, const char *> names = {
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {100, "CUDA_ERROR_NO_DEVICE"},
        {UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
        {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
    };
    auto found = names.find(result);
    *name = found == names.end() ? nullptr : found->second;
    return *name ? OK : INVALID_VALUE;
}

Result cuGetErrorString(Result result, const char **text) { return cuGetErrorName(result, text); }

Result cuDeviceGetCount(int *count)
{
    ENTER("cuDeviceGetCount")
    *count = gpus();
    return OK;
}

Result cuDeviceGet(int *device, int index)
{
    ENTER("cuDeviceGet")
    *device = index;
    return index >= 0 && index < gpus() ? OK : INVALID_DEVICE;
}

Result cuDeviceGetName(char *name, int bytes, int device)
{
    ENTER("cuDeviceGetName")
    snprintf(name, bytes, "Stand-in %d", device);
    return OK;
}

Result cuDeviceGetUuid(unsigned char *uuid, int device)
{
    ENTER("cuDeviceGetUuid")
    memset(uuid, 0xf0 + device, 16);
    return OK;
}

Result cuDeviceGetAttribute(int *value, int attribute, int device)
{
    ENTER("cuDeviceGetAttribute")
    const int bus = 33;
    // The last GPU is first on the bus.
    *value = attribute == bus ? gpus() - device : 0;
    return OK;
}

Result cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags)
{
    ENTER("cuDevicePrimaryCtxSetFlags_v2")
    if (flags != 4)
        violation("waits of this context take a core");
    return OK;
}

Result cuDevicePrimaryCtxRetain(Handle *context, int device)
{
    ENTER("cuDevicePrimaryCtxRetain")
    Handle &handle = primary[device];
    if (!handle) {
        handle = new_handle();
        contexts[handle] = std::make_shared<Context>();
        contexts[handle]->device = device;
    }
    contexts[handle]->retained++;
    *context = handle;
    return OK;
}

Result cuDevicePrimaryCtxRelease_v2(int device)
{
    ENTER("cuDevicePrimaryCtxRelease_v2")
    Handle handle = primary[device];
    if (!handle) {
        violation("release of a context that is not retained");
        return INVALID_CONTEXT;
    }
    auto context = contexts[handle];
    if (--context->retained == 0) {
        destroy(context.get());
        primary.erase(device);
    }
    return OK;
}

Result cuCtxSetCurrent(Handle handle)
{
    ENTER("cuCtxSetCurrent")
    auto found = contexts.find(handle);
    if (found == contexts.end() || !found->second->alive) {
        violation("cuCtxSetCurrent of a context that is gone");
        return INVALID_CONTEXT;
    }
    current = handle;
    return OK;
}

Result cuCtxSynchronize()
{
    std::vector<StreamRef> all;
    Context *waited;
    {
        IN_CONTEXT("cuCtxSynchronize")
        waited = context;
        all.push_back(default_stream(context));
        for (auto &[handle, stream] : streams)
            if (stream->context == context)
                all.push_back(stream);
    }
    for (auto &stream : all)
        drain(*stream);
    return waited->failed;
}

Result cuModuleLoadDataEx(Handle *handle, const void *image, unsigned options, const unsigned *,
                          void **)
{
    IN_CONTEXT("cuModuleLoadDataEx")
    Module module = {context, {}};
    if (Result wrong = read_ptx((const char *)image, module))
        return wrong;
    *handle = new_handle();
    modules[*handle] = module;
    return OK;
}

Result cuModuleGetFunction(Handle *handle, Handle of, const char *name)
{
    IN_CONTEXT("cuModuleGetFunction")
    auto module = modules.find(of);
    if (module == modules.end()) {
        violation("cuModuleGetFunction: no such module");
        return INVALID_HANDLE;
    }
    auto entry = module->second.entries.find(name);
    if (entry == module->second.entries.end())
        return NOT_FOUND;
    const Kernel *kernel = kernel_of(name, entry->second);
    if (!kernel)
        return NOT_FOUND;
    *handle = new_handle();
    functions[*handle] = {module->second.context, kernel};
    return OK;
}

Result cuMemAlloc_v2(Address *address, size_t bytes)
{
    IN_CONTEXT("cuMemAlloc_v2")
    return allocate(context, bytes, address);
}

Result cuMemFree_v2(Address address)
{
    Context *own;
    {
        IN_CONTEXT("cuMemFree_v2")
        own = context;
    }
    return free_memory(own, address);
}

// Later, on the default stream, as the driver does it.
Result cuMemsetD8_v2(Address address, unsigned char value, size_t bytes)
{
    IN_CONTEXT("cuMemsetD8_v2")
    Memory memory = memory_at(address, bytes, "cuMemsetD8");
    if (!memory)
        return INVALID_VALUE;
    char *at = memory->memory + (address - memory->address);
    Work work;
    work.what = "memset";
    work.uses = {memory};
    work.run = [=] { return memset(at, value, bytes), OK; };
    put(*default_stream(context), std::move(work));
    return OK;
}

Result cuIpcGetMemHandle(char *handle, Address address)
{
    IN_CONTEXT("cuIpcGetMemHandle")
    Memory memory = memory_at(address, 1, "cuIpcGetMemHandle");
    if (!memory || memory->address != address) {
        violation("cuIpcGetMemHandle of an address at which no memory begins");
        return INVALID_VALUE;
    }
    export_memory(memory, handle);
    return OK;
}

Result cuIpcOpenMemHandle_v2(Address *address, IpcHandle handle, unsigned flags)
{
    IN_CONTEXT("cuIpcOpenMemHandle_v2")
    if (flags != 1)
        return INVALID_VALUE;
    return import_memory(context, handle.bytes, address);
}

Result cuIpcCloseMemHandle(Address address)
{
    IN_CONTEXT("cuIpcCloseMemHandle")
    return close_imported(address);
}

Result cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    IN_CONTEXT("cuMemHostRegister_v2")
    return register_host({(uintptr_t)at, bytes});
}

Result cuMemHostUnregister(void *at)
{
    IN_CONTEXT("cuMemHostUnregister")
    return unregister_host((uintptr_t)at);
}

Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, Handle stream)
{
    return copy(true, to, {(uintptr_t)from, bytes}, stream, "cuMemcpyHtoDAsync_v2");
}

Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, Handle stream)
{
    return copy(false, from, {(uintptr_t)to, bytes}, stream, "cuMemcpyDtoHAsync_v2");
}

Result cuStreamCreate(Handle *handle, unsigned flags)
{
    IN_CONTEXT("cuStreamCreate")
    if (flags != 1)
        violation("a stream that waits for the default stream");
    *handle = new_handle();
    streams[*handle] = new_stream(context);
    return OK;
}

Result cuStreamDestroy_v2(Handle handle)
{
    StreamRef stream;
    {
        IN_CONTEXT("cuStreamDestroy_v2")
        stream = stream_of(handle, context, "cuStreamDestroy");
        if (!stream)
            return INVALID_HANDLE;
        if (!is_idle(*stream))
            violation("cuStreamDestroy of a stream with work on it");
        streams.erase(handle);
    }
    stop(*stream);
    return OK;
}

Result cuStreamSynchronize(Handle handle)
{
    StreamRef stream;
    {
        IN_CONTEXT("cuStreamSynchronize")
        stream = stream_of(handle, context, "cuStreamSynchronize");
        if (!stream)
            return INVALID_HANDLE;
    }
    drain(*stream);
    return stream->context->failed;
}

Result cuStreamWaitEvent(Handle handle, Handle of, unsigned)
{
    IN_CONTEXT("cuStreamWaitEvent")
    auto stream = stream_of(handle, context, "cuStreamWaitEvent");
    auto event = event_of(of, "cuStreamWaitEvent");
    if (!stream || !event)
        return INVALID_HANDLE;
    if (!event->moment) {
        violation("cuStreamWaitEvent on an event that was never recorded");
        return OK;
    }
    Work work;
    work.what = "wait";
    work.waits = event->moment;
    put(*stream, std::move(work));
    return OK;
}

Result cuEventCreate(Handle *handle, unsigned flags)
{
    IN_CONTEXT("cuEventCreate")
    if (!(flags & 1))
        violation("waits for an event take a core");
    *handle = new_handle();
    events[*handle] = std::make_shared<Event>(Event{context, nullptr});
    return OK;
}

Result cuEventDestroy_v2(Handle handle)
{
    IN_CONTEXT("cuEventDestroy_v2")
    if (!event_of(handle, "cuEventDestroy"))
        return INVALID_HANDLE;
    events.erase(handle);
    return OK;
}

Result cuEventRecord(Handle of, Handle handle)
{
    IN_CONTEXT("cuEventRecord")
    auto stream = stream_of(handle, context, "cuEventRecord");
    auto event = event_of(of, "cuEventRecord");
    if (!stream || !event)
        return INVALID_HANDLE;
    if (event->context != stream->context)
        violation("cuEventRecord across contexts");
    Work work;
    work.what = "event";
    event->moment = work.signals = std::make_shared<Moment>();
    put(*stream, std::move(work));
    return OK;
}

Result cuEventQuery(Handle handle)
{
    IN_CONTEXT("cuEventQuery")
    auto event = event_of(handle, "cuEventQuery");
    if (!event)
        return INVALID_HANDLE;
    if (!event->moment)
        return OK;
    std::lock_guard<std::mutex> lock(event->moment->mutex);
    return event->moment->is_done ? (Result)context->failed : (Result)NOT_READY;
}

Result cuEventSynchronize(Handle handle)
{
    std::shared_ptr<Event> event;
    {
        IN_CONTEXT("cuEventSynchronize")
        event = event_of(handle, "cuEventSynchronize");
        if (!event)
            return INVALID_HANDLE;
    }
    if (auto moment = event->moment) {
        std::unique_lock<std::mutex> lock(moment->mutex);
        moment->changed.wait(lock, [&] { return moment->is_done; });
    }
    return event->context->failed;
}

Result cuLaunchKernel(Handle handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                      unsigned by, unsigned bz, unsigned shared, Handle on, void **arguments,
                      void **extra)
{
    IN_CONTEXT("cuLaunchKernel")
    auto found = functions.find(handle);
    auto stream = stream_of(on, context, "cuLaunchKernel");
    if (found == functions.end() || !stream)
        return INVALID_HANDLE;
    auto [of, kernel] = found->second;
    if (of != context)
        violation("launch of %s, of another context", kernel->name);
    if (!gx || !gy || !gz || gx > 0x7fffffff || gy > 65535 || gz > 65535 || !bx || !by || !bz ||
        (uint64_t)bx * by * bz > 1024 || bz > 64 || shared || extra || !arguments) {
        violation("launch of %s: grid %u %u %u, block %u %u %u", kernel->name, gx, gy, gz, bx, by, bz);
        return INVALID_VALUE;
    }
    Work work;
    work.what = kernel->name;
    auto values = std::make_shared<std::vector<uint64_t>>(kernel->arguments);
    for (unsigned i = 0; i < kernel->arguments; i++) {
        memcpy(&(*values)[i], arguments[i], kernel->bytes[i]);
        if (!kernel->is_address[i])
            continue;
        Memory memory = memory_at((*values)[i], 4, kernel->name);
        if (!memory)
            return ILLEGAL_ADDRESS;
        if (memory->context != context)
            violation("launch of %s: argument %u is of another context", kernel->name, i);
        work.uses.push_back(memory);
    }
    Dim grid = {gx, gy, gz}, block = {bx, by, bz};
    Result fails = planned("kernel");
    work.run = [kernel = kernel, values, grid, block, fails]() -> Result {
        if (fails)
            return fails;
        std::vector<void *> at;
        for (auto &value : *values)
            at.push_back(&value);
        std::vector<std::max_align_t> bound(kernel->bound_bytes / sizeof(std::max_align_t) + 1);
        kernel->bind(at.data(), host_address, bound.data());
        run_kernel(kernel, bound.data(), grid, block);
        return OK;
    };
    put(*stream, std::move(work));
    return OK;
}

} // extern "C"
