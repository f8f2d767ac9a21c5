//! Feeds on loopback, and what does not come from a feed.

use super::*;
use crate::solver::data::Source;

fn set() -> DataSet {
    "digits:3,train=50,test=20"
        .parse::<Source>()
        .unwrap()
        .load()
        .unwrap()
}

/// All bytes that a feed sends.
fn sent() -> Vec<u8> {
    let mut bytes = Vec::new();
    Feed::new("digits", set()).send(&mut bytes).unwrap();
    bytes
}

fn take(bytes: &[u8]) -> Result<DataSet, String> {
    let mut from = bytes;
    let header = receive_header(&mut from)?;
    receive(&mut from, &header)
}

#[test]
fn what_is_sent_is_what_comes() {
    assert_eq!(take(&sent()).unwrap(), set());
}

#[test]
fn what_is_cut_or_damaged_is_refused() {
    let good = sent();
    for len in [0, 10, 20, 100, good.len() / 2, good.len() - 1] {
        let error = take(&good[..len]).unwrap_err();
        assert!(error.contains("before all had come"), "{len}: {error}");
    }
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    assert!(take(&bad).unwrap_err().contains("damaged"));
    let mut bad = good.clone();
    let pixel = good.len() / 2;
    bad[pixel] ^= 1;
    assert!(take(&bad).unwrap_err().contains("damaged"));
}

#[test]
fn strangers_and_impossible_headers_are_refused() {
    let with = |header: &str| {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((header.len() as u32).to_le_bytes());
        bytes.extend(header.as_bytes());
        take(&bytes).unwrap_err()
    };
    let part = |count: u64, side: u64, classes: u64| {
        format!(r#"{{"count":{count},"shape":[1,{side},28],"classes":{classes}}}"#)
    };
    let both = |one: &str| format!(r#"{{"kind":"digits","name":"x","train":{one},"test":{one}}}"#);
    assert!(
        take(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap_err()
            .contains("no feed")
    );
    assert!(with("{}").contains("no feed"));
    for part in [
        part(0, 28, 10),
        part(u64::MAX, 28, 10),
        part(1 << 40, 1 << 40, 10),
        part(9, 28, 0),
        part(9, 28, 1000),
    ] {
        assert!(with(&both(&part)).contains("impossible"), "{part}");
    }
    // A claim costs no memory: nothing comes.
    assert!(with(&both(&part(1 << 26, 28, 10))).contains("before all had come"));
    let mut long = MAGIC.to_vec();
    long.extend(u32::MAX.to_le_bytes());
    assert!(take(&long).unwrap_err().contains("no feed"));
}

#[test]
fn several_fetch_at_once_and_a_silent_one_holds_nobody_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stop = Arc::new(AtomicBool::new(false));
    let server = {
        let (feed, stop) = (Arc::new(Feed::new("digits", set())), stop.clone());
        std::thread::spawn(move || serve(&feed, &listener, &stop, |_, _| {}))
    };
    let _silent = TcpStream::connect(&address).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(fetch("digits", &address).unwrap(), set()));
        }
    });
    let error = fetch("mnist", &address).unwrap_err().to_string();
    assert!(
        error.contains(&format!("ask for digits@{address}")),
        "{error}"
    );
    stop.store(true, Relaxed);
    server.join().unwrap().unwrap();
}

#[test]
fn a_feed_that_comes_later_is_waited_for() {
    let address = {
        // A port that is free: no process listens there yet.
        TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
    };
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        let listener = TcpListener::bind(address).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        Feed::new("digits", set()).send(&mut stream).unwrap();
    });
    assert_eq!(fetch("digits", &address.to_string()).unwrap(), set());
    late.join().unwrap();
}
