//! What tests of jobs share: the smallest buffer.

use std::path::Path;

use crate::weights::{BufferSpec, Created, DataKind, Existing, Manifest, SharedWeights};

/// A buffer of one tensor at `path`, of the job `session`; one that is there goes.
pub(super) fn buffer(path: &Path, session: u64) -> SharedWeights {
    let spec = BufferSpec {
        session,
        manifest: Manifest::new(vec![("w".to_owned(), vec![10])]).expect("a manifest"),
        data: DataKind::default(),
    };
    match SharedWeights::create(path, &spec, Existing::Fresh) {
        Ok(Created::New(new)) => new.ready(),
        other => panic!("{other:?}"),
    }
}
