//! `cargo xtask tables`: layer tables of published nets, worked out from their architectures.
//!
//! Holds GoogLeNet (Szegedy et al. 2014, without its two auxiliary heads), Inception-V3 (Szegedy et
//! al. 2015, with its auxiliary head) and ResNet-152 (He et al. 2015), which the solver's subset of
//! Caffe cannot train. Writes `models/*.csv`, which `dogwild-plan` reads; a test holds the files
//! of the tree against what this writes. Invariant: rows stand in forward order, branches one after
//! the other, and flops are two for each multiplication of the forward pass of one image.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The tables: file name and text.
pub(crate) fn tables() -> [(&'static str, String); 3] {
    [
        ("googlenet.csv", googlenet()),
        ("inception_v3.csv", inception_v3()),
        ("resnet_152.csv", resnet_152()),
    ]
}

/// Writes them into `folder`.
pub(crate) fn write(folder: &Path) -> Result<()> {
    for (name, text) in tables() {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        dogwild_lab::say!("{}", path.display());
    }
    Ok(())
}

/// A table in the making.
struct Table {
    text: String,
    /// Convolutions have a batch normalisation behind them instead of a bias.
    normalised: bool,
}

impl Table {
    fn new(title: &str, normalised: bool) -> Self {
        let text = format!(
            "# {title}\n# Made by `cargo xtask tables`; the format is in docs/guide/planning.md.\n\
             layer,kind,m,n,bias,flops\n"
        );
        Self { text, normalised }
    }

    fn row(&mut self, name: &str, kind: &str, [m, n]: [u64; 2], bias: bool, uses: u64) {
        let flops = 2 * m * n * uses;
        let bias = if bias { "yes" } else { "no" };
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{name},{kind},{m},{n},{bias},{flops}");
    }

    /// A convolution whose output has `side` x `side` pixels; returns its output channels.
    fn conv(&mut self, name: &str, from: u64, to: u64, kernel: [u64; 2], side: u64) -> u64 {
        let inputs = from * kernel[0] * kernel[1];
        self.row(name, "conv", [to, inputs], !self.normalised, side * side);
        if self.normalised {
            self.row(&format!("{name}_bn"), "norm", [to, 2], false, side * side);
        }
        to
    }

    fn dense(&mut self, name: &str, from: u64, to: u64) {
        self.row(name, "fc", [to, from], true, 1);
    }

    /// Convolutions one after the other, all with outputs of `side`: name, channels, kernel.
    fn chain(&mut self, block: &str, from: u64, side: u64, parts: &[(&str, u64, [u64; 2])]) -> u64 {
        parts.iter().fold(from, |from, (name, to, kernel)| {
            self.conv(&format!("{block}/{name}"), from, *to, *kernel, side)
        })
    }
}

const ONE: [u64; 2] = [1, 1];
const THREE: [u64; 2] = [3, 3];
const FIVE: [u64; 2] = [5, 5];
const SEVEN: [u64; 2] = [7, 7];

fn googlenet() -> String {
    // 1x1; 3x3 reduce, 3x3; 5x5 reduce, 5x5; pool projection (table 1 of the paper).
    const BLOCKS: [(&str, u64, [u64; 6]); 9] = [
        ("3a", 28, [64, 96, 128, 16, 32, 32]),
        ("3b", 28, [128, 128, 192, 32, 96, 64]),
        ("4a", 14, [192, 96, 208, 16, 48, 64]),
        ("4b", 14, [160, 112, 224, 24, 64, 64]),
        ("4c", 14, [128, 128, 256, 24, 64, 64]),
        ("4d", 14, [112, 144, 288, 32, 64, 64]),
        ("4e", 14, [256, 160, 320, 32, 128, 128]),
        ("5a", 7, [256, 160, 320, 32, 128, 128]),
        ("5b", 7, [384, 192, 384, 48, 128, 128]),
    ];
    let mut table = Table::new("GoogLeNet, 224x224, without auxiliary heads", false);
    table.conv("conv1/7x7_s2", 3, 64, SEVEN, 112);
    table.conv("conv2/3x3_reduce", 64, 64, ONE, 56);
    let mut from = table.conv("conv2/3x3", 64, 192, THREE, 56);
    for (name, side, [one, reduce3, three, reduce5, five, project]) in BLOCKS {
        let block = format!("inception_{name}");
        from = table.chain(&block, from, side, &[("1x1", one, ONE)])
            + table.chain(
                &block,
                from,
                side,
                &[("3x3_reduce", reduce3, ONE), ("3x3", three, THREE)],
            )
            + table.chain(
                &block,
                from,
                side,
                &[("5x5_reduce", reduce5, ONE), ("5x5", five, FIVE)],
            )
            + table.chain(&block, from, side, &[("pool_proj", project, ONE)]);
    }
    table.dense("loss3/classifier", from, 1000);
    table.text
}

fn inception_v3() -> String {
    let mut table = Table::new("Inception-V3, 299x299, with its auxiliary head", true);
    table.conv("conv_1a", 3, 32, THREE, 149);
    table.conv("conv_2a", 32, 32, THREE, 147);
    table.conv("conv_2b", 32, 64, THREE, 147);
    table.conv("conv_3b", 64, 80, ONE, 73);
    let mut from = table.conv("conv_4a", 80, 192, THREE, 71);
    for (name, project) in [("mixed_5b", 32), ("mixed_5c", 64), ("mixed_5d", 64)] {
        from = inception_a(&mut table, name, from, project);
    }
    // Grid 35 -> 17.
    let kept = from;
    let three = table.chain("mixed_6a", from, 17, &[("3x3", 384, THREE)]);
    let before = [("dbl_1", 64, ONE), ("dbl_2", 96, THREE)];
    let double = table.chain("mixed_6a", from, 35, &before);
    from = kept + three + table.chain("mixed_6a", double, 17, &[("dbl_3", 96, THREE)]);
    let inner = [128, 160, 160, 192];
    for (name, c) in ["mixed_6b", "mixed_6c", "mixed_6d", "mixed_6e"]
        .into_iter()
        .zip(inner)
    {
        from = inception_c(&mut table, name, from, c);
    }
    let aux = table.chain("aux", from, 5, &[("conv0", 128, ONE)]);
    let aux = table.chain("aux", aux, 1, &[("conv1", 768, FIVE)]);
    table.dense("aux/fc", aux, 1000);
    // Grid 17 -> 8.
    let three = table.chain("mixed_7a", from, 17, &[("3x3_1", 192, ONE)]);
    let three = table.chain("mixed_7a", three, 8, &[("3x3_2", 320, THREE)]);
    let before = [
        ("7x7_1", 192, ONE),
        ("7x7_2", 192, [1, 7]),
        ("7x7_3", 192, [7, 1]),
    ];
    let seven = table.chain("mixed_7a", from, 17, &before);
    from += three + table.chain("mixed_7a", seven, 8, &[("7x7_4", 192, THREE)]);
    for name in ["mixed_7b", "mixed_7c"] {
        from = inception_e(&mut table, name, from);
    }
    table.dense("fc", from, 1000);
    table.text
}

/// Figure 5 of the paper.
fn inception_a(table: &mut Table, name: &str, from: u64, project: u64) -> u64 {
    let side = 35;
    let double = [
        ("dbl_1", 64, ONE),
        ("dbl_2", 96, THREE),
        ("dbl_3", 96, THREE),
    ];
    table.chain(name, from, side, &[("1x1", 64, ONE)])
        + table.chain(name, from, side, &[("5x5_1", 48, ONE), ("5x5_2", 64, FIVE)])
        + table.chain(name, from, side, &double)
        + table.chain(name, from, side, &[("pool", project, ONE)])
}

/// Figure 6: 7x7 convolutions as 1x7 and 7x1.
fn inception_c(table: &mut Table, name: &str, from: u64, c: u64) -> u64 {
    let (side, wide, high) = (17, [1, 7], [7, 1]);
    let single = [("7x7_1", c, ONE), ("7x7_2", c, wide), ("7x7_3", 192, high)];
    let double = [
        ("dbl_1", c, ONE),
        ("dbl_2", c, high),
        ("dbl_3", c, wide),
        ("dbl_4", c, high),
        ("dbl_5", 192, wide),
    ];
    table.chain(name, from, side, &[("1x1", 192, ONE)])
        + table.chain(name, from, side, &single)
        + table.chain(name, from, side, &double)
        + table.chain(name, from, side, &[("pool", 192, ONE)])
}

/// Figure 7: branches that end in a 1x3 and a 3x1 side by side.
fn inception_e(table: &mut Table, name: &str, from: u64) -> u64 {
    let side = 8;
    let single = table.chain(name, from, side, &[("1x1", 320, ONE)]);
    let three = table.chain(name, from, side, &[("3x3_1", 384, ONE)]);
    let three = fork(table, &format!("{name}/3x3_2"), three);
    let double = [("dbl_1", 448, ONE), ("dbl_2", 384, THREE)];
    let double = table.chain(name, from, side, &double);
    let double = fork(table, &format!("{name}/dbl_3"), double);
    single + three + double + table.chain(name, from, side, &[("pool", 192, ONE)])
}

fn fork(table: &mut Table, name: &str, from: u64) -> u64 {
    table.conv(&format!("{name}a"), from, 384, [1, 3], 8)
        + table.conv(&format!("{name}b"), from, 384, [3, 1], 8)
}

fn resnet_152() -> String {
    // Blocks, inner channels, side of the output (table 1 of the paper).
    const STAGES: [(&str, u64, u64, u64); 4] = [
        ("conv2", 3, 64, 56),
        ("conv3", 8, 128, 28),
        ("conv4", 36, 256, 14),
        ("conv5", 3, 512, 7),
    ];
    let mut table = Table::new("ResNet-152, 224x224", true);
    let mut from = table.conv("conv1", 3, 64, SEVEN, 112);
    for (stage, blocks, inner, side) in STAGES {
        for block in 1..=blocks {
            let name = format!("{stage}_{block}");
            if block == 1 {
                table.chain(&name, from, side, &[("shortcut", 4 * inner, ONE)]);
            }
            let parts = [
                ("a", inner, ONE),
                ("b", inner, THREE),
                ("c", 4 * inner, ONE),
            ];
            from = table.chain(&name, from, side, &parts);
        }
    }
    table.dense("fc", from, 1000);
    table.text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trees_tables_are_those_that_this_writes() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
        for (name, text) in tables() {
            let found = fs::read_to_string(models.join(name)).expect("a table of the tree");
            assert!(
                found == text,
                "models/{name} is not what it should be: cargo xtask tables"
            );
        }
    }
}
