//! A program of one's own as a worker: `Client`, with each rule of the steps.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Barrier};

use dogwild::poseidon::{
    Claims, Client, ClientJob, Contribution, CoordinatorJob, First, Floats, MemberJob, ModelFile,
    ModelJob, ModelLayer, ModelTensor, OwnReplica, PAIR_BYTES, PoseidonError, Replica, Scheme,
    ServerJob, StepRule, Stragglers, run_coordinator, run_server,
};
use dogwild::weights::kernels;

use crate::cluster::{LOOPBACK, SESSION, force, setup, wait_for_file};

const IMAGES: u32 = 3;
const ROWS: u32 = 5;
const CONV: [usize; 2] = [5, 7];
const FC: [usize; 2] = [4, 6];

/// A convolution, and a fully connected layer with a bias, through which an image passes more than
/// once.
fn model(step: StepRule, conv: [usize; 2]) -> ModelFile {
    let tensor = |name: &str, shape: &[usize]| ModelTensor {
        name: name.into(),
        shape: shape.to_vec(),
        lr_mult: 1.0,
        decay_mult: 1.0,
    };
    let layer = |name: &str, factors: bool, shape: &[usize]| ModelLayer {
        name: name.into(),
        factors,
        rows: factors.then_some(ROWS),
        scheme: None,
        tensors: vec![
            tensor(&format!("{name}.weight"), shape),
            tensor(&format!("{name}.bias"), &shape[..1]),
        ],
    };
    ModelFile {
        images: IMAGES,
        iterations: None,
        step,
        layers: vec![layer("conv", false, &conv), layer("fc", true, &FC)],
    }
}

fn rule(text: &str) -> StepRule {
    serde_json::from_str(text).expect("a rule")
}

const SGD: &str = r#"{"rule":"sgd","rate":0.05,"momentum":0.9,"weight_decay":0.01}"#;
const ADAM: &str = r#"{"rule":"adam","rate":0.01,"weight_decay":0.01,"decoupled":true}"#;
const MEAN: &str = r#"{"rule":"mean"}"#;

/// What a cluster of clients is made of.
#[derive(Clone)]
struct Job {
    scheme: Scheme,
    rule: StepRule,
    clocks: u64,
    checkpoint_every: u64,
    staleness: u32,
    stragglers: Stragglers,
    /// Shape of the convolution.
    conv: [usize; 2],
    pair_bytes: u64,
}

impl Job {
    fn new(scheme: Scheme, text: &str, clocks: u64) -> Self {
        Self {
            scheme,
            rule: rule(text),
            clocks,
            checkpoint_every: 0,
            staleness: 0,
            stragglers: Stragglers::Wait,
            conv: CONV,
            pair_bytes: PAIR_BYTES,
        }
    }
}

fn member(folder: &Path, index: u16, at: &str, resume: bool) -> MemberJob {
    MemberJob {
        index,
        coordinator: at.into(),
        listen: LOOPBACK,
        checkpoints: Some(folder.join("checkpoints")),
        resume,
        key: None,
        report: None,
        bandwidth_bytes_per_s: None,
    }
}

/// Runs coordinator, one server and two clients that do `work`. Gives how the clients and the
/// server ended.
fn run<T: Send>(
    job: &Job,
    folder: &Path,
    resume: bool,
    work: impl Fn(MemberJob) -> T + Sync,
) -> (Vec<T>, Result<(), PoseidonError>) {
    let stop = AtomicBool::new(false);
    let mut cluster = setup(force(job.scheme), 2, 1, job.clocks).cluster;
    cluster.checkpoint_every = job.checkpoint_every;
    cluster.staleness = job.staleness;
    cluster.stragglers = job.stragglers;
    cluster.pair_bytes = job.pair_bytes;
    let model = ModelJob::of_file(model(job.rule.clone(), job.conv)).expect("a model");
    let address = folder.join("coordinator");
    let _ = std::fs::remove_file(&address);
    let coordinator = CoordinatorJob {
        listen: LOOPBACK,
        address_file: Some(address.clone()),
        session: SESSION,
        model: model.clone(),
        data: None,
        cluster,
        resume,
        key: None,
    };
    std::thread::scope(|scope| {
        let (stop, work) = (&stop, &work);
        let coordinating = scope.spawn(move || run_coordinator(&coordinator, stop));
        let at = wait_for_file(&address, || coordinating.is_finished()).expect("an address");
        let server = ServerJob {
            told: None,
            member: member(folder, 0, &at, resume),
            session: SESSION,
            model,
        };
        let server = scope.spawn(move || run_server(&server, stop));
        let clients = [0, 1].map(|index| {
            let place = member(folder, index, &at, resume);
            scope.spawn(move || work(place))
        });
        let ends = clients.map(|client| client.join().expect("no panic"));
        (ends.into(), server.join().expect("no panic"))
    })
}

