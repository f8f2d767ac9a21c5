//! A solver file, checked: every number is in range and every choice is one that works.
//! Reads files; touches nothing else.

mod builtin;

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::error::{ModelError, Place};
use super::near;
use super::net_spec::{NetSpec, Source};
use super::proto::{self, Fields};
use super::rate::LrPolicy;
use builtin::BUILTINS;

/// Penalty on the weights (`regularization_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Regularization {
    /// Gradient of `decay/2 * w^2`.
    L2,
    /// Gradient of `decay * |w|`.
    L1,
}

/// What a Caffe solver file says, checked. Fields carry Caffe's names.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SolverSpec {
    /// The net it trains.
    #[serde(skip)]
    pub net: NetSpec,
    /// Rate at iteration 0.
    pub base_lr: f32,
    /// How the rate falls.
    #[serde(flatten)]
    pub lr_policy: LrPolicy,
    /// Iterations to train.
    pub max_iter: u64,
    /// Share of the last update that is added to the next one, 0 to below 1.
    pub momentum: f32,
    /// Factor of the penalty on the weights.
    pub weight_decay: f32,
    /// Which penalty.
    pub regularization_type: Regularization,
    /// Gradients longer than this (L2 norm over all parameters) are shortened to it.
    pub clip_gradients: Option<f32>,
    /// Iterations between two tests; 0: none.
    pub test_interval: u64,
    /// Batches per test.
    pub test_iter: u64,
    /// Whether to test before the first iteration.
    pub test_initialization: bool,
    /// Iterations between two lines of progress; 0: none.
    pub display: u64,
    /// Iterations whose mean loss is shown.
    pub average_loss: u64,
    /// Batches whose gradients make one update.
    pub iter_size: u64,
    /// Iterations between two snapshots; 0: none.
    pub snapshot: u64,
    /// Start of the names of these snapshots, if the file gives one; may lead into a folder.
    pub snapshot_prefix: Option<PathBuf>,
    /// Whether there is a snapshot at the end too.
    pub snapshot_after_train: bool,
    /// Seed of everything random, if the file gives one.
    pub random_seed: Option<u64>,
}

/// Names of the policies, as the files spell them.
const LR_POLICIES: [&str; 7] = [
    "fixed",
    "step",
    "exp",
    "inv",
    "multistep",
    "poly",
    "sigmoid",
];

