//! Caffe's text format, read with a protobuf library: text in, checked message out.
//!
//! The descriptor is compiled once per process from `proto/caffe.proto`, which is part of
//! the binary. Nothing here knows what the fields mean.

mod braces;

use std::sync::OnceLock;

use miette::Diagnostic;
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage, Value};
use protox::file::{File, FileResolver};

use super::error::{ModelError, Place};
use super::near;
use braces::Odd;

const SOURCE: &str = include_str!("../../proto/caffe.proto");

struct OneFile;

impl FileResolver for OneFile {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        File::from_source(name, SOURCE)
    }
}

/// The descriptors, or why our own `caffe.proto` does not compile (a defect that a test
/// excludes, told like any other error).
fn pool() -> Result<&'static DescriptorPool, String> {
    static POOL: OnceLock<Result<DescriptorPool, String>> = OnceLock::new();
    POOL.get_or_init(|| {
        let mut compiler = protox::Compiler::with_file_resolver(OneFile);
        compiler
            .open_file("caffe.proto")
            .map_err(|e| format!("{e:?}"))?;
        Ok(compiler.descriptor_pool())
    })
    .as_ref()
    .map_err(Clone::clone)
}

/// Parses `text` as `caffe.<kind>`. `file` is for messages only.
pub(crate) fn parse(kind: &str, file: &str, text: &str) -> Result<DynamicMessage, ModelError> {
    let fail = |line, message| ModelError::Parse {
        place: Place {
            file: file.to_owned(),
            line,
        },
        message,
    };
    let pool =
        pool().map_err(|e| fail(None, format!("the built-in caffe.proto is broken: {e}")))?;
    let descriptor = pool
        .get_message_by_name(&format!("caffe.{kind}"))
        .ok_or_else(|| fail(None, format!("the built-in caffe.proto lacks {kind}")))?;
    // Looked for first: the parser would only say that the field `type` is unknown.
    if let Some(line) = old_style_layer(text) {
        return Err(fail(
            Some(line),
            "`layers { ... }` is the format of 2013 (V1); upgrade the file with Caffe's \
             upgrade_net_proto_text, or write `layer { type: \"Convolution\" ... }`"
                .to_owned(),
        ));
    }
    DynamicMessage::parse_text_format(descriptor, text).map_err(|e| {
        let line = e
            .labels()
            .and_then(|mut labels| labels.next())
            .map(|label| line_of(text, label.offset()));
        match braces::odd_one(text) {
            Some(Odd::Open(line)) => fail(
                Some(line),
                "the `{` that is opened here is never closed: add its `}`".to_owned(),
            ),
            Some(Odd::Close(line)) => fail(
                Some(line),
                "this `}` closes nothing: remove it, or open its `{`".to_owned(),
            ),
            None => {
                let said = e.to_string();
                let hint = nearest_known(pool, &said);
                fail(line, said.replace("caffe.", "") + &hint)
            }
        }
    })
}

/// The name that was probably meant where the parser `said` that it does not know one: `field 'x'
/// not found for message 'M'`, or `value 'x' was not found for enum 'E'`.
fn nearest_known(pool: &DescriptorPool, said: &str) -> String {
    let mut words = said.split('\'').skip(1).step_by(2);
    let (Some(unknown), Some(owner)) = (words.next(), words.next()) else {
        return String::new();
    };
    if let Some(message) = pool.get_message_by_name(owner) {
        let fields: Vec<_> = message.fields().collect();
        return near::hint(unknown, fields.iter().map(|field| field.name()));
    }
    let Some(kind) = pool.get_enum_by_name(owner) else {
        return String::new();
    };
    let values: Vec<_> = kind.values().collect();
    let names: Vec<&str> = values.iter().map(|value| value.name()).collect();
    format!(
        "{}; there are {}",
        near::hint(unknown, names.iter().copied()),
        names.join(", ")
    )
}

/// True if `text` can be read as `caffe.<kind>` and sets one of `fields`: the other kind of file
/// was given.
pub(crate) fn is_a(kind: &str, text: &str, fields: &[&str]) -> bool {
    let message = parse(kind, "", text).map(Fields::new);
    message.is_ok_and(|message| fields.iter().any(|field| message.has(field)))
}

/// The line of the first `layers {`, outside comments and strings as far as a line shows.
fn old_style_layer(text: &str) -> Option<usize> {
    text.lines()
        .position(|line| {
            line.trim_start()
                .strip_prefix("layers")
                .is_some_and(|rest| {
                    let rest = rest.trim_start();
                    rest.trim_start_matches(':').trim_start().starts_with('{')
                })
        })
        .map(|i| i + 1)
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())]
        .iter()
        .filter(|&&b| b == b'\n')
        .count()
}

