// The kernels of the project, compiled as C++. `KERNELS` is their list: build.sh makes it.
#include "shim.h"

#include "net.cu"
#include "sync.cu"

#include "kernels.h"

#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

template <class T> static T value_of(const void *at, Translate translate)
{
    if constexpr (std::is_pointer_v<T>)
        return (T)translate(*(const uint64_t *)at);
    else
        return *(const T *)at;
}

// A kernel by the types of its own arguments.
template <auto F> struct Call;

template <class... A, void (*F)(A...)> struct Call<F> {
    using Values = std::tuple<A...>;
    static constexpr unsigned bytes[] = {(unsigned)sizeof(A)...};
    static constexpr bool is_address[] = {std::is_pointer_v<A>...};

    template <size_t... I>
    static Values values(void **at, Translate translate, std::index_sequence<I...>)
    {
        return Values{value_of<std::tuple_element_t<I, Values>>(at[I], translate)...};
    }

    static void bind(void **at, Translate translate, void *bound)
    {
        new (bound) Values(values(at, translate, std::make_index_sequence<sizeof...(A)>()));
    }

    static void thread(const void *bound) { std::apply(F, *(const Values *)bound); }

    static constexpr Kernel named(const char *name, bool meets)
    {
        return {name, sizeof...(A), bytes, is_address, meets, sizeof(Values), &bind, &thread};
    }
};

#define KERNEL(name, meets) Call<&name>::named(#name, meets),
const Kernel kernels[] = {KERNELS};
const unsigned kernel_count = sizeof(kernels) / sizeof(kernels[0]);
