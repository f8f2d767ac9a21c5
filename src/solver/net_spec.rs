//! A net file, checked layer by layer: what each layer is and its hyper-parameters, without
//! shapes (those need the data; see `Net`). Holds no weights and reads no files.

mod hyper;
mod read;

pub use dogwild_kernels::Window;

use super::error::{ModelError, Place};
use super::filler::Filler;
use super::proto::{self, Fields};
use read::{Reader, deploy_input, line_of_layer};

/// The layer types that work, as the files spell them.
pub const LAYER_TYPES: [&str; 15] = [
    "Data",
    "ImageData",
    "HDF5Data",
    "MemoryData",
    "Input",
    "Convolution",
    "Pooling",
    "InnerProduct",
    "ReLU",
    "LRN",
    "Dropout",
    "Concat",
    "Softmax",
    "SoftmaxWithLoss",
    "Accuracy",
];

/// Training or testing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Forward, backward, update. Pictures are shuffled anew each epoch, cropped and mirrored at
    /// random.
    Train,
    /// Forward only. Pictures come in the order of the file, cropped in the centre.
    Test,
}

/// A net, checked but without shapes.
#[derive(Debug, Clone, PartialEq)]
pub struct NetSpec {
    /// The net's own name, or its file's.
    pub name: String,
    /// The file it was read from, for messages.
    pub file: String,
    /// Layers of both phases, in order.
    pub layers: Vec<LayerSpec>,
}

/// One layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// Its name; tensors are called `<name>.weight` and `<name>.bias`.
    pub name: String,
    /// Where it stands, for messages.
    pub place: Place,
    /// Names of the blobs it reads.
    pub bottoms: Vec<String>,
    /// Names of the blobs it writes.
    pub tops: Vec<String>,
    /// Multipliers for weight and bias, in this order; missing ones are 1.
    pub params: Vec<ParamSpec>,
    /// Share of a loss in the objective.
    pub loss_weight: f32,
    /// What it does.
    pub op: LayerOp,
    in_train: bool,
    in_test: bool,
}

/// Multipliers of one parameter tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParamSpec {
    /// Factor on the learning rate.
    pub lr_mult: f32,
    /// Factor on the weight decay.
    pub decay_mult: f32,
}

impl Default for ParamSpec {
    fn default() -> Self {
        Self {
            lr_mult: 1.0,
            decay_mult: 1.0,
        }
    }
}

/// What a data layer does to each image (`transform_param`).
#[derive(Debug, Clone, PartialEq)]
pub struct TransformSpec {
    /// Factor on each value, after the mean is subtracted.
    pub scale: f32,
    /// Whether training images are mirrored at random.
    pub mirror: bool,
    /// Side of the square cut out of each image; 0: none.
    pub crop_size: usize,
    /// Caffe's file of the mean image. Its presence says "subtract the mean image".
    pub mean_file: Option<String>,
    /// Mean per channel (or one for all), subtracted.
    pub mean_value: Vec<f32>,
}

/// A pooling layer's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolMethod {
    /// Largest value; the first one where several are equal.
    Max,
    /// Mean over the window, padding included (Caffe's rule).
    Average,
}

/// How a summed loss is divided (`loss_param`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalization {
    /// By the images whose label counts.
    Valid,
    /// By all images.
    BatchSize,
    /// Not at all.
    None,
}

/// What a layer does, with its checked hyper-parameters.
#[derive(Debug, Clone, PartialEq)]
pub enum LayerOp {
    /// Images and labels from outside.
    Data {
        /// Images per batch, if the file has it.
        batch_size: Option<usize>,
        /// Channels, height, width, if the file has them.
        shape: Option<[usize; 3]>,
        /// What to do to each image.
        transform: TransformSpec,
        /// Where Caffe would read images (`source`); not read here.
        source: Option<String>,
    },
    /// Convolution, with groups.
    Convolution {
        /// Output channels.
        num_output: usize,
        /// Size, stride and padding of the kernel.
        window: Window,
        /// Independent groups of channels.
        group: usize,
        /// Whether there is a bias.
        bias: bool,
        /// First values of the weights.
        weight_filler: Filler,
        /// First values of the bias.
        bias_filler: Filler,
    },
    /// Largest or mean value of each window.
    Pooling {
        /// Largest or mean.
        method: PoolMethod,
        /// Kernel; ignored if `global`.
        window: Window,
        /// One window over the whole image.
        global: bool,
        /// Windows that stick out at the end are left out (`round_mode: FLOOR`).
        floor: bool,
    },
    /// Fully connected layer.
    InnerProduct {
        /// Number of outputs.
        num_output: usize,
        /// Whether there is a bias.
        bias: bool,
        /// First values of the weights.
        weight_filler: Filler,
        /// First values of the bias.
        bias_filler: Filler,
    },
    /// `max(x, 0) + negative_slope * min(x, 0)`.
    Relu {
        /// Slope below zero.
        negative_slope: f32,
    },
    /// Local response normalisation.
    Lrn {
        /// Channels (or pixels of a side) in the sum; odd.
        local_size: usize,
        /// Factor on the mean square.
        alpha: f32,
        /// Exponent of the sum.
        beta: f32,
        /// Offset (across channels only).
        k: f32,
        /// Over neighbouring pixels instead of channels.
        within_channel: bool,
    },
    /// Sets random values to 0 while training.
    Dropout {
        /// Share that is dropped, 0 to below 1.
        ratio: f32,
    },
    /// Concatenation of channels.
    Concat,
    /// Softmax over channels.
    Softmax,
    /// Softmax and cross-entropy with the label.
    SoftmaxWithLoss {
        /// Images with this label do not count.
        ignore_label: Option<u32>,
        /// What the sum is divided by.
        normalization: Normalization,
    },
    /// Share of images whose label is among the `top_k` largest scores.
    Accuracy {
        /// How many scores count as a hit.
        top_k: usize,
        /// Images with this label do not count.
        ignore_label: Option<u32>,
    },
}

