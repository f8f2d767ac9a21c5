//! Hyper-parameters of the layers that compute, each checked where it is read.

use super::super::error::ModelError;
use super::super::filler::{Filler, VarianceNorm};
use super::super::proto::Fields;
use super::read::Reader;
use super::{LayerOp, Normalization, PoolMethod, Window};

impl Reader<'_> {
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

    pub(super) fn convolution(&self) -> Result<LayerOp, ModelError> {
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

    pub(super) fn pooling(&self) -> Result<LayerOp, ModelError> {
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

    pub(super) fn inner_product(&self) -> Result<LayerOp, ModelError> {
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

    pub(super) fn lrn(&self) -> Result<LayerOp, ModelError> {
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

    pub(super) fn softmax_loss(&self) -> Result<LayerOp, ModelError> {
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
