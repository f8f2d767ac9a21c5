//! The layers of a net as the plan sees them: name, matrix, floating-point operations.
//!
//! Reads layer tables (CSV, docs/guide/planning.md) and Caffe nets. Invariants: layers stand in
//! forward order, every one has weights, and their operations are above zero.

mod net;

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use dogwild::poseidon::LayerShape;
use dogwild::solver::NetSpec;
use serde::Serialize;

/// What a layer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A convolution.
    Conv,
    /// Fully connected.
    Fc,
    /// Scale and shift of a batch normalisation.
    Norm,
}

impl Kind {
    /// As tables write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Conv => "conv",
            Self::Fc => "fc",
            Self::Norm => "norm",
        }
    }
}

/// A layer with weights.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Layer {
    /// Name, as in the net or table.
    pub name: String,
    /// What it does.
    pub kind: Kind,
    /// Size of its weight matrix.
    pub shape: LayerShape,
    /// Floating-point operations of the forward pass, for one image.
    pub flops: u64,
}

const HEADER: [&str; 6] = ["layer", "kind", "m", "n", "bias", "flops"];

/// Largest M or N: keeps every product far from the end of its integer.
const MAX_SIDE: u64 = 1 << 26;

/// Reads the file at `path`: a table (`.csv`) or a Caffe net. `input` is the shape of one image,
/// for nets whose file lacks it.
pub(super) fn read(path: &Path, input: Option<[usize; 3]>) -> Result<Vec<Layer>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the net {}", path.display()))?;
    parse(&path.display().to_string(), &text, input)
}

/// As [`read`], from text; `name` is for messages, and tells by its end what the text is.
pub(super) fn parse(name: &str, text: &str, input: Option<[usize; 3]>) -> Result<Vec<Layer>> {
    let layers = if Path::new(name).extension().is_some_and(|end| end == "csv") {
        table(name, text)?
    } else {
        net::layers(&NetSpec::parse(name, text)?, input)?
    };
    if layers.is_empty() {
        bail!("{name} has no layer with weights: there is nothing to synchronise");
    }
    Ok(layers)
}

/// Reads a layer table.
fn table(file: &str, text: &str) -> Result<Vec<Layer>> {
    let mut reader = csv::ReaderBuilder::new()
        .comment(Some(b'#'))
        .trim(csv::Trim::All)
        .flexible(true)
        .has_headers(false)
        .from_reader(text.as_bytes());
    let mut layers: Vec<Layer> = Vec::new();
    let mut headed = false;
    for row in reader.records() {
        let row = row.with_context(|| format!("{file} is no table"))?;
        let line = row.position().map_or(0, csv::Position::line);
        if !headed {
            if row != *HEADER.as_slice() {
                let header = HEADER.join(",");
                bail!(
                    "{file}:{line}: the first row must be the header `{header}` (docs/guide/planning.md)"
                );
            }
            headed = true;
            continue;
        }
        let layer = layer(&row).map_err(|error| anyhow!("{file}:{line}: {error}"))?;
        if layers.iter().any(|other| other.name == layer.name) {
            bail!("{file}:{line}: a second layer `{}`; rename one", layer.name);
        }
        layers.push(layer);
    }
    Ok(layers)
}

fn layer(row: &csv::StringRecord) -> Result<Layer> {
    if row.len() != HEADER.len() {
        let header = HEADER.join(",");
        bail!("{} fields; write {}: {header}", row.len(), HEADER.len());
    }
    let number = |at: usize, most: u64| -> Result<u64> {
        match row[at].parse() {
            Ok(number) if (1..=most).contains(&number) => Ok(number),
            _ => bail!(
                "`{}` is not a valid {}: give a whole number, 1 to {most}",
                &row[at],
                HEADER[at]
            ),
        }
    };
    let kind = match &row[1] {
        "conv" => Kind::Conv,
        "fc" => Kind::Fc,
        "norm" => Kind::Norm,
        other => bail!("`{other}` is not a kind of layer: give conv, fc or norm"),
    };
    let bias = match &row[4] {
        "yes" => true,
        "no" => false,
        other => bail!("`{other}` does not tell whether there is a bias: write yes or no"),
    };
    if row[0].is_empty() {
        bail!("the layer has no name");
    }
    Ok(Layer {
        name: row[0].to_owned(),
        kind,
        shape: LayerShape {
            outputs: number(2, MAX_SIDE)?,
            inputs: number(3, MAX_SIDE)?,
            bias,
            fully_connected: kind == Kind::Fc,
        },
        flops: number(5, 1 << 50)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        format!("{:#}", parse("t.csv", text, None).expect_err("refused"))
    }

    #[test]
    fn tables_are_read() {
        let text = "# a note\nlayer,kind,m,n,bias,flops\n c1 , conv, 20, 25, yes, 500000\nf,fc,10,500,no,10000\n";
        let layers = parse("t.csv", text, None).unwrap();
        assert_eq!(layers.len(), 2);
        assert_eq!(layers[0].shape.parameters(), 520);
        assert!(!layers[0].shape.fully_connected && layers[1].shape.fully_connected);
    }

    #[test]
    fn wrong_rows_are_told_with_their_line() {
        let header = "layer,kind,m,n,bias,flops\n";
        assert!(refused("c,conv,1,1,no,1\n").contains("t.csv:1: the first row"));
        let rows = [
            ("a,conv,0,5,no,1", "`0` is not a valid m"),
            ("a,conv,5,x,no,1", "`x` is not a valid n"),
            ("a,conv,5,5,no,-3", "`-3` is not a valid flops"),
            ("a,dense,5,5,no,1", "`dense` is not a kind"),
            ("a,fc,5,5,1,1", "write yes or no"),
            ("a,fc,5,5,no", "5 fields"),
            ("a,fc,99999999999999999999,5,no,1", "is not a valid m"),
            (",fc,5,5,no,1", "no name"),
        ];
        for (row, says) in rows {
            let said = refused(&format!("{header}ok,fc,1,1,no,1\n{row}\n"));
            assert!(said.contains("t.csv:3") && said.contains(says), "{said}");
        }
        assert!(
            refused(&format!("{header}a,fc,1,1,no,1\na,fc,1,1,no,1\n"))
                .contains("t.csv:3: a second")
        );
        assert!(refused(header).contains("no layer"));
    }
}
