//! Small layers that are copied together (Le Duc et al., 2018): a copy has a cost of its own, which
//! is more than that of the words of a small layer.

use std::time::Instant;

use crate::device::{Device, DeviceError, Memory, Stream, pinned};

/// Copies of one word that are timed, and of many.
const SMALL_COPIES: usize = 31;
const LARGE_COPIES: usize = 5;
/// Words of a large copy.
const LARGE: usize = 1 << 20;

/// Joins layers that follow each other until a group has `least` floats. `layers`: number and
/// floats of each, in the order in which they are copied; those whose numbers are not neighbours
/// are not joined. Groups may be smaller at the end. Layer 0 is always alone: a pass waits for its
/// weights first, and for its gradient last.
pub fn join_small(
    layers: impl IntoIterator<Item = (usize, usize)>,
    least: usize,
) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut floats = 0;
    for (layer, own) in layers {
        let open = groups.last_mut().filter(|group| {
            let near = |last: &usize| last.abs_diff(layer) == 1;
            floats < least && layer > 0 && group[0] > 0 && group.last().is_some_and(near)
        });
        match open {
            Some(group) => group.push(layer),
            None => {
                groups.push(vec![layer]);
                floats = 0;
            }
        }
        floats += own;
    }
    groups
}

/// Floats that come down from `device` in the time that a copy takes for itself: fewer are worth
/// joining with others. It is measured, in some milliseconds.
///
/// # Errors
/// The device has no memory, or has failed.
pub fn worth_a_copy<D: Device>(device: &D) -> Result<usize, DeviceError> {
    let (there, here) = (device.alloc(LARGE)?, pinned(device, LARGE)?);
    let stream = device.stream()?;
    let median = |words: usize, copies: usize| -> Result<f64, DeviceError> {
        let mut seconds = Vec::with_capacity(copies);
        for _ in 0..copies {
            let begun = Instant::now();
            stream.download(there.part(0..words), here.part(0..words))?;
            stream.finish()?;
            seconds.push(begun.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        Ok(seconds[copies / 2])
    };
    // The first one meets memory that was never touched.
    median(LARGE, 1)?;
    let (small, large) = (median(1, SMALL_COPIES)?, median(LARGE, LARGE_COPIES)?);
    let per_float = (large - small).max(0.0) / LARGE as f64;
    // Where words cost nothing that can be seen, all that fit a large copy are joined.
    Ok((small / per_float.max(f64::MIN_POSITIVE)).min(LARGE as f64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::host::HostDevice;

    #[test]
    fn small_neighbours_are_joined() {
        let floats = [10, 5, 90, 100, 1, 2, 3];
        let backward = || floats.iter().copied().enumerate().rev();
        let joined = join_small(backward(), 6);
        assert_eq!(joined, [vec![6, 5, 4], vec![3], vec![2], vec![1], vec![0]]);
        assert_eq!(join_small(backward(), 1).len(), 7);
        assert_eq!(join_small(backward(), 0).len(), 7);
        assert_eq!(
            join_small(backward(), usize::MAX),
            [vec![6, 5, 4, 3, 2, 1], vec![0]]
        );
        let forward = floats.iter().copied().enumerate();
        let joined = join_small(forward, 100);
        assert_eq!(joined, [vec![0], vec![1, 2, 3], vec![4, 5, 6]]);
        // One that is sent in another way is between them.
        let others = backward().filter(|(layer, _)| *layer != 4);
        assert_eq!(
            join_small(others, 1000),
            [vec![6, 5], vec![3, 2, 1], vec![0]]
        );
        assert!(join_small([], 5).is_empty());
    }

    #[test]
    fn a_copy_costs_as_much_as_some_floats() {
        let floats = worth_a_copy(&HostDevice::new(0)).unwrap();
        assert!((1..=LARGE).contains(&floats), "{floats}");
    }
}
