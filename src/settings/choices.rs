//! How choices of lower modules are written in settings. The modules themselves know no file
//! format.

use serde::{Deserialize, Serialize};

use crate::poseidon::Overlap;
use crate::solver::data::Shard;
use crate::stream::{Deltas, Merge};
use crate::wire::Dtype;

/// `exactly-once`, `fire-and-forget`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Deltas", rename_all = "kebab-case")]
pub(super) enum DeltasName {
    ExactlyOnce,
    FireAndForget,
}

/// `sum`, `mean`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Merge", rename_all = "kebab-case")]
pub(super) enum MergeName {
    Sum,
    Mean,
}

/// `f32`, `bf16`, `int8`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Dtype", rename_all = "kebab-case")]
pub enum DtypeName {
    /// Not written.
    #[serde(skip)]
    None,
    /// 4 bytes a weight.
    F32,
    /// 2 bytes.
    Bf16,
    /// 1 byte, and scales.
    Int8,
    /// Not written: deltas choose it.
    #[serde(skip)]
    Int2,
}

/// `wfbp`, `none`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Overlap", rename_all = "kebab-case")]
pub(super) enum OverlapName {
    Wfbp,
    None,
}

/// `{"index": 2, "of": 5}`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Shard", deny_unknown_fields)]
struct ShardFields {
    index: u32,
    of: u32,
}

/// A share of the pictures that need not be given.
pub(super) mod optional_shard {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Shard, ShardFields};

    #[derive(Serialize, Deserialize)]
    struct Wrapped(#[serde(with = "ShardFields")] Shard);

    pub(in crate::settings) fn serialize<S: Serializer>(
        shard: &Option<Shard>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        shard.map(Wrapped).serialize(to)
    }

    pub(in crate::settings) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Shard>, D::Error> {
        Ok(Option::<Wrapped>::deserialize(from)?.map(|Wrapped(shard)| shard))
    }
}

/// Pictures, as after `--data`: `digits`, `mnist:DIR`, `cifar10@HOST:PORT`.
pub(super) mod optional_source {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::solver::data::Source;

    pub(in crate::settings) fn serialize<S: Serializer>(
        source: &Option<Source>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        source.as_ref().map(Source::to_string).serialize(to)
    }

    pub(in crate::settings) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Source>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(D::Error::custom))
            .transpose()
    }
}

/// What has a name of its own.
pub(super) mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::settings) fn serialize<T: Display, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(in crate::settings) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
