//! Model files that are read as they were written, and wrong ones that are told by place and name.

use proptest::prelude::*;

use super::*;

const TEXT: &str = r#"{
  "images": 32,
  "iterations": 500,
  "step": {"rule": "adam", "rate": 0.001, "weight_decay": 0.01, "decoupled": true},
  "layers": [
    {"name": "norm", "tensors": [
      {"name": "norm.weight", "shape": [3], "decay_mult": 0},
      {"name": "norm.bias", "shape": [3], "decay_mult": 0},
      {"name": "norm.scale", "shape": []}]},
    {"name": "fc", "factors": true, "rows": 64, "scheme": "sfb", "tensors": [
      {"name": "fc.weight", "shape": [4, 6]},
      {"name": "fc.bias", "shape": [4], "lr_mult": 2}]}]
}"#;

#[test]
fn a_file_says_what_a_plan_is_made_of() {
    let model = ModelFile::parse(TEXT).unwrap();
    assert_eq!((model.images, model.iterations), (32, Some(500)));
    let manifest = model.manifest().unwrap();
    let [norm, fc] = &model.plan_layers(&manifest)[..] else {
        panic!("two layers");
    };
    let places = |layer: &LayerSpec| -> Vec<(String, usize, usize)> {
        let tensors = layer.tensors.iter();
        tensors.map(|t| (t.name.clone(), t.offset, t.len)).collect()
    };
    assert_eq!(
        places(norm),
        [
            ("norm.weight", 0, 3),
            ("norm.bias", 16, 3),
            ("norm.scale", 32, 1)
        ]
        .map(|(name, offset, len)| (name.to_owned(), offset, len))
    );
    assert_eq!(
        places(fc),
        [("fc.weight", 48, 24), ("fc.bias", 80, 4)].map(|(name, offset, len)| (
            name.to_owned(),
            offset,
            len
        ))
    );
    assert_eq!(norm.shape.parameters(), 7);
    assert!(!norm.shape.fully_connected && norm.rows.is_none() && norm.scheme.is_none());
    let shape = LayerShape {
        bias: true,
        ..LayerShape::dense(4, 6)
    };
    let rest = (fc.shape, fc.rows, fc.scheme);
    assert_eq!(rest, (shape, Some(64), Some(Scheme::Sfb)));
    let step = model.step();
    assert_eq!((step.batches, &step.rule), (1, &model.step));
    assert_eq!(step.multipliers(0, 1), [1.0, 0.0]);
    assert_eq!(step.multipliers(0, 2), [1.0, 1.0]);
    assert_eq!(step.multipliers(1, 1), [2.0, 1.0]);
    assert_eq!(step.check(&[3, 2]), Ok(()));
}

#[test]
fn files_come_back_as_they_were() {
    let model = ModelFile::parse(TEXT).unwrap();
    assert_eq!(ModelFile::parse(&model.to_json()).unwrap(), model);
    let mut bare = model;
    (bare.iterations, bare.layers[1].scheme) = (None, None);
    let text = bare.to_json();
    assert!(
        !text.contains("iterations") && !text.contains("scheme"),
        "{text}"
    );
    assert_eq!(ModelFile::parse(&text).unwrap(), bare);
}

/// Reads the file with one place changed, which must be refused with these words.
fn wrong(from: &str, to: &str, says: &str) {
    let text = TEXT.replacen(from, to, 1);
    assert_ne!(text, TEXT, "{from} is not there");
    let said = ModelFile::parse(&text).expect_err(says).to_string();
    assert!(said.contains(says), "{from} -> {to}: {said}");
}

#[test]
fn wrong_numbers_and_fields_are_told() {
    ModelFile::parse(TEXT).unwrap();
    wrong("32", "0", "images is 0: give the images of one worker");
    wrong("500", "0", "iterations is 0: give 1 or more");
    wrong("32", "-1", "integer `-1`, expected u32 at line 2");
    wrong(
        "\"images\"",
        "\"image\"",
        "unknown field `image`, expected one of",
    );
    wrong("adam", "lion", "unknown variant `lion`");
    wrong("0.001", "1e39", "step: rate is inf: give a number");
    wrong(
        ", \"weight_decay\"",
        ", \"momentum\"",
        "unknown field `momentum`",
    );
    wrong(
        "sfb",
        "peer",
        "unknown variant `peer`, expected one of `ps`",
    );
    wrong("sfb", "SFB", "unknown variant `SFB`");
    wrong("lr_mult\"", "lr\"", "unknown field `lr`");
    wrong("\"images\": 32,", "", "missing field `images`");
    wrong("500", "500, \"layers\": []", "duplicate field `layers`");
    wrong("}]}]", "}]}", "line 13");
}

#[test]
fn wrong_layers_are_told_by_place_and_name() {
    wrong(
        "\"fc\"",
        "\"norm\"",
        "layers[1] (norm): another layer has this name",
    );
    wrong("\"fc\"", "\"\"", "layers[1] (): name is empty");
    wrong("64", "0", "layers[1] (fc): rows is 0");
    let factors = "\"factors\": true, ";
    wrong(factors, "", "layers[1] (fc): scheme sfb needs factors");
    let all = "\"factors\": true, \"rows\": 64, \"scheme\": \"sfb\"";
    let says = "layers[1] (fc): rows is 64, and only layers with factors";
    wrong(all, "\"rows\": 64", says);
    wrong(
        "[4, 6]",
        "[4, 6, 1]",
        "not tensors of shapes [[4, 6, 1], [4]]",
    );
    wrong("[4],", "[6],", "not tensors of shapes [[4, 6], [6]]");
    wrong("[4, 6]", "[4, 0]", "tensor \"fc.weight\" has shape [4, 0]");
    wrong(
        "[4, 6]",
        "[4, 1099511627776]",
        "tensor \"fc.weight\" of shape",
    );
    wrong("[4, 6]", "[4, 6.5]", "invalid type: floating point `6.5`");
    wrong(
        "fc.bias",
        "norm.bias",
        "two tensors are called \"norm.bias\"",
    );
    wrong(
        "\"lr_mult\": 2",
        "\"lr_mult\": -1e39",
        "out of range at line 12",
    );
    let mut model = ModelFile::parse(TEXT).unwrap();
    model.layers[1].tensors[1].lr_mult = f32::NEG_INFINITY;
    let said = model.check().unwrap_err().to_string();
    assert_eq!(
        said,
        "layers[1] (fc): lr_mult of fc.bias is -inf: give a number"
    );
    model.layers[0].tensors.clear();
    let said = model.check().unwrap_err().to_string();
    assert!(
        said.starts_with("layers[0] (norm): tensors is empty"),
        "{said}"
    );
    model.layers.clear();
    let said = model.check().unwrap_err().to_string();
    assert!(said.contains("layers is empty"), "{said}");
}

proptest! {
    /// A file with anything in it is refused or read; what is read has a plan's layers.
    #[test]
    fn reading_never_panics(at in 0..TEXT.len(), to in any::<char>(), cut in any::<bool>()) {
        let mut text: String = TEXT.chars().take(at).collect();
        text.push(to);
        if !cut {
            text.extend(TEXT.chars().skip(at + 1));
        }
        if let Ok(model) = ModelFile::parse(&text) {
            let manifest = model.manifest().unwrap();
            let layers = model.plan_layers(&manifest);
            prop_assert_eq!(layers.len(), model.layers.len());
            let weights = |layer: &LayerSpec| layer.tensors.iter().map(|t| t.len as u64).sum::<u64>();
            prop_assert!(layers.iter().all(|l| l.shape.parameters() == weights(l)));
        }
    }
}
