//! What happens in the virtual network, a line each, in its order: to follow a seed step by step.
//!
//! A line begins with the virtual time in ms. `0 > 2` is a frame that node 0 sends to node 2,
//! `0 : 2` one of node 0 that node 2 takes; other lines are about nodes and ways.

use std::fmt;
use std::io::Write;

use super::Faults;
use crate::wire::{Frame, Header};

/// Where the lines go.
pub(super) struct Trace {
    pub(super) out: Box<dyn Write>,
}

impl Trace {
    /// Writes a line.
    ///
    /// # Panics
    /// If it cannot be written.
    pub(super) fn line(&mut self, now_ns: u64, what: fmt::Arguments<'_>) {
        let ms = now_ns as f64 / 1e6;
        let written = writeln!(self.out, "{ms:.3} {what}");
        written.unwrap_or_else(|error| panic!("cannot write the trace: {error}"));
    }
}

/// The bytes of a frame, told in one line. Fields that are 0 are left out.
pub(super) struct Told<'b>(pub(super) &'b [u8]);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Frame::parse(self.0) {
            Err(error) => write!(f, "{} bytes: {error}", self.0.len()),
            Ok(frame) => tell(f, &frame),
        }
    }
}

fn tell(f: &mut fmt::Formatter<'_>, frame: &Frame<'_>) -> fmt::Result {
    let Header {
        kind,
        seq,
        epoch,
        range,
        chunk,
        chunk_version,
        content,
        part,
        payload_len,
        ..
    } = frame.header;
    let (counter, streams) = (epoch >> 8, epoch & 0xFF);
    write!(f, "{kind:?} range {range} chunk {chunk}")?;
    write!(f, " epoch {counter}.{streams} version {chunk_version}")?;
    for (name, value) in [
        ("seq", seq.into()),
        ("part", part.into()),
        ("content", content),
    ] {
        if value != 0 {
            write!(f, " {name} {value}")?;
        }
    }
    if !frame.acks.is_empty() {
        write!(f, " acks {:?}", frame.acks)?;
    }
    write!(f, " payload {payload_len}")
}

/// What a way does from now on.
pub(super) struct Way<'f>(pub(super) &'f Faults);

impl fmt::Display for Way<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Faults {
            drop,
            corrupt,
            duplicate,
            reorder,
            ..
        } = self.0;
        write!(
            f,
            "drop {drop} corrupt {corrupt} duplicate {duplicate} reorder {reorder} delay {} ms",
            self.0.delay_ns as f64 / 1e6
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::sim::{Fleet, World};
    use crate::stream::Config;

    /// Lines that another side reads.
    struct Lines(mpsc::Sender<u8>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            bytes.iter().for_each(|byte| {
                let _ = self.0.send(*byte);
            });
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What two nodes do in 20 ms of a bad network, while one is killed and comes back.
    fn told(config: &Config, traced: bool) -> (String, usize) {
        let folder = tempfile::tempdir().unwrap();
        let fleet = Fleet::new(config, folder.path()).unwrap();
        let faults = Faults {
            drop: 0.2,
            ..Faults::default()
        };
        let mut world = World::new(&fleet, faults, 3);
        let (sender, lines) = mpsc::channel();
        if traced {
            world.trace(Lines(sender));
        }
        (0..1_000).for_each(|_| world.step());
        world.kill(1);
        world.restart(1);
        world.inject(0, b"no frame");
        fleet.weights(0).store(0, f32::NAN);
        (0..1_000).for_each(|_| world.step());
        let reports = world.take_reports(0).len();
        let chance = world.random_below(1 << 30);
        drop(world);
        let lines: Vec<u8> = lines.try_iter().collect();
        (String::from_utf8(lines).unwrap(), reports + chance)
    }

    #[test]
    fn all_that_happens_is_told_and_nothing_happens_by_it() {
        let config = crate::stream::tests::config(crate::stream::Deltas::ExactlyOnce);
        let (trace, after) = told(&config, true);
        for words in [
            "\n10.000 node 1 is killed\n10.000 node 1 starts\n",
            "8 bytes: frame is cut short",
            " 0 > 1 Hello",
            " 0 > 1 lost: Position range 0",
            " 0 : 1 Position range 0",
            "acks [0, 0, 0]",
            "node 0 reports: ",
        ] {
            assert!(trace.contains(words), "no `{words}` in {trace:.2000}");
        }
        assert_eq!(told(&config, true).0, trace);
        assert_eq!(told(&config, false).1, after);
    }
}