fn join(place: MemberJob, first: First) -> Client {
    let job = ClientJob {
        member: place,
        claims: Claims::default(),
        first,
    };
    let joined = Client::join(job, None, Arc::default()).expect("it joins");
    joined.expect("nothing stops it")
}

/// A number that depends on worker, iteration and place.
fn value(worker: u16, clock: u64, at: usize) -> f32 {
    let mixed = (u64::from(worker) * 31 + clock * 17 + at as u64 * 7) % 23;
    mixed as f32 / 8.0 - 1.25
}

/// The gradient of the convolution, as the plan has it; or the factors of the other layer.
fn contribute(client: &Client, layer: usize, clock: u64) {
    let plan = &client.plan().layers[layer];
    let number = |at| value(client.index(), clock, at);
    if plan.scheme.sends_factors() {
        let factors = (0..(FC[0] + FC[1]) * plan.rows as usize).map(number);
        let factors = Contribution::Factors(factors.collect());
        return client.send(layer, factors).expect("sent");
    }
    let (from, last) = (plan.tensors[0].offset, plan.tensors.last().expect("one"));
    let values: Vec<f32> = (from..last.offset + last.len).map(number).collect();
    let values = values.as_slice();
    client
        .send(layer, Contribution::Gradient { from, values })
        .expect("sent");
}

fn weights(client: &Client) -> Vec<f32> {
    let mut weights = vec![0.0; client.plan().extent()];
    kernels::copy_out(client.weights().slice(0, weights.len()), &mut weights);
    weights
}

fn bits(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|w| w.to_bits()).collect()
}

/// Trains to the end or to `until`, where it lets go of the client as a program does that dies.
/// Keeps a sum of all weights seen, as an optimiser of its own would, in the checkpoints.
fn train(place: MemberJob, until: u64) -> (Vec<u32>, Vec<u32>) {
    let client = join(place, First::Zeros);
    let mut own = match client.resumed() {
        Some(saved) => {
            assert_eq!(saved.note("clock"), Some(&*client.clock().to_string()));
            saved.array("sum", client.plan().extent()).expect("the sum")
        }
        None => vec![0.0; client.plan().extent()],
    };
    while let Ok(Some(turn)) = client.begin() {
        if turn.checkpoint {
            let note = ("clock".to_owned(), turn.clock.to_string());
            client
                .checkpoint(vec![("sum".into(), own.clone())], [note].into())
                .expect("written");
        }
        if turn.clock == until {
            return (Vec::new(), Vec::new());
        }
        own.iter_mut()
            .zip(weights(&client))
            .for_each(|(s, w)| *s += w);
        (0..2)
            .rev()
            .for_each(|layer| contribute(&client, layer, turn.clock));
        if client.end().is_err() {
            break;
        }
    }
    let settled = client.settle();
    let found = (bits(&weights(&client)), bits(&own));
    if settled.is_ok_and(|settled| settled) {
        client.close().expect("a good end");
    }
    found
}

/// A worker dies at a step between two checkpoints; all start again, and end with the bits of the
/// unbroken run: weights, moments, and what the program itself had saved.
fn restarts_exactly(scheme: Scheme, text: &str) {
    let mut job = Job::new(scheme, text, 12);
    job.checkpoint_every = 4;
    let folders = [0; 2].map(|_| tempfile::tempdir().expect("a folder"));
    let (whole, server) = run(&job, folders[0].path(), false, |place| {
        train(place, u64::MAX)
    });
    server.expect("a good end");
    assert_eq!(whole[0], whole[1], "replicas differ");
    let path = folders[1].path();
    let (_, server) = run(&job, path, false, |place| {
        let until = if place.index == 1 { 6 } else { u64::MAX };
        train(place, until)
    });
    let why = server.expect_err("a worker died").to_string();
    assert!(why.contains("without closing it"), "{why}");
    let (again, server) = run(&job, path, true, |place| train(place, u64::MAX));
    server.expect("a good end");
    assert_eq!(again, whole, "{text} under {scheme}");
}

#[test]
fn every_rule_restarts_exactly_from_a_checkpoint() {
    for scheme in Scheme::ALL {
        for text in [SGD, ADAM, MEAN] {
            restarts_exactly(scheme, text);
        }
    }
}

