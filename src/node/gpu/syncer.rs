//! A device as a slave of the host buffer: position up, one kernel, delta down, added to the
//! buffer.
//!
//! Touches the buffer, the syncer's state file and the device. Chunks are on their way one behind
//! the other on three streams (up, kernel, down), so that all three work at once. They land in that
//! order and are then added, several at once if asked. Invariants: a chunk goes up again only after
//! its delta was added, so the position that a device takes holds all it has given. A delta that
//! has come down is noted as landed before it is added.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::adders::{Adders, Adding};
use crate::device::kernels::{TOLD, take_position};
use crate::device::{Device, DeviceError, Event, HostMemory, Memory, Stream, pin};
use crate::weights::{BLOCK, GpuState, LANDING_SLOTS, SharedWeights, device_len};

/// Weights of the largest chunk, and so of a landing place.
const CHUNK_MAX: usize = 1 << 20;
/// Chunk sizes that are tried.
const CHUNKS: [usize; 4] = [1 << 14, 1 << 16, 1 << 18, CHUNK_MAX];
/// Time that each is tried for, at least.
const TRIAL: Duration = Duration::from_millis(30);

/// Chunks on their way: one goes up, one is in the kernel, one comes down.
const ON_THE_WAY: usize = 3;
/// Deltas that may be added at once.
pub const ADDERS_MAX: usize = LANDING_SLOTS - ON_THE_WAY;

/// Words of a landing place for a buffer of `used` weights.
pub fn slot_words(used: usize) -> usize {
    device_len(used).min(CHUNK_MAX) + TOLD
}

/// What a syncer has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passes over the weights.
    pub cycles: u64,
    /// Chunks exchanged.
    pub chunks: u64,
    /// Bytes up.
    pub bytes_up: u64,
    /// Bytes down.
    pub bytes_down: u64,
    /// Deltas added to the buffer.
    pub deltas: u64,
    /// Weights of the device that were not finite.
    pub healed: u64,
    /// Time spent waiting for the device, ns.
    pub wait_ns: u64,
}

/// A chunk on its way.
struct Flight<E> {
    slot: usize,
    first: usize,
    len: usize,
    tag: u32,
    down: E,
}

/// Where a chunk is worked on, on the device.
struct Bay<M> {
    position: M,
    out: M,
    /// Weights healed by launches in this bay so far, as it counts them.
    healed: u32,
}

/// Keeps the weights of one device in step with the host buffer.
pub struct GpuSyncer<D: Device> {
    shared: Arc<SharedWeights>,
    state: Arc<GpuState>,
    adders: Adders,
    host: HostMemory,
    landing: HostMemory,
    weights: D::Memory,
    last: D::Memory,
    bays: Vec<Bay<D::Memory>>,
    up: D::Stream,
    run: Arc<D::Stream>,
    down: D::Stream,
    flights: VecDeque<Flight<D::Event>>,
    chunk: usize,
    next_first: usize,
    next_slot: usize,
    tag: u32,
    counts: Counts,
}

