//! The fault wrapper on the memory transport: what it decides, how often, and that it accounts for
//! every frame.

use std::ops::Range;
use std::time::{Duration, Instant};

use dogwild_net::{Link, Receive, ReceiveStats, To, fault, memory};
use proptest::prelude::*;

/// Two nodes; what the second receives is faulty.
fn pair(config: &fault::FaultConfig) -> (Link, Link) {
    let mut links = memory::Hub::new(2, 64, 256);
    let to = links.pop().expect("two links");
    let from = links.pop().expect("two links");
    (from, fault::wrap(to, config))
}

fn take(rx: &mut dyn Receive, max: usize, numbers: &mut Vec<u32>) -> usize {
    rx.recv(max, &mut |_, frame| {
        numbers.push(u32::from_le_bytes(frame.try_into().expect("four bytes")));
    })
    .expect("receive")
}

/// Sends numbered frames, receives after each few, and waits for those held back.
fn run(config: &fault::FaultConfig, frames: u32) -> (Vec<u32>, ReceiveStats) {
    let (mut from, mut to) = pair(config);
    let mut numbers = Vec::new();
    for number in 0..frames {
        let sent = from.tx.send(To::Group, 4, &mut |slot| {
            slot.copy_from_slice(&number.to_le_bytes());
        });
        assert!(sent);
        if number % 16 == 0 {
            take(&mut *to.rx, usize::MAX, &mut numbers);
        }
    }
    loop {
        take(&mut *to.rx, usize::MAX, &mut numbers);
        let stats = to.rx.stats();
        if stats.fault.held == 0 && stats.fault.arrived == u64::from(frames) {
            return (numbers, stats);
        }
        to.rx.wait(Duration::from_secs(1)).expect("wait");
    }
}

/// Whether `count` successes in `trials` go with the probability, within five standard deviations.
fn likely(count: u64, trials: u64, probability: f64) -> bool {
    let (count, trials) = (count as f64, trials as f64);
    let deviation = (trials * probability * (1.0 - probability)).sqrt();
    (count - trials * probability).abs() <= 5.0 * deviation + 1.0
}

fn accounts_balance(stats: &ReceiveStats) -> bool {
    let fault = stats.fault;
    fault.arrived + fault.duplicated == stats.frames + fault.dropped + fault.overflow + fault.held
}

#[test]
fn no_fault_changes_nothing() {
    let (numbers, stats) = run(&fault::FaultConfig::default(), 10_000);
    assert_eq!(numbers, (0..10_000).collect::<Vec<_>>());
    assert!(accounts_balance(&stats), "{stats:?}");
    assert!(fault::FaultConfig::default().is_harmless());
}

#[test]
fn rates_are_those_asked_for() {
    const FRAMES: u32 = 100_000;
    let config = fault::FaultConfig {
        seed: 7,
        drop: 0.1,
        duplicate: 0.05,
        reorder: 0.02,
        ..fault::FaultConfig::default()
    };
    let (numbers, stats) = run(&config, FRAMES);
    let fault = stats.fault;
    let passed = u64::from(FRAMES) - fault.dropped;
    assert!(likely(fault.dropped, FRAMES.into(), 0.1), "{fault:?}");
    assert!(likely(fault.duplicated, passed, 0.05), "{fault:?}");
    let copies = passed + fault.duplicated;
    assert!(likely(fault.reordered, copies, 0.02), "{fault:?}");
    assert_eq!(numbers.len() as u64, copies);
    let swapped = numbers.windows(2).filter(|pair| pair[1] < pair[0]).count();
    assert!(swapped > 0, "nothing was overtaken");
    assert!(accounts_balance(&stats), "{stats:?}");
}

#[test]
fn the_same_seed_decides_alike_and_another_does_not() {
    let config = |seed, drop| fault::FaultConfig {
        seed,
        drop,
        duplicate: 0.1,
        ..fault::FaultConfig::default()
    };
    let (first, _) = run(&config(1, 0.3), 5000);
    let (again, _) = run(&config(1, 0.3), 5000);
    let (other, _) = run(&config(2, 0.3), 5000);
    assert_eq!(first, again);
    assert_ne!(first, other);
    // What a low rate drops, a higher rate drops too.
    let (better, _) = run(&config(1, 0.1), 5000);
    assert!(first.iter().all(|number| better.contains(number)));
}