impl SolverSpec {
    /// Reads a solver file and the net it names. The net's path is taken as it stands, as
    /// Caffe does, and then relative to the solver file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let text = read("solver", path, String::new())?;
        Self::parse(&path.display().to_string(), &text, |net| {
            let beside = path.parent().unwrap_or(Path::new("")).join(net);
            let chosen = if net.exists() || !beside.exists() {
                net
            } else {
                &beside
            };
            let hint = format!(
                " (tried as given and as {}; change `net` in {})",
                beside.display(),
                path.display()
            );
            Ok((chosen.display().to_string(), read("net", chosen, hint)?))
        })
    }

    /// A model that is part of the program: one of [`Self::builtin_names`].
    pub fn builtin(name: &str) -> Result<Self, ModelError> {
        let found =
            BUILTINS
                .iter()
                .find(|b| b.name == name)
                .ok_or_else(|| ModelError::NoBuiltin {
                    name: name.to_owned(),
                    known: Self::builtin_names().collect::<Vec<_>>().join(", "),
                    hint: near::hint(name, Self::builtin_names()),
                })?;
        Self::parse(found.solver.0, found.solver.1, |_| {
            Ok((found.net.0.to_owned(), found.net.1.to_owned()))
        })
    }

    /// Names of the built-in models.
    pub fn builtin_names() -> impl Iterator<Item = &'static str> {
        BUILTINS.iter().map(|b| b.name)
    }

    /// Parses a solver from text. `load_net` gets the path the solver names and gives the
    /// net's name for messages and its text.
    ///
    /// # Errors
    /// Every way in which the two texts are not a model that works here.
    pub fn parse(
        file: &str,
        text: &str,
        load_net: impl FnOnce(&Path) -> Result<(String, String), ModelError>,
    ) -> Result<Self, ModelError> {
        let message = proto::parse("SolverParameter", file, text).map_err(|error| {
            if proto::is_a("NetParameter", text, &["layer", "input"]) {
                return ModelError::OtherKind {
                    file: file.to_owned(),
                    is: "a net file, not a solver file",
                    advice: format!(
                        "give a solver file that names it (net: \"{file}\", base_lr, lr_policy, max_iter)"
                    ),
                };
            }
            error
        })?;
        let fields = Fields::new(message);
        let at = At {
            file,
            text,
            fields: &fields,
        };
        at.check_solver_type()?;
        let net = at.net(load_net)?;
        let max_iter = at.count("max_iter")?;
        let test_iter = match fields.ints("test_iter").as_slice() {
            [] => 0,
            [n] if *n >= 0 => n.unsigned_abs(),
            [n] => return Err(at.wrong("test_iter", format!("{n} is negative"))),
            _ => {
                return Err(at.wrong(
                    "test_iter",
                    "more than one test net is not supported; give one",
                ));
            }
        };
        let test_interval = at.count("test_interval")?;
        if test_interval > 0 && test_iter == 0 {
            return Err(at.wrong(
                "test_iter",
                "missing, though test_interval is set: how many batches make a test?",
            ));
        }
        let seed = fields.int("random_seed");
        Ok(Self {
            net,
            base_lr: at.required_rate("base_lr")?,
            lr_policy: at.lr_policy(max_iter)?,
            max_iter,
            momentum: at.in_range("momentum", 0.0, 1.0)?,
            weight_decay: at.in_range("weight_decay", 0.0, f32::MAX)?,
            regularization_type: at.regularization()?,
            clip_gradients: Some(fields.f32("clip_gradients")).filter(|&c| c >= 0.0),
            test_interval,
            test_iter,
            test_initialization: fields.bool("test_initialization"),
            display: at.count("display")?,
            average_loss: at.count("average_loss")?.max(1),
            iter_size: match at.count("iter_size")? {
                0 => return Err(at.wrong("iter_size", "0 batches make no update; give 1 or more")),
                n => n,
            },
            snapshot: at.count("snapshot")?,
            snapshot_prefix: Some(fields.string("snapshot_prefix"))
                .filter(|prefix| !prefix.is_empty())
                .map(PathBuf::from),
            snapshot_after_train: fields.bool("snapshot_after_train"),
            random_seed: u64::try_from(seed).ok(),
        })
    }

    /// The learning rate at `iteration` (from 0).
    pub fn rate_at(&self, iteration: u64) -> f32 {
        self.lr_policy.rate_at(self.base_lr, iteration)
    }
}

fn read(what: &'static str, path: &Path, hint: String) -> Result<String, ModelError> {
    std::fs::read_to_string(path).map_err(|source| ModelError::Read {
        what,
        path: path.to_owned(),
        source,
        hint,
    })
}

/// A solver's fields and where they stand, for messages.
struct At<'a> {
    file: &'a str,
    text: &'a str,
    fields: &'a Fields,
}

