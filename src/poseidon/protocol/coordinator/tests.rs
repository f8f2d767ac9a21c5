//! Members that may join, members that are missing, and the description of the cluster.

use super::*;
use crate::poseidon::{ClusterSpec, LayerShape, Partition, PlanTensor, Policy, Stragglers};

fn coordinator(resume: bool) -> Coordinator {
    let spec = ClusterSpec {
        workers: 2,
        servers: 1,
        images: 8,
        policy: Policy::HybComm,
        pair_bytes: 1 << 20,
        partition: Partition::Pairs,
        staleness: 0,
        reads: crate::poseidon::Reads::Own,
        stragglers: Stragglers::Wait,
        clocks: 10,
        checkpoint_every: 5,
        recipe: "sgd".into(),
    };
    let layer = |name: &str, offset| {
        let tensor = PlanTensor::new(&format!("{name}.weight"), offset, &[100, 200]);
        (name.to_owned(), LayerShape::dense(100, 200), vec![tensor])
    };
    let mut conv = layer("conv", 0);
    conv.1.fully_connected = false;
    let plan = Plan::new(&spec, vec![conv, layer("ip", 20_000)]).unwrap();
    Coordinator::new(7, 9, plan, resume).unwrap()
}

fn hello(role: MemberRole, index: u16) -> MemberHello {
    MemberHello {
        member: Member { role, index },
        session: 7,
        fingerprint: 9,
        recipe: "sgd".into(),
        weights: 1,
        images: 8,
        data: String::new(),
        address: format!("host:{index}"),
        checkpoints: vec![5, 10],
        replicas: Vec::new(),
    }
}

