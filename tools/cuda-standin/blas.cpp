// The part of cuBLAS that is used: products of matrices by columns.
#include "standin.h"

#include <cmath>
#include <cstring>

enum : Result { BLAS_NOT_INITIALIZED = 1, BLAS_INVALID_VALUE = 7, BLAS_NOT_SUPPORTED = 15 };
// How factors are rounded, as cublas_api.h has it, and what lies in memory.
enum { COMPUTE_32F = 68, COMPUTE_32F_FAST_16BF = 75, COMPUTE_32F_FAST_TF32 = 77, R_32F = 0 };

namespace {

struct Blas {
    Context *context;
    Handle stream = 0;
};

std::map<Handle, Blas> blases;

// Each function begins so.
#define ENTER(name)                                                                                \
    LOCK;                                                                                          \
    if (Result wanted = planned(name))                                                             \
        return wanted;                                                                             \
    Context *context = current_context(name);                                                      \
    if (!context)                                                                                  \
        return BLAS_NOT_INITIALIZED;

Blas *blas_of(Handle handle, Context *context, const char *caller)
{
    auto found = blases.find(handle);
    if (found == blases.end()) {
        violation("%s: no such handle", caller);
        return nullptr;
    }
    if (found->second.context != context)
        violation("%s: a handle of another context than the current one", caller);
    return &found->second;
}

struct Matrix {
    Address at;
    bool transposed;
    int step;

    // Element of the matrix that is multiplied.
    float of(const float *memory, int row, int column) const
    {
        return transposed ? memory[column + (size_t)row * step] : memory[row + (size_t)column * step];
    }
};

// `x` with `dropped` bits less, to the nearest, of two as near to the even one.
float rounded(float x, int dropped)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (dropped && std::isfinite(x)) {
        bits += (1u << (dropped - 1)) - 1 + (bits >> dropped & 1);
        bits &= ~0u << dropped;
    }
    memcpy(&x, &bits, 4);
    return x;
}

} // namespace

extern "C" {

Result cublasCreate_v2(Handle *handle)
{
    ENTER("cublasCreate_v2")
    static Handle last = 0xb1a5000000000000;
    *handle = last += 64;
    blases[*handle] = {context};
    return OK;
}

Result cublasDestroy_v2(Handle handle)
{
    ENTER("cublasDestroy_v2")
    if (Blas *blas = blas_of(handle, context, "cublasDestroy_v2"))
        if (auto stream = stream_of(blas->stream, context, "cublasDestroy_v2"))
            drain(*stream);
    blases.erase(handle);
    return OK;
}

Result cublasSetStream_v2(Handle handle, Handle stream)
{
    ENTER("cublasSetStream_v2")
    Blas *blas = blas_of(handle, context, "cublasSetStream_v2");
    if (!blas || !stream_of(stream, context, "cublasSetStream_v2"))
        return BLAS_NOT_INITIALIZED;
    blas->stream = stream;
    return OK;
}

Result cublasGemmEx(Handle handle, int transposed_a, int transposed_b, int m, int n, int k,
                    const float *alpha, Address a, int type_a, int lda, Address b, int type_b,
                    int ldb, const float *beta, Address c, int type_c, int ldc, int compute,
                    int algorithm)
{
    ENTER("cublasGemmEx")
    Blas *blas = blas_of(handle, context, "cublasGemmEx");
    auto stream = blas ? stream_of(blas->stream, context, "cublasGemmEx") : nullptr;
    if (!stream)
        return BLAS_NOT_INITIALIZED;
    if (m < 1 || n < 1 || k < 1 || lda < (transposed_a ? k : m) || ldb < (transposed_b ? n : k) ||
        ldc < m) {
        violation("cublasGemmEx: %d x %d x %d by steps of %d, %d and %d", m, n, k, lda, ldb, ldc);
        return BLAS_INVALID_VALUE;
    }
    int dropped = compute == COMPUTE_32F ? 0 : compute == COMPUTE_32F_FAST_TF32 ? 13 : 16;
    bool known = dropped < 16 || compute == COMPUTE_32F_FAST_16BF;
    if (type_a != R_32F || type_b != R_32F || type_c != R_32F || !known || algorithm != -1)
        return BLAS_NOT_SUPPORTED;
    Matrix left = {a, transposed_a != 0, lda}, right = {b, transposed_b != 0, ldb};
    auto bytes = [](int columns, int step, int rows) {
        return 4 * ((size_t)(columns - 1) * step + rows);
    };
    Work work;
    work.what = "cublasGemmEx";
    struct { Address at; size_t bytes; } parts[] = {
        {a, transposed_a ? bytes(m, lda, k) : bytes(k, lda, m)},
        {b, transposed_b ? bytes(k, ldb, n) : bytes(n, ldb, k)},
        {c, bytes(n, ldc, m)},
    };
    for (auto &part : parts) {
        Memory memory = memory_at(part.at, part.bytes, "cublasGemmEx");
        if (!memory)
            return BLAS_INVALID_VALUE;
        if (memory->context != context)
            violation("cublasGemmEx: memory of another context");
        work.uses.push_back(memory);
    }
    float x = *alpha, y = *beta, wrong = setting("STANDIN_BLAS_WRONG", 0);
    work.run = [=]() -> Result {
        auto *from = (const float *)host_address(left.at), *by = (const float *)host_address(right.at);
        auto *to = (float *)host_address(c);
        for (int column = 0; column < n; column++)
            for (int row = 0; row < m; row++) {
                float sum = wrong;
                for (int i = 0; i < k; i++)
                    sum = std::fma(rounded(left.of(from, row, i), dropped),
                                   rounded(right.of(by, i, column), dropped), sum);
                float &place = to[row + (size_t)column * ldc];
                place = x * sum + (y == 0 ? 0 : y * place);
            }
        return OK;
    };
    put(*stream, std::move(work));
    return OK;
}

} // extern "C"