#[test]
fn a_frame_is_overtaken_by_no_more_than_the_span() {
    let config = fault::FaultConfig {
        seed: 3,
        reorder: 0.05,
        reorder_span_frames: 4,
        ..fault::FaultConfig::default()
    };
    let (numbers, stats) = run(&config, 20_000);
    for (place, &number) in numbers.iter().enumerate() {
        // Late by the span, plus what a batch of 16 adds before it is looked at again.
        assert!(place as u32 <= number + 4 + 16, "{number} at {place}");
    }
    assert_eq!(stats.frames, 20_000);
}

#[test]
fn a_delay_is_kept() {
    let delay = Duration::from_millis(20)..Duration::from_millis(40);
    let config = fault::FaultConfig {
        delay: delay.clone(),
        ..fault::FaultConfig::default()
    };
    let (mut from, mut to) = pair(&config);
    let mut numbers = Vec::new();
    let start = Instant::now();
    for number in 0..100_u32 {
        assert!(from.tx.send(To::Group, 4, &mut |slot| {
            slot.copy_from_slice(&number.to_le_bytes());
        }));
    }
    while numbers.len() < 100 {
        if take(&mut *to.rx, 7, &mut numbers) > 0 {
            assert!(start.elapsed() >= delay.start, "too early");
        } else {
            assert!(to.rx.wait(Duration::from_secs(60)).expect("wait"), "lost");
        }
    }
    assert!(start.elapsed() >= delay.start);
    numbers.sort_unstable();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_held_is_counted_and_lost() {
    let config = fault::FaultConfig {
        delay: Duration::from_millis(50)..Duration::from_millis(50),
        held_frames_max: 10,
        ..fault::FaultConfig::default()
    };
    let (numbers, stats) = run(&config, 100);
    assert!(stats.fault.overflow >= 1, "{stats:?}");
    assert_eq!(numbers.len() as u64, stats.frames);
    assert!(accounts_balance(&stats), "{stats:?}");
}

#[test]
fn wait_sleeps_until_a_held_frame_is_due() {
    let delay = Duration::from_millis(30);
    let config = fault::FaultConfig {
        delay: delay..delay,
        ..fault::FaultConfig::default()
    };
    let (mut from, mut to) = pair(&config);
    assert!(from.tx.send(To::Group, 4, &mut |slot| slot.fill(0)));
    let start = Instant::now();
    let mut numbers = Vec::new();
    assert_eq!(take(&mut *to.rx, 1, &mut numbers), 0);
    assert!(!to.rx.wait(Duration::from_millis(1)).expect("wait"));
    assert!(to.rx.wait(Duration::from_secs(60)).expect("wait"));
    assert!(start.elapsed() >= delay);
    assert_eq!(take(&mut *to.rx, 1, &mut numbers), 1);
}

fn any_delay() -> impl Strategy<Value = Range<Duration>> {
    (0..3_u64, 0..3_u64).prop_map(|(start, end)| {
        // An end before the start is allowed: no spread then.
        Duration::from_millis(start)..Duration::from_millis(end)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_frame_is_accounted_for(
        seed: u64,
        drop in -0.1..1.1_f64,
        (burst_in, burst_out) in (0.0..1.0_f64, 0.0..1.0_f64),
        corrupt in -0.1..1.1_f64,
        duplicate in -0.1..1.1_f64,
        reorder in -0.1..1.1_f64,
        reorder_span_frames in 0..50_u32,
        delay in any_delay(),
        held_frames_max in 0..200_usize,
        max in 1..40_usize,
    ) {
        let config = fault::FaultConfig {
            seed, drop, corrupt, duplicate, reorder, reorder_span_frames, delay, held_frames_max,
            bursts: fault::Bursts::GilbertElliott {
                p: burst_in, r: burst_out, loss_bad: 1.0, loss_good: 0.0,
            },
            ..fault::FaultConfig::default()
        };
        let (mut from, mut to) = pair(&config);
        let mut numbers = Vec::new();
        for number in 0..200_u32 {
            let sent = from.tx.send(To::Group, 4, &mut |slot| {
                slot.copy_from_slice(&number.to_le_bytes());
            });
            prop_assert!(sent);
            let got = take(&mut *to.rx, max, &mut numbers);
            prop_assert!(got <= max);
            prop_assert!(accounts_balance(&to.rx.stats()));
        }
        let stats = to.rx.stats();
        prop_assert_eq!(stats.frames, numbers.len() as u64);
        prop_assert_eq!(stats.bytes, 4 * stats.frames);
    }
}
