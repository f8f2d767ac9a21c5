//! Pooling (`Pooling`): largest or mean value, with Caffe's rounding (up) and clipping.

use pulp::Arch;

use super::{Bottoms, Layer, Params, Pass, Shape, Top, block_len};
use crate::solver::net_spec::{PoolMethod, Window};
use dogwild_kernels::Buffer;
use dogwild_kernels::pool::Windows;

pub(crate) struct Pooling {
    arch: Arch,
    windows: Windows,
    method: PoolMethod,
    /// Where in its window each largest value was.
    which: Buffer,
}

impl Pooling {
    pub(crate) fn new(
        arch: Arch,
        [channels, height, width]: Shape,
        method: PoolMethod,
        window: &Window,
        (global, floor): (bool, bool),
        blocks: usize,
    ) -> Result<(Self, Shape), String> {
        let image = [height, width];
        let kernel = if global { image } else { window.kernel };
        let mut out = [0; 2];
        for axis in 0..2 {
            let (pad, stride) = (window.pad[axis], window.stride[axis]);
            let room = (image[axis] + 2 * pad).checked_sub(kernel[axis]).ok_or_else(|| {
                format!(
                    "the kernel is {} pixels wide or high, but the padded image only {}; its bottom is {channels}x{height}x{width}",
                    kernel[axis],
                    image[axis] + 2 * pad
                )
            })?;
            out[axis] = 1 + if floor {
                room / stride
            } else {
                room.div_ceil(stride)
            };
            // A window must begin inside the image or its leading padding.
            while out[axis] > 1 && (out[axis] - 1) * stride >= image[axis] + pad {
                out[axis] -= 1;
            }
        }
        let top = [channels, out[0], out[1]];
        let room = if method == PoolMethod::Max {
            block_len(top) * blocks
        } else {
            0
        };
        let layer = Self {
            arch,
            windows: Windows::new(kernel, window.stride, window.pad, image, out),
            method,
            which: Buffer::zeros(room),
        };
        Ok((layer, top))
    }
}

impl Layer for Pooling {
    fn forward(&mut self, _: Pass<'_>, _: Params<'_>, bottoms: Bottoms<'_>, top: &mut [f32]) {
        match self.method {
            PoolMethod::Max => {
                self.windows
                    .max_forward(self.arch, bottoms.data(0), top, &mut self.which)
            }
            PoolMethod::Average => self.windows.mean_forward(self.arch, bottoms.data(0), top),
        }
    }

    fn backward_data(
        &mut self,
        _: Pass<'_>,
        _: Params<'_>,
        _: Bottoms<'_>,
        _: usize,
        top: Top<'_>,
        diff: &mut [f32],
    ) {
        match self.method {
            PoolMethod::Max => self
                .windows
                .max_backward(self.arch, top.diff, &self.which, diff),
            PoolMethod::Average => self.windows.mean_backward(self.arch, top.diff, diff),
        }
    }
}