impl<D: Device> GpuSyncer<D> {
    /// A syncer between `device` and the buffer. The device's weights are zero until the first
    /// [`cycle`](Self::cycle), which takes the buffer's and gives nothing. `state` has been
    /// recovered. More than [`ADDERS_MAX`] threads that add are that many.
    ///
    /// # Errors
    /// The device has too little memory, or has failed; no thread can be started.
    pub fn new(
        device: &D,
        shared: &Arc<SharedWeights>,
        state: &Arc<GpuState>,
        adding: Adding,
    ) -> Result<Self, DeviceError> {
        let n = device_len(shared.used());
        let threads = adding.threads.clamp(1, ADDERS_MAX);
        let places = ON_THE_WAY + threads;
        let adding = Adding { threads, ..adding };
        let adders = Adders::start(shared, state, adding, places).map_err(|error| {
            let (device, why) = (device.name(), error.to_string());
            DeviceError::NoThread { device, why }
        })?;
        let host = HostMemory::of(shared.clone(), |shared| shared.view());
        let landing = HostMemory::of(state.clone(), |state| state.landing());
        pin(device, &host);
        pin(device, &landing);
        let chunk_max = n.min(CHUNK_MAX);
        let bay = |_| -> Result<_, DeviceError> {
            Ok(Bay {
                position: device.alloc(chunk_max)?,
                out: device.alloc(chunk_max + TOLD)?,
                healed: 0,
            })
        };
        Ok(Self {
            shared: shared.clone(),
            state: state.clone(),
            adders,
            host,
            landing,
            weights: device.alloc(n)?,
            last: device.alloc(n)?,
            bays: (0..places).map(bay).collect::<Result<_, _>>()?,
            up: device.stream()?,
            run: Arc::new(device.stream()?),
            down: device.stream()?,
            flights: VecDeque::new(),
            chunk: n.min(1 << 18),
            next_first: 0,
            next_slot: 0,
            tag: 0,
            counts: Counts::default(),
        })
    }

    /// The host buffer that it keeps the device in step with.
    pub fn shared(&self) -> &Arc<SharedWeights> {
        &self.shared
    }

    /// The device's weights, for a solver that trains on them.
    pub fn weights(&self) -> &D::Memory {
        &self.weights
    }

    /// The stream that takes positions: what is put here does not race with that.
    pub fn stream(&self) -> &Arc<D::Stream> {
        &self.run
    }