impl At<'_> {
    fn wrong(&self, field: &str, problem: impl Into<String>) -> ModelError {
        ModelError::Field {
            place: Place {
                file: self.file.to_owned(),
                line: proto::line_with(self.text, &format!("{field}:"), 0),
            },
            field: field.to_owned(),
            problem: problem.into(),
        }
    }

    fn count(&self, field: &str) -> Result<u64, ModelError> {
        let n = self.fields.int(field);
        u64::try_from(n).map_err(|_| self.wrong(field, format!("{n} is negative; give 0 or more")))
    }

    fn positive(&self, field: &str, why: &str) -> Result<u64, ModelError> {
        match self.count(field)? {
            0 => Err(self.wrong(field, format!("missing or 0, but {why}"))),
            n => Ok(n),
        }
    }

    fn required_rate(&self, field: &str) -> Result<f32, ModelError> {
        let value = self.fields.f32(field);
        if !self.fields.has(field) {
            return Err(self.wrong(field, "missing; set it, e.g. base_lr: 0.01"));
        }
        if value.is_finite() && value >= 0.0 {
            Ok(value)
        } else {
            Err(self.wrong(field, format!("{value} is not a rate; give 0 or more")))
        }
    }

    fn in_range(&self, field: &str, low: f32, below: f32) -> Result<f32, ModelError> {
        let value = self.fields.f32(field);
        if value >= low && value < below {
            Ok(value)
        } else {
            Err(self.wrong(
                field,
                format!("{value} is outside {low} to below {below:e}"),
            ))
        }
    }

    fn policy_f32(&self, field: &str, policy: &str) -> Result<f32, ModelError> {
        if !self.fields.has(field) {
            let problem = format!("missing, but lr_policy \"{policy}\" needs it");
            return Err(self.wrong(field, problem));
        }
        let value = self.fields.f32(field);
        // Only a sigmoid falls by a steepness below 0; elsewhere the rate would change its sign or
        // be NaN.
        if value.is_finite() && (value >= 0.0 || policy == "sigmoid") {
            Ok(value)
        } else {
            let problem =
                format!("{value} makes no rate of lr_policy \"{policy}\"; give 0 or more");
            Err(self.wrong(field, problem))
        }
    }

    fn regularization(&self) -> Result<Regularization, ModelError> {
        match self.fields.string("regularization_type").as_str() {
            "L2" => Ok(Regularization::L2),
            "L1" => Ok(Regularization::L1),
            other => Err(self.wrong(
                "regularization_type",
                format!("\"{other}\" is neither \"L2\" nor \"L1\""),
            )),
        }
    }

    fn lr_policy(&self, max_iter: u64) -> Result<LrPolicy, ModelError> {
        let name = self.fields.string("lr_policy");
        let gamma = || self.policy_f32("gamma", &name);
        let power = || self.policy_f32("power", &name);
        Ok(match name.as_str() {
            "fixed" => LrPolicy::Fixed,
            "step" => LrPolicy::Step {
                gamma: gamma()?,
                stepsize: self.positive("stepsize", "lr_policy \"step\" divides by it")?,
            },
            "exp" => LrPolicy::Exp { gamma: gamma()? },
            "inv" => LrPolicy::Inv {
                gamma: gamma()?,
                power: power()?,
            },
            "multistep" => LrPolicy::Multistep {
                gamma: gamma()?,
                stepvalues: self.stepvalues()?,
            },
            "poly" => {
                if max_iter == 0 {
                    return Err(self.wrong(
                        "max_iter",
                        "missing or 0, but lr_policy \"poly\" divides by it",
                    ));
                }
                LrPolicy::Poly {
                    power: power()?,
                    max_iter,
                }
            }
            "sigmoid" => LrPolicy::Sigmoid {
                gamma: gamma()?,
                stepsize: self.count("stepsize")?,
            },
            "" => return Err(self.wrong("lr_policy", "missing; give e.g. lr_policy: \"fixed\"")),
            other => {
                return Err(self.wrong(
                    "lr_policy",
                    format!(
                        "\"{other}\" is none of {}{}",
                        LR_POLICIES.join(", "),
                        near::hint(other, LR_POLICIES)
                    ),
                ));
            }
        })
    }

    fn stepvalues(&self) -> Result<Vec<u64>, ModelError> {
        let values = self.fields.ints("stepvalue");
        let rising = values.windows(2).all(|w| w[0] <= w[1]);
        if !rising || values.first().is_some_and(|&v| v < 0) {
            return Err(self.wrong("stepvalue", format!("{values:?} must rise from 0 or more")));
        }
        Ok(values.iter().map(|v| v.unsigned_abs()).collect())
    }

    fn check_solver_type(&self) -> Result<(), ModelError> {
        let kind = self.fields.string("type");
        if kind != "SGD" {
            return Err(self.wrong(
                "type",
                format!("\"{kind}\" is not supported; only \"SGD\" is (with momentum)"),
            ));
        }
        if self.fields.variant("solver_type") != 0 {
            return Err(self.wrong("solver_type", "only SGD is supported (with momentum)"));
        }
        Ok(())
    }

    /// The one net, from whichever of Caffe's fields holds it.
    fn net(
        &self,
        load: impl FnOnce(&Path) -> Result<(String, String), ModelError>,
    ) -> Result<NetSpec, ModelError> {
        for field in ["train_net", "test_net", "train_net_param", "test_net_param"] {
            if self.fields.has(field) {
                return Err(self.wrong(
                    field,
                    "separate train and test nets are not supported; join them in one `net` \
                     with include { phase: TRAIN } and include { phase: TEST }",
                ));
            }
        }
        match (self.fields.has("net"), self.fields.has("net_param")) {
            (true, false) => {
                let (file, text) = load(&PathBuf::from(self.fields.string("net")))?;
                NetSpec::parse(&file, &text)
            }
            (false, true) => {
                let source = Source {
                    file: self.file,
                    text: self.text,
                };
                NetSpec::from_fields(&source, &self.fields.message("net_param"))
            }
            _ => Err(self.wrong("net", "give exactly one of `net` (a path) and `net_param`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NET: &str = include_str!("../../models/lenet_train_test.prototxt");

    fn parse(text: &str) -> Result<SolverSpec, ModelError> {
        SolverSpec::parse("s", text, |_| Ok(("n".to_owned(), NET.to_owned())))
    }

    #[test]
    fn builtins_carry_caffe_settings() {
        let s = SolverSpec::builtin("lenet").unwrap();
        assert_eq!((s.base_lr, s.momentum, s.weight_decay), (0.01, 0.9, 0.0005));
        assert_eq!(
            s.lr_policy,
            LrPolicy::Inv {
                gamma: 0.0001,
                power: 0.75
            }
        );
        assert_eq!(
            (s.max_iter, s.test_iter, s.test_interval, s.display),
            (10_000, 100, 500, 100)
        );
        assert_eq!(
            SolverSpec::builtin("lenet_no_momentum").unwrap().momentum,
            0.0
        );
        let c = SolverSpec::builtin("cifar10_quick").unwrap();
        assert_eq!(
            (c.base_lr, c.momentum, c.weight_decay, c.max_iter),
            (0.001, 0.9, 0.004, 5000)
        );
        assert!(matches!(
            SolverSpec::builtin("lenett"),
            Err(ModelError::NoBuiltin { .. })
        ));
    }

    #[test]
    fn snapshots_are_as_caffe_says() {
        let least = "net: \"n\" base_lr: 1 lr_policy: \"fixed\"";
        let s = parse(least).unwrap();
        assert_eq!((s.snapshot, s.snapshot_after_train), (0, true));
        assert_eq!(s.snapshot_prefix, None);
        let more = "snapshot: 50 snapshot_prefix: \"a/b\" snapshot_after_train: false";
        let s = parse(&format!("{least} {more}")).unwrap();
        assert_eq!((s.snapshot, s.snapshot_after_train), (50, false));
        assert_eq!(s.snapshot_prefix, Some("a/b".into()));
    }

    #[test]
    fn net_is_found_beside_the_solver() {
        let dir = tempfile::tempdir().unwrap();
        let solver = dir.path().join("s.prototxt");
        std::fs::write(
            &solver,
            "net: \"sub/n.prototxt\"\nbase_lr: 1\nlr_policy: \"fixed\"\n",
        )
        .unwrap();
        let e = SolverSpec::from_file(&solver).unwrap_err().to_string();
        assert!(
            e.contains("sub/n.prototxt") && e.contains("change `net`"),
            "{e}"
        );
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/n.prototxt"), NET).unwrap();
        assert_eq!(SolverSpec::from_file(&solver).unwrap().net.name, "LeNet");
    }

    #[test]
    fn wrong_values_say_where_and_what() {
        let ok = "net: \"n\"\nbase_lr: 0.1\nlr_policy: \"fixed\"\n";
        assert!(parse(ok).is_ok());
        for (text, want) in [
            ("net: \"n\"\nlr_policy: \"fixed\"\n", "`base_lr`: missing"),
            (
                "net: \"n\"\nbase_lr: 0.1\nlr_policy: \"stepp\"\n",
                "s:3: field `lr_policy`: \"stepp\" is none of",
            ),
            (
                "net: \"n\"\nbase_lr: 0.1\nlr_policy: \"step\"\ngamma: 1\n",
                "`stepsize`: missing or 0",
            ),
            (
                "net: \"n\"\nbase_lr: 0.1\nlr_policy: \"inv\"\ngamma: 1\n",
                "`power`: missing",
            ),
            (
                &format!("{ok}type: \"Adam\"\n"),
                "\"Adam\" is not supported",
            ),
            (&format!("{ok}solver_type: RMSPROP\n"), "only SGD"),
            (&format!("{ok}momentum: 1.5\n"), "s:4: field `momentum`"),
            (&format!("{ok}max_iter: -1\n"), "-1 is negative"),
            (&format!("{ok}test_interval: 5\n"), "how many batches"),
            (
                "base_lr: 0.1\nlr_policy: \"fixed\"\n",
                "exactly one of `net`",
            ),
            (&format!("{ok}base_lr: 0.2\n"), "base_lr"),
        ] {
            let e = parse(text).unwrap_err().to_string();
            assert!(e.contains(want), "{text}\n-> {e}\n(wanted {want})");
        }
    }
}
