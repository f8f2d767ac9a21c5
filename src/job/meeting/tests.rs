//! Meetings over loopback: in any order, with strangers, and with nodes of other jobs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering::Relaxed;

use super::message::Word;
use super::precision::measure;
use super::seats::seat;
use super::*;
use crate::job::precision::Load;
use crate::job::testing::buffer;
use crate::job::world::{Door, World};
use crate::watch::PeerMeter;
use crate::wire::Dtype;

/// A port that is free now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

fn card(port: u16, rank: u16, size: u16) -> Card {
    Card {
        world: World {
            rank,
            size,
            first: "127.0.0.1".into(),
            port,
            job: "test 1".into(),
            by: "the test",
        },
        least: size,
        places: size,
        buffer: PathBuf::new(),
        fields: BTreeMap::from([("seed".to_owned(), "1".to_owned())]),
        precision: None,
    }
}

fn open(card: &Card) -> Meeting {
    Meeting::open(card.clone(), None).expect("a meeting")
}

/// What a node is told, within a few seconds; none: it waits.
fn outcome(meeting: &Meeting) -> Option<Result<Place, String>> {
    let (stop, until) = (Stop::default(), Instant::now() + Duration::from_secs(5));
    while Instant::now() < until {
        let refused = meeting.shared.state().refused.clone();
        if let Some(why) = refused {
            return Some(Err(why));
        }
        if meeting.shared.state().begun {
            let place = meeting
                .wait(false, &stop)
                .map_err(|error| error.to_string());
            return Some(place.map(|place| place.expect("no signal")));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    None
}

fn begins(meeting: &Meeting) {
    assert_eq!(outcome(meeting), Some(Ok(Place::default())));
}

#[test]
fn nodes_come_in_any_order() {
    let port = free_port();
    // The first one is last, and no node knows of it.
    let guests = [2, 1].map(|rank| open(&card(port, rank, 3)));
    std::thread::sleep(Duration::from_millis(300));
    assert!(guests.iter().all(|guest| !guest.shared.state().begun));
    let first = open(&card(port, 0, 3));
    begins(&first);
    guests.iter().for_each(begins);
}

#[test]
fn who_is_missing_is_named_and_strangers_hold_nothing_up() {
    let port = free_port();
    let first = open(&card(port, 0, 3));
    let silent: Vec<_> = (0..5)
        .map(|_| TcpStream::connect(("127.0.0.1", port)))
        .collect();
    let mut babble = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    babble.write_all(&[b'x'; 100_000]).expect("sent");
    let one = open(&card(port, 1, 3));
    let until = Instant::now() + Duration::from_secs(5);
    while first.lack(&first.shared.state()) != format!("node 2 to call at port {port}") {
        assert!(
            Instant::now() < until,
            "{}",
            first.lack(&first.shared.state())
        );
        std::thread::sleep(LOOK_EVERY);
    }
    while one.lack(&one.shared.state()) != "node 2" {
        assert!(Instant::now() < until, "{}", one.lack(&one.shared.state()));
        std::thread::sleep(LOOK_EVERY);
    }
    begins_with(&[&first, &one], &open(&card(port, 2, 3)));
    assert!(silent.iter().all(Result::is_ok));
}

fn begins_with(others: &[&Meeting], last: &Meeting) {
    begins(last);
    others.iter().copied().for_each(begins);
}

#[test]
fn another_world_is_refused_by_name() {
    let port = free_port();
    let first = open(&card(port, 0, 3));
    let one = open(&card(port, 1, 3));
    let until = Instant::now() + Duration::from_secs(5);
    while one.shared.state().waiting != [2] {
        assert!(Instant::now() < until, "node 1 was not admitted");
        std::thread::sleep(LOOK_EVERY);
    }
    let change = |change: &dyn Fn(&mut Card)| {
        let mut card = card(port, 2, 3);
        change(&mut card);
        card
    };
    for (card, part) in [
        (
            change(&|card| card.world.rank = 1),
            "node 1 is here already, from 127.0.0.1:",
        ),
        (
            change(&|card| card.world.size = 4),
            "node 2 has 4 nodes, node 0 has 3",
        ),
        (
            change(&|card| card.world.job = "test 2".into()),
            "another job of the launcher",
        ),
        (
            change(&|card| {
                card.fields
                    .insert("seed".into(), "2".into())
                    .map_or((), drop)
            }),
            "seed is 2 on node 2 and 1 on node 0",
        ),
        (
            change(&|card| {
                card.fields
                    .insert("loss".into(), "0".into())
                    .map_or((), drop)
            }),
            "loss is 0 on node 2 and none on node 0",
        ),
    ] {
        let refused = outcome(&open(&card)).expect("an answer").expect_err(part);
        assert!(refused.contains(part), "{part} is not in {refused}");
    }
    // Another program's line: the version comes first.
    let mut old = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let hello = r#"{"dogwild":"0.0.1","job":"test 1","rank":2,"size":3,"fields":{}}"#;
    old.write_all(format!("{hello}\n").as_bytes())
        .expect("sent");
    let mut said = String::new();
    old.read_to_string(&mut said)
        .expect("an answer, and the end");
    assert!(
        said.contains("node 2 has dogwild 0.0.1, node 0 has"),
        "{said}"
    );
    // None of them has kept the right one away.
    begins_with(&[&first, &one], &open(&card(port, 2, 3)));
}

#[test]
fn a_node_that_was_killed_comes_again_and_hears_the_end() {
    let port = free_port();
    let first = open(&card(port, 0, 2));
    let one = open(&card(port, 1, 2));
    begins_with(&[&first], &one);
    first.end();
    let until = Instant::now() + Duration::from_secs(5);
    while !one.ended() {
        assert!(Instant::now() < until, "node 1 did not hear of the end");
        std::thread::sleep(LOOK_EVERY);
    }
    // Its process is gone, and its connection with it.
    first.shared.state().lines.clear();
    let again = open(&card(port, 1, 2));
    begins(&again);
    while !again.ended() {
        assert!(Instant::now() < until, "it did not hear of the end");
        std::thread::sleep(LOOK_EVERY);
    }
}

#[test]
fn another_key_is_refused() {
    use std::os::unix::fs::OpenOptionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let key = |byte: u8| {
        let path = folder.path().join(byte.to_string());
        let mut file = std::fs::File::options();
        let file = file.create_new(true).write(true).mode(0o600).open(&path);
        file.expect("a file")
            .write_all(&[byte; 32])
            .expect("written");
        ClusterKey::read(&path).expect("a key")
    };
    let (port, [a, b]) = (free_port(), [7, 8].map(key));
    let with = |rank, key: Option<&ClusterKey>| {
        Meeting::open(card(port, rank, 3), key.cloned()).expect("a meeting")
    };
    let first = with(0, Some(&a));
    let strangers = [with(2, Some(&b)), with(2, None)];
    let one = with(1, Some(&a));
    let until = Instant::now() + Duration::from_secs(5);
    while one.shared.state().waiting != [2] {
        assert!(Instant::now() < until, "node 1 was not admitted");
        std::thread::sleep(LOOK_EVERY);
    }
    std::thread::sleep(Duration::from_millis(500));
    assert!(strangers.iter().all(|one| !one.shared.state().begun));
    assert_eq!(first.shared.state().waiting, [2]);
    let said = strangers[0].lack(&strangers[0].shared.state());
    assert!(said.contains("another key, or none"), "{said}");
    let last = with(2, Some(&a));
    begins_with(&[&first, &one], &last);
}

/// Rank 0 goes on with its buffer: a node that comes with none, before or after, begins too.
#[test]
fn who_goes_on_tells_those_who_wait() {
    let port = free_port();
    let first = open(&card(port, 0, 3));
    let one = open(&card(port, 1, 3));
    let until = Instant::now() + Duration::from_secs(5);
    while one.shared.state().waiting != [2] {
        assert!(Instant::now() < until, "node 1 was not admitted");
        std::thread::sleep(LOOK_EVERY);
    }
    let place = first.wait(true, &Stop::default()).expect("not refused");
    assert_eq!(place, Some(Place::default()));
    begins(&one);
    begins(&open(&card(port, 2, 3)));
}

#[test]
fn who_has_no_number_gets_one_that_no_node_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut opens = card(free_port(), 0, 2);
    opens.places = 5;
    opens.buffer = folder.path().join("n0");
    let first = open(&opens);
    assert!(
        matches!(seat(&first.shared), Word::Later(_)),
        "no node has come"
    );
    begins_with(&[&first], &open(&card(opens.world.port, 1, 2)));
    assert!(
        matches!(seat(&first.shared), Word::Later(_)),
        "it has no buffer"
    );
    let own = buffer(&opens.buffer, 7);
    assert!(
        matches!(seat(&first.shared), Word::Later(_)),
        "it is not ready"
    );
    own.globals().ready.store(1, Relaxed);
    // Its streamer knows node 2.
    PeerMeter::Member.set(own.peer_meters(2), 1);
    let door = Door {
        first: "127.0.0.1".into(),
        port: opens.world.port,
    };
    let ask = |fields| ask_for_a_seat(&door, fields, None, &Stop::default());
    let seat_of = || ask(&opens.fields).expect("a place").expect("no signal");
    let seat = seat_of();
    assert_eq!((seat.rank, seat.size), (3, 2));
    // It is kept for who got it, and taken once that one is here.
    assert_eq!(seat_of().rank, 4);
    let mut joined = card(opens.world.port, 3, 2);
    joined.world = World::joins(door.clone(), seat);
    begins(&open(&joined));
    first.shared.state().given.clear();
    assert_eq!(seat_of().rank, 4);
    let full = ask(&opens.fields).expect_err("none is left").to_string();
    assert!(full.contains("all 5 places of the job are taken"), "{full}");
    // One that has left in order is gone for its streamer, and leaves its number.
    PeerMeter::Member.set(own.peer_meters(2), 0);
    assert_eq!(seat_of().rank, 2);
    let other = BTreeMap::from([("seed".to_owned(), "2".to_owned())]);
    let refused = ask(&other).expect_err("another job").to_string();
    assert!(
        refused.contains("seed is 2 on the node that asks to join"),
        "{refused}"
    );
}

#[test]
fn a_job_without_places_takes_no_node_more() {
    let opens = card(free_port(), 0, 1);
    let first = open(&opens);
    let refused = seat(&first.shared);
    assert!(
        matches!(&refused, Word::Refused(why) if why.contains("no place for nodes that join")),
        "{refused:?}"
    );
    // Nor one that takes a number by itself.
    let mut joined = card(opens.world.port, 1, 1);
    joined.least = 2;
    let told = outcome(&open(&joined)).expect("an answer");
    assert_eq!(told, Err("a second node 1 of 1".to_owned()));
}

/// A node whose flags let it send so much, and whose weights get so many steps old by that.
fn opens(port: u16, rank: u16, size: u16, age_in_f32: f64) -> Card {
    let load = Load {
        weights: 1_000_000,
        step_s: 1.0,
        bytes_per_s: Some(4e6 / age_in_f32),
    };
    Card {
        precision: Some(Precision::Open(load)),
        ..card(port, rank, size)
    }
}

/// What is said to be the job's precision.
fn travels_in(meeting: &Meeting) -> Dtype {
    let place = outcome(meeting).expect("it begins").expect("not refused");
    place.precision.expect("it is settled").precision
}

#[test]
fn weights_travel_as_narrow_as_one_node_needs() {
    for (ages, wanted) in [
        ([0.5, 0.1, 1.0], Dtype::F32),
        ([0.5, 2.0, 0.1], Dtype::Bf16),
        ([2.0, 0.1, 0.1], Dtype::Bf16),
        ([0.5, 2.0, 8.0], Dtype::Int8),
    ] {
        let port = free_port();
        let nodes = [0, 1, 2].map(|rank| open(&opens(port, rank, 3, ages[usize::from(rank)])));
        for node in &nodes {
            assert_eq!(travels_in(node), wanted, "{ages:?}");
        }
        // One that comes later takes what there is.
        nodes[0].shared.state().lines.clear();
        let again = open(&opens(port, 1, 3, 100.0));
        assert_eq!(travels_in(&again), wanted, "{ages:?}");
    }
}

#[test]
fn who_goes_on_keeps_its_precision() {
    let port = free_port();
    let keeps = |rank, precision| {
        let mut card = opens(port, rank, 3, 0.1);
        card.precision = Some(Precision::Settled(precision));
        open(&card)
    };
    // The buffer of one has bf16: the wish of another for less comes too late.
    let first = open(&opens(port, 0, 3, 8.0));
    let (one, two) = (keeps(1, Dtype::Bf16), open(&opens(port, 2, 3, 100.0)));
    for node in [&first, &one, &two] {
        assert_eq!(travels_in(node), Dtype::Bf16);
    }
    first.shared.state().lines.clear();
    let refused = outcome(&keeps(2, Dtype::Int8)).expect("an answer");
    let told = refused.expect_err("another precision");
    for part in ["node 2 goes on in int8", "in bf16", "without its buffer"] {
        assert!(told.contains(part), "{told}");
    }
    assert_eq!(travels_in(&keeps(2, Dtype::Bf16)), Dtype::Bf16);
}

/// Over the loopback device, as if it were a link: how much it carries is not known, but it is
/// more than any modem, and what a key keeps secret comes back too.
#[test]
fn a_link_is_measured_by_what_comes_back() {
    use std::os::unix::fs::OpenOptionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("key");
    let mut file = std::fs::File::options();
    let file = file.create_new(true).write(true).mode(0o600).open(&path);
    file.expect("a file").write_all(&[7; 32]).expect("written");
    for key in [None, Some(ClusterKey::read(&path).expect("a key"))] {
        let port = free_port();
        let mut at = opens(port, 0, 4, 0.1);
        // Not the address at which it is seen.
        at.world.first = "127.0.0.2".into();
        let first = Meeting::open(at.clone(), key.clone()).expect("a meeting");
        let guests = [1, 2, 3].map(|rank| {
            at.world.rank = rank;
            Meeting::open(at.clone(), key.clone()).expect("a meeting")
        });
        for guest in &guests {
            let rate = measure(&guest.shared).expect("node 0 answers");
            assert!(rate.expect("it is a link") > 1e5, "{rate:?}");
        }
        for node in guests.iter().chain([&first]) {
            assert_eq!(travels_in(node), Dtype::F32);
        }
    }
}
