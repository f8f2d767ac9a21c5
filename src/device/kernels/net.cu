// Kernels of a net on a device. Their Rust twins and what they mean are in net.rs. Blobs are
// [channel][row][column][image]: images innermost, so that neighbours in a warp are neighbours in memory.

#define ITEM unsigned int i = blockIdx.x * blockDim.x + threadIdx.x

extern "C" __global__ void im2col(
    const float *x, float *cols,
    unsigned int c, unsigned int h, unsigned int w, unsigned int kh, unsigned int kw,
    unsigned int sh, unsigned int sw, unsigned int ph, unsigned int pw,
    unsigned int oh, unsigned int ow, unsigned int n)
{
    ITEM;
    if (i >= c * kh * kw * oh * ow * n) return;
    unsigned int image = i % n, q = i / n;
    unsigned int ox = q % ow; q /= ow;
    unsigned int oy = q % oh; q /= oh;
    unsigned int kx = q % kw; q /= kw;
    unsigned int ky = q % kh, channel = q / kh;
    unsigned int y = oy * sh + ky - ph, xx = ox * sw + kx - pw;
    // Unsigned: what lies before the image is far behind it.
    cols[i] = y < h && xx < w ? x[((channel * h + y) * w + xx) * n + image] : 0.0f;
}

extern "C" __global__ void col2im(
    const float *cols, float *x,
    unsigned int c, unsigned int h, unsigned int w, unsigned int kh, unsigned int kw,
    unsigned int sh, unsigned int sw, unsigned int ph, unsigned int pw,
    unsigned int oh, unsigned int ow, unsigned int n)
{
    ITEM;
    if (i >= c * h * w * n) return;
    unsigned int image = i % n, q = i / n;
    unsigned int xx = q % w; q /= w;
    unsigned int y = q % h, channel = q / h;
    float sum = 0.0f;
    for (unsigned int ky = 0; ky < kh; ky++) {
        unsigned int oy = y + ph - ky;
        if (y + ph < ky || oy % sh != 0 || oy / sh >= oh) continue;
        for (unsigned int kx = 0; kx < kw; kx++) {
            unsigned int ox = xx + pw - kx;
            if (xx + pw < kx || ox % sw != 0 || ox / sw >= ow) continue;
            sum += cols[((((channel * kh + ky) * kw + kx) * oh + oy / sh) * ow + ox / sw) * n + image];
        }
    }
    x[i] = sum;
}

// to (rows x columns) = or += left (rows x inner) * right (inner x columns), all row-major; a transposed
// operand is stored the other way round. One 16 x 16 tile of `to` for each block of threads.
#define TILE 16
extern "C" __global__ void product(
    const float *left, const float *right, float *to,
    unsigned int rows, unsigned int columns, unsigned int inner,
    unsigned int left_transposed, unsigned int right_transposed, unsigned int keep)
{
    __shared__ float a[TILE][TILE + 1], b[TILE][TILE + 1];
    unsigned int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (unsigned int at = 0; at < inner; at += TILE) {
        unsigned int p = at + threadIdx.x, q = at + threadIdx.y;
        a[threadIdx.y][threadIdx.x] = row < rows && p < inner
            ? left[left_transposed ? (size_t)p * rows + row : (size_t)row * inner + p] : 0.0f;
        b[threadIdx.y][threadIdx.x] = q < inner && column < columns
            ? right[right_transposed ? (size_t)column * inner + q : (size_t)q * columns + column] : 0.0f;
        __syncthreads();
        for (unsigned int k = 0; k < TILE; k++)
            sum = fmaf(a[threadIdx.y][k], b[k][threadIdx.x], sum);
        __syncthreads();
    }
    if (row < rows && column < columns) {
        size_t place = (size_t)row * columns + column;
        to[place] = keep ? to[place] + sum : sum;
    }
}

extern "C" __global__ void add_bias(float *y, const float *bias, unsigned int outputs, unsigned int columns)
{
    ITEM;
    if (i < outputs * columns) y[i] += bias[i / columns];
}

// One block of threads for each row.
extern "C" __global__ void sum_rows(
    const float *dy, float *bias, unsigned int outputs, unsigned int columns, unsigned int keep)
{
    __shared__ float sums[256];
    float sum = 0.0f;
    for (unsigned int j = threadIdx.x; j < columns; j += 256) sum += dy[(size_t)blockIdx.x * columns + j];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) bias[blockIdx.x] = keep ? bias[blockIdx.x] + sums[0] : sums[0];
}

