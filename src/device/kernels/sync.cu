// Kernels of the GPU syncer, and of what measures it. Their Rust twins and what they mean are in sync.rs.
// Compiled without -use_fast_math: x + 0.0f must stay, and differences must be exact.

extern "C" __global__ void take_position(
    float *w, float *last, const float *position, float *out_told,
    unsigned int n, unsigned int tag)
{
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float d = w[i] - last[i];
    unsigned int *told = (unsigned int *)out_told;
    float *out = out_told + 16;
    if (!isfinite(d)) {
        atomicAdd(told, 1u);
        d = 0.0f;
    }
    // -0.0f becomes 0.0f: weights never hold it.
    d += 0.0f;
    float y = position[i] + d;
    w[i] = y;
    last[i] = y;
    out[i] = d;
    if (d != 0.0f) told[1] = tag;
}

extern "C" __global__ void add_scalar(float *w, unsigned int n, float a)
{
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) w[i] += a;
}