/// With the rule `mean` the weights are the mean gradient, layer by layer, as soon as it is there.
#[test]
fn a_clients_own_optimiser_gets_the_mean_gradient() {
    let job = Job::new(Scheme::Ps, MEAN, u64::MAX);
    let folder = tempfile::tempdir().expect("a folder");
    let (_, server) = run(&job, folder.path(), false, |place| {
        let client = join(place, First::FromServers);
        for clock in 0..5 {
            assert_eq!(
                client.begin().expect("no error").expect("it goes on").clock,
                clock
            );
            for layer in [1, 0] {
                contribute(&client, layer, clock);
                assert!(client.wait(layer, clock + 1).expect("no error"));
                let plan = &client.plan().layers[layer];
                for at in plan.tensors.iter().flat_map(|t| t.offset..t.offset + t.len) {
                    let both = [0, 1].map(|worker| value(worker, clock, at));
                    assert_eq!(client.weights().load(at), (both[0] + both[1]) / 2.0);
                }
            }
            client.end().expect("no error");
        }
        client.close().expect("a good end");
    });
    server.expect("a good end");
}

/// Messages that are so small that the thread that sends them writes them too, thousands both ways
/// at once, while threads that read give out weights.
#[test]
fn small_messages_of_peers_do_not_wait_for_each_other() {
    let mut job = Job::new(Scheme::P2p, MEAN, 3);
    (job.conv, job.pair_bytes) = ([4000, 1000], 12_000);
    let folder = tempfile::tempdir().expect("a folder");
    let (sums, server) = run(&job, folder.path(), false, |place| {
        let client = join(place, First::Zeros);
        while let Some(turn) = client.begin().expect("no error") {
            for layer in [1, 0] {
                contribute(&client, layer, turn.clock);
            }
            client.end().expect("no error");
        }
        assert!(client.settle().expect("no error"));
        let found = bits(&weights(&client));
        client.close().expect("a good end");
        found
    });
    server.expect("a good end");
    assert_eq!(sums[0], sums[1]);
    let both = [0, 1].map(|worker| value(worker, 2, 17));
    assert_eq!(f32::from_bits(sums[0][17]), (both[0] + both[1]) / 2.0);
}

/// A layer that no loss reached counts as zero, and the end comes where a client asks for it.
#[test]
fn layers_without_a_gradient_are_zero_and_a_client_may_end_the_run() {
    for (scheme, staleness) in [
        (Scheme::Ps, 0),
        (Scheme::Sfb, 0),
        (Scheme::P2p, 0),
        (Scheme::Ps, 2),
        (Scheme::P2p, 2),
    ] {
        let text = r#"{"rule":"sgd","rate":1}"#;
        let mut job = Job::new(scheme, text, u64::MAX);
        job.staleness = staleness;
        let folder = tempfile::tempdir().expect("a folder");
        let (ends, server) = run(&job, folder.path(), false, |place| {
            let client = join(place, First::Zeros);
            while let Some(turn) = client.begin().expect("no error") {
                if turn.clock == 3 && client.index() == 0 {
                    client.finish();
                }
                contribute(&client, 0, turn.clock);
                client.end().expect("no error");
            }
            assert!(client.settle().expect("no error"));
            let found = (client.clock(), bits(&weights(&client)));
            client.close().expect("a good end");
            found
        });
        server.expect("a good end");
        assert_eq!(ends[0], ends[1]);
        assert_eq!(ends[0].0, 4 + u64::from(staleness));
        let fc = model(rule(text), CONV)
            .manifest()
            .expect("a manifest")
            .tensors()[2]
            .offset;
        let (conv, fc) = ends[0].1.split_at(fc);
        assert!(conv.iter().any(|bits| *bits != 0) && fc.iter().all(|bits| *bits == 0));
    }
}

