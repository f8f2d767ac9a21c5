//! The share, what keeps it, and what the kernel tells.

use super::*;

#[test]
fn a_share_falls_to_the_least_and_comes_back() {
    let mut share = 1.0;
    for _ in 0..10 {
        share = adapt(share, 0.5, 0.0);
    }
    assert_eq!(share, LEAST);
    for _ in 0..30 {
        share = adapt(share, 0.0, 0.0);
    }
    assert_eq!(share, 1.0);
}

/// Paced solvers wait for each other, and leave cores idle.
#[test]
fn a_share_falls_only_where_no_core_is_idle() {
    let mut share = adapt(1.0, 0.1, 0.1);
    assert!(share < 1.0);
    for _ in 0..5 {
        share = adapt(share, 0.1, 0.9);
    }
    assert_eq!(share, 1.0);
}

#[test]
fn statistics_of_a_thread_are_its_first_two_words() {
    let times = Times::parse("532039 1461529 2\n").unwrap();
    assert_eq!(times.ran_ns, 532_039);
    assert_eq!(times.waited_ns, 1_461_529);
    assert_eq!(Times::parse("7"), None);
    assert_eq!(Times::parse("x y z"), None);
}

/// What is asked of CPU time is kept on average, whatever else the machine does.
#[test]
fn naps_keep_the_share() {
    let mut budget = Budget::new();
    budget.share = 0.1;
    let clock = super::super::clock::Clock::start();
    budget.own.as_mut().unwrap().advance();
    let before = budget.own.as_ref().unwrap().seen;
    let began_ns = clock.now_ns();
    budget.noted_ns = began_ns;
    while clock.now_ns() - began_ns < 1_000_000_000 {
        let until_ns = clock.now_ns() + 100_000;
        while clock.now_ns() < until_ns {}
        if let Some(nap) = budget.nap(clock.now_ns()) {
            std::thread::sleep(nap);
        }
    }
    budget.own.as_mut().unwrap().advance();
    let ran_ns = budget.own.as_ref().unwrap().seen.ran_ns - before.ran_ns;
    let share = ran_ns as f64 / (clock.now_ns() - began_ns) as f64;
    // Less on a busy machine, where naps last longer.
    assert!(share < 0.12, "{share} of a core, 0.1 may be taken");
}
