// Settings by environment, violations, planned failures.
#include "standin.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

std::recursive_mutex tables;

static std::atomic<long> violations{0};

long setting(const char *name, long otherwise)
{
    const char *value = getenv(name);
    return value ? strtol(value, nullptr, 0) : otherwise;
}

// In one write, so that lines of threads do not mix.
static void say(const std::string &line) { (void)!write(2, line.data(), line.size()); }

void violation(const char *format, ...)
{
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    violations++;
    say(std::string("STANDIN VIOLATION: ") + text + "\n");
}

Result planned(const char *name)
{
    static std::map<std::string, long> calls;
    const char *plan = getenv("STANDIN_FAIL");
    char function[100];
    long nth;
    Result result;
    if (!plan || sscanf(plan, "%99[^:]:%ld:%d", function, &nth, &result) != 3 || strcmp(function, name))
        return OK;
    LOCK;
    long call = ++calls[name];
    return (nth < 0 ? call >= -nth : call == nth) ? result : OK;
}

static void report()
{
    std::string line = "STANDIN: violations " + std::to_string(violations.load());
    left_memory(line);
    say(line + "\n");
}

void report_at_exit()
{
    static std::once_flag once;
    std::call_once(once, [] { atexit(report); });
}
