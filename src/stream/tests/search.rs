//! Hosts that have no number and look for one: each gets one of its own, whatever is lost.

use std::sync::atomic::AtomicU32;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::weights::{StreamState, WeightsView, padded_len};
use crate::wire::{Frame, NO_NODE, Stay};

const MS: u64 = 1_000_000;
const LATER: u16 = 4;

/// What a node sends, and to whom.
#[derive(Default)]
struct Sent(Vec<(To, Vec<u8>)>);

impl Outbox for Sent {
    fn send(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let mut bytes = vec![0; len];
        fill(&mut bytes);
        self.0.push((to, bytes));
        true
    }
}

fn frame_of(bytes: &[u8]) -> Frame<'_> {
    Frame::parse(bytes).expect("a frame")
}

fn job() -> Config {
    Config {
        nodes: 2,
        masters: 2,
        later: LATER,
        ..config(Deltas::ExactlyOnce)
    }
}

/// The memory and the states of a job's nodes.
struct Ground {
    weights: Vec<AtomicU32>,
    states: Vec<StreamState>,
}

impl Ground {
    fn new(folder: &Path, config: &Config) -> Self {
        let len = padded_len((CHUNKS * CHUNK_WEIGHTS) as usize);
        let state = |node: u16| {
            let config = Config {
                node,
                ..config.clone()
            };
            let path = folder.join(format!("state{node}"));
            let made = StreamState::open_or_create(&path, &config.state_spec(len));
            made.expect("a state").0
        };
        Self {
            weights: (0..len).map(|_| AtomicU32::new(0)).collect(),
            states: (0..config.nodes).map(state).collect(),
        }
    }

    fn members(&self, config: &Config) -> Vec<Streamer<'_>> {
        let members = (0..).zip(&self.states).map(|(node, state)| {
            let own = Config {
                node,
                incarnation: 1 + u64::from(node),
                ..config.clone()
            };
            Streamer::new(own, WeightsView::of(&self.weights), state)
        });
        members.collect()
    }
}

