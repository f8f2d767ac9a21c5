//! Batches: order, shards, exact restart, ends.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::Mean;
use super::*;

/// `count` images of 1×2×2 whose first pixel is their number (below 256) and label its last digit.
fn numbered(count: usize) -> Arc<Images> {
    Arc::new(Images {
        pixels: (0..count).flat_map(|i| [i as u8, 1, 2, 3]).collect(),
        labels: (0..count).map(|i| (i % 10) as u8).collect(),
        shape: [1, 2, 2],
        classes: 10,
    })
}

fn batches(
    count: usize,
    phase: Phase,
    batch: usize,
    shard: (u32, u32),
    seed: u64,
    cursor: u64,
) -> Batches {
    let shard = Shard {
        index: shard.0,
        of: shard.1,
    };
    Batches::new(
        numbered(count),
        Transform::default(),
        phase,
        batch,
        shard,
        seed,
        cursor,
    )
    .unwrap()
}

/// The numbers of the next `n` images.
fn numbers(batches: &mut Batches, n: usize) -> Vec<usize> {
    let mut numbers = Vec::new();
    while numbers.len() < n {
        let batch = batches.next();
        for (image, label) in batch.images.chunks(4).zip(&batch.labels) {
            assert_eq!(image[0] as u32 % 10, *label);
            assert_eq!(image[1..], [1.0, 2.0, 3.0]);
            numbers.push(image[0] as usize);
        }
    }
    numbers.truncate(n);
    numbers
}

#[test]
fn tests_take_the_images_in_order_and_begin_again() {
    let mut batches = batches(5, Phase::Test, 3, (0, 1), 1, 0);
    assert_eq!(numbers(&mut batches, 9), [0, 1, 2, 3, 4, 0, 1, 2, 3]);
    assert_eq!((batches.epoch_len(), batches.shape()), (5, [1, 2, 2]));
}

#[test]
fn every_epoch_holds_each_image_once_in_another_order() {
    let mut batches = batches(100, Phase::Train, 7, (0, 1), 3, 0);
    let all = numbers(&mut batches, 300);
    let epochs: Vec<&[usize]> = all.chunks(100).collect();
    for epoch in &epochs {
        assert_eq!(epoch.iter().collect::<BTreeSet<_>>().len(), 100);
    }
    assert_ne!(epochs[0], epochs[1]);
    assert_ne!(epochs[1], epochs[2]);
}

#[test]
fn shards_share_nothing_and_leave_nothing_out_whatever_their_seeds() {
    for phase in [Phase::Train, Phase::Test] {
        let mut all = Vec::new();
        for index in 0..3 {
            let mut batches = batches(200, phase, 5, (index, 3), u64::from(index), 0);
            let len = batches.epoch_len();
            all.extend(numbers(&mut batches, len));
        }
        assert_eq!(all.len(), 200);
        assert_eq!(all.into_iter().collect::<BTreeSet<_>>().len(), 200);
    }
}

#[test]
fn seeds_and_shards_give_other_orders() {
    let first = numbers(&mut batches(100, Phase::Train, 10, (0, 1), 1, 0), 100);
    assert_eq!(
        first,
        numbers(&mut batches(100, Phase::Train, 10, (0, 1), 1, 0), 100)
    );
    assert_ne!(
        first,
        numbers(&mut batches(100, Phase::Train, 10, (0, 1), 2, 0), 100)
    );
}

#[test]
fn a_solver_with_another_batch_size_goes_on_with_the_same_images() {
    let whole = numbers(&mut batches(50, Phase::Train, 8, (1, 2), 4, 0), 80);
    let mut first = batches(50, Phase::Train, 8, (1, 2), 4, 0);
    first.next();
    let cursor = first.next().cursor;
    assert_eq!(cursor, 16);
    assert_eq!(
        numbers(&mut batches(50, Phase::Train, 5, (1, 2), 4, cursor), 64),
        whole[16..]
    );
}

#[test]
fn the_last_cursors_are_no_problem() {
    let mut batches = batches(5, Phase::Train, 4, (0, 1), 1, u64::MAX - 1);
    assert_eq!(batches.next().labels.len(), 4);
}

#[test]
fn dropping_ends_the_thread_whether_it_waits_or_works() {
    for used in 0..4 {
        let mut batches = batches(100, Phase::Train, 50, (0, 1), 1, 0);
        for _ in 0..used {
            batches.next();
        }
        let stop = Arc::clone(&batches.stop);
        drop(batches);
        assert_eq!(
            Arc::strong_count(&stop),
            1,
            "the thread still holds its flag"
        );
    }
}

#[test]
fn no_batch_is_allocated_after_the_start() {
    let mut batches = batches(100, Phase::Train, 10, (0, 1), 1, 0);
    let mut buffers = BTreeSet::new();
    for _ in 0..100 {
        buffers.insert(batches.next().images.as_ptr());
    }
    assert!(buffers.len() <= BUFFERS, "{}", buffers.len());
}

#[test]
fn what_cannot_be_is_refused() {
    let message = |images: Arc<Images>, transform, batch, index, of| {
        let shard = Shard { index, of };
        let result = Batches::new(images, transform, Phase::Train, batch, shard, 1, 0);
        result.unwrap_err().to_string()
    };
    let plain = Transform::default;
    assert!(message(numbered(9), plain(), 0, 0, 1).contains("batch size is 0"));
    assert!(message(numbered(9), plain(), usize::MAX / 8, 0, 1).contains("smaller batches"));
    assert!(message(numbered(9), plain(), 1, 2, 2).contains("no shard 2 of 2"));
    assert!(message(numbered(9), plain(), 1, 0, 0).contains("no shard 0 of 0"));
    assert!(message(numbered(9), plain(), 1, 0, 10).contains("9 images are too few for 10 shards"));
    assert!(message(numbered(0), plain(), 1, 0, 1).contains("0 images are too few"));
    let crop = Transform {
        crop: Some(3),
        ..plain()
    };
    assert!(message(numbered(9), crop, 1, 0, 1).contains("crop_size 3"));
    let mean = Transform {
        mean: Mean::Image(vec![]),
        ..plain()
    };
    assert!(message(numbered(9), mean, 1, 0, 1).contains("mean image"));
    let mut images = Images::clone(&numbered(9));
    images.pixels.pop();
    assert!(message(Arc::new(images), plain(), 1, 0, 1).contains("35 pixels are not 9 images"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// What follows a cursor is the same whether the solver was started there or came there.
    #[test]
    fn a_restarted_solver_goes_on_exactly(
        count in 1..60usize, batch in 1..20usize, of in 1..4u32, seed: u64, used in 0..12usize, train: bool,
    ) {
        prop_assume!(count >= of as usize);
        let phase = if train { Phase::Train } else { Phase::Test };
        let transform = || Transform { mirror: true, crop: Some(1), scale: 0.5, mean: Mean::Values(vec![3.0]) };
        let shard = Shard { index: of - 1, of };
        let start = |cursor| Batches::new(numbered(count), transform(), phase, batch, shard, seed, cursor).unwrap();
        let mut straight = start(0);
        let mut cursor = 0;
        for _ in 0..used {
            cursor = straight.next().cursor;
        }
        let mut restarted = start(cursor);
        for _ in 0..5 {
            prop_assert_eq!(straight.next(), restarted.next());
        }
    }
}
