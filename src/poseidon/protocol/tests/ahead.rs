//! What workers read while steps are missing: steps of their own in place of those.

use super::*;

/// What worker `k` reads at iteration `t` of a pair whose true steps it has up to `c`.
fn expected(plan: &Plan, steps: &[Vec<f32>], k: u16, c: u64, t: u64, pair: &Pair) -> Vec<f32> {
    let at = pair.offset..pair.offset + pair.len;
    let of = |c: u64| &steps[c as usize][at.clone()];
    let went = |c: u64| of(c - 1).iter().zip(of(c)).map(|(old, new)| old - new);
    let word = |value: &f32| AtomicU32::new(value.to_bits());
    let w: Vec<AtomicU32> = of(c).iter().map(word).collect();
    let zeros = || vec![0.0; pair.len];
    let history = if c == 0 { zeros() } else { went(c).collect() };
    let history: Vec<AtomicU32> = history.iter().map(word).collect();
    for clock in c..t {
        let (own, _) = gradients(k, clock);
        let (w, history) = (WeightsView::of(&w), WeightsView::of(&history));
        Math.step(pair, clock, 1, &own[at.clone()], w, &[history]);
    }
    assert!(t - c <= u64::from(plan.staleness) || t < c);
    values(&w)
}

fn are_close(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4)
}

#[test]
fn missing_steps_are_made_of_the_own_gradient() {
    for scheme in [Scheme::Ps, Scheme::Sfb, Scheme::Adam, Scheme::P2p] {
        for staleness in [1, 3] {
            let plan = plan(scheme, 3, servers(scheme), staleness, Stragglers::Wait);
            let mut world = World::new(plan.clone(), 17 + u64::from(staleness));
            world.run(Some(1));
            world.run(None);
            let steps = trajectory(&plan);
            let mut oldest = 0;
            for ((t, read), k) in world.read.iter().zip(&world.readers) {
                for pair in plan.pairs() {
                    let read = &read[pair.offset..pair.offset + pair.len];
                    let first = t.saturating_sub(staleness.into());
                    let mut known = (first..=*t).rev();
                    let is_read =
                        |c: &u64| are_close(read, &expected(&plan, &steps, *k, *c, *t, &pair));
                    let found = known.find(is_read).unwrap_or_else(|| {
                        panic!(
                            "{scheme:?}, {staleness}: iteration {t} of {k}, pair {}",
                            pair.id
                        )
                    });
                    oldest = oldest.max(t - found);
                }
            }
            assert_eq!(oldest, u64::from(staleness), "{scheme:?}");
        }
    }
}

/// Nothing is missing that it does not know: it reads what it would without staleness, however long
/// servers and messages take.
#[test]
fn a_worker_alone_reads_true_steps() {
    for scheme in Scheme::ALL {
        let reads = |staleness| {
            let plan = plan(scheme, 1, servers(scheme), staleness, Stragglers::Wait);
            let mut world = World::new(plan, 3);
            world.run(None);
            (world.read.clone(), world.weights())
        };
        let ((true_reads, true_end), (reads, end)) = (reads(0), reads(3));
        assert_eq!(end, true_end, "{scheme:?}: the end, bit for bit");
        for ((t, read), (true_t, true_read)) in reads.iter().zip(&true_reads) {
            assert_eq!(t, true_t);
            let same = are_close(&read[..52], &true_read[..52]);
            assert!(same, "{scheme:?}, iteration {t}");
            assert!(
                are_close(&read[FC_AT..], &true_read[FC_AT..]),
                "{scheme:?}, {t}"
            );
        }
    }
}

/// Own steps are read, and are in nothing that is left: replicas and what the rule remembers are,
/// at the end, those of a run that reads whole steps alone, bit for bit where the gradients are.
#[test]
fn own_steps_leave_nothing_behind() {
    for scheme in Scheme::ALL {
        let ends = [Reads::Own, Reads::Delayed].map(|reads| {
            let plan = Plan {
                reads,
                ..plan(scheme, 3, servers(scheme), 2, Stragglers::Wait)
            };
            let mut world = World::new(plan, 23);
            world.run(None);
            let histories = world.workers.iter().map(|w| values(&w.history));
            (world.weights(), histories.collect::<Vec<_>>())
        });
        assert_eq!(ends[0], ends[1], "{scheme:?}");
    }
}
