//! Kernels of a net on a device (`net.cu`): a convolution is [`im2col`] and a [`product`].
//!
//! Blobs are `[channel][row][column][image]`, images innermost, so that a convolution's product
//! gives a blob and an inner product takes one as it is. The Rust twins do the same, word by word.
//! Invariant: all sizes are checked against the parts before anything runs, and fit 32 bits.

use std::sync::atomic::Ordering::Relaxed;

use crate::device::product::{Operand, matrix_product};
use crate::device::{DeviceError, Kernel, Number, Part, Shape, Stream};
use crate::weights::WeightsView;

/// A window that slides over images: a convolution's or a pooling layer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Channels, height, width of the bottom.
    pub image: [usize; 3],
    /// Height, width.
    pub kernel: [usize; 2],
    /// Step from one window to the next: rows, columns.
    pub stride: [usize; 2],
    /// Pixels added on each side.
    pub pad: [usize; 2],
    /// Height and width of the top.
    pub out: [usize; 2],
    /// Images of the batch.
    pub images: usize,
}

impl Geometry {
    fn numbers(&self) -> [Number; 12] {
        let [c, h, w] = self.image;
        let ([kh, kw], [sh, sw], [ph, pw], [oh, ow]) =
            (self.kernel, self.stride, self.pad, self.out);
        [c, h, w, kh, kw, sh, sw, ph, pw, oh, ow, self.images].map(count)
    }

    fn of(numbers: &[Number]) -> Self {
        let u = |i: usize| numbers[i].u();
        Self {
            image: [u(0), u(1), u(2)],
            kernel: [u(3), u(4)],
            stride: [u(5), u(6)],
            pad: [u(7), u(8)],
            out: [u(9), u(10)],
            images: u(11),
        }
    }

    /// Words of the bottom.
    pub fn bottom(&self) -> usize {
        self.image.iter().product::<usize>() * self.images
    }

    /// Words of the top of a pooling layer.
    pub fn pooled(&self) -> usize {
        self.image[0] * self.columns()
    }

    /// Columns of the matrix that [`im2col`] makes: pixels of the top, of all images.
    pub fn columns(&self) -> usize {
        self.out[0] * self.out[1] * self.images
    }

    /// Its rows: taps of the kernel, of all channels.
    pub fn rows(&self) -> usize {
        self.image[0] * self.kernel[0] * self.kernel[1]
    }

    /// The pixels of the bottom that window `(oy, ox)` covers: row, column, and which tap.
    fn taps(&self, oy: usize, ox: usize) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let g = *self;
        (0..g.kernel[0] * g.kernel[1]).filter_map(move |tap| {
            let (ky, kx) = (tap / g.kernel[1], tap % g.kernel[1]);
            let y = (oy * g.stride[0] + ky).checked_sub(g.pad[0])?;
            let x = (ox * g.stride[1] + kx).checked_sub(g.pad[1])?;
            (y < g.image[1] && x < g.image[2]).then_some((y, x, tap))
        })
    }
}

fn count(n: usize) -> Number {
    Number::U(u32::try_from(n).expect("sizes of kernels fit 32 bits"))
}

/// Panics unless the parts are as long as they have to be.
fn check(name: &str, lens: &[usize], want: &[usize]) {
    assert_eq!(lens, want, "parts of {name}");
}

