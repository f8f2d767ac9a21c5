//! Which tensor lies where: the header format of safetensors, stored in the buffer.
//!
//! Pure data and JSON; touches no file. Invariant: a `Manifest` is always packed by one rule,
//! whether it was built or parsed: the tensors in order, each at the next multiple of 16 weights.
//! So names and shapes determine every offset.

use std::collections::HashSet;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::Xxh3;

use super::BLOCK;

/// More weights than any machine holds, few enough that no sum of bytes overflows.
const MAX_WEIGHTS: usize = 1 << 40;

/// One named tensor in the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name, for instance `conv1.weight`.
    pub name: String,
    /// Its shape, outermost dimension first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Where it begins, in weights from the start of the buffer; a multiple of 16.
    pub offset: usize,
}

impl TensorInfo {
    /// Number of weights. Never zero.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a tensor without weights is refused"
    )]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Why a list of tensors or its JSON was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ManifestError {
    /// Two tensors share a name.
    #[error("two tensors are called {0:?}; give every tensor its own name")]
    Duplicate(String),
    /// A name that the format cannot carry.
    #[error("{0:?} cannot be the name of a tensor")]
    Name(String),
    /// A shape with a zero in it.
    #[error("tensor {name:?} has shape {shape:?}, which holds no weight; leave it out")]
    Empty {
        /// Name of the tensor.
        name: String,
        /// Shape of the tensor, outermost dimension first.
        shape: Vec<usize>,
    },
    /// More weights than can be addressed.
    #[error("tensor {name:?} of shape {shape:?} takes the model beyond {MAX_WEIGHTS} weights")]
    TooLarge {
        /// Name of the tensor.
        name: String,
        /// Shape of the tensor, outermost dimension first.
        shape: Vec<usize>,
    },
    /// No tensor at all.
    #[error("the model has no tensor")]
    NoTensor,
    /// Not the JSON of a safetensors header.
    #[error("the manifest is not the JSON of a safetensors header: {0}")]
    Json(String),
    /// A dtype other than F32.
    #[error("tensor {name:?} has dtype {dtype:?}; the buffer holds F32 only")]
    Dtype {
        /// Name of the tensor.
        name: String,
        /// dtype in the JSON.
        dtype: String,
    },
    /// Offsets that the packing rule does not give.
    #[error(
        "tensor {name:?} lies at bytes {found:?}, but packing by 16 weights puts it at {expected:?}"
    )]
    Offsets {
        /// Name of the tensor.
        name: String,
        /// What the JSON says.
        found: [u64; 2],
        /// What the rule gives.
        expected: [u64; 2],
    },
}

/// The tensors of a model and where they lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    tensors: Vec<TensorInfo>,
}

impl Manifest {
    /// Packs the tensors one after the other, each offset rounded up to 16 weights.
    ///
    /// # Errors
    /// No tensor, a repeated or impossible name, a shape without weights or too many.
    pub fn new(tensors: Vec<(String, Vec<usize>)>) -> Result<Self, ManifestError> {
        if tensors.is_empty() {
            return Err(ManifestError::NoTensor);
        }
        let mut seen = HashSet::with_capacity(tensors.len());
        let mut packed = Vec::with_capacity(tensors.len());
        let mut end = 0usize;
        for (name, shape) in tensors {
            if name.is_empty() || name == "__metadata__" {
                return Err(ManifestError::Name(name));
            }
            if !seen.insert(name.clone()) {
                return Err(ManifestError::Duplicate(name));
            }
            if shape.contains(&0) {
                return Err(ManifestError::Empty { name, shape });
            }
            let offset = end.next_multiple_of(BLOCK);
            let len = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
            match len.and_then(|n| offset.checked_add(n)) {
                Some(e) if e <= MAX_WEIGHTS => end = e,
                _ => return Err(ManifestError::TooLarge { name, shape }),
            }
            packed.push(TensorInfo {
                name,
                shape,
                offset,
            });
        }
        Ok(Self { tensors: packed })
    }

    /// The tensors in order of their offsets.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Weights used, the gaps between tensors included. Never zero.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a manifest without tensors is refused"
    )]
    pub fn len(&self) -> usize {
        self.tensors.last().map_or(0, |t| t.offset + t.len())
    }

    /// The tensor of that name.
    pub fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|t| t.name == name)
    }

    /// A hash (xxh3) of names, shapes and offsets: equal for equal models.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Xxh3::new();
        let number = |h: &mut Xxh3, n: usize| h.update(&(n as u64).to_le_bytes());
        for t in &self.tensors {
            number(&mut hash, t.name.len());
            hash.update(t.name.as_bytes());
            number(&mut hash, t.shape.len());
            for &d in &t.shape {
                number(&mut hash, d);
            }
            number(&mut hash, t.offset);
        }
        hash.digest()
    }

    /// The JSON of a safetensors header. `data_offsets` are bytes from the first weight;
    /// between tensors up to 15 weights are left free, which a safetensors *file* may not do.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&Entries(self.tensors.iter().map(Entry::of).collect()))
            .expect("strings and integers always serialise")
    }

    /// Parses what [`Manifest::to_json`] wrote.
    ///
    /// # Errors
    /// Bad JSON, a dtype other than F32, or offsets that the packing rule does not give.
    pub fn from_json(json: &[u8]) -> Result<Self, ManifestError> {
        let Entries(mut entries) =
            serde_json::from_slice(json).map_err(|e| ManifestError::Json(e.to_string()))?;
        entries.sort_by_key(|e| e.1.data_offsets[0]);
        if let Some(Entry(name, info)) = entries.iter().find(|e| e.1.dtype != "F32") {
            return Err(ManifestError::Dtype {
                name: name.clone(),
                dtype: info.dtype.clone(),
            });
        }
        let manifest = Self::new(
            entries
                .iter()
                .map(|e| (e.0.clone(), e.1.shape.clone()))
                .collect(),
        )?;
        for (Entry(name, info), tensor) in entries.iter().zip(&manifest.tensors) {
            let expected = Entry::of(tensor).1.data_offsets;
            if info.data_offsets != expected {
                return Err(ManifestError::Offsets {
                    name: name.clone(),
                    found: info.data_offsets,
                    expected,
                });
            }
        }
        Ok(manifest)
    }
}

