//! Settings that contradict themselves, members that do not fit, send rubbish or die: the error
//! names what is wrong, and which member.

use std::io::Write;

use dogwild::poseidon::{
    ClusterInfo, ClusterKey, Member, MemberHello, MemberRole, Message, MessageKind, Policy, Scheme,
    Stragglers, run_coordinator,
};
use dogwild::solver::data::Source;

use crate::cluster::{Cluster, Ended, SESSION, alter, force, lenet, setup};
use crate::raw_client::RawClient;

pub(crate) fn error_of(ended: &[(String, Ended)], who: &str) -> String {
    let (_, ended) = ended
        .iter()
        .find(|(name, _)| name == who)
        .expect("a member");
    match ended {
        Err(error) => error.to_string(),
        Ok(()) => "ended well".into(),
    }
}

#[test]
fn plans_that_contradict_themselves() {
    let refused = |change: &dyn Fn(&mut crate::cluster::Setup)| {
        let mut setup = setup(force(Scheme::Ps), 2, 1, 1);
        change(&mut setup);
        let cluster = Cluster::new(setup);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let result = run_coordinator(&cluster.coordinator(false), &stop);
        result.expect_err("refused").to_string()
    };
    for (message, part) in [
        (
            refused(&|s| s.cluster.servers = 9),
            "9 servers, but only 8 KV pairs",
        ),
        (
            refused(&|s| {
                s.cluster.policy = Policy::HybComm;
                s.cluster.servers = 5;
            }),
            "5 servers, but only 4 KV pairs",
        ),
        (
            refused(&|s| {
                s.cluster.stragglers = Stragglers::Drop(0.5);
                s.cluster.staleness = 1;
            }),
            "staleness 1 with late workers dropped",
        ),
        (
            refused(&|s| s.spec.clip_gradients = Some(1.0)),
            "clip_gradients",
        ),
        (refused(&|s| s.threads = 0), "0 threads per worker"),
        (refused(&|s| s.cluster.workers = 0), "0 workers"),
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_member_that_does_not_fit_is_told_why() {
    let cluster = Cluster::new(setup(force(Scheme::Ps), 2, 1, 1));
    let of_worker_1 = |change: &(dyn Fn(&mut dogwild::poseidon::WorkerJob) + Sync)| {
        let ended = cluster.run_with(false, |job| {
            if job.member.index == 1 {
                change(job);
            }
        });
        error_of(&ended, "worker 1")
    };
    let message = of_worker_1(&|job| alter(&mut job.model, |model| model.spec.base_lr = 0.5));
    assert!(message.contains("another solver file"), "{message}");
    assert!(message.contains("base_lr 0.5"), "{message}");
    let message = of_worker_1(&|job| alter(&mut job.model, |model| model.spec = lenet(9)));
    assert!(message.contains("9 images per iteration"), "{message}");
    // The one that comes last is refused, and that ends all others here.
    let ended = cluster.run_with(false, |job| {
        if job.member.index == 1 {
            alter(&mut job.model, |model| model.seed = 99);
        }
    });
    let told = ended.iter().filter_map(|(_, ended)| ended.as_ref().err());
    let told: Vec<String> = told.map(ToString::to_string).collect();
    let refused = |told: &String| told.contains("begins with other weights than");
    assert!(told.iter().any(refused), "{told:?}");
    let message = of_worker_1(&|job| job.member.coordinator = "127.0.0.1".into());
    assert!(message.contains("address 127.0.0.1: "), "{message}");
    assert!(message.contains("give HOST:PORT"), "{message}");
    let few = "digits:1,train=15,test=100".parse().expect("a source");
    let message = of_worker_1(&|job| job.data = Source::clone(&few));
    assert!(
        message.contains("worker 1 has 7 pictures to itself"),
        "{message}"
    );
    let message = of_worker_1(&|job| job.member.index = 7);
    assert!(message.contains("there is no worker 7"), "{message}");
    let message = of_worker_1(&|job| job.member.bandwidth_bytes_per_s = Some(0.0));
    assert!(message.contains("a bandwidth of 0"), "{message}");
}

#[test]
fn another_model_on_one_worker() {
    // Its buffer is of the other model too, or the worker would refuse that first.
    let mut other = setup(force(Scheme::Ps), 2, 1, 1);
    let net = include_str!("../../models/lenet_train_test.prototxt");
    let net = net.replace("num_output: 500", "num_output: 400");
    let solver = include_str!("../../models/lenet_solver.prototxt");
    other.spec = dogwild::solver::SolverSpec::parse("lenet", solver, |_| Ok(("net".into(), net)))
        .expect("a model");
    let other = Cluster::new(other);
    let cluster = Cluster::new(setup(force(Scheme::Ps), 2, 1, 1));
    let ended = cluster.run_with(false, |job| {
        if job.member.index == 1 {
            *job = other.worker(1, &job.member.coordinator, false);
        }
    });
    let message = error_of(&ended, "worker 1");
    assert!(
        message.contains("worker 1 trains another model"),
        "{message}"
    );
}

/// The smallest MNIST that four files can be: as many pictures as two workers have batches for.
fn write_mnist(folder: &std::path::Path) {
    for (name, count) in [("train", 40_u8), ("t10k", 10)] {
        let mut images = vec![0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 28, 0, 0, 0, 28];
        images.resize(16 + usize::from(count) * 28 * 28, 7);
        let labels = [0, 0, 8, 1, 0, 0, 0, count].into_iter();
        let labels: Vec<u8> = labels.chain((0..count).map(|i| i % 10)).collect();
        let write = |what: &str, bytes: &[u8]| {
            std::fs::write(folder.join(format!("{name}-{what}-ubyte")), bytes).expect("a file");
        };
        write("images-idx3", &images);
        write("labels-idx1", &labels);
    }
}

/// Seen: LeNet takes both, so a worker with MNIST among workers with digits trained the common
/// weights on it, without any message.
#[test]
fn another_kind_of_data_on_one_worker() {
    let folder = tempfile::tempdir().expect("a folder");
    write_mnist(folder.path());
    let mut other = setup(force(Scheme::Ps), 2, 1, 1);
    other.data = Source::Mnist(folder.path().into());
    let other = Cluster::new(other);
    let cluster = Cluster::new(setup(force(Scheme::Ps), 2, 1, 1));
    for private in [false, true] {
        let ended = cluster.run_with(false, |job| {
            if job.member.index == 1 {
                *job = other.worker(1, &job.member.coordinator, false);
                job.private_data = private;
            }
        });
        let message = error_of(&ended, "worker 1");
        for part in [
            "worker 1 learns from mnist 1x28x28/10",
            "the coordinator from digits 1x28x28/10",
            "the same data",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }
    // If all have that kind, none is refused.
    other.run();
}

#[test]
fn a_checkpoint_of_another_cluster() {
    let mut first = setup(force(Scheme::Ps), 2, 1, 4);
    first.cluster.checkpoint_every = 2;
    let mut cluster = Cluster::new(first);
    cluster.run();
    cluster.setup.cluster.servers = 2;
    cluster.setup.cluster.pair_bytes = 200_000;
    // Server 1 has no checkpoint: without one in common all begin anew, so it gets a copy.
    let folder = cluster.folder.path().join("checkpoints");
    for entry in std::fs::read_dir(&folder).expect("checkpoints").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(rest) = name.strip_prefix("server0") {
            std::fs::copy(entry.path(), folder.join(format!("server1{rest}"))).expect("a copy");
        }
    }
    let ended = cluster.run_with(true, |_| {});
    // The server that sees it first ends the others.
    let told: Vec<String> = ["server 0", "server 1"]
        .into_iter()
        .map(|server| error_of(&ended, server))
        .filter(|message| message.contains("is of another cluster"))
        .collect();
    assert!(!told.is_empty(), "{ended:?}");
    for message in told {
        assert!(
            message.contains("there and") && message.contains("here"),
            "{message}"
        );
    }
}

/// Joins `cluster` as this worker, which is absent; connects to server 0.
pub(crate) fn join_as(cluster: &Cluster, coordinator: &str, worker: u16) -> (RawClient, RawClient) {
    let mut to_coordinator = RawClient::connect(coordinator);
    let hello = hello_of(cluster, coordinator, worker);
    to_coordinator.send_hello(&hello);
    let info = to_coordinator
        .receive(MessageKind::ClusterInfo)
        .expect("the description of the cluster");
    let info: ClusterInfo =
        serde_json::from_str(info.as_text()).expect("the description of the cluster");
    let mut to_server = RawClient::connect(&info.servers[0]);
    to_server.send_hello(&hello);
    (to_coordinator, to_server)
}

fn hello_of(cluster: &Cluster, coordinator: &str, worker: u16) -> MemberHello {
    use dogwild::weights::{Expect, SharedWeights};
    let path = cluster.worker(worker, coordinator, false).buffer;
    let shared = SharedWeights::open(&path, &Expect::default()).expect("the buffer");
    let bits = (0..shared.used()).map(|i| shared.view().load(i).to_bits().to_le_bytes());
    let mut asking = RawClient::connect(coordinator);
    asking.send(&Message::text(MessageKind::Query, 0, "recipe".into()));
    let answer = asking.receive(MessageKind::Answer).expect("an answer");
    MemberHello {
        member: Member {
            role: MemberRole::Worker,
            index: worker,
        },
        session: SESSION,
        fingerprint: shared.fingerprint(),
        recipe: serde_json::from_str(answer.as_text()).expect("a text"),
        weights: xxhash_rust::xxh3::xxh3_64(&bits.flatten().collect::<Vec<u8>>()),
        images: 8,
        data: "digits 1x28x28/10".into(),
        address: "127.0.0.1:1".into(),
        checkpoints: Vec::new(),
        replicas: Vec::new(),
    }
}

/// Worker 0 is real, worker 1 is played by `play`, on its connection to server 0.
fn with_fake_worker(play: impl FnOnce(RawClient)) -> Vec<(String, Ended)> {
    let mut cluster = Cluster::new(setup(force(Scheme::Ps), 2, 1, 1000));
    cluster.absent = 1;
    let cluster = &cluster;
    cluster.run_with_client(
        false,
        |_| {},
        |coordinator| {
            let (_to_coordinator, to_server) = join_as(cluster, coordinator, 1);
            play(to_server);
        },
    )
}

/// All others end, and name worker 1.
fn assert_named(ended: &[(String, Ended)], how: &str) {
    let message = error_of(ended, "server 0");
    // The coordinator may have noticed first, and passed it on.
    assert!(message.contains("worker 1 (127.0.0.1:"), "{message}");
    assert!(message.contains(how), "{message}");
}

#[test]
fn a_member_that_sends_rubbish_is_dropped_and_named() {
    let ended = with_fake_worker(|mut server| {
        let _ = server
            .stream
            .write_all(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n");
        assert!(
            server.receive(MessageKind::Bye).is_none(),
            "the connection ends"
        );
    });
    assert_named(&ended, "is dropped: it does not speak the protocol");
}

#[test]
fn a_member_that_does_not_wait_is_dropped_and_named() {
    let ended = with_fake_worker(|mut server| {
        server.send(&Message {
            kind: MessageKind::Gradient,
            subject: 1,
            sender: 0,
            clock: 5,
            body: dogwild::poseidon::Body::Floats(vec![0.0; 20].into()),
        });
        assert!(
            server.receive(MessageKind::Bye).is_none(),
            "the connection ends"
        );
    });
    assert_named(&ended, "worker 1 sent clock 5 while clock 0 is open");
}

#[test]
fn a_member_that_dies_is_named() {
    assert_named(&with_fake_worker(drop), "is dead: it closed the connection");
}

#[test]
fn a_member_that_is_silent_is_named() {
    let ended = with_fake_worker(|mut server| assert!(server.receive(MessageKind::Bye).is_none()));
    assert_named(&ended, "it has been silent for 10 s");
}

/// Neither rubbish nor a member of another job does harm.
#[test]
fn foreign_connections_are_dropped_and_training_goes_on() {
    let cluster = Cluster::new(setup(force(Scheme::Ps), 1, 1, 30));
    let client = |coordinator: &str| {
        let mut rubbish = RawClient::connect(coordinator);
        let _ = rubbish.stream.write_all(&[0xA5; 100]);
        assert!(rubbish.receive(MessageKind::ClusterInfo).is_none());
        let mut hello = hello_of(&cluster, coordinator, 1);
        hello.session = 1;
        let mut other = RawClient::connect(coordinator);
        other.send_hello(&hello);
        // The coordinator may have ended by then, and send nothing.
        if let Some(refusal) = other.receive(MessageKind::Abort) {
            let text = refusal.as_text();
            assert!(
                text.contains("session") || text.contains("no worker 1"),
                "{text}"
            );
        }
    };
    for (name, ended) in cluster.run_with_client(false, |_| {}, client) {
        ended.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn with_a_key_only_members_get_answers_and_train() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, digits: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.path().join(name);
        std::fs::write(&path, digits.repeat(32)).expect("a key file");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("permissions");
        ClusterKey::read(&path).expect("a key")
    };
    let mut cluster = Cluster::new(setup(force(Scheme::Sfb), 2, 1, 5));
    cluster.key = Some(file("key", "ab"));
    let client = |coordinator: &str| {
        let mut plain = RawClient::connect(coordinator);
        plain.send(&Message::text(MessageKind::Query, 0, "recipe".into()));
        assert!(plain.receive(MessageKind::Answer).is_none());
    };
    for (name, ended) in cluster.run_with_client(false, |_| {}, client) {
        ended.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let other = file("other", "cd");
    let ended = cluster.run_with(false, |job| {
        if job.member.index == 1 {
            job.member.key = Some(other.clone());
        }
    });
    let message = error_of(&ended, "worker 1");
    assert!(message.contains("it has another key, or none"), "{message}");
}

/// The bytes of a message as an earlier version of the format would send it.
fn of_version_1(message: &Message) -> Vec<u8> {
    let mut bytes = message.header().to_vec();
    bytes[6] = 1;
    bytes.extend_from_slice(message.body.bytes());
    bytes
}

/// An earlier release at the coordinator's port learns why it is not taken, and training goes on.
#[test]
fn another_version_is_told_which_one_is_spoken_here() {
    let cluster = Cluster::new(setup(force(Scheme::Ps), 1, 1, 30));
    let client = |coordinator: &str| {
        let mut earlier = RawClient::connect(coordinator);
        let hello = Message::text(MessageKind::Hello, 1, "{}".into());
        earlier
            .stream
            .write_all(&of_version_1(&hello))
            .expect("it is taken");
        let abort = earlier.receive(MessageKind::Abort).expect("a reason");
        for part in ["version 1", "speaks 2", "the same release"] {
            assert!(abort.as_text().contains(part), "{}", abort.as_text());
        }
    };
    for (name, ended) in cluster.run_with_client(false, |_| {}, client) {
        ended.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// A launcher starts members again whose error is another member's fault, and this one stays.
#[test]
fn a_coordinator_of_another_version_is_not_tried_again() {
    let cluster = Cluster::new(setup(force(Scheme::Ps), 1, 1, 1));
    let abort = Message::text(
        MessageKind::Abort,
        0,
        "this is format 1, you speak 2".into(),
    );
    let alive = Message::bare(MessageKind::Alive, 0, 0);
    for (answer, part) in [
        (abort, "this is format 1, you speak 2"),
        (alive, "message format version 1, this program speaks 2"),
    ] {
        let listener = std::net::TcpListener::bind(crate::cluster::LOOPBACK).expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let job = cluster.server(0, &address, false);
        let error = std::thread::scope(|scope| {
            let server = scope.spawn(move || {
                let stop = std::sync::atomic::AtomicBool::new(false);
                dogwild::poseidon::run_server(&job, &stop)
            });
            let (mut stream, _) = listener.accept().expect("the server");
            stream
                .write_all(&of_version_1(&answer))
                .expect("it is taken");
            server.join().expect("no panic").expect_err("an error")
        });
        assert!(error.to_string().contains(part), "{error}");
        assert!(!error.is_fault_of_another(), "{error}");
    }
}
