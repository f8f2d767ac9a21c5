//! Ten million frames through every transport: neither memory nor descriptors grow.
//!
//! A file of its own, run one after the other: what the process holds is measured as a whole.

// The checks are for `conformance`, the links for both.
#[allow(dead_code)]
mod suite;

use std::fs;
use std::sync::Mutex;
use std::time::Duration;

use dogwild_net::To;
use suite::Net;

/// `DOGWILD_LEAK_FRAMES` sets another number.
const FRAMES: u64 = 10_000_000;
/// Buffers, rings and the allocator have what they need by then.
const WARM_UP_FRAMES: u64 = 200_000;
/// One byte for each ten frames would be twice this.
const GROWTH_BYTES_MAX: u64 = 512 << 10;
const PAYLOAD_BYTES: usize = 1400;
const BATCH: u64 = 64;
/// Frames on the way at most: every ring has room for them, and they fill the kernel's blocks.
const WINDOW_FRAMES: u64 = 512;

/// Silence after which frames count as lost.
const PATIENCE: Duration = Duration::from_millis(100);

static ALONE: Mutex<()> = Mutex::new(());

/// Bytes of memory that is the process's own, and open descriptors.
fn held() -> (u64, usize) {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").expect("smaps_rollup");
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Private_Dirty:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    let descriptors = fs::read_dir("/proc/self/fd").expect("/proc/self/fd");
    (kib.expect("Private_Dirty in kB") << 10, descriptors.count())
}

/// Sends until `frames` have arrived; what is lost on the way is sent again, as it were.
fn pass(net: &Net, frames: u64) {
    let mut links = net.open();
    let [from, to] = links.as_mut_slice() else {
        panic!("two nodes");
    };
    let (mut sent, mut received, mut bytes) = (0, 0, 0);
    let mut start = None;
    while received < frames {
        if sent < received + WINDOW_FRAMES {
            for _ in 0..BATCH {
                let fill = &mut |slot: &mut [u8]| slot.fill(sent as u8);
                sent += u64::from(from.tx.send(To::Group, PAYLOAD_BYTES, fill));
            }
            from.tx.flush().expect("flush");
        } else if !to.rx.wait(PATIENCE).expect("wait") {
            sent = received;
        }
        let count = &mut |_, frame: &[u8]| bytes += frame.len();
        received += to.rx.recv(usize::MAX, count).expect("receive") as u64;
        if start.is_none() && received >= WARM_UP_FRAMES {
            start = Some(held());
        }
    }
    let start = start.expect("more frames than the warm-up takes");
    let end = held();
    println!("{received} frames, {bytes} bytes: {start:?} -> {end:?}");
    assert_eq!(start.1, end.1, "descriptors");
    assert!(
        end.0 <= start.0 + GROWTH_BYTES_MAX,
        "memory grew: {} -> {} bytes over {received} frames",
        start.0,
        end.0
    );
}

fn ten_million(net: &Net) {
    let frames = std::env::var("DOGWILD_LEAK_FRAMES")
        .map_or(FRAMES, |text| text.parse().expect("a number of frames"));
    pass(net, frames);
}

macro_rules! transport {
    ($name:ident, $make:expr, $lab:tt) => {
        #[test]
#[ignore = "long: ten million frames"]
        fn $name() {
            let _alone = ALONE.lock();
            transport!(@enter $lab);
            ten_million(&$make);
        }
    };
    (@enter xdp) => {
        dogwild_lab::enter_or_return!();
        if !suite::may_load_programs() {
            return;
        }
    };
    (@enter true) => { dogwild_lab::enter_or_return!(); };
    (@enter false) => {};
}

transport!(memory, Net::memory(2), false);
transport!(udp, Net::udp_loopback(2, true), false);
transport!(udp_unsegmented, Net::udp_loopback(2, false), false);
transport!(packet_mmap, Net::packet_mmap_lab(2, 1500), true);
transport!(af_xdp, Net::af_xdp_lab(2, 1500), xdp);
transport!(xdp_mmap, Net::xdp_mmap_lab(2, 1500), true);
transport!(
    packet_mmap_under_all,
    Net::packet_mmap_lab(2, 1500).under(suite::Wrapping::All),
    true
);
