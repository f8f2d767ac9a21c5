//! The built-in digits: determinism, independence, looks.

use std::collections::HashSet;
use std::io::Write;

use super::*;

#[test]
fn an_image_depends_on_seed_split_and_number_alone() {
    let few = generate(7, Split::Train, 10);
    let many = generate(7, Split::Train, 50);
    assert_eq!(many.pixels[..few.pixels.len()], few.pixels[..]);
    assert_eq!(many.labels[..10], few.labels[..]);
    assert_ne!(generate(8, Split::Train, 10), few);
    assert_ne!(generate(7, Split::Test, 10), few);
}

#[test]
fn no_image_comes_twice() {
    let train = generate(1, Split::Train, 5_000);
    let test = generate(1, Split::Test, 5_000);
    let mut seen = HashSet::new();
    for images in [&train, &test] {
        assert!((0..5_000).all(|i| seen.insert(images.image(i))));
    }
}

#[test]
fn the_bytes_are_the_same_on_every_machine() {
    let images = generate(1, Split::Train, 500);
    let sum = xxhash_rust::xxh3::xxh3_64(&images.pixels);
    assert_eq!(
        sum, 16_810_444_246_840_511_342,
        "the digits of seed 1 have changed: say so in CHANGELOG.md"
    );
}

#[test]
fn classes_are_even_and_digits_lie_on_the_canvas() {
    let images = generate(3, Split::Train, 5_000);
    let mut counts = [0; 10];
    images
        .labels
        .iter()
        .for_each(|&label| counts[usize::from(label)] += 1);
    assert!(
        counts.iter().all(|&count| (400..600).contains(&count)),
        "{counts:?}"
    );
    for i in 0..images.len() {
        let ink = images.image(i).iter().filter(|&&pixel| pixel > 100).count();
        assert!((8..400).contains(&ink), "image {i} has {ink} bright pixels");
    }
    let mean = images.mean_image();
    let rim = (0..SIDE).flat_map(|k| [k, 27 * SIDE + k, k * SIDE, k * SIDE + 27]);
    assert!(
        rim.map(|pixel| mean[pixel]).fold(0.0, f32::max) < 12.0,
        "ink at the rim"
    );
}

#[test]
fn templates_fit_their_box_and_the_tracer() {
    for stroke in TEMPLATES
        .iter()
        .flat_map(|ways| ways.iter())
        .flat_map(|way| way.iter())
    {
        assert!((2..=16).contains(&stroke.len()));
        assert!(
            stroke
                .iter()
                .all(|(x, y)| (0.0..=1.0).contains(x) && (0.0..=1.0).contains(y))
        );
    }
}

#[test]
fn no_digits_are_no_digits() {
    assert!(generate(1, Split::Train, 0).is_empty());
}

/// Writes a sheet of 10 rows, one for each digit, and idx-like raw files, to look at:
/// `DOGWILD_SHEET=/tmp/sheet.pgm cargo test digits::tests::sheet`.
#[test]
fn sheet() {
    let Some(path) = std::env::var_os("DOGWILD_SHEET") else {
        return;
    };
    const COLUMNS: usize = 24;
    let images = generate(1, Split::Train, 2_000);
    let mut sheet = vec![0u8; 10 * SIDE * COLUMNS * SIDE];
    for label in 0..10 {
        let of_label = (0..images.len()).filter(|&i| usize::from(images.labels[i]) == label);
        for (column, i) in of_label.take(COLUMNS).enumerate() {
            for (y, row) in images.image(i).chunks(SIDE).enumerate() {
                let at = ((label * SIDE + y) * COLUMNS + column) * SIDE;
                sheet[at..at + SIDE].copy_from_slice(row);
            }
        }
    }
    let mut file = std::fs::File::create(path).unwrap();
    write!(file, "P5 {} {} 255\n", COLUMNS * SIDE, 10 * SIDE).unwrap();
    file.write_all(&sheet).unwrap();
}

/// Writes the first digits as raw bytes, for experiments outside:
/// `DOGWILD_RAW=/tmp/digits cargo test digits::tests::raw`.
#[test]
fn raw() {
    let Some(path) = std::env::var_os("DOGWILD_RAW") else {
        return;
    };
    let start = std::time::Instant::now();
    for (split, name, count) in [
        (Split::Train, "train", 20_000),
        (Split::Test, "test", 4_000),
    ] {
        let images = generate(1, split, count);
        let path = path.to_string_lossy();
        std::fs::write(format!("{path}.{name}.pixels"), &images.pixels).unwrap();
        std::fs::write(format!("{path}.{name}.labels"), &images.labels).unwrap();
    }
    println!("24,000 digits in {:?}", start.elapsed());
}
