// Streams: threads that do their work in order, each at its own pace.
#include "standin.h"

#include <unistd.h>

static void is_over(Work &work)
{
    for (auto &memory : work.uses)
        memory->uses--;
    for (auto range : work.host)
        use_host(range, -1);
    if (work.signals) {
        std::lock_guard<std::mutex> lock(work.signals->mutex);
        work.signals->is_done = true;
        work.signals->changed.notify_all();
    }
}

static void run(Stream &stream, Work &work, long longest)
{
    // Every fourth is late.
    uint64_t luck = longest ? stream.random() : 1;
    if (luck % 4 == 0)
        usleep(luck / 4 % (longest + 1));
    if (work.waits) {
        std::unique_lock<std::mutex> lock(work.waits->mutex);
        work.waits->changed.wait(lock, [&] { return work.waits->is_done; });
    }
    if (work.run && !stream.context->failed)
        if (Result result = work.run())
            stream.context->failed = result;
    is_over(work);
}

static void serve(Stream &stream)
{
    long longest = setting("STANDIN_DELAY_US", 0);
    std::unique_lock<std::mutex> lock(stream.mutex);
    for (;;) {
        stream.changed.wait(lock, [&] { return stream.ends || !stream.work.empty(); });
        if (stream.work.empty())
            return;
        Work work = std::move(stream.work.front());
        stream.work.pop_front();
        stream.busy = true;
        lock.unlock();
        run(stream, work, longest);
        work = Work{};
        lock.lock();
        stream.busy = false;
        stream.changed.notify_all();
    }
}

StreamRef new_stream(Context *context)
{
    static std::atomic<uint64_t> number{0};
    auto stream = std::make_shared<Stream>();
    stream->context = context;
    stream->random.seed(setting("STANDIN_SEED", 1) * 1000 + ++number);
    stream->thread = std::thread([raw = stream.get()] { serve(*raw); });
    return stream;
}

void put(Stream &stream, Work work)
{
    for (auto &memory : work.uses)
        memory->uses++;
    for (auto range : work.host)
        use_host(range, 1);
    std::lock_guard<std::mutex> lock(stream.mutex);
    stream.work.push_back(std::move(work));
    stream.changed.notify_all();
}

void drain(Stream &stream)
{
    std::unique_lock<std::mutex> lock(stream.mutex);
    stream.changed.wait(lock, [&] { return stream.work.empty() && !stream.busy; });
}

bool is_idle(Stream &stream)
{
    std::lock_guard<std::mutex> lock(stream.mutex);
    return stream.work.empty() && !stream.busy;
}

void stop(Stream &stream)
{
    {
        std::lock_guard<std::mutex> lock(stream.mutex);
        stream.ends = true;
        stream.changed.notify_all();
    }
    stream.thread.join();
}