#[test]
fn the_cluster_is_described_when_all_have_joined() {
    let mut c = coordinator(true);
    let missing = |c: &Coordinator| {
        c.missing()
            .iter()
            .map(Member::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(missing(&c), ["worker 0", "worker 1", "server 0"]);
    c.join(hello(MemberRole::Worker, 1)).unwrap();
    c.join(hello(MemberRole::Server, 0)).unwrap();
    assert_eq!(
        (missing(&c), c.cluster_info()),
        (vec!["worker 0".to_owned()], None)
    );
    let mut late = hello(MemberRole::Worker, 0);
    late.checkpoints = vec![5];
    c.join(late).unwrap();
    let info = c.cluster_info().unwrap();
    assert_eq!(info.start, 5, "the newest that all have");
    assert_eq!(
        (info.workers, info.servers),
        (
            vec!["host:0".into(), "host:1".into()],
            vec!["host:0".into()]
        )
    );
    for (i, member) in [
        (MemberRole::Worker, 0),
        (MemberRole::Worker, 1),
        (MemberRole::Server, 0),
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(c.finished(), i == 3);
        c.leave(Member {
            role: member.0,
            index: member.1,
        });
    }
    assert!(c.finished());
}

#[test]
fn a_run_that_does_not_resume_begins_at_the_beginning() {
    let mut c = coordinator(false);
    for (role, index) in [
        (MemberRole::Worker, 0),
        (MemberRole::Worker, 1),
        (MemberRole::Server, 0),
    ] {
        c.join(hello(role, index)).unwrap();
    }
    assert_eq!(c.cluster_info().unwrap().start, 0);
}

#[test]
fn a_member_that_does_not_fit_learns_why() {
    let mut c = coordinator(false);
    c.join(hello(MemberRole::Worker, 0)).unwrap();
    let mut refused = |change: fn(&mut MemberHello)| {
        let mut hello = hello(MemberRole::Worker, 1);
        change(&mut hello);
        c.join(hello).unwrap_err().to_string()
    };
    for (message, part) in [
        (refused(|h| h.member.index = 2), "there is no worker 2"),
        (refused(|h| h.member.index = 0), "worker 0 is here already"),
        (refused(|h| h.session = 8), "session 0000000000000008"),
        (refused(|h| h.fingerprint = 1), "another model"),
        (refused(|h| h.recipe = "adam".into()), "another solver file"),
        (refused(|h| h.images = 9), "9 images per iteration"),
        (
            refused(|h| h.weights = 2),
            "worker 1 begins with other weights than worker 0",
        ),
    ] {
        assert!(message.contains(part), "{message}");
    }
    c.forget(Member {
        role: MemberRole::Worker,
        index: 0,
    });
    assert_eq!(c.missing().len(), 3);
}

#[test]
fn all_learn_from_one_kind_of_data() {
    let of = |index: u16, data: &str| MemberHello {
        data: data.into(),
        ..hello(MemberRole::Worker, index)
    };
    let refused = |c: &mut Coordinator, hello| c.join(hello).unwrap_err().to_string();
    // The coordinator decides, if its own kind is set.
    let mut c = coordinator(false).with_data("digits 1x28x28/10".into());
    let message = refused(&mut c, of(0, "mnist 1x28x28/10"));
    let wanted = "worker 0 learns from mnist 1x28x28/10, the coordinator from digits 1x28x28/10";
    assert!(
        message.contains(wanted) && message.contains("the same data"),
        "{message}"
    );
    c.join(of(0, "digits 1x28x28/10")).unwrap();
    // Servers and recordings look at no pictures.
    c.join(hello(MemberRole::Server, 0)).unwrap();
    c.join(hello(MemberRole::Worker, 1)).unwrap();
    // Else the first worker does, in a run that goes on too.
    let mut c = coordinator(true);
    c.join(hello(MemberRole::Server, 0)).unwrap();
    c.join(of(1, "mnist 1x28x28/10")).unwrap();
    let message = refused(&mut c, of(0, "digits 1x28x28/10"));
    assert!(message.contains("worker 1 from mnist"), "{message}");
    c.join(of(0, "mnist 1x28x28/10")).unwrap();
    assert!(c.cluster_info().is_some());
}

#[test]
fn questions_are_answered_from_the_plan() {
    let c = coordinator(false);
    assert_eq!(c.query("workers").unwrap(), 2);
    assert_eq!(c.query("batch").unwrap(), 8);
    assert_eq!(c.query("pairs").unwrap(), 2);
    assert_eq!(
        c.query("layers").unwrap(),
        serde_json::json!(["conv", "ip"])
    );
    // 2·8·1·300 = 4,800 floats against 2·20,000·1 = 40,000.
    assert_eq!(c.best_scheme("ip"), Some(Scheme::Sfb));
    assert_eq!(c.query("scheme:conv").unwrap(), "ps");
    let message = c.query("scheme:fc9").unwrap_err().to_string();
    assert!(message.contains("scheme:fc9"), "{message}");
}

fn all_join(c: &mut Coordinator, change: impl Fn(&mut MemberHello)) {
    for (role, index) in [
        (MemberRole::Worker, 0),
        (MemberRole::Worker, 1),
        (MemberRole::Server, 0),
    ] {
        let mut hello = hello(role, index);
        change(&mut hello);
        c.join(hello).unwrap();
    }
}

#[test]
fn replicas_that_differ_are_no_checkpoint() {
    let mut c = coordinator(true);
    all_join(&mut c, |hello| {
        if hello.member.role == MemberRole::Worker {
            hello.replicas = vec![7, 8 + u64::from(hello.member.index)];
        }
    });
    assert_eq!(c.cluster_info().unwrap().start, 5);
    let [a, b] = c.differing(10).unwrap().map(|member| member.index);
    assert_eq!(([a, b], c.differing(5)), ([0, 1], None));
    assert_eq!(c.nothing_in_common(), None);
}

#[test]
fn to_go_on_from_nothing_is_refused() {
    let mut c = coordinator(true);
    assert_eq!(c.nothing_in_common(), None, "not before all are here");
    all_join(&mut c, |hello| {
        hello.checkpoints = match hello.member.role {
            MemberRole::Worker => vec![5],
            MemberRole::Server => Vec::new(),
        }
    });
    let message = c.nothing_in_common().unwrap().to_string();
    for part in ["worker 1: [5]", "server 0: none", "begin anew"] {
        assert!(message.contains(part), "{message}");
    }
    let mut anew = coordinator(false);
    all_join(&mut anew, |hello| hello.checkpoints.clear());
    assert_eq!(anew.nothing_in_common(), None);
}

/// A server that holds no pair writes no checkpoint, and none waits for one of it.
#[test]
fn a_server_that_holds_nothing_needs_no_checkpoint() {
    for scheme in [Scheme::Sfb, Scheme::P2p] {
        let mut c = coordinator(true);
        for layer in &mut c.plan.layers {
            (layer.scheme, layer.shape.fully_connected) = (scheme, true);
        }
        let mut c = Coordinator::new(7, 9, c.plan, true).unwrap();
        all_join(&mut c, |hello| {
            if hello.member.role == MemberRole::Server {
                hello.checkpoints.clear();
            }
        });
        assert_eq!(c.cluster_info().unwrap().start, 10, "{scheme}");
        assert_eq!(c.nothing_in_common(), None);
        let worker = |index| Member {
            role: MemberRole::Worker,
            index,
        };
        assert_eq!([c.saved(worker(0), 5), c.saved(worker(1), 5)], [0, 5]);
    }
}

#[test]
fn the_newest_checkpoint_of_all_is_known() {
    let mut c = coordinator(false);
    let worker = |index| Member {
        role: MemberRole::Worker,
        index,
    };
    let server = Member {
        role: MemberRole::Server,
        index: 0,
    };
    // Worker 1 has no room for 10 and 15.
    for (member, clock, common) in [
        (server, 5, 0),
        (worker(0), 5, 0),
        (worker(1), 5, 5),
        (server, 10, 5),
        (worker(0), 10, 5),
        (server, 15, 5),
        (worker(0), 15, 5),
        (server, 20, 5),
        (worker(1), 20, 5),
        (worker(0), 20, 20),
    ] {
        assert_eq!(c.saved(member, clock), common, "{member} {clock}");
    }
}