/// Threads of a client hold its memory: when it is closed or dropped, none is left.
#[test]
fn no_thread_outlives_a_client() {
    let folder = tempfile::tempdir().expect("a folder");
    let job = Job::new(Scheme::Sfb, SGD, 3);
    for closes in [true, false] {
        let _ = run(&job, folder.path(), false, |mut place| {
            // Another thread waits for a budget.
            place.bandwidth_bytes_per_s = Some(1e9);
            let own = Arc::new(OwnReplica::new(200, 1));
            let memory: Arc<dyn Replica> = own.clone();
            let job = ClientJob {
                first: First::Zeros,
                ..ClientJob::new(place)
            };
            let joined = Client::join(job, Some(memory), Arc::default()).expect("it joins");
            let client = joined.expect("nothing stops it");
            assert!(Arc::strong_count(&own) > 1);
            // Where one lets go, the other may learn of it at any of these.
            while let Ok(Some(turn)) = client.begin() {
                contribute(&client, 0, turn.clock);
                let ended = client.end().is_err();
                if ended || !closes {
                    break;
                }
            }
            match closes {
                true => drop(client.close().expect("a good end")),
                false => drop(client),
            }
            assert_eq!(Arc::strong_count(&own), 1, "closes: {closes}");
        });
    }
}

/// An error of another comes back as a value, once; later calls say that the run has ended.
#[test]
fn the_first_error_is_returned_once() {
    let job = Job::new(Scheme::Ps, SGD, u64::MAX);
    let folder = tempfile::tempdir().expect("a folder");
    let both = Barrier::new(2);
    let (_, server) = run(&job, folder.path(), false, |place| {
        let client = join(place, First::FromServers);
        client.begin().expect("no error").expect("it begins");
        both.wait();
        if client.index() == 1 {
            client.abort(PoseidonError::Misuse("out of pictures".into()));
            let why = client.end().expect_err("it ended").to_string();
            assert_eq!(why, "out of pictures");
            let why = client.close().map(drop).expect_err("it ended");
            assert!(matches!(why, PoseidonError::Ended(_)), "{why}");
            return;
        }
        contribute(&client, 0, 0);
        let why = client.wait(0, 1).expect_err("worker 1 ends").to_string();
        assert!(why.contains("out of pictures"), "{why}");
        let ended = client.settle().expect_err("it ended").to_string();
        assert_eq!(ended, format!("the run has ended: {why}"));
        assert!(client.close().is_err());
    });
    let why = server.expect_err("a worker ended").to_string();
    assert!(why.contains("out of pictures"), "{why}");
}

/// An end may be asked for when another worker is done already and has left.
#[test]
fn an_end_is_known_to_those_that_have_left() {
    let job = Job::new(Scheme::Ps, SGD, 2);
    let folder = tempfile::tempdir().expect("a folder");
    let done = AtomicBool::new(false);
    let (ends, server) = run(&job, folder.path(), false, |place| {
        let stop = Arc::new(AtomicBool::new(false));
        let asks = place.index == 0;
        let joined = Client::join(ClientJob::new(place), None, stop.clone()).expect("it joins");
        let client = joined.expect("nothing stops it");
        while client.begin().expect("no error").is_some() {
            client.end().expect("no error");
        }
        assert!(client.settle().expect("no error"));
        if asks {
            // For the other one's `Bye`. Where it comes after the question, that goes well too.
            std::thread::sleep(std::time::Duration::from_millis(300));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..200 {
                        std::thread::sleep(std::time::Duration::from_millis(100));
                        if done.load(std::sync::atomic::Ordering::Relaxed) {
                            return;
                        }
                    }
                    stop.store(true, std::sync::atomic::Ordering::Relaxed);
                });
                client.finish();
                done.store(true, std::sync::atomic::Ordering::Relaxed);
            });
        }
        client.close().map(drop).expect("a good end");
        stop.load(std::sync::atomic::Ordering::Relaxed)
    });
    server.expect("a good end");
    assert_eq!(ends, [false, false], "it waited for the one that had left");
}

/// A worker that stops before the others ends the run for all, which would wait for it for ever.
#[test]
fn who_leaves_too_early_is_named() {
    for scheme in [Scheme::Ps, Scheme::P2p, Scheme::Sfb] {
        let job = Job::new(scheme, SGD, u64::MAX);
        let folder = tempfile::tempdir().expect("a folder");
        let (ends, server) = run(&job, folder.path(), false, |place| {
            let client = join(place, First::Zeros);
            let made = (|| -> Result<(), PoseidonError> {
                while let Some(turn) = client.begin()? {
                    if client.index() == 1 && turn.clock == 2 {
                        client.end()?;
                        break;
                    }
                    client.end()?;
                }
                Ok(())
            })();
            let closed = client.close().map(drop);
            made.and(closed).expect_err("one left").to_string()
        });
        for told in ends
            .iter()
            .chain([&server.expect_err("one left").to_string()])
        {
            assert!(told.contains("worker 1 has left"), "{scheme}: {told}");
        }
    }
}