#[derive(Serialize, Deserialize)]
struct Info {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

struct Entry(String, Info);

impl Entry {
    fn of(t: &TensorInfo) -> Self {
        let data_offsets = [t.offset as u64 * 4, (t.offset + t.len()) as u64 * 4];
        Self(
            t.name.clone(),
            Info {
                dtype: "F32".into(),
                shape: t.shape.clone(),
                data_offsets,
            },
        )
    }
}

/// A JSON object that keeps its order and its duplicates: a map type would drop both.
struct Entries(Vec<Entry>);

impl Serialize for Entries {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for Entry(name, info) in &self.0 {
            map.serialize_entry(name, info)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object from tensor name to dtype, shape and data_offsets")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some((name, info)) = map.next_entry()? {
                    entries.push(Entry(name, info));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(V)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lenet() -> Vec<(String, Vec<usize>)> {
        [
            ("conv1.weight", vec![20, 1, 5, 5]),
            ("conv1.bias", vec![20]),
            ("ip2.bias", vec![10]),
            ("scale", vec![]),
        ]
        .map(|(n, s)| (n.to_string(), s))
        .to_vec()
    }

    #[test]
    fn packs_by_sixteen_and_finds() {
        let m = Manifest::new(lenet()).unwrap();
        let offsets: Vec<_> = m.tensors().iter().map(|t| t.offset).collect();
        assert_eq!(offsets, [0, 512, 544, 560]);
        assert_eq!(m.len(), 561);
        assert_eq!(m.find("conv1.bias").unwrap().len(), 20);
        assert!(m.find("conv2.bias").is_none());
    }

    #[test]
    fn refuses_what_cannot_be_packed() {
        let one = |n: &str, s: Vec<usize>| {
            Manifest::new(vec![("a".into(), vec![1]), (n.into(), s)]).unwrap_err()
        };
        assert_eq!(one("a", vec![1]), ManifestError::Duplicate("a".into()));
        assert!(matches!(one("", vec![1]), ManifestError::Name(_)));
        assert!(matches!(
            one("__metadata__", vec![1]),
            ManifestError::Name(_)
        ));
        assert!(matches!(one("b", vec![3, 0]), ManifestError::Empty { .. }));
        assert!(matches!(
            one("b", vec![usize::MAX, 2]),
            ManifestError::TooLarge { .. }
        ));
        assert!(matches!(
            one("b", vec![MAX_WEIGHTS]),
            ManifestError::TooLarge { .. }
        ));
        assert_eq!(Manifest::new(vec![]).unwrap_err(), ManifestError::NoTensor);
    }

    #[test]
    fn refuses_foreign_json() {
        let err = |s: &str| Manifest::from_json(s.as_bytes()).unwrap_err();
        assert!(matches!(err("[]"), ManifestError::Json(_)));
        assert!(matches!(err("{}"), ManifestError::NoTensor));
        assert!(matches!(
            err(r#"{"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}"#),
            ManifestError::Dtype { .. }
        ));
        assert!(matches!(
            err(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#),
            ManifestError::Offsets { .. }
        ));
        let twice = r#"{"a":{"dtype":"F32","shape":[16],"data_offsets":[0,64]},"a":{"dtype":"F32","shape":[1],"data_offsets":[64,68]}}"#;
        assert_eq!(err(twice), ManifestError::Duplicate("a".into()));
    }

    #[test]
    fn fingerprint_sees_names_shapes_and_order() {
        let base = Manifest::new(lenet()).unwrap().fingerprint();
        let mut other = lenet();
        other[0].1 = vec![20, 1, 25];
        assert_ne!(Manifest::new(other).unwrap().fingerprint(), base);
        let mut other = lenet();
        other[1].0 = "conv1.offset".into();
        assert_ne!(Manifest::new(other).unwrap().fingerprint(), base);
        let mut other = lenet();
        other.swap(1, 2);
        assert_ne!(Manifest::new(other).unwrap().fingerprint(), base);
        assert_eq!(Manifest::new(lenet()).unwrap().fingerprint(), base);
    }

    proptest! {
        #[test]
        fn json_round_trip(shapes in prop::collection::vec((".{1,8}", prop::collection::vec(1usize..9, 0..4)), 1..12)) {
            let tensors = shapes.into_iter().enumerate().map(|(i, (n, s))| (format!("{n}{i}"), s)).collect();
            let m = Manifest::new(tensors).unwrap();
            prop_assert_eq!(Manifest::from_json(m.to_json().as_bytes()).unwrap(), m);
        }

        #[test]
        fn never_panics_on_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Manifest::from_json(&bytes);
        }
    }
}