macro_rules! window_kernel {
    ($(#[$doc:meta])* $static:ident, $name:ident, [$($part:ident: $len:ident),*], $items:expr, $host:expr) => {
        /// See the function of this name.
        pub static $static: Kernel = Kernel {
            name: stringify!($name),
            source: "net.cu",
            plan: |lens, numbers| {
                let g = Geometry::of(numbers);
                check(stringify!($name), lens, &[$($len(&g)),*]);
                Shape::of($items(&g))
            },
            host: |parts, numbers| $host(parts, Geometry::of(numbers)),
        };

        $(#[$doc])*
        ///
        /// # Errors
        /// The device has failed.
        pub fn $name<S: Stream>(
            stream: &S,
            $($part: Part<'_, S::Memory>,)*
            geometry: &Geometry,
        ) -> Result<(), DeviceError> {
            stream.launch(&$static, &[$($part),*], &geometry.numbers())
        }
    };
}

fn bottom(g: &Geometry) -> usize {
    g.bottom()
}
fn pooled(g: &Geometry) -> usize {
    g.pooled()
}
fn matrix(g: &Geometry) -> usize {
    g.rows() * g.columns()
}

window_kernel! {
    /// The matrix whose product with a convolution's weights is its top: a row for each tap of the
    /// kernel, a column for each pixel of the top.
    IM2COL, im2col, [x: bottom, columns: matrix], matrix, im2col_host
}
window_kernel! {
    /// The way back of [`im2col`]: each pixel becomes the sum of its copies.
    COL2IM, col2im, [columns: matrix, x: bottom], bottom, col2im_host
}
window_kernel! {
    /// The largest value of each window, and in `which` the pixel it was at (the first of equals).
    MAX_POOL, max_pool, [x: bottom, y: pooled, which: pooled], pooled, max_pool_host
}
window_kernel! {
    /// The way back of [`max_pool`].
    MAX_POOL_BACK, max_pool_back, [dy: pooled, which: pooled, dx: bottom], bottom, max_pool_back_host
}

fn im2col_host(parts: &[WeightsView<'_>], g: Geometry) {
    let (x, cols) = (parts[0].words(), parts[1].words());
    let [channels, height, width] = g.image;
    let (n, taps) = (g.images, g.kernel[0] * g.kernel[1]);
    cols.iter().for_each(|word| word.store(0, Relaxed));
    for c in 0..channels {
        for oy in 0..g.out[0] {
            for ox in 0..g.out[1] {
                for (y, xx, tap) in g.taps(oy, ox) {
                    let from = ((c * height + y) * width + xx) * n;
                    let to = (((c * taps + tap) * g.out[0] + oy) * g.out[1] + ox) * n;
                    for (to, from) in cols[to..to + n].iter().zip(&x[from..from + n]) {
                        to.store(from.load(Relaxed), Relaxed);
                    }
                }
            }
        }
    }
}

fn add(to: &std::sync::atomic::AtomicU32, value: f32) {
    to.store(
        (f32::from_bits(to.load(Relaxed)) + value).to_bits(),
        Relaxed,
    );
}

fn col2im_host(parts: &[WeightsView<'_>], g: Geometry) {
    let (cols, x) = (parts[0].words(), parts[1].words());
    let [channels, height, width] = g.image;
    let (n, taps) = (g.images, g.kernel[0] * g.kernel[1]);
    x.iter().for_each(|word| word.store(0, Relaxed));
    for c in 0..channels {
        for oy in 0..g.out[0] {
            for ox in 0..g.out[1] {
                for (y, xx, tap) in g.taps(oy, ox) {
                    let to = ((c * height + y) * width + xx) * n;
                    let from = (((c * taps + tap) * g.out[0] + oy) * g.out[1] + ox) * n;
                    for (to, from) in x[to..to + n].iter().zip(&cols[from..from + n]) {
                        add(to, f32::from_bits(from.load(Relaxed)));
                    }
                }
            }
        }
    }
}

fn max_pool_host(parts: &[WeightsView<'_>], g: Geometry) {
    let [height, width] = [g.image[1], g.image[2]];
    let n = g.images;
    for i in 0..g.pooled() {
        let (image, q) = (i % n, i / n);
        let (ox, oy, c) = (
            q % g.out[1],
            q / g.out[1] % g.out[0],
            q / g.out[1] / g.out[0],
        );
        let mut best = (0.0, u32::MAX);
        for (y, x, _) in g.taps(oy, ox) {
            let value = parts[0].load(((c * height + y) * width + x) * n + image);
            if best.1 == u32::MAX || value > best.0 {
                best = (value, (y * width + x) as u32);
            }
        }
        parts[1].word(i).store(best.0.to_bits(), Relaxed);
        parts[2].word(i).store(best.1, Relaxed);
    }
}

fn max_pool_back_host(parts: &[WeightsView<'_>], g: Geometry) {
    let plane = g.image[1] * g.image[2];
    let (n, dx) = (g.images, parts[2].words());
    dx.iter().for_each(|word| word.store(0, Relaxed));
    for i in 0..g.pooled() {
        let (image, c) = (i % n, i / n / (g.out[0] * g.out[1]));
        // A window without a pixel gave nothing, and names none.
        let place = parts[1].word(i).load(Relaxed) as usize;
        if place < plane {
            add(&dx[(c * plane + place) * n + image], parts[0].load(i));
        }
    }
}

/// See [`product`].
pub static PRODUCT: Kernel = Kernel {
    name: "product",
    source: "net.cu",
    plan: |lens, numbers| {
        let [rows, columns, inner] = [0, 1, 2].map(|i| numbers[i].u());
        check(
            "product",
            lens,
            &[rows * inner, inner * columns, rows * columns],
        );
        assert_eq!(numbers.len(), 6);
        let tiles = |n: usize| (n.div_ceil(16).max(1)) as u32;
        assert!(
            tiles(rows) < 1 << 16,
            "{rows} rows are more than CUDA takes at once"
        );
        Shape {
            grid: [tiles(columns), tiles(rows), 1],
            block: [16, 16, 1],
        }
    },
    host: |parts, numbers| {
        let [rows, columns, inner] = [0, 1, 2].map(|i| numbers[i].u());
        let operand = |at: usize, transposed: usize, rows: usize, columns: usize| {
            let (row_step, column_step) = match transposed {
                0 => (columns, 1),
                _ => (1, rows),
            };
            Operand {
                ptr: parts[at].as_ptr().cast_const(),
                row_step,
                column_step,
            }
        };
        let left = operand(0, numbers[3].u(), rows, inner);
        let right = operand(1, numbers[4].u(), inner, columns);
        let keep = numbers[5].u() != 0;
        // SAFETY: the three views are as long as the sizes say (checked by `plan`); the crate reads
        // and writes them by plain loads and stores that stand for relaxed ones: a racing writer
        // changes which value is read, as Hogwild allows (docs/reference/memory-model.md).
        unsafe {
            matrix_product(
                [rows, columns, inner],
                parts[2].as_ptr(),
                keep,
                &left,
                &right,
            )
        }
    },
};

/// `to = left × right`, or `to += ...` if `keep`, row-major; sizes are rows, columns and the inner
/// one. `transposed` says of each operand whether it is stored the other way round.
///
/// # Errors
/// The device has failed.
pub fn product<S: Stream>(
    stream: &S,
    [left, right, to]: [Part<'_, S::Memory>; 3],
    sizes: [usize; 3],
    transposed: [bool; 2],
    keep: bool,
) -> Result<(), DeviceError> {
    let [rows, columns, inner] = sizes.map(count);
    let [a, b] = transposed.map(|t| Number::U(t.into()));
    let numbers = [rows, columns, inner, a, b, Number::U(keep.into())];
    stream.launch(&PRODUCT, &[left, right, to], &numbers)
}

/// See [`add_bias`].
pub static ADD_BIAS: Kernel = Kernel {
    name: "add_bias",
    source: "net.cu",
    plan: |lens, numbers| {
        let [outputs, columns] = [0, 1].map(|i| numbers[i].u());
        check("add_bias", lens, &[outputs * columns, outputs]);
        Shape::of(lens[0])
    },
    host: |parts, numbers| {
        let columns = numbers[1].u();
        for (o, row) in parts[0].words().chunks(columns.max(1)).enumerate() {
            let bias = parts[1].load(o);
            row.iter().for_each(|word| add(word, bias));
        }
    },
};

/// Adds `bias[o]` to row `o` of `y`.
///
/// # Errors
/// The device has failed.
pub fn add_bias<S: Stream>(
    stream: &S,
    y: Part<'_, S::Memory>,
    bias: Part<'_, S::Memory>,
) -> Result<(), DeviceError> {
    let outputs = bias.len();
    let columns = y.len() / outputs.max(1);
    stream.launch(&ADD_BIAS, &[y, bias], &[count(outputs), count(columns)])
}

/// See [`sum_rows`].
pub static SUM_ROWS: Kernel = Kernel {
    name: "sum_rows",
    source: "net.cu",
    plan: |lens, numbers| {
        let [outputs, columns, _keep] = [0, 1, 2].map(|i| numbers[i].u());
        check("sum_rows", lens, &[outputs * columns, outputs]);
        Shape {
            grid: [outputs.max(1) as u32, 1, 1],
            block: [256, 1, 1],
        }
    },
    host: |parts, numbers| {
        let (columns, keep) = (numbers[1].u(), numbers[2].u() != 0);
        for (o, row) in parts[0].words().chunks(columns.max(1)).enumerate() {
            let values = row.iter().map(|word| f32::from_bits(word.load(Relaxed)));
            let sum: f32 = values.sum();
            let before = if keep { parts[1].load(o) } else { 0.0 };
            parts[1].word(o).store((before + sum).to_bits(), Relaxed);
        }
    },
};

/// `bias[o]` becomes the sum of row `o` of `dy`, or has it added if `keep`.
///
/// # Errors
/// The device has failed.
pub fn sum_rows<S: Stream>(
    stream: &S,
    dy: Part<'_, S::Memory>,
    bias: Part<'_, S::Memory>,
    keep: bool,
) -> Result<(), DeviceError> {
    let outputs = bias.len();
    let columns = dy.len() / outputs.max(1);
    let numbers = [count(outputs), count(columns), Number::U(keep.into())];
    stream.launch(&SUM_ROWS, &[dy, bias], &numbers)
}
