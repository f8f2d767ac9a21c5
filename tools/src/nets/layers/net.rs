//! Layers of a Caffe net: walks its shapes, without memory for a single activation.
//!
//! Touches nothing. Sizes of windows follow Caffe, as `dogwild::solver` does: convolutions leave
//! out what sticks out, poolings keep it.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};
use dogwild::poseidon::LayerShape;
use dogwild::solver::{LayerOp, LayerSpec, NetSpec, Phase, Window};

use super::{Kind, Layer};

/// Channels, height, width.
type Shape = [usize; 3];

/// The layers with weights of the training phase, in forward order.
pub(super) fn layers(net: &NetSpec, input: Option<Shape>) -> Result<Vec<Layer>> {
    let mut shapes: HashMap<&str, Shape> = HashMap::new();
    let mut found = Vec::new();
    for layer in net.layers_in(Phase::Train) {
        let top = if let LayerOp::Data {
            shape, transform, ..
        } = &layer.op
        {
            let crop = transform.crop_size;
            let crop = (crop > 0).then_some([3, crop, crop]);
            Some(input.or(*shape).or(crop).with_context(|| {
                let file = &net.file;
                format!("{file} does not say the size of its images: give --input 3x224x224")
            })?)
        } else {
            let walked = walk(layer, &shapes, &mut found);
            walked.with_context(|| format!("{}: layer \"{}\"", layer.place, layer.name))?
        };
        if let (Some(top), Some(name)) = (top, layer.tops.first()) {
            shapes.insert(name, top);
        }
    }
    Ok(found)
}

/// The shape of a layer's top; none if it is a loss. A layer with weights goes to `found`.
fn walk<'a>(
    layer: &'a LayerSpec,
    shapes: &HashMap<&'a str, Shape>,
    found: &mut Vec<Layer>,
) -> Result<Option<Shape>> {
    let bottom = |name: &String| {
        let shape = shapes.get(name.as_str()).copied();
        shape.with_context(|| format!("no layer before it has a top \"{name}\""))
    };
    let first = bottom(layer.bottoms.first().context("it has no bottom")?)?;
    let mut learns = |kind, [outputs, inputs]: [usize; 2], bias, uses: usize| {
        let [m, n] = [outputs as u64, inputs as u64];
        found.push(Layer {
            name: layer.name.clone(),
            kind,
            shape: LayerShape {
                outputs: m,
                inputs: n,
                bias,
                fully_connected: kind == Kind::Fc,
            },
            flops: 2 * m * n * uses as u64,
        });
    };
    Ok(Some(match &layer.op {
        LayerOp::Convolution {
            num_output,
            window,
            group,
            bias,
            ..
        } => {
            let [height, width] = slid(first, window, false)?;
            let inputs = first[0] / group * window.kernel[0] * window.kernel[1];
            learns(Kind::Conv, [*num_output, inputs], *bias, height * width);
            [*num_output, height, width]
        }
        LayerOp::InnerProduct {
            num_output, bias, ..
        } => {
            let inputs = first.iter().product();
            learns(Kind::Fc, [*num_output, inputs], *bias, 1);
            [*num_output, 1, 1]
        }
        LayerOp::Pooling { global: true, .. } => [first[0], 1, 1],
        LayerOp::Pooling { window, floor, .. } => {
            let [height, width] = slid(first, window, !floor)?;
            [first[0], height, width]
        }
        LayerOp::Concat => {
            let channels = layer.bottoms.iter().map(|name| Ok(bottom(name)?[0]));
            let channels: Result<usize> = channels.sum();
            [channels?, first[1], first[2]]
        }
        LayerOp::SoftmaxWithLoss { .. } | LayerOp::Accuracy { .. } => return Ok(None),
        _ => first,
    }))
}

/// Height and width of what a sliding window leaves; `up`: windows that stick out at the end count.
fn slid(image: Shape, window: &Window, up: bool) -> Result<[usize; 2]> {
    let mut out = [0; 2];
    for axis in 0..2 {
        let (pad, stride) = (window.pad[axis], window.stride[axis]);
        let reach = window.dilation[axis] * (window.kernel[axis] - 1) + 1;
        let padded = image[axis + 1] + 2 * pad;
        let Some(room) = padded.checked_sub(reach) else {
            bail!("its kernel reaches over {reach} pixels, but the padded image has only {padded}");
        };
        out[axis] = 1 + if up {
            room.div_ceil(stride)
        } else {
            room / stride
        };
        while up && out[axis] > 1 && (out[axis] - 1) * stride >= image[axis + 1] + pad {
            out[axis] -= 1;
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dogwild::solver::{Net, SolverSpec};

    #[test]
    fn shapes_are_those_of_the_solver() {
        let models = [("lenet", [1, 28, 28]), ("cifar10_quick", [3, 32, 32])];
        for (model, input) in models {
            let spec = SolverSpec::builtin(model).unwrap().net;
            let net = Net::new(&spec, Phase::Train, 1, input, 10).unwrap();
            let tensors: usize = net
                .tensors()
                .iter()
                .map(|(_, s)| s.iter().product::<usize>())
                .sum();
            let layers = layers(&spec, Some(input)).unwrap();
            let ours: u64 = layers.iter().map(|layer| layer.shape.parameters()).sum();
            assert_eq!(ours, tensors as u64, "{model}");
        }
    }

    #[test]
    fn a_net_without_a_size_asks_for_it() {
        let spec = SolverSpec::builtin("lenet").unwrap().net;
        let said = format!("{:#}", layers(&spec, None).unwrap_err());
        assert!(said.contains("--input"), "{said}");
        let said = format!("{:#}", layers(&spec, Some([1, 3, 3])).unwrap_err());
        assert!(
            said.contains("conv1") && said.contains("5 pixels"),
            "{said}"
        );
    }
}
