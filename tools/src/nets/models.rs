//! The published nets, and how fast the papers say that one node trains them.
//!
//! Part of the program, so that a plan needs no files. Throughputs are single-GPU images per second
//! of the 2017 paper (Titan X, section 5.1). For AlexNet neither paper gives one here. It has
//! Caffe's own figure for the K20 of the 2015 paper's nodes, 36.0 s for 20 iterations of 256
//! images.

use std::path::Path;

use anyhow::{Result, bail};
use dogwild::poseidon::{Policy, Scheme};
use dogwild::solver::near;

use super::layers::{self, Layer};

/// The framework whose single-node throughput is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// Single-node throughput of Caffe.
    Caffe,
    /// Single-node throughput of TensorFlow.
    Tensorflow,
}

/// Where an engine's images per second come from.
#[derive(Clone, Copy, Debug)]
pub struct Stated {
    /// Framework that the figure was measured with.
    pub engine: Engine,
    /// Of one node alone.
    pub images_per_s: f64,
    /// Publication that states it.
    pub source: &'static str,
}

/// A net that is part of the program.
struct Model {
    name: &'static str,
    file: (&'static str, &'static str),
    stated: &'static [Stated],
}

const fn paper(engine: Engine, images_per_s: f64) -> Stated {
    Stated {
        engine,
        images_per_s,
        source: match engine {
            Engine::Caffe => "Poseidon 2017, Caffe engine, one Titan X",
            Engine::Tensorflow => "Poseidon 2017, TensorFlow engine, one Titan X",
        },
    }
}

macro_rules! file {
    ($name:literal) => {
        (
            concat!("models/", $name),
            include_str!(concat!("../../../models/", $name)),
        )
    };
}

/// Speed-ups that the papers report (by way of the project's notes and the papers' abstracts): net,
/// nodes, policy, whether layers are sent as soon as they are done.
const REPORTED: [(&str, u64, Policy, bool, f64); 7] = [
    ("alexnet", 8, Policy::Force(Scheme::Ps), false, 2.2),
    ("alexnet", 8, Policy::Force(Scheme::Ps), true, 4.0),
    ("alexnet", 8, Policy::Sacp, true, 6.0),
    ("vgg19-22k", 32, Policy::Force(Scheme::Ps), true, 21.5),
    ("vgg19-22k", 32, Policy::HybComm, true, 29.5),
    ("vgg19", 16, Policy::Force(Scheme::Ps), true, 8.0),
    ("inception-v3", 32, Policy::HybComm, true, 31.5),
];

/// The speed-up over one node that a paper reports, if it does.
pub fn reported(net: &str, nodes: u64, policy: Policy, overlap: bool) -> Option<f64> {
    let case = REPORTED
        .iter()
        .find(|case| (case.0, case.1, case.2, case.3) == (net, nodes, policy, overlap));
    case.map(|case| case.4)
}

const MODELS: [Model; 7] = [
    Model {
        name: "alexnet",
        file: file!("alexnet_train_test.prototxt"),
        stated: &[Stated {
            engine: Engine::Caffe,
            images_per_s: 20.0 * 256.0 / 36.0,
            source: "Caffe's own figure for one K20, the GPU of Poseidon 2015",
        }],
    },
    Model {
        name: "vgg16",
        file: file!("vgg16_train_test.prototxt"),
        // No paper here states one: VGG19's, at as many operations per second (39.3 to 31.0 GFLOP).
        stated: &[Stated {
            engine: Engine::Caffe,
            images_per_s: 35.5 * 39.263 / 30.941,
            source: "VGG19's of Poseidon 2017 (Caffe engine, one Titan X), by operations",
        }],
    },
    Model {
        name: "vgg19",
        file: file!("vgg19_train_test.prototxt"),
        stated: &[paper(Engine::Caffe, 35.5), paper(Engine::Tensorflow, 38.5)],
    },
    Model {
        name: "vgg19-22k",
        file: file!("vgg19_22k_train_test.prototxt"),
        stated: &[paper(Engine::Caffe, 34.6), paper(Engine::Tensorflow, 34.8)],
    },
    Model {
        name: "googlenet",
        file: file!("googlenet.csv"),
        stated: &[paper(Engine::Caffe, 257.0)],
    },
    Model {
        name: "inception-v3",
        file: file!("inception_v3.csv"),
        stated: &[paper(Engine::Tensorflow, 43.2)],
    },
    Model {
        name: "resnet-152",
        file: file!("resnet_152.csv"),
        stated: &[paper(Engine::Tensorflow, 40.0)],
    },
];

/// The layers of `name` (a published net, or a file) and what is stated about its speed.
///
/// # Errors
/// The name is unknown, or the file is not a net.
pub fn find(name: &str, input: Option<[usize; 3]>) -> Result<(Vec<Layer>, &'static [Stated])> {
    if let Some(model) = MODELS.iter().find(|model| model.name == name) {
        return Ok((
            layers::parse(model.file.0, model.file.1, input)?,
            model.stated,
        ));
    }
    let path = Path::new(name);
    if !path.exists() {
        let known: Vec<_> = MODELS.iter().map(|model| model.name).collect();
        bail!(
            "no net `{name}`{}: give a net prototxt, a layer table (.csv, docs/guide/planning.md), or one of {}",
            near::hint(name, known.iter().copied()),
            known.join(", ")
        );
    }
    Ok((layers::read(path, input)?, &[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(name: &str) -> (u64, f64) {
        let (layers, _) = find(name, None).unwrap();
        let flops: u64 = layers.iter().map(|layer| layer.flops).sum();
        let parameters = layers.iter().map(|layer| layer.shape.parameters()).sum();
        (parameters, flops as f64 / 1e9)
    }

    /// Exact parameter counts of the published nets, and the round numbers of the papers' tables.
    #[test]
    fn parameters_are_the_published_ones() {
        let exact = [
            ("alexnet", 60_965_224), // Caffe's bvlc_alexnet; "61.5 M" in the 2015 paper
            ("vgg16", 138_357_544),
            ("vgg19", 143_667_240),                              // 143 M
            ("vgg19-22k", 143_667_240 + (21_841 - 1000) * 4097), // 229 M
            ("googlenet", 6_998_552), // Caffe's, without heads; the papers say 5 M
            ("inception-v3", 27_161_264), // 27 M
            ("resnet-152", 60_192_808), // 60.2 M
        ];
        for (name, parameters) in exact {
            assert_eq!(totals(name).0, parameters, "{name}");
        }
    }

    /// Multiplications of one forward pass, in 10^9, as their authors and surveys state them.
    #[test]
    fn flops_are_the_published_ones() {
        let published = [
            ("alexnet", 0.72),
            ("vgg16", 15.5),
            ("vgg19", 19.6),
            ("googlenet", 1.58),
            ("inception-v3", 5.7),
            ("resnet-152", 11.3),
        ];
        for (name, multiplications) in published {
            let ours = totals(name).1 / 2.0;
            assert!(
                (ours / multiplications - 1.0).abs() < 0.02,
                "{name}: {ours}"
            );
        }
    }

    #[test]
    fn an_unknown_net_is_told_those_that_are_known() {
        let said = find("alexnot", None).expect_err("unknown").to_string();
        assert!(
            said.contains("`alexnot`") && said.contains("resnet-152"),
            "{said}"
        );
    }
}