extern "C" __global__ void max_pool(
    const float *x, float *y, float *which_word,
    unsigned int c, unsigned int h, unsigned int w, unsigned int kh, unsigned int kw,
    unsigned int sh, unsigned int sw, unsigned int ph, unsigned int pw,
    unsigned int oh, unsigned int ow, unsigned int n)
{
    ITEM;
    if (i >= c * oh * ow * n) return;
    unsigned int *which = (unsigned int *)which_word;
    unsigned int image = i % n, q = i / n;
    unsigned int ox = q % ow; q /= ow;
    unsigned int oy = q % oh, channel = q / oh;
    float best = 0.0f;
    unsigned int place = 0xffffffffu;
    for (unsigned int ky = 0; ky < kh; ky++)
        for (unsigned int kx = 0; kx < kw; kx++) {
            unsigned int yy = oy * sh + ky - ph, xx = ox * sw + kx - pw;
            if (yy >= h || xx >= w) continue;
            float value = x[((channel * h + yy) * w + xx) * n + image];
            if (place == 0xffffffffu || value > best) {
                best = value;
                place = yy * w + xx;
            }
        }
    y[i] = best;
    which[i] = place;
}

extern "C" __global__ void max_pool_back(
    const float *dy, const float *which_word, float *dx,
    unsigned int c, unsigned int h, unsigned int w, unsigned int kh, unsigned int kw,
    unsigned int sh, unsigned int sw, unsigned int ph, unsigned int pw,
    unsigned int oh, unsigned int ow, unsigned int n)
{
    ITEM;
    if (i >= c * h * w * n) return;
    const unsigned int *which = (const unsigned int *)which_word;
    unsigned int image = i % n, q = i / n;
    unsigned int xx = q % w; q /= w;
    unsigned int yy = q % h, channel = q / h;
    float sum = 0.0f;
    for (unsigned int ky = 0; ky < kh; ky++) {
        unsigned int oy = yy + ph - ky;
        if (yy + ph < ky || oy % sh != 0 || oy / sh >= oh) continue;
        for (unsigned int kx = 0; kx < kw; kx++) {
            unsigned int ox = xx + pw - kx;
            if (xx + pw < kx || ox % sw != 0 || ox / sw >= ow) continue;
            unsigned int at = ((channel * oh + oy / sh) * ow + ox / sw) * n + image;
            if (which[at] == yy * w + xx) sum += dy[at];
        }
    }
    dx[i] = sum;
}

extern "C" __global__ void relu(const float *x, float *y, unsigned int count, float slope)
{
    ITEM;
    if (i < count) y[i] = x[i] > 0.0f ? x[i] : x[i] * slope;
}

extern "C" __global__ void relu_back(
    const float *x, const float *dy, float *dx, unsigned int count, float slope)
{
    ITEM;
    if (i < count) dx[i] = x[i] > 0.0f ? dy[i] : dy[i] * slope;
}

extern "C" __global__ void softmax_loss(
    const float *scores, const float *label_word, float *diff, float *loss,
    unsigned int classes, unsigned int n, float scale)
{
    ITEM;
    if (i >= n) return;
    unsigned int label = ((const unsigned int *)label_word)[i];
    float most = scores[i];
    for (unsigned int k = 1; k < classes; k++) most = fmaxf(most, scores[k * n + i]);
    float sum = 0.0f;
    for (unsigned int k = 0; k < classes; k++) {
        float e = expf(scores[k * n + i] - most);
        diff[k * n + i] = e;
        sum += e;
    }
    for (unsigned int k = 0; k < classes; k++) {
        float share = diff[k * n + i] / sum;
        // Not fmaxf, which would make 1.17549435e-38 of a NaN: a diverged net must show.
        if (k == label) loss[i] = -logf(share < 1.17549435e-38f ? 1.17549435e-38f : share);
        diff[k * n + i] = (share - (k == label ? 1.0f : 0.0f)) * scale;
    }
}

extern "C" __global__ void sgd_step(
    float *w, const float *gradient, float *history, unsigned int count,
    unsigned int l1, float rate, float decay, float momentum, float stride)
{
    ITEM;
    if (i >= count) return;
    float x = w[i];
    float pull = l1 ? (x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f) : x;
    float step = rate * gradient[i];
    if (decay != 0.0f) step += decay * pull;
    if (momentum != 0.0f) step += momentum * history[i];
    step += 0.0f;
    history[i] = step;
    w[i] = x - stride * step;
}

extern "C" __global__ void walk(float *w, const float *step, unsigned int count, float factor)
{
    ITEM;
    if (i >= count) return;
    w[i] -= factor * step[i];
}

extern "C" __global__ void squares(
    const float *x, float *sums, unsigned int count, unsigned int n, unsigned int keep)
{
    ITEM;
    if (i >= n) return;
    float sum = keep ? sums[i] : 0.0f;
    for (unsigned int at = i; at < count; at += n) sum += x[at] * x[at];
    sums[i] = sum;
}
