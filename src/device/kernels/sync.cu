// Kernels of the GPU syncer. Their Rust twins and what they mean are in sync.rs.
// Compiled without -use_fast_math: x + 0.0f must stay, and differences must be exact.

extern "C" __global__ void take_position(
    float *w, float *last, const float *position, float *out,
    unsigned int n, unsigned int tag)
{
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float d = w[i] - last[i];
    unsigned int *told = (unsigned int *)(out + n);
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