/// One that stood still while the others made all iterations goes to their end, and not beyond it:
/// the others make no step any more.
#[test]
fn who_was_left_behind_ends_with_the_others() {
    let clocks = 4;
    let mut job = Job::new(Scheme::Ps, SGD, clocks);
    job.stragglers = Stragglers::Drop(0.5);
    let folder = tempfile::tempdir().expect("a folder");
    let both = Barrier::new(2);
    let (_, server) = run(&job, folder.path(), false, |place| {
        let client = join(place, First::FromServers);
        client.begin().expect("no error").expect("it begins");
        if client.index() == 1 {
            both.wait();
        }
        client.end().expect("no error");
        if client.index() == 1 {
            client.wait(0, 1).expect("a step");
            // For the steps that were made meanwhile.
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        while let Some(turn) = client.begin().expect("no error") {
            assert!(turn.clock < clocks, "iteration {} of {clocks}", turn.clock);
            client.end().expect("no error");
        }
        assert!(client.settle().expect("no error"));
        if client.index() == 0 {
            both.wait();
        }
        client.close().expect("a good end");
    });
    server.expect("a good end");
}

/// Gradients that travel from where they lie give the bits of those that are copied, in pairs of
/// any size, and are not changed: not by this worker, which adds to a copy under `p2p`, and not by
/// what comes back.
#[test]
fn gradients_in_rooms_are_sent_as_they_are() {
    let step = |client: &Client, layer: usize, room: &Floats, own: bool| {
        let from = client.plan().layers[layer].tensors[0].offset;
        let sent = match own {
            true => client.send(layer, Contribution::Own(room.clone())),
            false => client.send(layer, Contribution::Gradient { from, values: room }),
        };
        sent.expect("sent");
    };
    let whole = |scheme, pair_bytes, own: [bool; 2]| {
        let mut job = Job::new(scheme, SGD, 6);
        job.pair_bytes = pair_bytes;
        let folder = tempfile::tempdir().expect("a folder");
        let (ends, server) = run(&job, folder.path(), false, |place| {
            let client = join(place, First::Zeros);
            let index = usize::from(client.index());
            let rooms = [0, 1].map(|layer| {
                let mut room = client.room(layer).expect("a room");
                let values = room.iter_mut().enumerate();
                values.for_each(|(at, to)| *to = value(client.index(), 3, at + layer));
                room
            });
            let before = rooms.clone().map(|room| room.to_vec());
            while let Some(turn) = client.begin().expect("no error") {
                for layer in [1, 0] {
                    step(&client, layer, &rooms[layer], own[index]);
                    assert!(client.wait(layer, turn.clock + 1).expect("no error"));
                }
                client.end().expect("no error");
            }
            let after = rooms.map(|room| room.to_vec());
            assert_eq!(after, before);
            let end = bits(&weights(&client));
            client.close().expect("a good end");
            end
        });
        server.expect("a good end");
        assert_eq!(ends[0], ends[1], "replicas differ");
        ends
    };
    for scheme in [Scheme::Ps, Scheme::P2p, Scheme::OneBit] {
        for pair_bytes in [PAIR_BYTES, 28] {
            let copied = whole(scheme, pair_bytes, [false; 2]);
            assert!(copied[0].iter().any(|bits| *bits != 0));
            assert_eq!(whole(scheme, pair_bytes, [true; 2]), copied, "{scheme}");
            assert_eq!(whole(scheme, pair_bytes, [false, true]), copied, "{scheme}");
        }
    }
}

/// What would make all wait for ever is an error of the one that does it, and changes nothing.
#[test]
fn wrong_use_is_told() {
    let job = Job::new(Scheme::Sfb, SGD, 1);
    let folder = tempfile::tempdir().expect("a folder");
    let (_, server) = run(&job, folder.path(), false, |place| {
        let client = join(place, First::Zeros);
        let said = |result: Result<(), PoseidonError>, says: &str| {
            let why = result.expect_err(says).to_string();
            assert!(why.contains(says), "{why}");
        };
        let gradient = |from, values| Contribution::Gradient { from, values };
        let zeros = [0.0; 200];
        said(client.end(), "end: no iteration has begun");
        said(
            client.send(0, gradient(0, &zeros)),
            "no iteration has begun (conv)",
        );
        client.begin().expect("no error").expect("it begins");
        said(client.begin().map(drop), "begun already");
        said(
            client.send(2, gradient(0, &zeros)),
            "layer 2: the plan has 2",
        );
        said(
            client.send(1, gradient(0, &zeros)),
            "fc travels by sfb: give its factors",
        );
        said(
            client.send(0, Contribution::Factors(vec![])),
            "conv travels by ps: give its gradient",
        );
        said(client.send(0, gradient(1, &zeros)), "conv is weights 0..53");
        said(
            client.send(0, gradient(0, &zeros[..52])),
            "the gradient is of 0..52",
        );
        said(
            client.send(1, Contribution::Factors(vec![0.0; 11])),
            "rows of 10",
        );
        said(
            client.send(1, Contribution::Factors(vec![0.0; 60])),
            "5 at most",
        );
        said(client.room(2).map(drop), "layer 2: the plan has 2");
        said(
            client.send(0, Contribution::Own(vec![0.0; 52].into())),
            "conv has 53 weights, and its own gradient is of 52",
        );
        said(
            client.send(1, Contribution::Own(vec![0.0; 28].into())),
            "fc travels by sfb: give its factors",
        );
        said(client.wait(0, 1).map(drop), "of conv cannot be made");
        contribute(&client, 0, 0);
        said(
            client.send(0, gradient(0, &zeros)),
            "conv was sent in this iteration already",
        );
        client.end().expect("no error");
        assert!(client.settle().expect("no error"));
        client.close().expect("a good end");
    });
    server.expect("a good end");
}

/// What a client cannot begin with is told before it joins; others are not disturbed.
#[test]
fn clients_that_cannot_begin_are_told_why() {
    let job = Job::new(Scheme::Sfb, SGD, 1);
    let folder = tempfile::tempdir().expect("a folder");
    let (_, server) = run(&job, folder.path(), false, |place| {
        let refused = |claims, first, says: &str| {
            let member = place.clone();
            let job = ClientJob {
                member,
                claims,
                first,
            };
            let joined = Client::join(job, None, Arc::default());
            let why = joined.map(drop).expect_err(says).to_string();
            assert!(why.contains(says), "{why}");
        };
        if place.index == 1 {
            let none = Claims::default;
            refused(
                none(),
                First::FromServers,
                "layer fc travels by sfb, so that no server",
            );
            let session = Claims {
                session: Some(5),
                ..none()
            };
            refused(session, First::Zeros, "is of session");
            let recipe = Claims {
                recipe: Some("plain".into()),
                ..none()
            };
            refused(recipe, First::Zeros, "it says plain");
        }
        let client = join(place, First::Zeros);
        client.close().expect("a good end");
    });
    server.expect("a good end");
}

/// With the rule `mean` members hold gradients alone: a client that says what it begins with is
/// compared with the others that do, and with no server.
#[test]
fn clients_that_begin_with_other_weights_are_refused() {
    let job = Job::new(Scheme::Ps, MEAN, 1);
    let folder = tempfile::tempdir().expect("a folder");
    let (refused, server) = run(&job, folder.path(), false, |place| {
        let join = |weights| {
            let mut job = ClientJob::new(place.clone());
            job.first = First::Zeros;
            job.claims.weights = Some(weights);
            Client::join(job, None, Arc::default())
        };
        // Which of them comes second is left to chance.
        let (client, why) = match join(7 + u64::from(place.index)) {
            Err(why) => (join(8 - u64::from(place.index)), Some(why.to_string())),
            joined => (joined, None),
        };
        let client = client.expect("it may").expect("no stop");
        client.close().map(drop).expect("a good end");
        why
    });
    server.expect("a good end");
    let refused: Vec<String> = refused.into_iter().flatten().collect();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(
        refused[0].contains("begins with other weights than worker"),
        "{refused:?}"
    );
}

/// The rule `mean` with what hides gradients from a worker.
#[test]
fn a_mean_that_is_not_seen_is_refused() {
    let mut cluster = setup(force(Scheme::Ps), 2, 1, 1).cluster;
    cluster.staleness = 1;
    let job = ModelJob::of_file(model(rule(MEAN), CONV)).expect("a model");
    let why = job.check(&cluster).expect_err("refused").to_string();
    assert!(why.contains("step rule mean with staleness"), "{why}");
    cluster.staleness = 0;
    cluster.stragglers = Stragglers::Drop(0.5);
    let why = job.check(&cluster).expect_err("refused").to_string();
    assert!(
        why.contains("step rule mean with late workers dropped"),
        "{why}"
    );
    let wrong = rule(r#"{"rule":"adam","rate":0.1,"beta1":1}"#);
    let why = ModelJob::of_file(model(wrong, CONV))
        .expect_err("refused")
        .to_string();
    assert!(why.contains("beta1 is 1"), "{why}");
}
