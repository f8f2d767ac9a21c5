//! Snapshots: round trips, every refusal, random files.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use proptest::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tempfile::TempDir;

use super::*;
use crate::weights::{Manifest, WeightsView};

fn manifest() -> Manifest {
    let tensors = [
        ("conv1.weight", vec![2, 3]),
        ("conv1.bias", vec![2]),
        ("scale", vec![]),
    ];
    Manifest::new(
        tensors
            .map(|(name, shape)| (name.to_owned(), shape))
            .to_vec(),
    )
    .unwrap()
}

/// The weights of `manifest()` with values 1, 2, ...; gaps hold 77.
fn weights() -> Vec<AtomicU32> {
    let words: Vec<AtomicU32> = (0..40).map(|_| AtomicU32::new(77f32.to_bits())).collect();
    let w = WeightsView::of(&words);
    let places = manifest()
        .tensors()
        .iter()
        .flat_map(|t| t.offset..t.offset + t.len())
        .collect::<Vec<_>>();
    places
        .into_iter()
        .enumerate()
        .for_each(|(i, at)| w.store(at, i as f32 + 1.0));
    words
}

fn bits(words: &[AtomicU32]) -> Vec<u32> {
    words.iter().map(|word| word.load(Relaxed)).collect()
}

/// A folder and a file in it.
fn place() -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("model.safetensors");
    (dir, path)
}

/// Loads into other weights; the error's message, after checking that no weight changed.
fn refusal(path: &std::path::Path) -> String {
    let words = weights();
    let message = load(path, &manifest(), WeightsView::of(&words))
        .unwrap_err()
        .to_string();
    assert_eq!(
        bits(&words),
        bits(&weights()),
        "a refused file changed weights"
    );
    assert!(message.contains(path.to_str().unwrap()), "{message}");
    message
}

/// Writes a file with other tensors than `save` would; `None` leaves a tensor as it is.
fn write_other(
    path: &std::path::Path,
    change: impl Fn(&str) -> Option<Vec<(&'static str, Dtype, Vec<usize>)>>,
) {
    let mut tensors: Vec<(String, Dtype, Vec<usize>)> = Vec::new();
    for tensor in manifest().tensors() {
        match change(&tensor.name) {
            None => tensors.push((tensor.name.clone(), Dtype::F32, tensor.shape.clone())),
            Some(other) => tensors.extend(
                other
                    .into_iter()
                    .map(|(name, d, shape)| (name.to_owned(), d, shape)),
            ),
        }
    }
    let zeros = [0; 256];
    let views = tensors.iter().map(|(name, dtype, shape)| {
        let len = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        (
            name.clone(),
            TensorView::new(*dtype, shape.clone(), &zeros[..len]).unwrap(),
        )
    });
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn weights_and_metadata_come_back_and_gaps_are_left_alone() {
    let (_dir, path) = place();
    let metadata = HashMap::from([("iteration".to_owned(), "12".to_owned())]);
    let words = weights();
    save(
        &path,
        &manifest(),
        WeightsView::of(&words),
        metadata.clone(),
    )
    .unwrap();
    let other: Vec<AtomicU32> = (0..40).map(|_| AtomicU32::new(77f32.to_bits())).collect();
    assert_eq!(
        load(&path, &manifest(), WeightsView::of(&other)).unwrap(),
        metadata
    );
    assert_eq!(bits(&other), bits(&words));
}

#[test]
fn a_flipped_bit_is_refused() {
    let (_dir, path) = place();
    let metadata = HashMap::from([("iterations".to_owned(), "12".to_owned())]);
    save(&path, &manifest(), WeightsView::of(&weights()), metadata).unwrap();
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << bit;
            fs::write(&path, flipped).unwrap();
            refusal(&path);
        }
    }
    let mut weight = whole.clone();
    *weight.last_mut().unwrap() ^= 1;
    fs::write(&path, weight).unwrap();
    let message = refusal(&path);
    assert!(
        message.contains("checksum") && message.contains("copy it again"),
        "{message}"
    );
}

#[test]
fn a_file_of_another_program_needs_no_checksum() {
    let (_dir, path) = place();
    write_other(&path, |_| None);
    let words = weights();
    load(&path, &manifest(), WeightsView::of(&words)).unwrap();
    assert_eq!(WeightsView::of(&words).load(0), 0.0);
}