/// A file's name and text, for messages with lines.
pub(crate) struct Source<'a> {
    pub(crate) file: &'a str,
    pub(crate) text: &'a str,
}

impl NetSpec {
    /// Parses a net from text; `file` is for messages.
    ///
    /// # Errors
    /// Unknown fields, layers that are not supported, hyper-parameters that cannot be.
    pub fn parse(file: &str, text: &str) -> Result<Self, ModelError> {
        let message = proto::parse("NetParameter", file, text).map_err(|error| {
            if proto::is_a("SolverParameter", text, &["net", "base_lr", "lr_policy"]) {
                return ModelError::OtherKind {
                    file: file.to_owned(),
                    is: "a solver file, not a net file",
                    advice: "name the file with the layers here (the solver's field `net` does)"
                        .to_owned(),
                };
            }
            error
        })?;
        let fields = Fields::new(message);
        Self::from_fields(&Source { file, text }, &fields)
    }

    pub(crate) fn from_fields(source: &Source<'_>, fields: &Fields) -> Result<Self, ModelError> {
        let mut layers = Vec::new();
        let inputs = fields.strings("input");
        if !inputs.is_empty() {
            layers.push(deploy_input(source, fields, inputs)?);
        }
        let mut seen: std::collections::HashMap<String, usize> = std::collections::HashMap::new();
        for layer in fields.messages("layer") {
            let name = layer.string("name");
            let nth = seen
                .entry(name.clone())
                .and_modify(|n| *n += 1)
                .or_insert(0);
            let place = Place {
                file: source.file.to_owned(),
                line: line_of_layer(source.text, &name, *nth),
            };
            layers.push(
                Reader {
                    f: &layer,
                    name: &name,
                    place: &place,
                }
                .layer()?,
            );
        }
        if layers.is_empty() {
            return Err(ModelError::Field {
                place: Place {
                    file: source.file.to_owned(),
                    line: None,
                },
                field: "layer".to_owned(),
                problem: "the net has no layers; is this a net file (and not a solver file)?"
                    .to_owned(),
            });
        }
        let name = fields.string("name");
        let name = if name.is_empty() {
            source.file.to_owned()
        } else {
            name
        };
        Ok(Self {
            name,
            file: source.file.to_owned(),
            layers,
        })
    }

    /// The layers of one phase, in order.
    pub fn layers_in(&self, phase: Phase) -> impl Iterator<Item = &LayerSpec> {
        self.layers.iter().filter(move |l| match phase {
            Phase::Train => l.in_train,
            Phase::Test => l.in_test,
        })
    }

    fn data(&self, phase: Phase) -> Option<(Option<usize>, &TransformSpec)> {
        self.layers_in(phase).find_map(|l| match &l.op {
            LayerOp::Data {
                batch_size,
                transform,
                ..
            } => Some((*batch_size, transform)),
            _ => None,
        })
    }

    /// Images per batch in `phase`, as the file says.
    pub fn batch_size(&self, phase: Phase) -> Option<usize> {
        self.data(phase).and_then(|d| d.0)
    }

    /// The first `source` that a data layer names: Caffe would read its images there; nothing here
    /// does.
    pub fn named_source(&self) -> Option<(&str, &Place)> {
        self.layers.iter().find_map(|layer| match &layer.op {
            LayerOp::Data { source, .. } => Some((source.as_deref()?, &layer.place)),
            _ => None,
        })
    }

    /// What `phase` does to each image, if it has a data layer.
    pub fn transform_param(&self, phase: Phase) -> Option<&TransformSpec> {
        self.data(phase).map(|d| d.1)
    }
}
