//! What the virtual network carried, and how much of the solvers' work it lost.
//!
//! A node's work leaves in deltas; the sum of |delta| is their *mass*. A slave has one delta of a
//! chunk under way at a time, so the next number tells that the one before will not come again.

use std::collections::BTreeMap;

use crate::stream::Deltas;
use crate::wire::{self, Frame, Kind};

/// Totals since the world began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Bytes of frames that nodes have sent; a frame for all counts once.
    pub sent_bytes: u64,
    /// Frames that were to reach a node; a frame for all counts for each.
    pub deliveries: u64,
    /// Those of them that were lost.
    pub lost: u64,
    /// Mass of all deltas, each counted when its number is new.
    pub mass: f64,
    /// Mass of deltas whose first frame was lost.
    pub mass_late: f64,
    /// Mass of deltas of which no frame arrived, and none will: the next number came, or they are
    /// not sent again.
    pub mass_lost: f64,
}

/// The newest delta of a node for a chunk.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    seq: u8,
    mass: f64,
    /// Frames of it that arrived, or are on the way and not lost yet.
    arriving: u32,
    /// Whether it was sent more than once.
    repeated: bool,
}

/// Counts what passes.
pub(super) struct Meter {
    pub(super) total: Traffic,
    /// Whether deltas are sent again.
    repeats: bool,
    /// By node and chunk.
    under_way: BTreeMap<(u16, u32), UnderWay>,
    /// One chunk.
    values: Vec<f32>,
}

impl Meter {
    pub(super) fn new(chunk_weights: u32, deltas: Deltas) -> Self {
        Self {
            repeats: deltas == Deltas::ExactlyOnce,
            total: Traffic::default(),
            under_way: BTreeMap::new(),
            values: vec![0.0; chunk_weights as usize],
        }
    }

    /// Notes a delivery that arrives, or does not.
    pub(super) fn note(&mut self, from: u16, bytes: &[u8], arrives: bool) {
        self.total.deliveries += 1;
        self.total.lost += u64::from(!arrives);
        let Ok(frame) = Frame::parse(bytes) else {
            return;
        };
        if frame.header.kind == Kind::Delta {
            self.note_delta(from, &frame, arrives);
        }
    }

    /// A frame that was to arrive finds no room in the queue in front of its receiver.
    pub(super) fn dropped(&mut self, from: u16, bytes: &[u8]) {
        self.total.lost += 1;
        let Some(frame) = Frame::parse(bytes)
            .ok()
            .filter(|one| one.header.kind == Kind::Delta)
        else {
            return;
        };
        let header = &frame.header;
        if !self.repeats {
            let mass = self.mass(&frame);
            self.total.mass_late += mass;
            self.total.mass_lost += mass;
            return;
        }
        // Of an older number nothing needs to be known: one of its frames was answered.
        if let Some(delta) = self.under_way.get_mut(&(from, header.chunk))
            && delta.seq == header.seq
        {
            delta.arriving = delta.arriving.saturating_sub(1);
            if !delta.repeated {
                self.total.mass_late += delta.mass;
            }
        }
    }

    fn note_delta(&mut self, from: u16, frame: &Frame<'_>, arrives: bool) {
        let header = &frame.header;
        let key = (from, header.chunk);
        if let Some(before) = self.under_way.get_mut(&key)
            && before.seq == header.seq
        {
            before.arriving += u32::from(arrives);
            before.repeated = true;
            return;
        }
        let mass = self.mass(frame);
        self.total.mass += mass;
        if !arrives {
            self.total.mass_late += mass;
        }
        if !self.repeats {
            self.total.mass_lost += if arrives { 0.0 } else { mass };
            return;
        }
        let new = UnderWay {
            seq: header.seq,
            mass,
            arriving: u32::from(arrives),
            repeated: false,
        };
        if let Some(before) = self.under_way.insert(key, new)
            && before.arriving == 0
        {
            self.total.mass_lost += before.mass;
        }
    }