/// Lets hosts look for numbers at `members` until each has one, or there is none for it. `hears`
/// says which frame arrives: the host, the member, and whether it goes to the member.
fn look(
    members: &mut [Streamer<'_>],
    mut searches: Vec<Search>,
    hears: &mut dyn FnMut(usize, usize, bool) -> bool,
) -> Vec<Result<u16, NoNumber>> {
    let mut found: Vec<Option<Result<u16, NoNumber>>> = vec![None; searches.len()];
    let config = job();
    for now_ns in (MS..60_000 * MS).step_by(MS as usize) {
        if now_ns % (200 * MS) == 0 {
            for (node, member) in (0..).zip(members.iter_mut()) {
                let bytes =
                    strangers::hello(&config, 1 - node, |_, hello| hello.later = LATER as u8);
                member.handle_frame(now_ns, &bytes, &mut Sent::default());
            }
        }
        for (host, search) in searches.iter_mut().enumerate() {
            if found[host].is_some() {
                continue;
            }
            if let Some((header, seek)) = search.poll(now_ns) {
                let mut bytes = vec![0; header.frame_len()];
                seek.emit(header.emit(&mut bytes).1);
                for (at, member) in members.iter_mut().enumerate() {
                    if !hears(host, at, true) {
                        continue;
                    }
                    let mut sent = Sent::default();
                    assert_eq!(
                        member.handle_frame(now_ns, &bytes, &mut sent),
                        Some(NO_NODE)
                    );
                    for (to, answer) in sent.0.iter().filter(|_| hears(host, at, false)) {
                        assert_eq!(*to, To::Node(NO_NODE));
                        if let Err(error) = search.hear(now_ns, &frame_of(answer)) {
                            found[host] = Some(Err(error));
                        }
                    }
                }
            }
            match search.number(now_ns) {
                Ok(Some(node)) => {
                    found[host] = Some(Ok(node));
                    be_node(
                        members,
                        &config,
                        (node, search.incarnation),
                        Stay::Stays,
                        now_ns,
                    );
                }
                Ok(None) => {}
                Err(error) => found[host] = Some(Err(error)),
            }
        }
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    let ended = found
        .into_iter()
        .map(|one| one.expect("it comes to an end"));
    ended.collect()
}

/// Searches of hosts whose memories have the numbers that `incarnations` gives.
fn searches(config: &Config, incarnations: impl IntoIterator<Item = u64>) -> Vec<Search> {
    let shape = (config.nodes, config.places());
    let incarnations = incarnations.into_iter();
    let search = |one| Search::new(config.session, one, shape, None);
    incarnations.map(search).collect()
}

/// Says hello to all members as a node of number `node` would.
fn be_node(
    members: &mut [Streamer<'_>],
    config: &Config,
    (node, incarnation): (u16, u64),
    stay: Stay,
    now_ns: u64,
) {
    let bytes = strangers::hello(config, node, |_, hello| {
        (hello.later, hello.stay) = (LATER as u8, stay);
        hello.incarnation = incarnation;
    });
    for member in members {
        member.handle_frame(now_ns, &bytes, &mut Sent::default());
    }
}

#[test]
fn hosts_that_come_at_once_get_a_number_each() {
    let (config, folder) = (job(), folder());
    for seed in 0..40 {
        let mut random = StdRng::seed_from_u64(seed);
        let folder = folder.path().join(seed.to_string());
        std::fs::create_dir(&folder).expect("a folder");
        let ground = Ground::new(&folder, &config);
        let mut members = ground.members(&config);
        let lost = f64::from((seed % 4) as u32) * 0.2;
        let incarnations = [0; 3].map(|_| random.random_range(1..u64::MAX));
        let mut hears = |_: usize, _: usize, _: bool| !random.random_bool(lost);
        let found = look(&mut members, searches(&config, incarnations), &mut hears);
        let mut numbers: Vec<u16> = found
            .into_iter()
            .map(|one| one.expect("a number"))
            .collect();
        numbers.sort_unstable();
        // With no loss the first ones; else maybe others, but each another one.
        let later: Vec<u16> = (config.nodes..config.places()).collect();
        assert!(
            numbers.iter().all(|node| later.contains(node)),
            "seed {seed}"
        );
        assert!(
            numbers.windows(2).all(|two| two[0] < two[1]),
            "seed {seed}: {numbers:?}"
        );
        if lost == 0.0 {
            assert_eq!(numbers, later[..3], "seed {seed}");
        }
    }
}

/// One that hears only the first member and one that hears only the second cannot be told apart by
/// these; they are by the first member that hears both.
#[test]
fn a_claim_that_one_member_denies_is_given_up() {
    let (config, folder) = (job(), folder());
    let ground = Ground::new(folder.path(), &config);
    let mut members = ground.members(&config);
    // What the first host says to the second member is lost for a while, and the other way round.
    let mut frames = 0;
    let mut hears = |host: usize, member: usize, _: bool| {
        frames += 1;
        frames > 60 || host == member
    };
    let found = look(&mut members, searches(&config, [70, 80]), &mut hears);
    assert_eq!(found, [Ok(2), Ok(3)]);
}

/// It answers once, and dies before it hears of the claim: it holds up no host for ever.
#[test]
fn a_member_that_dies_meanwhile_is_not_waited_for_for_ever() {
    let (config, folder) = (job(), folder());
    let ground = Ground::new(folder.path(), &config);
    let mut members = ground.members(&config);
    let mut frames = 0;
    let mut hears = |_: usize, member: usize, to_member: bool| {
        frames += u32::from(member == 1 && to_member);
        member == 0 || frames == 1
    };
    let found = look(&mut members, searches(&config, [70]), &mut hears);
    assert_eq!(found, [Ok(2)]);
}

#[test]
fn numbers_of_nodes_that_left_come_last_and_those_of_silent_ones_never() {
    let (config, folder) = (job(), folder());
    let ground = Ground::new(folder.path(), &config);
    let mut members = ground.members(&config);
    let one = |members: &mut [Streamer<'_>], incarnation| {
        let found = look(members, searches(&config, [incarnation]), &mut |_, _, _| {
            true
        });
        found.into_iter().next().expect("an end")
    };
    let be = |members: &mut [Streamer<'_>], node: u16, stay| {
        be_node(members, &config, (node, 900 + u64::from(node)), stay, MS);
    };
    for (node, stay) in [(2, Stay::Gone), (3, Stay::Stays), (5, Stay::Stays)] {
        be(&mut members, node, stay);
    }
    assert_eq!(one(&mut members, 70), Ok(4));
    assert_eq!(one(&mut members, 71), Ok(2));
    let full = one(&mut members, 72).expect_err("no place is left");
    // Node 2 has just got its number.
    let silent = vec![3, 4, 5];
    assert_eq!(full, NoNumber::Full { places: 6, silent });
    assert!(full.to_string().contains("more places"), "{full}");
}

#[test]
fn a_claim_ends_with_its_host() {
    let (config, folder) = (job(), folder());
    let ground = Ground::new(folder.path(), &config);
    let mut members = ground.members(&config);
    let mut gone = searches(&config, [70]).remove(0);
    // It claims a number, and is not heard again.
    let bytes = claim(&mut gone, &mut members);
    for member in &mut members {
        member.handle_frame(2_000 * MS, &bytes, &mut Sent::default());
    }
    let answer = |member: &mut Streamer<'_>, at_ns: u64| {
        let mut sent = Sent::default();
        let (header, mut seek) = searches(&config, [71])
            .remove(0)
            .poll(at_ns)
            .expect("a seek");
        seek.first = 2;
        let mut bytes = vec![0; header.frame_len()];
        seek.emit(header.emit(&mut bytes).1);
        member.handle_frame(at_ns, &bytes, &mut sent);
        let (_, bytes) = sent.0.pop().expect("an answer");
        crate::wire::Hello::parse(frame_of(&bytes).payload)
            .expect("a hello")
            .seen[0]
            .life
    };
    assert_eq!(answer(&mut members[0], 11_900 * MS), 70);
    assert_eq!(answer(&mut members[0], 12_100 * MS), 0);
}

/// The first seek of `search` with which it claims a number.
fn claim(search: &mut Search, members: &mut [Streamer<'_>]) -> Vec<u8> {
    for now_ns in (MS..2_000 * MS).step_by(MS as usize) {
        if let Some((header, seek)) = search.poll(now_ns) {
            let mut bytes = vec![0; header.frame_len()];
            seek.emit(header.emit(&mut bytes).1);
            if seek.claimed.is_some() {
                return bytes;
            }
            let mut sent = Sent::default();
            members[0].handle_frame(now_ns, &bytes, &mut sent);
            for (_, answer) in sent.0 {
                search
                    .hear(now_ns, &frame_of(&answer))
                    .expect("the same job");
            }
        }
        search.number(now_ns).expect("there is one");
    }
    panic!("it never claims a number")
}

#[test]
fn another_shape_of_the_job_is_told_with_what_to_give() {
    let (config, folder) = (job(), folder());
    let ground = Ground::new(folder.path(), &config);
    let mut members = ground.members(&config);
    let search = Search::new(config.session, 70, (3, 16), None);
    let found = look(&mut members, vec![search], &mut |_, _, _| true);
    let why = found[0].clone().expect_err("another job").to_string();
    assert!(
        why.contains("2 nodes at its beginning and 6 places"),
        "{why}"
    );
}

#[test]
fn the_number_that_a_host_had_is_its_own_unless_another_has_it() {
    let (config, folder) = (job(), folder());
    let ground = Ground::new(folder.path(), &config);
    let mut members = ground.members(&config);
    be_node(&mut members, &config, (3, 903), Stay::Gone, MS);
    be_node(&mut members, &config, (4, 904), Stay::Stays, MS);
    let shape = (config.nodes, config.places());
    let had = |incarnation, node| Search::new(config.session, incarnation, shape, Some(node));
    let all = vec![had(903, 3), had(70, 4), had(71, 5), had(1, 0)];
    let found = look(&mut members, all, &mut |_, _, _| true);
    assert_eq!(
        found,
        [Ok(3), Err(NoNumber::Taken { node: 4 }), Ok(5), Ok(0)]
    );
}

/// Seeks that are no seeks, or of another session, are answered by nothing and change nothing.
#[test]
fn other_bytes_are_refused_and_counted() {
    let (config, folder) = (job(), folder());
    let ground = Ground::new(folder.path(), &config);
    let mut members = ground.members(&config);
    let (header, seek) = searches(&config, [70]).remove(0).poll(MS).expect("a seek");
    let mut good = vec![0; header.frame_len()];
    seek.emit(header.emit(&mut good).1);
    let mut tried = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        let mut sent = Sent::default();
        assert_eq!(members[0].handle_frame(MS, &bytes, &mut sent), None);
        assert!(sent.0.is_empty());
    };
    tried(&|bytes| bytes[8] ^= 1);
    tried(&|bytes| bytes[20] = 1);
    tried(&|bytes| bytes[40] -= 1);
    tried(&|bytes| bytes[48 + 8] = 6);
    let dropped = members[0].counters();
    let count = |reason: DropReason| dropped.dropped_for(reason);
    assert_eq!(count(DropReason::Session), 1);
    assert_eq!(count(DropReason::Foreign), 2);
    assert_eq!(count(DropReason::Malformed), 1);
}