#[test]
fn the_file_is_what_other_readers_expect() {
    let (_dir, path) = place();
    save(
        &path,
        &manifest(),
        WeightsView::of(&weights()),
        HashMap::new(),
    )
    .unwrap();
    let bytes = fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let bias = file.tensor("conv1.bias").unwrap();
    assert_eq!((bias.dtype(), bias.shape()), (Dtype::F32, &[2][..]));
    assert_eq!(
        bias.data(),
        [7f32.to_le_bytes(), 8f32.to_le_bytes()].concat()
    );
}

#[test]
fn a_snapshot_replaces_the_old_one_and_leaves_nothing_beside_it() {
    let (dir, path) = place();
    fs::write(&path, "old").unwrap();
    save(
        &path,
        &manifest(),
        WeightsView::of(&weights()),
        HashMap::new(),
    )
    .unwrap();
    assert!(fs::metadata(&path).unwrap().len() > 36);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_snapshot_that_cannot_be_written_leaves_the_old_one() {
    let (dir, path) = place();
    fs::create_dir(&path).unwrap();
    let error = save(
        &path,
        &manifest(),
        WeightsView::of(&weights()),
        HashMap::new(),
    )
    .unwrap_err();
    assert!(error.to_string().contains("cannot be written"), "{error}");
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        1,
        "the temporary file is left"
    );
    let nowhere = dir.path().join("no/such/model.safetensors");
    let error = save(
        &nowhere,
        &manifest(),
        WeightsView::of(&weights()),
        HashMap::new(),
    )
    .unwrap_err();
    assert!(
        error.to_string().contains("no/such/model.safetensors"),
        "{error}"
    );
    assert!(
        save(
            "..".as_ref(),
            &manifest(),
            WeightsView::of(&weights()),
            HashMap::new()
        )
        .is_err()
    );
}

#[test]
fn weights_that_are_not_finite_are_not_saved() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let (_dir, path) = place();
        fs::write(&path, "old").unwrap();
        let words = weights();
        words[17].store(value.to_bits(), Relaxed);
        let error = save(&path, &manifest(), WeightsView::of(&words), HashMap::new()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("weight 1 of tensor \"conv1.bias\" is {value}")),
            "{error}"
        );
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }
}

