//! The fates of frames against what was asked for, and against each other.

use super::*;
use crate::To;
use crate::memory::Hub;

/// What came of `count` frames: which arrived, which of them damaged, and the counts.
fn fates(config: &FaultConfig, count: u32) -> (Vec<Option<Vec<u8>>>, FaultStats) {
    let mut links = Hub::new(2, 64, 256);
    let mut rx = wrap(links.pop().expect("a link"), config).rx;
    let tx = &mut links[0].tx;
    let mut got = vec![None; count as usize];
    for number in 0..count {
        let sent = tx.send(To::Group, 12, &mut |slot| {
            slot[..4].copy_from_slice(&number.to_le_bytes());
            slot[4..].fill(0xA5);
        });
        assert!(sent);
        rx.recv(usize::MAX, &mut |_, frame| {
            got[number as usize] = Some(frame.to_vec());
        })
        .expect("receive");
    }
    (got, rx.stats().fault)
}

fn intact(number: usize) -> Vec<u8> {
    let mut frame = vec![0xA5; 12];
    frame[..4].copy_from_slice(&(number as u32).to_le_bytes());
    frame
}

const LINE: Bursts = Bursts::GilbertElliott {
    p: 0.01,
    r: 0.2,
    loss_bad: 0.9,
    loss_good: 0.001,
};

#[test]
fn losses_come_in_bursts_of_the_length_asked_for() {
    let config = FaultConfig {
        seed: 5,
        bursts: Bursts::GilbertElliott {
            p: 0.01,
            r: 0.2,
            loss_bad: 1.0,
            loss_good: 0.0,
        },
        ..FaultConfig::default()
    };
    const COUNT: u32 = 400_000;
    let (got, stats) = fates(&config, COUNT);
    let lost = got.iter().filter(|frame| frame.is_none()).count();
    let bursts = got
        .windows(2)
        .filter(|pair| pair[0].is_some() && pair[1].is_none())
        .count();
    assert_eq!(
        (stats.dropped, stats.dropped_in_bursts),
        (lost as u64, lost as u64)
    );
    let share = lost as f64 / f64::from(COUNT);
    // Four standard deviations: about 3800 bursts whose lengths are geometric.
    assert!(
        (share / config.bursts.mean_loss() - 1.0).abs() < 0.09,
        "{share}"
    );
    let length = lost as f64 / bursts as f64;
    assert!((length / 5.0 - 1.0).abs() < 0.07, "bursts of {length}");
    // Independent losses of the same share would come in runs of 1 / (1 - share), 1.05 here.
    assert!(length > 2.0);
}

#[test]
fn both_states_lose_their_share() {
    let config = FaultConfig {
        seed: 6,
        bursts: LINE,
        ..FaultConfig::default()
    };
    let (got, stats) = fates(&config, 400_000);
    let wanted = LINE.mean_loss() * 400_000.0;
    assert!(
        (stats.dropped as f64 / wanted - 1.0).abs() < 0.09,
        "{stats:?}"
    );
    // A bad line that loses nine of ten lets frames through within its bursts.
    let holes = got
        .windows(3)
        .filter(|w| w[0].is_none() && w[1].is_some() && w[2].is_none());
    assert!(holes.count() > 500);
}

#[test]
fn single_losses_and_bursts_do_not_move_each_other() {
    let single = FaultConfig {
        seed: 7,
        drop: 0.1,
        ..FaultConfig::default()
    };
    let bursts = FaultConfig {
        seed: 7,
        bursts: LINE,
        ..FaultConfig::default()
    };
    let both = FaultConfig {
        corrupt: 0.5,
        drop: 0.1,
        ..bursts.clone()
    };
    let [single, bursts, both] = [single, bursts, both].map(|config| fates(&config, 20_000).0);
    for (i, both) in both.iter().enumerate() {
        let passes = single[i].is_some() && bursts[i].is_some();
        assert_eq!(both.is_some(), passes, "frame {i}");
    }
}

#[test]
fn a_seed_decides_and_another_decides_otherwise() {
    let config = |seed| FaultConfig {
        seed,
        bursts: LINE,
        corrupt: 0.2,
        ..FaultConfig::default()
    };
    assert_eq!(fates(&config(1), 5000), fates(&config(1), 5000));
    assert_ne!(fates(&config(1), 5000).0, fates(&config(2), 5000).0);
}

#[test]
fn corruption_flips_as_many_bits_as_asked_for_and_is_counted() {
    let config = FaultConfig {
        seed: 8,
        corrupt: 0.1,
        corrupt_bits_max: 4,
        ..FaultConfig::default()
    };
    const COUNT: u32 = 100_000;
    let (got, stats) = fates(&config, COUNT);
    let mut by_bits = [0u32; 6];
    let mut by_byte = [0u32; 12];
    for (i, frame) in got.iter().enumerate() {
        let frame = frame.as_ref().expect("nothing is lost");
        let flipped = frame
            .iter()
            .zip(intact(i))
            .map(|(a, b)| (a ^ b).count_ones());
        by_bits[flipped.clone().sum::<u32>().min(5) as usize] += 1;
        for (byte, flipped) in flipped.enumerate() {
            by_byte[byte] += flipped;
        }
    }
    let damaged = COUNT - by_bits[0];
    assert_eq!(u64::from(damaged), stats.corrupted);
    assert!((9_400..10_600).contains(&damaged), "{damaged}");
    assert_eq!(by_bits[5], 0);
    for count in &by_bits[1..5] {
        assert!((2_200..2_800).contains(count), "{by_bits:?}");
    }
    // 2.5 bits of each of 10,000 frames over 12 bytes.
    for count in by_byte {
        assert!((1_800..2_400).contains(&count), "{by_byte:?}");
    }
}

#[test]
fn a_frame_without_bytes_cannot_be_corrupted() {
    let mut links = Hub::new(2, 64, 4);
    let config = FaultConfig {
        corrupt: 1.0,
        ..FaultConfig::default()
    };
    assert!(!config.is_harmless());
    let mut rx = wrap(links.pop().expect("a link"), &config).rx;
    assert!(links[0].tx.send(To::Group, 0, &mut |_| {}));
    assert_eq!(
        rx.recv(9, &mut |_, frame| assert!(frame.is_empty()))
            .expect("receive"),
        1
    );
    assert_eq!(rx.stats().fault.corrupted, 0);
}

#[test]
fn the_mean_loss_of_a_line_follows_from_its_parameters() {
    let line = |p, r, loss_bad, loss_good| Bursts::GilbertElliott {
        p,
        r,
        loss_bad,
        loss_good,
    };
    assert!((line(0.1, 0.3, 1.0, 0.0).mean_loss() - 0.25).abs() < 1e-12);
    assert!((line(0.0, 0.0, 1.0, 0.0).mean_loss() - 0.0).abs() < 1e-12);
    assert!((line(0.1, 0.0, 1.0, 0.0).mean_loss() - 1.0).abs() < 1e-12);
    assert!(FaultConfig::default().is_harmless());
}
