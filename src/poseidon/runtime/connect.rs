//! Connecting to a member: with a deadline, and without keeping a process that must end.
//!
//! Touches the resolver and sockets, on a thread of its own: neither can be interrupted. Invariant:
//! a caller waits no longer than it says, and returns at once when it must stop.

use std::io::{self, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::member::LOOK_EVERY;

/// Time after which the log names the one that does not answer.
const LONG: Duration = Duration::from_secs(2);

/// Connects to `address` within `within`. `None` if `stop` is true meanwhile. `who` is the member,
/// for the log.
pub(super) fn connect(
    who: &str,
    address: &str,
    within: Duration,
    stop: impl Fn() -> bool,
) -> Option<io::Result<TcpStream>> {
    let (answer, answered) = channel();
    let to = address.to_owned();
    let thread = std::thread::Builder::new().name("dogwild-connect".into());
    // It ends by itself, at the latest after the time that the system gives to a name and this
    // function to a connection; nothing is lost if the process ends before.
    let spawned = thread.spawn(move || {
        let _ = answer.send(try_all(&to, within));
    });
    if let Err(why) = spawned {
        return Some(Err(why));
    }
    let (start, mut told) = (Instant::now(), false);
    loop {
        match answered.recv_timeout(LOOK_EVERY) {
            Ok(result) => return Some(result),
            Err(RecvTimeoutError::Disconnected) => return Some(Err(late())),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if stop() {
            return None;
        }
        if start.elapsed() >= within {
            return Some(Err(late()));
        }
        if start.elapsed() >= LONG && !told {
            told = true;
            log::info!("waiting for {who}: nothing answers there yet");
        }
    }
}

/// Tries each address of a name, together within `within`.
fn try_all(address: &str, within: Duration) -> io::Result<TcpStream> {
    let end = Instant::now() + within;
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        let left = end.saturating_duration_since(Instant::now());
        match TcpStream::connect_timeout(&address, left.max(LOOK_EVERY)) {
            Ok(stream) => return Ok(stream),
            Err(why) => last = why,
        }
    }
    Err(last)
}

fn late() -> io::Error {
    io::Error::new(
        ErrorKind::TimedOut,
        "no answer: the host is down, or a filter drops packets",
    )
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_connection_comes_and_a_wrong_address_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let to = |address: &str| connect("it", address, LONG, || false).unwrap();
        assert!(to(&address).is_ok());
        let error = to("127.0.0.1").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }

    /// A full queue of a listening socket drops connections, as a filter does.
    #[test]
    fn nothing_answers_and_the_caller_goes_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut filling = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            filling.push(stream);
        }
        let address = address.to_string();
        let error = connect("it", &address, Duration::from_millis(300), || false);
        assert_eq!(error.unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
        let stopped = connect("it", &address, Duration::from_secs(3600), || true);
        assert!(stopped.is_none());
    }
}
