//! Where in its page a buffer begins: somewhere else each time.
//!
//! The kernel copies datagrams with `rep movsb` where the processor calls that fast. On AMD Zen 3
//! and 4 it is, but for one case: source and destination, modulo the page, lie 1 to 15 bytes apart,
//! the destination behind. Then it copies byte by byte, 20 to 25 times slower (measured: 2.6 to 3.6
//! instead of 60 to 100 GB/s; glibc bug 30995 reports the same). Where the kernel's side of the
//! copy lies cannot be known, and if ours always lay alike, long stretches of a run, or all of it,
//! could fall into that case. With a new place for each batch it is one batch in 256. It is none
//! where the kernel's side begins at a multiple of 16 too, as between nodes of one host: dogwild's
//! frames are multiples of 16 long.

/// Bytes over which the beginnings are spread: a page.
pub(super) const SKEW_BYTES: usize = 4096;

/// A sequence of beginnings.
#[derive(Debug, Default)]
pub(super) struct Skew(u32);

impl Skew {
    /// The next beginning: less than [`SKEW_BYTES`], a multiple of 16.
    pub(super) fn advance(&mut self) -> usize {
        // A linear congruence (Numerical Recipes); its upper bits come in no regular steps, as the
        // kernel's own place does.
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 20) as usize & !15
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_are_spread_evenly_and_not_in_steps() {
        let mut skew = Skew::default();
        let mut sixteenths = [0u32; 16];
        let mut steps = std::collections::HashSet::new();
        let mut before = 0;
        for _ in 0..1600 {
            let at = skew.advance();
            assert!(at < SKEW_BYTES && at.is_multiple_of(16));
            sixteenths[at / 256] += 1;
            steps.insert((at + SKEW_BYTES - before) % SKEW_BYTES);
            before = at;
        }
        assert!(
            sixteenths.iter().all(|n| (50..200).contains(n)),
            "{sixteenths:?}"
        );
        // Of 256 possible ones.
        assert!(steps.len() > 200, "only {} steps", steps.len());
    }
}
