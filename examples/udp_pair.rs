//! Two processes keep their weights in step over UDP.
//!
//! Each adds 1 to all its weights, a hundred times, and ends when every weight of both is 200. Run
//! it in two terminals. Both are nodes of one host here: other hosts need another `iface`. A second
//! number is the session, so that several pairs can run at once.
//!
//! `cargo run --release --example udp_pair -- 0` and `cargo run --release --example udp_pair -- 1`

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::AtomicU32;

use dogwild::node::{StreamLoop, job_group};
use dogwild::stream::{Config, Merge, Streamer};
use dogwild::weights::{StreamState, WeightsView, padded_len};
use dogwild_net::udp;

const WEIGHTS: usize = 100_000;
const STEPS: u32 = 100;
/// What a node that holds everything gives as its iterations.
const DONE: u64 = STEPS as u64 + 1;
/// A node that is done goes on for so long after the other one is, so that the other hears of it.
const LINGER_NS: u64 = 1_000_000_000;
/// The other one has left when it was not heard for so long.
const LEFT_NS: u64 = 30_000_000_000;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let ended = arguments(&words).and_then(|(node, session)| run(node, session));
    if let Err(error) = ended {
        eprintln!("udp_pair: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Which node this is, and of which pair.
fn arguments(words: &[String]) -> Result<(u16, u64), Box<dyn Error>> {
    let node = match words.first().map_or("", String::as_str) {
        "0" => 0,
        "1" => 1,
        other => {
            return Err(format!("give 0 in one terminal, 1 in the other, not `{other}`").into());
        }
    };
    let session = words.get(1).map_or("1", String::as_str);
    let told =
        |error| format!("the session `{session}` is not a number ({error}): give 7, to both");
    Ok((node, session.parse().map_err(told)?))
}

fn run(node: u16, session: u64) -> Result<(), Box<dyn Error>> {
    let link = udp::open(&udp::UdpConfig {
        group: job_group(session, None).0,
        iface: Some("lo".to_owned()),
        ..udp::UdpConfig::default()
    })?;
    let config = Config::new(node, 2, WEIGHTS, link.tx.mtu()).ok_or("the frames are too short")?;
    let config = Config {
        session,
        merge: Merge::Sum,
        ..config
    };
    let memory: Vec<AtomicU32> = (0..padded_len(WEIGHTS)).map(|_| 0.into()).collect();
    let w = WeightsView::of(&memory);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("stream");
    let (state, _) = StreamState::open_or_create(&path, &config.state_spec(memory.len()))?;
    let mut stream = StreamLoop::new(Streamer::new(config, w, &state), link, None);
    let (mut steps, mut other_done_ns) = (0, None);
    loop {
        let step = stream.step()?;
        if step.is_idle() {
            stream.wait()?;
        }
        if stream.ready() && steps < STEPS {
            (0..WEIGHTS).for_each(|i| w.store(i, w.load(i) + 1.0));
            steps += 1;
            stream.set_local_iterations(steps.into());
        }
        if steps < STEPS || (0..WEIGHTS).any(|i| w.load(i) != 2.0 * STEPS as f32) {
            continue;
        }
        stream.set_local_iterations(DONE);
        let other = stream.streamer().peer(1 - node);
        if other.iterations == DONE {
            other_done_ns.get_or_insert(step.at_ns);
        }
        let lingered = other_done_ns.is_some_and(|since| step.at_ns > since + LINGER_NS);
        if lingered || step.at_ns > other.heard_ns + LEFT_NS {
            break;
        }
    }
    let (sent, received) = stream.link_stats();
    println!(
        "node {node}: every weight is {}; {} frames sent, {} received",
        2 * STEPS,
        sent.frames,
        received.frames
    );
    Ok(())
}
