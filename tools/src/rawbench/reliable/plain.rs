//! Bare TCP connections over loopback: what moving the bytes alone costs.
//!
//! A connection for each worker, from memory of as many bytes as move to memory of as many: weights
//! and gradients do not fit a cache. Nothing is added, checked or copied.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::thread;

use anyhow::Result;

use super::usage::Usage;
use super::{Args, Cost, WARM_UP};

/// Bytes of a write and of a read.
const BLOCK: usize = 2 << 20;

/// Moves `bytes` in each iteration, over all connections together.
pub(super) fn run(args: &Args, bytes: f64) -> Result<Cost> {
    let (workers, all) = (usize::from(args.workers), WARM_UP + args.iterations);
    let each = (bytes / workers as f64) as usize;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    // Both ends of all connections, and the thread that looks at the clock.
    let turn = &Barrier::new(2 * workers + 1);
    thread::scope(|scope| {
        let mut ends = Vec::new();
        for _ in 0..workers {
            let near = TcpStream::connect(address)?;
            let (far, _) = listener.accept()?;
            ends.push(scope.spawn(move || pour(near, each, all, turn)));
            ends.push(scope.spawn(move || drain(far, each, all, turn)));
        }
        let mut began = Usage::now()?;
        for iteration in 0..=all {
            turn.wait();
            if iteration == WARM_UP {
                began = Usage::now()?;
            }
        }
        let ended = Usage::now()?;
        for end in ends {
            end.join().expect("no panic")?;
        }
        Ok(began.cost_until(ended, args.iterations, (each * workers) as f64))
    })
}

fn pour(mut to: TcpStream, bytes: usize, iterations: u64, turn: &Barrier) -> Result<()> {
    let memory = vec![1u8; bytes];
    turn.wait();
    for _ in 0..iterations {
        for block in memory.chunks(BLOCK) {
            to.write_all(block)?;
        }
        turn.wait();
    }
    Ok(())
}

fn drain(mut from: TcpStream, bytes: usize, iterations: u64, turn: &Barrier) -> Result<()> {
    let mut memory = vec![0u8; bytes];
    turn.wait();
    for _ in 0..iterations {
        for block in memory.chunks_mut(BLOCK) {
            from.read_exact(block)?;
        }
        turn.wait();
    }
    Ok(())
}
