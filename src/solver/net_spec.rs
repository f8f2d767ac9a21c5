//! A net file, checked layer by layer: what each layer is and its hyper-parameters, without
//! shapes (those need the data; see `Net`). Holds no weights and reads no files.

use super::error::{ModelError, Place};
use super::filler::{Filler, VarianceNorm};
use super::proto::{self, Fields};

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Forward, backward, update.
    Train,
    /// Forward only.
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

/// A window that slides over the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Kernel height and width.
    pub kernel: [usize; 2],
    /// Steps.
    pub stride: [usize; 2],
    /// Zeros added on each side.
    pub pad: [usize; 2],
    /// Distance between the kernel's taps.
    pub dilation: [usize; 2],
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
        /// Images per batch, if the file says so.
        batch_size: Option<usize>,
        /// Channels, height, width, if the file says so.
        shape: Option<[usize; 3]>,
        /// What to do to each image.
        transform: TransformSpec,
    },
    /// Convolution.
    Convolution {
        /// Output channels.
        num_output: usize,
        /// Kernel.
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
    /// Pooling.
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
        /// Outputs.
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
        /// Exponent.
        beta: f32,
        /// Offset (across channels only).
        k: f32,
        /// Over neighbouring pixels instead of channels.
        within_channel: bool,
    },
    /// Dropout.
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
        let fields = Fields::new(proto::parse("NetParameter", file, text)?);
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

    /// What `phase` does to each image, if it has a data layer.
    pub fn transform_param(&self, phase: Phase) -> Option<&TransformSpec> {
        self.data(phase).map(|d| d.1)
    }
}

fn line_of_layer(text: &str, name: &str, nth: usize) -> Option<usize> {
    let quoted = [format!("\"{name}\""), format!("'{name}'")];
    text.lines()
        .enumerate()
        .filter(|(_, line)| {
            let line = line.split('#').next().unwrap_or("");
            line.contains("name:") && quoted.iter().any(|q| line.contains(q))
        })
        .nth(nth)
        .map(|(i, _)| i + 1)
}

/// `input: "data" input_dim: ...` of deploy files, as the Input layer it stands for.
fn deploy_input(
    source: &Source<'_>,
    fields: &Fields,
    inputs: Vec<String>,
) -> Result<LayerSpec, ModelError> {
    let place = Place {
        file: source.file.to_owned(),
        line: proto::line_with(source.text, "input:", 0),
    };
    let dims = match fields.messages("input_shape").first() {
        Some(shape) => shape.ints("dim"),
        None => fields.ints("input_dim").into_iter().take(4).collect(),
    };
    let (batch_size, shape) = dims_to_shape(&dims).map_err(|problem| ModelError::Field {
        place: place.clone(),
        field: "input_dim".to_owned(),
        problem,
    })?;
    Ok(LayerSpec {
        name: inputs[0].clone(),
        place,
        bottoms: Vec::new(),
        tops: inputs,
        params: Vec::new(),
        loss_weight: 0.0,
        op: LayerOp::Data {
            batch_size,
            shape,
            transform: no_transform(),
        },
        in_train: true,
        in_test: true,
    })
}

fn no_transform() -> TransformSpec {
    TransformSpec {
        scale: 1.0,
        mirror: false,
        crop_size: 0,
        mean_file: None,
        mean_value: Vec::new(),
    }
}

type BatchAndShape = (Option<usize>, Option<[usize; 3]>);

fn dims_to_shape(dims: &[i64]) -> Result<BatchAndShape, String> {
    let sizes: Option<Vec<usize>> = dims
        .iter()
        .map(|&d| {
            usize::try_from(d)
                .ok()
                .filter(|d| (1..=1 << 24).contains(d))
        })
        .collect();
    match sizes.as_deref() {
        Some([]) => Ok((None, None)),
        Some(&[n, c, h, w]) => Ok((Some(n), Some([c, h, w]))),
        Some(&[n, c]) => Ok((Some(n), Some([c, 1, 1]))),
        _ => Err(format!(
            "{dims:?} is not a shape of images; give batch, channels, height, width, each 1 or more"
        )),
    }
}

