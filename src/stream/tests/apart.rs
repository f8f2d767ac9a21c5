//! A slave that hears the former master of a range longer than the next one did: its numbers may
//! fit those of the next one by chance.

use std::sync::atomic::Ordering::Relaxed;

use super::takeover::{quick, with_run};
use super::*;
use crate::stream::common::chunk_flags::OUTSTANDING;

/// The side of a slave goes on until the number of its delta under way is the very one that the
/// other side acknowledges, 256 deltas later. Then the slave goes over: what is under way has never
/// been there, and counts once.
#[test]
fn a_number_that_fits_by_chance_acknowledges_nothing() {
    let faults = Faults {
        delay_ns: 50_000,
        ..Faults::default()
    };
    with_run(1, &quick(4, 0), faults, |run| {
        run.work(&[0, 1, 2, 3], 500);
        run.settle();
        let nothing = Faults {
            drop: 1.0,
            ..faults
        };
        for (a, b) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
            run.world.set_way(a, b, nothing);
            run.world.set_way(b, a, nothing);
        }
        run.wait("two maps", |run| {
            (0..4).all(|range| run.is_taken(range, &[0, 1]) && run.is_taken(range, &[2, 3]))
        });
        let heir = run.world.streamer(2).and_then(|one| one.owner(0)).unwrap();
        // The first chunk of all is in the range of node 0.
        let acknowledged = run.fleet.state(heir).applied(0)[1].load(Relaxed);
        let state = run.fleet.state(1).chunk(0);
        let first = state.seq.load(Relaxed);
        let (mut sent, mut last) = (0, first);
        while sent < 200 || last != acknowledged || state.flags.load(Relaxed) & OUTSTANDING == 0 {
            let w = run.fleet.weights(1);
            w.store(3, w.load(3) + 1.0);
            run.added[3] += 1.0;
            run.world.step();
            let now = state.seq.load(Relaxed);
            sent += u32::from(now != last);
            last = now;
            assert!(
                sent < 2000,
                "no delta of number {acknowledged} was under way"
            );
        }
        run.world.kill(0);
        for other in [2, 3] {
            run.world.set_way(1, other, faults);
            run.world.set_way(other, 1, faults);
        }
        run.wait("gone over", |run| run.is_taken(0, &[1, 2, 3]));
        run.work(&[1, 2, 3], 500);
        run.world.set_faults(faults);
        run.world.restart(0);
        run.settle();
    });
}
