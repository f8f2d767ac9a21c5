//! Words for reports: the stream knows kinds of data by their hashes only and no options, this node
//! has names for them.

use super::super::model::data_kind;
use crate::solver::data::Source;
use crate::stream::{Difference, Report};
use crate::weights::DataKind;

/// What to say of `report` on a node whose buffer learns `own`.
pub(super) fn words(report: &Report, own: DataKind) -> String {
    match *report {
        Report::OtherData { node, theirs, .. } => format!(
            "node {node} trains on other data: {} there, {own} here; nothing is taken from it: give all nodes the \
             same --data (`dogwild status --buffer FILE` shows what a buffer was made for)",
            name(theirs)
        ),
        ref report => format!("{report}{}", options(report)),
    }
}

/// The options of `dogwild stream` that a report is about, where there are such.
fn options(report: &Report) -> &'static str {
    match report {
        Report::OtherShape { difference, .. } => match difference {
            Difference::Nodes { .. } => " (--nodes)",
            Difference::Places { .. } => " (--places)",
            Difference::Masters { .. } => " (--masters)",
            Difference::ChunkWeights { .. } => " (--mtu, --precision)",
            Difference::Model { .. } => "",
        },
        Report::OtherFirstWeights { .. } => " (--seed or --weights of dogwild init)",
        Report::SameNode { .. } | Report::TwoLives { .. } => " (--node, --session)",
        _ => "",
    }
}

/// The kind with this hash, if this program can read such data.
fn name(hash: u64) -> String {
    let kinds = Source::of_each_kind().map(|source| {
        let (shape, classes) = source.shape();
        data_kind(&source, shape, classes)
    });
    let known = kinds.into_iter().find(|kind| kind.hash() == hash);
    known.map_or_else(
        || format!("data of hash {hash:016x}"),
        |kind| kind.to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names_and_others_their_hash() {
        let own = DataKind::new("digits", [1, 28, 28], 10);
        let said = |theirs: DataKind| {
            let (theirs, ours) = (theirs.hash(), own.hash());
            let report = Report::OtherData {
                node: 3,
                theirs,
                ours,
            };
            words(&report, own)
        };
        let cifar10 = said(DataKind::new("cifar10", [3, 32, 32], 10));
        let wanted =
            "node 3 trains on other data: cifar10 3x32x32/10 there, digits 1x28x28/10 here";
        assert!(cifar10.contains(wanted), "{cifar10}");
        let unknown = DataKind::new("letters", [1, 28, 28], 26);
        let hash = format!(
            "data of hash {:016x} there, digits 1x28x28/10 here",
            unknown.hash()
        );
        let unknown = said(unknown);
        assert!(unknown.contains(&hash), "{unknown}");
        assert!(unknown.contains("dogwild status --buffer"), "{unknown}");
        let other = Report::SameNode { node: 1 };
        assert_eq!(words(&other, own), format!("{other} (--node, --session)"));
        let new_life = Report::NewLife { node: 1 };
        assert_eq!(words(&new_life, own), new_life.to_string());
    }
}