/// Reads one layer; knows its name and place for messages.
struct Reader<'a> {
    f: &'a Fields,
    name: &'a str,
    place: &'a Place,
}

impl Reader<'_> {
    fn wrong(&self, field: Option<&str>, problem: impl Into<String>) -> ModelError {
        ModelError::Layer {
            place: self.place.clone(),
            layer: self.name.to_owned(),
            field: field.map(str::to_owned),
            problem: problem.into(),
        }
    }

    fn layer(&self) -> Result<LayerSpec, ModelError> {
        if self.name.is_empty() {
            return Err(self.wrong(Some("name"), "missing; every layer needs one"));
        }
        let op = self.op()?;
        let (in_train, in_test) = (self.included(0)?, self.included(1)?);
        let mut params = Vec::new();
        for p in self.f.messages("param") {
            if p.has("name") {
                return Err(self.wrong(
                    Some("param.name"),
                    "sharing parameters between layers is not supported",
                ));
            }
            let spec = ParamSpec {
                lr_mult: p.f32("lr_mult"),
                decay_mult: p.f32("decay_mult"),
            };
            if !spec.lr_mult.is_finite() || !spec.decay_mult.is_finite() {
                return Err(self.wrong(Some("param"), "lr_mult and decay_mult must be finite"));
            }
            params.push(spec);
        }
        let is_loss = matches!(op, LayerOp::SoftmaxWithLoss { .. });
        let loss_weight = match self.f.floats("loss_weight").as_slice() {
            [] => f32::from(u8::from(is_loss)),
            [w] if is_loss && w.is_finite() => *w,
            [0.0] => 0.0,
            _ => {
                return Err(self.wrong(
                    Some("loss_weight"),
                    "give one finite number, and only to a loss layer",
                ));
            }
        };
        Ok(LayerSpec {
            name: self.name.to_owned(),
            place: self.place.clone(),
            bottoms: self.f.strings("bottom"),
            tops: self.f.strings("top"),
            params,
            loss_weight,
            op,
            in_train,
            in_test,
        })
    }

    /// Caffe's rule: any include rule that holds, or no exclude rule that holds.
    fn included(&self, phase: i32) -> Result<bool, ModelError> {
        let (include, exclude) = (self.f.messages("include"), self.f.messages("exclude"));
        if !include.is_empty() && !exclude.is_empty() {
            return Err(self.wrong(
                Some("exclude"),
                "give include rules or exclude rules, not both",
            ));
        }
        // Level 0 and no stages: nobody sets others here.
        let holds = |r: &Fields| {
            (!r.has("phase") || r.variant("phase") == phase)
                && (!r.has("min_level") || r.int("min_level") <= 0)
                && (!r.has("max_level") || r.int("max_level") >= 0)
                && r.strings("stage").is_empty()
        };
        if self.f.has("phase") && self.f.variant("phase") != phase {
            return Ok(false);
        }
        Ok(if include.is_empty() {
            !exclude.iter().any(holds)
        } else {
            include.iter().any(holds)
        })
    }

    fn op(&self) -> Result<LayerOp, ModelError> {
        let kind = self.f.string("type");
        Ok(match kind.as_str() {
            "Data" => self.data("data_param")?,
            "ImageData" => self.data("image_data_param")?,
            "HDF5Data" => self.data("hdf5_data_param")?,
            "MemoryData" => self.data("memory_data_param")?,
            "Input" => self.input()?,
            "Convolution" => self.convolution()?,
            "Pooling" => self.pooling()?,
            "InnerProduct" => self.inner_product()?,
            "ReLU" => LayerOp::Relu {
                negative_slope: self.f.message("relu_param").f32("negative_slope"),
            },
            "LRN" => self.lrn()?,
            "Dropout" => {
                let ratio = self.f.message("dropout_param").f32("dropout_ratio");
                if !(0.0..1.0).contains(&ratio) {
                    return Err(self.wrong(
                        Some("dropout_ratio"),
                        format!("{ratio} is outside 0 to below 1"),
                    ));
                }
                LayerOp::Dropout { ratio }
            }
            "Concat" => {
                let p = self.f.message("concat_param");
                if p.int("axis") != 1 || p.int("concat_dim") != 1 {
                    return Err(
                        self.wrong(Some("axis"), "only channels (axis 1) can be concatenated")
                    );
                }
                LayerOp::Concat
            }
            "Softmax" => {
                self.channel_axis("softmax_param")?;
                LayerOp::Softmax
            }
            "SoftmaxWithLoss" => self.softmax_loss()?,
            "Accuracy" => {
                self.channel_axis("accuracy_param")?;
                let p = self.f.message("accuracy_param");
                LayerOp::Accuracy {
                    top_k: self.size(&p, "top_k", 1)?,
                    ignore_label: self.ignore_label(&p),
                }
            }
            _ => {
                return Err(ModelError::LayerType {
                    place: self.place.clone(),
                    layer: self.name.to_owned(),
                    kind,
                });
            }
        })
    }

    fn channel_axis(&self, param: &str) -> Result<(), ModelError> {
        match self.f.message(param).int("axis") {
            1 => Ok(()),
            axis => Err(self.wrong(
                Some("axis"),
                format!("{axis} is not supported; only 1 (channels) is"),
            )),
        }
    }

    fn ignore_label(&self, p: &Fields) -> Option<u32> {
        p.has("ignore_label")
            .then(|| u32::try_from(p.int("ignore_label")).ok())
            .flatten()
    }

    /// A size from `low` to a limit that keeps products of sizes within range.
    fn size(&self, p: &Fields, field: &str, low: usize) -> Result<usize, ModelError> {
        let n = p.int(field);
        match usize::try_from(n) {
            Ok(size) if size >= low && size <= 1 << 24 => Ok(size),
            _ if !p.has(field) => {
                Err(self.wrong(Some(field), format!("missing; give {low} or more")))
            }
            _ => Err(self.wrong(
                Some(field),
                format!("{n} is not usable; give {low} to {}", 1 << 24),
            )),
        }
    }

    fn transform(&self) -> Result<TransformSpec, ModelError> {
        let t = self.f.message("transform_param");
        let spec = TransformSpec {
            scale: t.f32("scale"),
            mirror: t.bool("mirror"),
            crop_size: self.size(&t, "crop_size", 0)?,
            mean_file: t.has("mean_file").then(|| t.string("mean_file")),
            mean_value: t.floats("mean_value"),
        };
        if spec.mean_file.is_some() && !spec.mean_value.is_empty() {
            return Err(self.wrong(Some("mean_value"), "give mean_file or mean_value, not both"));
        }
        Ok(spec)
    }

    fn data(&self, param: &str) -> Result<LayerOp, ModelError> {
        let p = self.f.message(param);
        let batch_size = if p.has("batch_size") {
            Some(self.size(&p, "batch_size", 1)?)
        } else {
            None
        };
        let shape = if param == "memory_data_param" {
            Some([
                self.size(&p, "channels", 1)?,
                self.size(&p, "height", 1)?,
                self.size(&p, "width", 1)?,
            ])
        } else {
            None
        };
        Ok(LayerOp::Data {
            batch_size,
            shape,
            transform: self.transform()?,
        })
    }

    fn input(&self) -> Result<LayerOp, ModelError> {
        let shapes = self.f.message("input_param").messages("shape");
        let dims = shapes.first().map(|s| s.ints("dim")).unwrap_or_default();
        let (batch_size, shape) = dims_to_shape(&dims).map_err(|e| self.wrong(Some("shape"), e))?;
        Ok(LayerOp::Data {
            batch_size,
            shape,
            transform: self.transform()?,
        })
    }

    fn filler(&self, p: &Fields, field: &str) -> Result<Filler, ModelError> {
        let f = p.message(field);
        let norm = match f.variant("variance_norm") {
            1 => VarianceNorm::FanOut,
            2 => VarianceNorm::Average,
            _ => VarianceNorm::FanIn,
        };
        if f.int("sparse") >= 0 {
            return Err(self.wrong(Some(field), "sparse fillers are not supported"));
        }
        let filler = match f.string("type").as_str() {
            "constant" => Filler::Constant {
                value: f.f32("value"),
            },
            "uniform" => Filler::Uniform {
                min: f.f32("min"),
                max: f.f32("max"),
            },
            "gaussian" => Filler::Gaussian {
                mean: f.f32("mean"),
                std: f.f32("std"),
            },
            "xavier" => Filler::Xavier { norm },
            "msra" => Filler::Msra { norm },
            "positive_unitball" => Filler::PositiveUnitball,
            other => {
                return Err(self.wrong(
                    Some(field),
                    format!("type \"{other}\" is none of constant, uniform, gaussian, xavier, msra, positive_unitball"),
                ));
            }
        };
        filler
            .check()
            .map_err(|problem| self.wrong(Some(field), problem))?;
        Ok(filler)
    }

    /// One size for height and width: `NAME` once or twice, or `NAME_h` and `NAME_w`.
    fn pair(
        &self,
        p: &Fields,
        stem: &str,
        suffixed: &[&str],
        default: Option<usize>,
    ) -> Result<[usize; 2], ModelError> {
        let low = usize::from(stem != "pad");
        if suffixed.iter().any(|s| p.has(s)) {
            if p.has(stem) {
                return Err(self.wrong(
                    Some(stem),
                    format!(
                        "given twice: as {stem} and as {} / {}",
                        suffixed[0], suffixed[1]
                    ),
                ));
            }
            return Ok([
                self.size(p, suffixed[0], low)?,
                self.size(p, suffixed[1], low)?,
            ]);
        }
        let given = if p.ints(stem).is_empty() && p.has(stem) {
            vec![p.int(stem)]
        } else {
            p.ints(stem)
        };
        let usable = |n: i64| {
            usize::try_from(n)
                .ok()
                .filter(|&n| n >= low && n <= 1 << 16)
                .ok_or_else(|| {
                    self.wrong(
                        Some(stem),
                        format!("{n} is not usable; give {low} to {}", 1 << 16),
                    )
                })
        };
        match (given.as_slice(), default) {
            ([], Some(d)) => Ok([d, d]),
            ([], None) => Err(self.wrong(Some(stem), format!("missing; give {low} or more"))),
            (&[n], _) => Ok([usable(n)?; 2]),
            (&[h, w], _) => Ok([usable(h)?, usable(w)?]),
            _ => Err(self.wrong(
                Some(stem),
                "more than two values; only images of two dimensions are supported",
            )),
        }
    }

    fn window(&self, p: &Fields, dilates: bool) -> Result<Window, ModelError> {
        Ok(Window {
            kernel: self.pair(p, "kernel_size", &["kernel_h", "kernel_w"], None)?,
            stride: self.pair(p, "stride", &["stride_h", "stride_w"], Some(1))?,
            pad: self.pair(p, "pad", &["pad_h", "pad_w"], Some(0))?,
            dilation: if dilates {
                self.pair(p, "dilation", &[], Some(1))?
            } else {
                [1, 1]
            },
        })
    }

    fn convolution(&self) -> Result<LayerOp, ModelError> {
        let p = self.f.message("convolution_param");
        if p.int("axis") != 1 {
            return Err(self.wrong(Some("axis"), "only 1 (channels) is supported"));
        }
        let num_output = self.size(&p, "num_output", 1)?;
        let group = self.size(&p, "group", 1)?;
        if num_output % group != 0 {
            return Err(self.wrong(
                Some("group"),
                format!("{num_output} outputs cannot be split in {group} groups"),
            ));
        }
        Ok(LayerOp::Convolution {
            num_output,
            window: self.window(&p, true)?,
            group,
            bias: p.bool("bias_term"),
            weight_filler: self.filler(&p, "weight_filler")?,
            bias_filler: self.filler(&p, "bias_filler")?,
        })
    }

    fn pooling(&self) -> Result<LayerOp, ModelError> {
        let p = self.f.message("pooling_param");
        let method = match p.variant("pool") {
            0 => PoolMethod::Max,
            1 => PoolMethod::Average,
            _ => {
                return Err(
                    self.wrong(Some("pool"), "STOCHASTIC is not supported; MAX and AVE are")
                );
            }
        };
        let global = p.bool("global_pooling");
        let window = if global {
            if ["kernel_size", "kernel_h", "kernel_w"]
                .iter()
                .any(|k| p.has(k))
            {
                return Err(self.wrong(
                    Some("kernel_size"),
                    "global_pooling takes its kernel from the image",
                ));
            }
            Window {
                kernel: [1, 1],
                stride: [1, 1],
                pad: [0, 0],
                dilation: [1, 1],
            }
        } else {
            self.window(&p, false)?
        };
        if window.pad[0] >= window.kernel[0] || window.pad[1] >= window.kernel[1] {
            return Err(self.wrong(Some("pad"), "must be smaller than the kernel"));
        }
        Ok(LayerOp::Pooling {
            method,
            window,
            global,
            floor: p.variant("round_mode") == 1,
        })
    }

    fn inner_product(&self) -> Result<LayerOp, ModelError> {
        let p = self.f.message("inner_product_param");
        if p.int("axis") != 1 {
            return Err(self.wrong(Some("axis"), "only 1 is supported"));
        }
        if p.bool("transpose") {
            return Err(self.wrong(
                Some("transpose"),
                "is not supported; store the weights as outputs × inputs",
            ));
        }
        Ok(LayerOp::InnerProduct {
            num_output: self.size(&p, "num_output", 1)?,
            bias: p.bool("bias_term"),
            weight_filler: self.filler(&p, "weight_filler")?,
            bias_filler: self.filler(&p, "bias_filler")?,
        })
    }

    fn lrn(&self) -> Result<LayerOp, ModelError> {
        let p = self.f.message("lrn_param");
        let local_size = self.size(&p, "local_size", 1)?;
        if local_size % 2 == 0 {
            return Err(self.wrong(
                Some("local_size"),
                format!("{local_size} is even; it must be odd"),
            ));
        }
        let (alpha, beta, k) = (p.f32("alpha"), p.f32("beta"), p.f32("k"));
        if !(alpha.is_finite() && beta.is_finite() && k.is_finite()) || alpha < 0.0 || k <= 0.0 {
            return Err(self.wrong(None, format!("alpha {alpha}, beta {beta}, k {k}: alpha must not be negative, k must be positive")));
        }
        Ok(LayerOp::Lrn {
            local_size,
            alpha,
            beta,
            k,
            within_channel: p.variant("norm_region") == 1,
        })
    }

    fn softmax_loss(&self) -> Result<LayerOp, ModelError> {
        self.channel_axis("softmax_param")?;
        let p = self.f.message("loss_param");
        let normalization = match (p.has("normalization"), p.has("normalize")) {
            (false, true) if !p.bool("normalize") => Normalization::BatchSize,
            _ => match p.variant("normalization") {
                1 => Normalization::Valid,
                3 => Normalization::None,
                _ => Normalization::BatchSize,
            },
        };
        Ok(LayerOp::SoftmaxWithLoss {
            ignore_label: self.ignore_label(&p),
            normalization,
        })
    }
}