    /// The weights that the next [`step`](Self::step) is about.
    pub fn next(&self) -> Range<usize> {
        self.next_first..(self.next_first + self.chunk).min(self.weights.len())
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Weights of a chunk.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Sets the size of chunks, in weights, to that or the nearest that can be: whole blocks, no
    /// longer than the weights or a landing place.
    ///
    /// # Errors
    /// As [`GpuSyncer::drain`], which it calls: chunks of two sizes are never on their way
    /// together.
    pub fn set_chunk(&mut self, weights: usize) -> Result<(), DeviceError> {
        self.drain()?;
        let n = self.weights.len();
        let most = n.clamp(BLOCK, CHUNK_MAX);
        self.chunk = weights.next_multiple_of(BLOCK).clamp(BLOCK, most);
        self.next_first = 0;
        Ok(())
    }

    /// Tries chunk sizes, by real cycles, and keeps the fastest. Gives each with its bytes per
    /// second (up plus down).
    ///
    /// # Errors
    /// The device has failed.
    pub fn measure(&mut self) -> Result<Vec<(usize, f64)>, DeviceError> {
        let n = self.weights.len();
        let mut sizes: Vec<usize> = CHUNKS.iter().map(|&size| size.min(n)).collect();
        sizes.dedup();
        let mut found = Vec::new();
        for size in sizes {
            self.set_chunk(size)?;
            // The first pass warms caches and page tables.
            self.cycle()?;
            self.drain()?;
            let (start, before) = (Instant::now(), self.counts);
            while start.elapsed() < TRIAL {
                self.cycle()?;
            }
            self.drain()?;
            let bytes =
                self.counts.bytes_up + self.counts.bytes_down - before.bytes_up - before.bytes_down;
            found.push((size, bytes as f64 / start.elapsed().as_secs_f64()));
        }
        let best = found.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        self.set_chunk(best.map_or(n, |best| best.0))?;
        Ok(found)
    }

    /// Puts the next chunk on its way; if all bays are taken, first adds chunks that have come
    /// back. True if it was the last of a cycle.
    ///
    /// # Errors
    /// The device has failed.
    pub fn step(&mut self) -> Result<bool, DeviceError> {
        let n = self.weights.len();
        let chunks = n.div_ceil(self.chunk).max(1);
        // No more than there are chunks: the next one must not be on its way still. And no more
        // than the rings of the device need: the other places are those that adders work on.
        let places = self.bays.len();
        let most = places.min(chunks);
        while self.flights.len() > ON_THE_WAY || self.flights.len() >= most {
            self.land()?;
        }
        let (first, len) = (self.next().start, self.next().len());
        let slot = self.next_slot;
        // Where this chunk landed last, or if others have landed there since, the next place.
        self.adders.wait((slot + places - most) % places);
        self.tag = self.tag.wrapping_add(1).max(1);
        let bay = &self.bays[slot];
        self.up.upload(
            self.host.part(first..first + len),
            bay.position.part(0..len),
        )?;
        // The streams wait for each other by events, the host for none of them here. So while this
        // chunk goes up, the one before it is in the kernel and a third comes down.
        self.run.wait(&self.up.record()?)?;
        take_position(
            &*self.run,
            self.weights.part(first..first + len),
            self.last.part(first..first + len),
            bay.position.part(0..len),
            bay.out.part(0..len + TOLD),
            self.tag,
        )?;
        self.down.wait(&self.run.record()?)?;
        let at = slot * self.state.slot_words();
        self.down.download(
            bay.out.part(0..len + TOLD),
            self.landing.part(at..at + len + TOLD),
        )?;
        self.flights.push_back(Flight {
            slot,
            first,
            len,
            tag: self.tag,
            down: self.down.record()?,
        });
        self.counts.bytes_up += 4 * len as u64;
        self.next_slot = (slot + 1) % places;
        self.next_first = first + len;
        let last = self.next_first >= n;
        if last {
            self.next_first = 0;
            self.counts.cycles += 1;
        }
        Ok(last)
    }

    /// Puts chunks on their way until a pass over the weights is complete.
    ///
    /// # Errors
    /// The device has failed.
    pub fn cycle(&mut self) -> Result<(), DeviceError> {
        while !self.step()? {}
        Ok(())
    }

    /// Waits for all that is on its way and adds it.
    ///
    /// # Errors
    /// The device has failed.
    pub fn drain(&mut self) -> Result<(), DeviceError> {
        while !self.flights.is_empty() {
            self.land()?;
        }
        self.adders.wait_for_all();
        Ok(())
    }

    /// Waits for the oldest chunk on its way and has its delta added.
    fn land(&mut self) -> Result<(), DeviceError> {
        let Some(flight) = self.flights.pop_front() else {
            return Ok(());
        };
        let start = Instant::now();
        flight.down.wait()?;
        self.counts.wait_ns += start.elapsed().as_nanos() as u64;
        self.counts.bytes_down += 4 * (flight.len + TOLD) as u64;
        self.counts.chunks += 1;
        let told = flight.slot * self.state.slot_words();
        let landing = self.state.landing();
        let told = [told, told + 1].map(|i| landing.word(i).load(Relaxed));
        let bay = &mut self.bays[flight.slot];
        self.counts.healed += u64::from(told[0].wrapping_sub(bay.healed));
        bay.healed = told[0];
        if told[1] == flight.tag {
            self.state.land(flight.slot, flight.first, flight.len);
            self.adders.add(flight.slot);
            self.counts.deltas += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{buffer, racy, syncer};
    use super::*;
    use crate::device::host::HostDevice;
    use crate::device::kernels::add_scalar;

    /// The places beyond those on the way are the adders': a chunk that has just landed is not the
    /// one whose place the next chunk waits for.
    #[test]
    fn as_many_deltas_as_adders_are_being_added() {
        let folder = tempfile::tempdir().unwrap();
        let shared = buffer(&folder.path().join("w"), 64 * 1024);
        for adders in [1, 2, 5] {
            let mut syncer = syncer(&HostDevice::new(0), &shared, 0, racy(adders));
            syncer.set_chunk(1024).unwrap();
            for step in 0..200 {
                if step % 64 == 0 {
                    add_scalar(&**syncer.stream(), syncer.weights().all(), 1.0).unwrap();
                }
                syncer.step().unwrap();
                assert_eq!(syncer.flights.len(), (step + 1).min(ON_THE_WAY + 1));
            }
            syncer.drain().unwrap();
            assert!(syncer.counts().deltas > 100);
        }
    }
}