    /// The sum of |delta|.
    fn mass(&mut self, frame: &Frame<'_>) -> f64 {
        let (dtype, payload) = (frame.header.dtype, frame.payload);
        let fits = payload.len() == dtype.payload_len(self.values.len());
        if !fits || !wire::unpack(dtype, payload, &mut self.values) {
            return 0.0;
        }
        // In lanes: it is done for every delta.
        let (lanes, rest) = self.values.as_chunks::<16>();
        let mut sums = [0.0f32; 16];
        for lane in lanes {
            for (sum, value) in sums.iter_mut().zip(lane) {
                *sum += value.abs();
            }
        }
        let all = sums.iter().chain(rest);
        all.map(|value| f64::from(value.abs())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Dtype, Header};

    /// A delta of 16 weights, each `value`.
    fn delta(chunk: u32, seq: u8, value: f32) -> Vec<u8> {
        let header = Header {
            kind: Kind::Delta,
            flags: 0,
            dtype: Dtype::F32,
            acks: 0,
            seq,
            session: 1,
            epoch: 1,
            sender: 1,
            range: 0,
            chunk,
            chunk_version: 1,
            iterations: 0,
            payload_len: 64,
            content: 0,
            part: 0,
            held: 0,
        };
        let mut bytes = vec![0; header.frame_len()];
        let (_, payload) = header.emit(&mut bytes);
        wire::pack(Dtype::F32, &[value; 16], payload);
        bytes
    }

    #[test]
    fn a_delta_that_is_sent_again_is_late_and_one_that_is_given_up_is_lost() {
        let mut meter = Meter::new(16, Deltas::ExactlyOnce);
        meter.note(1, &delta(0, 1, -1.0), false);
        meter.note(1, &delta(0, 1, -1.0), false);
        meter.note(1, &delta(0, 1, -1.0), true);
        // Of another node, and of another chunk.
        meter.note(2, &delta(0, 1, 2.0), true);
        meter.note(1, &delta(5, 1, 3.0), false);
        let total = meter.total;
        assert_eq!((total.deliveries, total.lost), (5, 3));
        assert_eq!((total.mass, total.mass_late), (96.0, 64.0));
        assert_eq!(total.mass_lost, 0.0);
        // The next number says that the one before is not sent any more.
        meter.note(1, &delta(5, 2, 1.0), true);
        assert_eq!(meter.total.mass_lost, 48.0);
        meter.note(1, &delta(0, 2, 1.0), true);
        assert_eq!(meter.total.mass_lost, 48.0);
    }

    #[test]
    fn what_finds_no_room_at_its_receiver_is_late_or_lost() {
        let mut meter = Meter::new(16, Deltas::ExactlyOnce);
        meter.note(1, &delta(0, 1, 1.0), true);
        meter.dropped(1, &delta(0, 1, 1.0));
        assert_eq!((meter.total.mass_late, meter.total.mass_lost), (16.0, 0.0));
        meter.note(1, &delta(0, 1, 1.0), true);
        meter.note(1, &delta(0, 2, 1.0), true);
        meter.dropped(1, &delta(0, 2, 1.0));
        meter.note(1, &delta(0, 3, 1.0), true);
        let total = meter.total;
        assert_eq!((total.deliveries, total.lost), (4, 2));
        assert_eq!((total.mass_late, total.mass_lost), (32.0, 16.0));
        let mut meter = Meter::new(16, Deltas::FireAndForget);
        meter.note(1, &delta(0, 1, 1.0), true);
        meter.dropped(1, &delta(0, 1, 1.0));
        assert_eq!((meter.total.mass_late, meter.total.mass_lost), (16.0, 16.0));
    }

    #[test]
    fn what_is_forgotten_is_lost_at_once() {
        let mut meter = Meter::new(16, Deltas::FireAndForget);
        meter.note(1, &delta(0, 1, 1.0), false);
        meter.note(1, &delta(0, 2, 1.0), true);
        assert_eq!((meter.total.mass, meter.total.mass_lost), (32.0, 16.0));
    }

    #[test]
    fn what_is_no_frame_has_no_mass() {
        let mut meter = Meter::new(32, Deltas::ExactlyOnce);
        meter.note(1, b"no frame", true);
        // A chunk of another size.
        meter.note(1, &delta(0, 1, 1.0), true);
        assert_eq!((meter.total.deliveries, meter.total.mass), (2, 0.0));
    }
}