#[test]
fn weights_that_are_not_finite_are_not_loaded() {
    let (_dir, path) = place();
    save(
        &path,
        &manifest(),
        WeightsView::of(&weights()),
        HashMap::new(),
    )
    .unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let five = bytes
        .windows(4)
        .rposition(|word| word == 5f32.to_le_bytes())
        .unwrap();
    bytes[five..five + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    checksum::stamp(&mut bytes);
    fs::write(&path, bytes).unwrap();
    assert!(refusal(&path).contains("weight 4 of tensor \"conv1.weight\" is NaN"));
}

#[test]
fn minus_zero_becomes_zero() {
    let (_dir, path) = place();
    let words = weights();
    words[16].store((-0.0f32).to_bits(), Relaxed);
    save(&path, &manifest(), WeightsView::of(&words), HashMap::new()).unwrap();
    load(&path, &manifest(), WeightsView::of(&words)).unwrap();
    assert_eq!(words[16].load(Relaxed), 0);
}

#[test]
fn a_missing_file_is_named() {
    let (_dir, path) = place();
    assert!(refusal(&path).contains("cannot be read: No such file"));
}

#[test]
fn a_missing_tensor_is_named() {
    let (_dir, path) = place();
    write_other(&path, |name| (name == "conv1.bias").then(Vec::new));
    assert!(refusal(&path).contains("lacks tensor \"conv1.bias\""));
}

#[test]
fn tensors_too_many_are_named() {
    let (_dir, path) = place();
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    write_other(&path, |name| {
        (name == "scale").then(|| {
            names
                .iter()
                .map(|&n| (n, Dtype::F32, vec![1]))
                .chain([("scale", Dtype::F32, vec![])])
                .collect()
        })
    });
    assert!(refusal(&path).contains("has tensors \"a\", \"b\", \"c\", \"d\", \"e\" and 2 more"));
}

#[test]
fn another_shape_is_named() {
    let (_dir, path) = place();
    write_other(&path, |name| {
        (name == "conv1.weight").then(|| vec![("conv1.weight", Dtype::F32, vec![3, 2])])
    });
    assert!(refusal(&path).contains("\"conv1.weight\" has shape [3, 2], but the model has [2, 3]"));
}

#[test]
fn another_dtype_is_named() {
    let (_dir, path) = place();
    write_other(&path, |name| {
        (name == "conv1.bias").then(|| vec![("conv1.bias", Dtype::F16, vec![2])])
    });
    assert!(refusal(&path).contains("\"conv1.bias\" is F16, but weights are F32"));
}

#[test]
fn a_file_cut_off_anywhere_or_too_long_is_refused() {
    let (_dir, path) = place();
    save(
        &path,
        &manifest(),
        WeightsView::of(&weights()),
        HashMap::new(),
    )
    .unwrap();
    let bytes = fs::read(&path).unwrap();
    for len in 0..bytes.len() {
        fs::write(&path, &bytes[..len]).unwrap();
        let message = refusal(&path);
        assert!(
            message.contains(if len < 8 { "too short" } else { "cut off" }),
            "{len}: {message}"
        );
    }
    fs::write(&path, [&bytes[..], &[0]].concat()).unwrap();
    assert!(refusal(&path).contains("cut off or damaged"));
}

#[test]
fn other_files_are_refused() {
    let (_dir, path) = place();
    fs::write(&path, "PK\x03\x04 a PyTorch file, which is a zip archive").unwrap();
    assert!(refusal(&path).contains("is not a safetensors file"));
    fs::write(&path, b"\x02\0\0\0\0\0\0\0[]").unwrap();
    assert!(refusal(&path).contains("its header is damaged"));
}

/// Sums of sizes beyond 64 bits, which the reader of the crate itself does not survive where
/// overflow is checked.
#[test]
fn a_header_with_huge_sizes_is_refused() {
    let (_dir, path) = place();
    let side = 1u64 << 60;
    let tensors: Vec<String> = (0..15u64)
        .map(|i| {
            format!(
                r#""t{i}":{{"dtype":"U8","shape":[{side}],"data_offsets":[{},{}]}}"#,
                i * side,
                (i + 1) * side
            )
        })
        .chain([format!(
            r#""u":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}"#,
            side - 1,
            15 * side,
            u64::MAX
        )])
        .collect();
    let header = format!("{{{}}}", tensors.join(","));
    fs::write(
        &path,
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat(),
    )
    .unwrap();
    assert!(refusal(&path).contains("lacks tensors"));
}

#[test]
fn a_manifest_of_a_larger_buffer_is_refused() {
    let (_dir, path) = place();
    let words = weights();
    save(&path, &manifest(), WeightsView::of(&words), HashMap::new()).unwrap();
    let short = WeightsView::of(&words[..20]);
    let error = save(&path, &manifest(), short, HashMap::new()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("\"scale\" ends at weight 33, but the buffer has 20"),
        "{error}"
    );
    let error = load(&path, &manifest(), short).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("\"scale\" ends at weight 33, but the buffer has 20"),
        "{error}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn random_files_never_panic(header_len in prop::option::of(0..64u64), bytes: Vec<u8>) {
        let (_dir, path) = place();
        let start = header_len.map_or(vec![], |len| len.to_le_bytes().to_vec());
        fs::write(&path, [start, bytes].concat()).unwrap();
        refusal(&path);
    }

    #[test]
    fn a_spoilt_file_never_panics(at: prop::sample::Index, value: u8) {
        let (_dir, path) = place();
        save(&path, &manifest(), WeightsView::of(&weights()), HashMap::new()).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = value;
        fs::write(&path, bytes).unwrap();
        let words = weights();
        if load(&path, &manifest(), WeightsView::of(&words)).is_err() {
            prop_assert_eq!(bits(&words), bits(&weights()));
        }
    }

    #[test]
    fn any_finite_weights_come_back(values in prop::collection::vec(prop::num::f32::NORMAL | prop::num::f32::SUBNORMAL | prop::num::f32::ZERO, 40)) {
        let (_dir, path) = place();
        let words: Vec<AtomicU32> = values.iter().map(|v| AtomicU32::new((v + 0.0).to_bits())).collect();
        let w = WeightsView::of(&words);
        save(&path, &manifest(), w, HashMap::new()).unwrap();
        let before = bits(&words);
        manifest().tensors().iter().flat_map(|t| t.offset..t.offset + t.len()).for_each(|i| w.store(i, 1.5));
        load(&path, &manifest(), w).unwrap();
        prop_assert_eq!(bits(&words), before);
    }
}
