//! From the fields of a net file to checked layers: which phase they are in, what they do.
//! The hyper-parameters of the layers that compute are read in `hyper.rs`.

use super::super::error::{ModelError, Place};
use super::super::proto::{self, Fields};
use super::{LayerOp, LayerSpec, ParamSpec, Source, TransformSpec};

pub(super) fn line_of_layer(text: &str, name: &str, nth: usize) -> Option<usize> {
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
pub(super) fn deploy_input(
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
            source: None,
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
pub(super) struct Reader<'a> {
    pub(super) f: &'a Fields,
    pub(super) name: &'a str,
    pub(super) place: &'a Place,
}

impl Reader<'_> {
    pub(super) fn wrong(&self, field: Option<&str>, problem: impl Into<String>) -> ModelError {
        ModelError::Layer {
            place: self.place.clone(),
            layer: self.name.to_owned(),
            field: field.map(str::to_owned),
            problem: problem.into(),
        }
    }

    pub(super) fn layer(&self) -> Result<LayerSpec, ModelError> {
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
        // Level 0 and no stages: nothing sets others here.
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

    pub(super) fn channel_axis(&self, param: &str) -> Result<(), ModelError> {
        match self.f.message(param).int("axis") {
            1 => Ok(()),
            axis => Err(self.wrong(
                Some("axis"),
                format!("{axis} is not supported; only 1 (channels) is"),
            )),
        }
    }

    pub(super) fn ignore_label(&self, p: &Fields) -> Option<u32> {
        p.has("ignore_label")
            .then(|| u32::try_from(p.int("ignore_label")).ok())
            .flatten()
    }

    /// A size from `low` to a limit that keeps products of sizes within range.
    pub(super) fn size(&self, p: &Fields, field: &str, low: usize) -> Result<usize, ModelError> {
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
            // MemoryData has none: its images are handed over.
            source: (param != "memory_data_param" && p.has("source")).then(|| p.string("source")),
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
            source: None,
        })
    }
}
