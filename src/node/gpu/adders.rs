//! Adds deltas that have come down to the buffer, several at once if there are threads for it.
//!
//! Touches the buffer and the syncer's state file. Each landing place has a journal of its own, and
//! chunks on their way are of different weights, so additions may end in any order. Invariant: a
//! place is free once [`Adders::wait`] for it has returned.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::weights::{GpuState, SharedWeights, Writes};

/// How deltas get into the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adding {
    /// How local solvers write.
    pub writes: Writes,
    /// Deltas that are added at once; with one, it is done by the syncer's own thread.
    pub threads: usize,
}

/// Threads that add, unless told otherwise: few, as most of the cores are the solvers'.
pub fn usual_adders() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    (cores / 4).clamp(1, 4)
}

/// Adds what has landed.
pub(super) struct Adders {
    shared: Arc<SharedWeights>,
    state: Arc<GpuState>,
    writes: Writes,
    /// Landing places that are being added.
    busy: Vec<bool>,
    threads: Vec<Adder>,
}

impl Adders {
    /// Adders for that many landing places.
    pub(super) fn start(
        shared: &Arc<SharedWeights>,
        state: &Arc<GpuState>,
        adding: Adding,
        places: usize,
    ) -> io::Result<Self> {
        let start = |_| Adder::start(shared.clone(), state.clone(), adding.writes);
        let threads = if adding.threads > 1 {
            (0..adding.threads).map(start).collect::<Result<_, _>>()?
        } else {
            Vec::new()
        };
        Ok(Self {
            shared: shared.clone(),
            state: state.clone(),
            writes: adding.writes,
            busy: vec![false; places],
            threads,
        })
    }

    /// Adds what has landed in `place`, now or soon.
    pub(super) fn add(&mut self, place: usize) {
        match self.threads.len() {
            0 => self.state.apply(place, self.shared.view(), self.writes),
            n => {
                self.busy[place] = true;
                self.threads[place % n].begin(place);
            }
        }
    }

    /// Waits until what has landed in `place` is added.
    pub(super) fn wait(&mut self, place: usize) {
        while self.busy[place] {
            let adder = place % self.threads.len();
            let done = self.threads[adder].end();
            self.busy[done] = false;
        }
    }

    /// Waits until all that has landed is added.
    pub(super) fn wait_for_all(&mut self) {
        (0..self.busy.len()).for_each(|place| self.wait(place));
    }
}

/// A thread that adds.
struct Adder {
    /// `None` once it is to end.
    places: Option<Sender<usize>>,
    done: Receiver<usize>,
    thread: Option<JoinHandle<()>>,
}

impl Adder {
    fn start(shared: Arc<SharedWeights>, state: Arc<GpuState>, writes: Writes) -> io::Result<Self> {
        let (places, wanted) = channel();
        let (tell, done) = channel();
        let add = move || {
            for place in wanted {
                state.apply(place, shared.view(), writes);
                // Else the syncer is going, and waits no more.
                let _ = tell.send(place);
            }
        };
        let thread = std::thread::Builder::new()
            .name("adder".into())
            .spawn(add)?;
        Ok(Self {
            places: Some(places),
            done,
            thread: Some(thread),
        })
    }

    fn begin(&mut self, place: usize) {
        let sent = self.places.as_ref().map(|places| places.send(place));
        if sent.is_none_or(|sent| sent.is_err()) {
            self.failed();
        }
    }

    /// Waits for the next place that it has done.
    fn end(&mut self) -> usize {
        match self.done.recv() {
            Ok(place) => place,
            Err(_) => self.failed(),
        }
    }

    /// Its thread has panicked: so does this one.
    fn failed(&mut self) -> ! {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            _ => unreachable!("an adder ends with its syncer"),
        }
    }
}

impl Drop for Adder {
    /// What has begun is added to its end.
    fn drop(&mut self) {
        self.places = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
