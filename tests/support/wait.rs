//! Waiting for a state. There is no time after which a test fails that still gets nearer.

use std::time::{Duration, Instant};

/// What has not come by then never comes, however busy the machine is.
const HANG: Duration = Duration::from_secs(600);
/// The same for a state whose steps are seen, from one step to the next.
const STANDSTILL: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until `holds`.
#[track_caller]
pub(crate) fn wait_for(what: &str, holds: impl FnMut() -> bool) {
    wait_for_or(what, holds, String::new);
}

/// Waits until `holds`; `otherwise` is what a failure says of the state that was there instead.
#[track_caller]
pub(crate) fn wait_for_or(
    what: &str,
    mut holds: impl FnMut() -> bool,
    otherwise: impl FnOnce() -> String,
) {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > HANG {
            panic!("never came: {what}\n{}", otherwise());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Waits until nothing is `lacking` any more. What is lacking is named with its node; as long as
/// it changes, the state gets nearer, and the wait goes on.
#[track_caller]
pub(crate) fn wait_while(what: &str, mut lacking: impl FnMut() -> Option<String>) {
    let (mut last, mut since) = (String::new(), Instant::now());
    while let Some(now) = lacking() {
        if now != last {
            (last, since) = (now, Instant::now());
        }
        let quiet = since.elapsed();
        assert!(
            quiet < STANDSTILL,
            "no nearer to {what} in {} s: {last}",
            quiet.as_secs()
        );
        std::thread::sleep(LOOK_EVERY);
    }
}
