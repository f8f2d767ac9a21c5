//! Convolution (`Convolution`), with stride, padding, dilation and groups.
//!
//! The weights are small next to the work, so each pass copies them out of the shared buffer
//! into the order the kernel reads; others may write them meanwhile.

use pulp::Arch;

use super::{Bottoms, Gradients, Layer, Parameter, Params, Pass, Shape, Top};
use crate::solver::filler::Filler;
use crate::solver::net_spec::Window;
use crate::weights::kernels::copy_out;
use dogwild_kernels::correlate::{Correlation, Packed, correlate};
use dogwild_kernels::weight_gradient::WeightGradient;

pub(crate) struct Convolution {
    arch: Arch,
    shape: [usize; 4],
    fillers: (Filler, Option<Filler>),
    forward: Correlation,
    backward: Correlation,
    gradient: WeightGradient,
    packed: Packed,
    packed_backward: Packed,
    /// The weights of this pass, forward and backward alike.
    weights: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Convolution {
    pub(crate) fn new(
        arch: Arch,
        [channels, height, width]: Shape,
        [num_output, group]: [usize; 2],
        window: &Window,
        fillers: (Filler, Option<Filler>),
    ) -> Result<(Self, Shape), String> {
        if channels % group != 0 {
            return Err(format!(
                "{channels} channels cannot be split in {group} groups"
            ));
        }
        let image = [height, width];
        let mut out = [0; 2];
        for axis in 0..2 {
            let reach = window.dilation[axis] * (window.kernel[axis] - 1) + 1;
            let room = image[axis] + 2 * window.pad[axis];
            if reach > room {
                return Err(format!(
                    "the kernel reaches over {reach} pixels, but the padded image has {room}; its bottom is {channels}x{height}x{width}"
                ));
            }
            out[axis] = (room - reach) / window.stride[axis] + 1;
        }
        let [kernel_height, kernel_width] = window.kernel;
        let (inputs, outputs) = (channels / group, num_output / group);
        let taps = kernel_height * kernel_width;
        let layer = Self {
            arch,
            shape: [num_output, inputs, kernel_height, kernel_width],
            fillers,
            forward: Correlation::forward(window, image, out),
            backward: Correlation::backward(window, image, out),
            gradient: WeightGradient::new(window, group, [inputs, outputs], image, out),
            packed: Packed::new(group, inputs, outputs, taps),
            packed_backward: Packed::new(group, outputs, inputs, taps),
            weights: vec![0.0; num_output * inputs * taps],
            bias: fillers.1.map(|_| vec![0.0; num_output]),
        };
        Ok((layer, [num_output, out[0], out[1]]))
    }

    /// Channels of one group: outputs, inputs; and pixels of the kernel.
    fn sizes(&self) -> (usize, usize, usize) {
        let [_, inputs, kernel_height, kernel_width] = self.shape;
        (
            self.packed_backward.inputs(),
            inputs,
            kernel_height * kernel_width,
        )
    }
}

impl Layer for Convolution {
    fn parameters(&self) -> Vec<Parameter> {
        let weight = Parameter {
            suffix: "weight",
            shape: self.shape.to_vec(),
            filler: self.fillers.0,
        };
        let bias = self.fillers.1.map(|filler| Parameter {
            suffix: "bias",
            shape: vec![self.shape[0]],
            filler,
        });
        std::iter::once(weight).chain(bias).collect()
    }

    fn forward(&mut self, _: Pass<'_>, params: Params<'_>, bottoms: Bottoms<'_>, top: &mut [f32]) {
        if let Some(weight) = params.weight {
            copy_out(weight, &mut self.weights);
        }
        if let (Some(bias), Some(to)) = (params.bias, &mut self.bias) {
            copy_out(bias, to);
        }
        let (outputs, inputs, taps) = self.sizes();
        self.packed.fill(&self.weights, |g, o, c, k| {
            ((g * outputs + o) * inputs + c) * taps + k
        });
        correlate(
            self.arch,
            &self.forward,
            &self.packed,
            self.bias.as_deref(),
            bottoms.data(0),
            top,
        );
    }

    fn backward_params(
        &mut self,
        bottoms: Bottoms<'_>,
        top_diff: &[f32],
        gradients: Gradients<'_>,
    ) {
        let Gradients {
            weight,
            mut bias,
            keep,
        } = gradients;
        if !keep {
            weight.fill(0.0);
            if let Some(bias) = bias.as_deref_mut() {
                bias.fill(0.0);
            }
        }
        self.gradient
            .add(self.arch, bottoms.data(0), top_diff, weight, bias);
    }

    /// With the weights that the forward pass read, not with what others made of them since:
    /// this is the gradient of the loss that was computed.
    fn backward_data(
        &mut self,
        _: Pass<'_>,
        _: Params<'_>,
        _: Bottoms<'_>,
        _: usize,
        top: Top<'_>,
        diff: &mut [f32],
    ) {
        let (outputs, inputs, taps) = self.sizes();
        self.packed_backward.fill(&self.weights, |g, c, o, k| {
            ((g * outputs + o) * inputs + c) * taps + k
        });
        correlate(
            self.arch,
            &self.backward,
            &self.packed_backward,
            None,
            top.diff,
            diff,
        );
    }
}