/// The line of the `nth` mention (from 0) of `needle` outside comments, if there is one.
pub(crate) fn line_with(text: &str, needle: &str, nth: usize) -> Option<usize> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| line.split('#').next().unwrap_or("").contains(needle))
        .nth(nth)
        .map(|(i, _)| i + 1)
}

/// Typed access to the fields of a message by name, with proto2's defaults.
///
/// A name or type that `caffe.proto` does not have is a defect of this crate: it gives the
/// type's zero in release builds and an assertion in debug builds.
#[derive(Clone)]
pub(crate) struct Fields(DynamicMessage);

impl Fields {
    pub(crate) fn new(message: DynamicMessage) -> Self {
        Self(message)
    }

    fn value(&self, name: &str) -> Option<Value> {
        let value = self.0.get_field_by_name(name).map(|v| v.into_owned());
        debug_assert!(
            value.is_some(),
            "caffe.proto: {} has no field {name}",
            self.0.descriptor().name()
        );
        value
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.has_field_by_name(name)
    }

    pub(crate) fn f32(&self, name: &str) -> f32 {
        self.value(name)
            .and_then(|v| v.as_f32())
            .unwrap_or_default()
    }

    pub(crate) fn int(&self, name: &str) -> i64 {
        self.value(name)
            .as_ref()
            .and_then(integer)
            .unwrap_or_default()
    }

    pub(crate) fn bool(&self, name: &str) -> bool {
        self.value(name)
            .and_then(|v| v.as_bool())
            .unwrap_or_default()
    }

    pub(crate) fn string(&self, name: &str) -> String {
        self.value(name)
            .and_then(|v| v.as_str().map(str::to_owned))
            .unwrap_or_default()
    }

    /// The number of an enum value.
    pub(crate) fn variant(&self, name: &str) -> i32 {
        self.value(name)
            .and_then(|v| v.as_enum_number())
            .unwrap_or_default()
    }

    /// A message field; all defaults if it is not set.
    pub(crate) fn message(&self, name: &str) -> Fields {
        match self.value(name) {
            Some(Value::Message(m)) => Fields(m),
            _ => self.clone(),
        }
    }

    fn list(&self, name: &str) -> Vec<Value> {
        self.value(name)
            .and_then(|v| v.as_list().map(<[Value]>::to_vec))
            .unwrap_or_default()
    }

    pub(crate) fn messages(&self, name: &str) -> Vec<Fields> {
        self.list(name)
            .into_iter()
            .filter_map(|v| {
                if let Value::Message(m) = v {
                    Some(Fields(m))
                } else {
                    None
                }
            })
            .collect()
    }

    pub(crate) fn strings(&self, name: &str) -> Vec<String> {
        self.list(name)
            .iter()
            .filter_map(|v| v.as_str().map(str::to_owned))
            .collect()
    }

    pub(crate) fn ints(&self, name: &str) -> Vec<i64> {
        self.list(name).iter().filter_map(integer).collect()
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        self.list(name).iter().filter_map(Value::as_f32).collect()
    }
}

fn integer(v: &Value) -> Option<i64> {
    match *v {
        Value::I32(i) => Some(i.into()),
        Value::I64(i) => Some(i),
        Value::U32(i) => Some(i.into()),
        Value::U64(i) => i64::try_from(i).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_schema_compiles() {
        pool().expect("caffe.proto");
    }

    #[test]
    fn unknown_field_is_named_with_its_line() {
        let e = parse(
            "SolverParameter",
            "s.prototxt",
            "base_lr: 0.01\nmomentumm: 0.9\n",
        )
        .unwrap_err();
        let text = e.to_string();
        assert!(text.starts_with("s.prototxt:2:"), "{text}");
        assert!(text.contains("momentumm"), "{text}");
    }

    #[test]
    fn old_style_layers_are_refused_with_advice() {
        let e = parse(
            "NetParameter",
            "n",
            "name: 'x'\nlayers {\n  type: CONVOLUTION\n}\n",
        )
        .unwrap_err();
        assert!(
            e.to_string().contains("n:2:") && e.to_string().contains("upgrade_net_proto_text"),
            "{e}"
        );
    }

    #[test]
    fn colon_before_braces_and_single_quotes_parse() {
        let m = parse(
            "NetParameter",
            "n",
            "layer { name: 'a' include: { phase: TEST } loss_weight: 1 }",
        )
        .unwrap();
        let layer = Fields::new(m).messages("layer").remove(0);
        assert_eq!(layer.string("name"), "a");
        assert_eq!(layer.floats("loss_weight"), [1.0]);
        assert_eq!(layer.messages("include")[0].variant("phase"), 1);
    }
}
