//! Settings come back as they were written, and what cannot be is refused by its name.

use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::device::Which;
use crate::node::Transport;
use crate::poseidon::{Overlap, Partition, Reads};
use crate::solver::data::{Shard, Source};
use crate::stream::{Deltas, Merge};
use crate::wire::Dtype;

fn share() -> impl Strategy<Value = f64> {
    0.0..=1.0
}

fn path() -> impl Strategy<Value = std::path::PathBuf> {
    "[a-z/ \"\\\\é]{1,12}".prop_map(Into::into)
}

fn source() -> impl Strategy<Value = Source> {
    prop_oneof![
        Just(Source::default()),
        path().prop_map(Source::Mnist),
        path().prop_map(Source::Cifar10),
    ]
}

prop_compose! {
    fn transport()(
        transport in prop_oneof![
            Just(Transport::Udp), Just(Transport::PacketMmap), Just(Transport::AfXdp),
            Just(Transport::XdpMmap), Just(Transport::Verbs),
        ],
        iface in option::of("[a-z0-9]{1,8}"),
        mtu in option::of(256..=65_536u32),
        port in option::of(any::<u16>()),
        no_segmentation in any::<bool>(),
        key_file in option::of(path()),
        pace_bytes_per_s in option::of(1e3..1e12),
        capture in option::of(path()),
    ) -> TransportSettings {
        TransportSettings {
            transport, iface, mtu, port, no_segmentation, key_file, pace_bytes_per_s, capture,
        }
    }
}

prop_compose! {
    fn flow()(
        deltas in prop_oneof![Just(Deltas::ExactlyOnce), Just(Deltas::FireAndForget)],
        merge in prop_oneof![Just(Merge::Mean), Just(Merge::Sum)],
        (places, min_nodes) in (option::of(Just(255u16)), option::of(Just(1u16))),
        (masters, quorum) in (option::of(Just(1u16)), option::of(Just(1u16))),
        precision in prop_oneof![Just(Dtype::F32), Just(Dtype::Bf16), Just(Dtype::Int8)],
        sparse in any::<bool>(),
        rate_bytes_per_s in option::of(1e3..1e12),
        window_bytes in option::of(1e3..1e12),
        atomic in any::<bool>(),
    ) -> FlowSettings {
        FlowSettings {
            deltas, merge, places, min_nodes, quorum, masters, precision, sparse, rate_bytes_per_s,
            window_bytes, atomic,
        }
    }
}

prop_compose! {
    fn faults()(
        loss in share(),
        bursts in option::of([share(), share(), share(), share()]),
        [corrupt, duplicate, reorder] in [share(), share(), share()],
        delay_ms in 0.0..=10_000.0,
        fault_seed in any::<u64>(),
    ) -> FaultSettings {
        let bursts = bursts.map(|[p, r, loss_bad, loss_good]| BurstSettings {
            p, r, loss_bad, loss_good,
        });
        FaultSettings {
            loss, loss_burst: bursts, corrupt, duplicate, reorder, delay_ms, fault_seed,
        }
    }
}

prop_compose! {
    fn model()(
        data in option::of(source()),
        seed in any::<u64>(),
        weights in option::of(path()),
        threads_per_worker in 1..64usize,
        compute in prop_oneof![
            Just(Compute::Solver),
            path().prop_map(Compute::Replay),
            path().prop_map(Compute::Client),
        ],
    ) -> ModelSettings {
        let solver = "lenet".to_owned();
        let own = matches!(compute, Compute::Client(_));
        let (data, threads_per_worker) = match own {
            true => (None, 1),
            false => (data, threads_per_worker),
        };
        ModelSettings { solver, data, seed, weights, threads_per_worker, compute }
    }
}

prop_compose! {
    fn member()(
        index in any::<u16>(),
        port in any::<u16>(),
        checkpoints in option::of(path()),
        bandwidth_bytes_per_s in option::of(1.0..1e12),
        key_file in option::of(path()),
        report in option::of(path()),
    ) -> MemberSettings {
        MemberSettings {
            index, bandwidth_bytes_per_s, key_file, report,
            coordinator: "host:7700".to_owned(),
            listen: ([127, 0, 0, 1], port).into(),
            resume: checkpoints.is_some(),
            checkpoints,
        }
    }
}

prop_compose! {
    fn cluster()(
        (workers, servers) in (1..=u16::MAX, 0..=u16::MAX),
        scheme in prop_oneof![
            Just("hybcomm"), Just("sacp"), Just("ps"), Just("sfb"), Just("adam"), Just("onebit"), Just("onebit-all"),
        ],
        partition in prop_oneof![Just(Partition::Pairs), Just(Partition::Tensor)],
        pair_bytes in any::<u64>(),
        staleness in any::<u32>(),
        reads in prop_oneof![Just(Reads::Own), Just(Reads::Delayed)],
        stragglers in prop_oneof![Just(StragglerChoice::Wait), Just(StragglerChoice::Drop)],
        quorum in share(),
        checkpoint_every in any::<u64>(),
    ) -> ClusterSettings {
        ClusterSettings {
            workers, servers, partition, pair_bytes, staleness, reads, stragglers, quorum,
            checkpoint_every,
            scheme: scheme.parse().expect("a scheme"),
        }
    }
}

proptest! {
    #[test]
    fn a_clusters_come_back(
        (cluster, member, model) in (cluster(), member(), model()),
        port in any::<u16>(),
        iterations in option::of(any::<u64>()),
        (file, key_file, session) in (path(), option::of(path()), "[a-z ]{1,9}"),
        devices in option::of(Just(Devices(vec![Which::Host, Which::Cuda(2)]))),
        overlap in prop_oneof![Just(Overlap::Wfbp), Just(Overlap::None)],
        slow in option::of((any::<u16>(), 1.0..=1e6)),
        target_accuracy in option::of(0.0..=1.0f32),
        flag in any::<bool>(),
    ) {
        comes_back(&CoordinatorSettings {
            iterations, cluster, key_file,
            listen: ([0, 0, 0, 0], port).into(),
            address_file: Some(file.clone()),
            session: session.clone(),
            resume: flag,
            model: model.clone(),
        })?;
        comes_back(&ServerSettings { session, member: member.clone(), model: model.clone() })?;
        comes_back(&WorkerSettings {
            launcher: Some(7),
            devices, overlap, target_accuracy, member, model,
            buffer: file.clone(),
            private_data: flag,
            slow: slow.map(|(worker, factor)| SlowSettings { worker, factor }),
            test_every: iterations,
            test_images: 5,
            curve: Some(file),
        })?;
    }

    #[test]
    fn a_streamers_come_back(
        buffer in path(),
        nodes in 1..=255u16,
        transport in transport(),
        stream in flow(),
        (faults, hand_over, until_eof) in (faults(), any::<bool>(), any::<bool>()),
        given in any::<bool>(),
        hosts in proptest::collection::vec("[a-z]{1,8}(:[1-9][0-9]{3})?", 0..3),
    ) {
        let node = given.then_some(nodes - 1);
        let join = if transport.transport == Transport::Udp { hosts } else { Vec::new() };
        comes_back(&StreamSettings {
            buffer, node, nodes, hand_over, until_eof, transport, join, stream, faults,
        })?;
    }

    #[test]
    fn a_solvers_come_back(
        buffer in path(),
        data in option::of(source()),
        (solvers, nodes) in (1..=32u32, 1..=64u16),
        of in option::of(1..1000u32),
        seed in any::<u64>(),
        test_every in option::of(any::<u64>()),
        target_accuracy in option::of(0.0..=1.0f32),
        pace_steps in option::of(0.001..=1e6),
        max_age in option::of(1..u64::MAX),
        curve in option::of(path()),
    ) {
        comes_back(&SolverSettings {
            buffer, data, solvers, nodes, seed, test_every, target_accuracy, pace_steps, max_age,
            curve,
            solver: "lenet".to_owned(),
            index: solvers - 1,
            shard: of.map(|of| Shard { index: of - 1, of }),
            test_turn: of.map(|of| Shard { index: 0, of }),
            node: Some(nodes - 1),
            test_images: 7,
        })?;
    }

    #[test]
    fn a_testers_come_back(
        buffer in path(),
        data in option::of(source()),
        node in option::of(any::<u16>()),
        test_every in option::of(1..u64::MAX),
        target_accuracy in option::of(0.0..=1.0f32),
        curve in option::of(path()),
    ) {
        comes_back(&TesterSettings {
            buffer, data, node, test_every, target_accuracy, curve,
            solver: "a b/solver.prototxt".to_owned(),
            test_images: 0,
        })?;
    }

    #[test]
    fn a_devices_come_back(
        buffer in path(),
        device in prop_oneof![Just(Which::Host), any::<usize>().prop_map(Which::Cuda)],
        index in any::<u32>(),
        [chunk_weights, adders] in (option::of(CHUNK_WEIGHTS), option::of(ADDERS))
            .prop_map(|(chunk, adders)| [chunk, adders]),
        rate in option::of(prop_oneof![
            Just(UpRate::Max), (1e3..1e12).prop_map(UpRate::BytesPerS),
        ]),
        [atomic, ipc] in any::<[bool; 2]>(),
        data in option::of(source()),
        (solvers, nodes) in (1..=u32::MAX, 1..=255u16),
        shard in option::of((1..u32::MAX).prop_map(|of| Shard { index: of - 1, of })),
        seed in any::<u64>(),
    ) {
        comes_back(&GpuSettings {
            buffer, device, index, chunk_weights, adders, rate, atomic, ipc, solvers, shard, nodes,
            seed,
            solver: data.as_ref().map(|_| "lenet".to_owned()),
            data,
            solver_index: solvers - 1,
            node: nodes - 1,
        })?;
    }
}

/// Bit for bit, and a file that leaves nothing out.
fn comes_back<S: Settings + PartialEq + std::fmt::Debug>(
    settings: &S,
) -> Result<(), TestCaseError> {
    let text = to_json(settings).expect("the paths are UTF-8");
    let back: S =
        from_json(&text).map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
    prop_assert_eq!(&back, settings);
    Ok(())
}

fn refused<S: Settings>(text: &str) -> String {
    match from_json::<S>(text) {
        Ok(_) => panic!("taken: {text}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn an_unknown_field_is_refused_with_the_nearest() {
    for (text, words) in [
        (
            r#"{"buffer": "b", "node": 0, "nods": 2}"#,
            &["`nods`", "did you mean `node`", "line 1 column 33"][..],
        ),
        (
            r#"{"buffer": "b", "node": 0, "stream": {"mastres": 1}}"#,
            &["`mastres`", "did you mean `masters`"],
        ),
        (
            r#"{"buffer": "b", "node": 0, "stream": {"precision": "int4"}}"#,
            &["`int4`", "did you mean `int8`"],
        ),
        (
            r#"{"buffer": "b", "node": 0, "faults": {"colour": 1}}"#,
            &["`colour`", "expected one of `loss`"],
        ),
        (r#"{"node": 0}"#, &["missing field `buffer`"]),
        (r#"{"buffer": "b", "node": -1}"#, &["-1", "u16"]),
        ("buffer = b", &["line 1"]),
    ] {
        let said = refused::<StreamSettings>(text);
        for word in words {
            assert!(said.contains(word), "`{word}` is missing in: {said}");
        }
    }
    let said = refused::<SolverSettings>(r#"{"buffer": "b", "sede": 2}"#);
    assert!(said.contains("did you mean `seed`"), "{said}");
    let said = refused::<TesterSettings>(r#"{"buffer": "b", "test_evry": 2}"#);
    assert!(said.contains("did you mean `test_every`"), "{said}");
}

#[test]
fn numbers_of_nodes_that_cannot_be_are_refused_by_their_field() {
    for (part, field) in [
        (r#""node": 16"#, "node"),
        (r#""node": 2, "stream": {"places": 2}"#, "node"),
        (r#""node": 0, "stream": {"places": 1}"#, "stream.places"),
        (r#""node": 0, "stream": {"places": 256}"#, "stream.places"),
        (
            r#""node": 0, "stream": {"min_nodes": 0}"#,
            "stream.min_nodes",
        ),
        (
            r#""node": 0, "stream": {"min_nodes": 3}"#,
            "stream.min_nodes",
        ),
    ] {
        let text = format!(r#"{{"buffer": "b", {part}}}"#);
        let said = refused::<StreamSettings>(&text);
        assert!(said.starts_with(&format!("{field} ")), "{field}: {said}");
    }
}

/// Each text is a part of otherwise good settings, with the field that is to be named.
#[test]
fn a_value_that_cannot_be_is_refused_by_its_field() {
    let names = |said: String, field: &str| {
        assert!(said.starts_with(&format!("{field} ")), "{field}: {said}");
    };
    for (part, field) in [
        (r#""node": 0, "nodes": 0"#, "nodes"),
        (r#""node": 0, "nodes": 256"#, "nodes"),
        (r#""node": 0, "transport": {"mtu": 100}"#, "transport.mtu"),
        (
            r#""node": 0, "transport": {"pace_bytes_per_s": 1}"#,
            "transport.pace_bytes_per_s",
        ),
        (r#""node": 0, "stream": {"masters": 0}"#, "stream.masters"),
        (r#""node": 0, "stream": {"masters": 3}"#, "stream.masters"),
        (
            r#""node": 0, "stream": {"rate_bytes_per_s": -1}"#,
            "stream.rate_bytes_per_s",
        ),
        (
            r#""node": 0, "stream": {"window_bytes": 0}"#,
            "stream.window_bytes",
        ),
        (r#""node": 0, "stream": {"quorum": 17}"#, "stream.quorum"),
        (r#""node": 0, "stream": {"quorum": 0}"#, "stream.quorum"),
        (r#""node": 0, "faults": {"loss": 10}"#, "faults.loss"),
        (r#""node": 0, "faults": {"corrupt": -1}"#, "faults.corrupt"),
        (
            r#""node": 0, "faults": {"loss_burst": {"p": 0.1, "r": 2}}"#,
            "faults.loss_burst",
        ),
        (
            r#""node": 0, "faults": {"delay_ms": 1e5}"#,
            "faults.delay_ms",
        ),
    ] {
        let text = format!(r#"{{"buffer": "b", {part}}}"#);
        names(refused::<StreamSettings>(&text), field);
    }
    for (part, field) in [
        (r#""index": 1"#, "index"),
        (r#""node": 255"#, "node"),
        (r#""shard": {"index": 5, "of": 5}"#, "shard"),
        (r#""test_turn": {"index": 2, "of": 2}"#, "test_turn"),
        (r#""target_accuracy": 90"#, "target_accuracy"),
        (r#""pace_steps": 0"#, "pace_steps"),
        (r#""max_age": 0"#, "max_age"),
    ] {
        let text = format!(r#"{{"buffer": "b", {part}}}"#);
        names(refused::<SolverSettings>(&text), field);
    }
    for (part, field) in [
        (r#""test_every": 0"#, "test_every"),
        (r#""target_accuracy": -0.1"#, "target_accuracy"),
    ] {
        let text = format!(r#"{{"buffer": "b", {part}}}"#);
        names(refused::<TesterSettings>(&text), field);
    }
    for (part, field) in [
        (r#""chunk_weights": 5"#, "chunk_weights"),
        (r#""rate": {"bytes_per_s": 1}"#, "rate"),
        (r#""data": "digits""#, "data"),
        (r#""solver": "lenet", "solver_index": 1"#, "solver_index"),
        (r#""solver": "lenet", "node": 255"#, "node"),
    ] {
        let text = format!(r#"{{"buffer": "b", "device": "host", {part}}}"#);
        names(refused::<GpuSettings>(&text), field);
    }
}

#[test]
fn what_a_cluster_cannot_be_is_refused_by_its_field() {
    for (part, field) in [
        (r#""cluster": {"workers": 0}"#, "cluster.workers"),
        (r#""cluster": {"quorum": 75}"#, "cluster.quorum"),
        (
            r#""model": {"threads_per_worker": 0}"#,
            "model.threads_per_worker",
        ),
        (
            r#""model": {"compute": {"client": "f"}, "threads_per_worker": 2}"#,
            "model.threads_per_worker",
        ),
        (
            r#""model": {"compute": {"client": "f"}, "data": "digits"}"#,
            "model.data",
        ),
    ] {
        let said = refused::<CoordinatorSettings>(&format!("{{{part}}}"));
        assert!(said.starts_with(&format!("{field} ")), "{field}: {said}");
    }
    let said = refused::<CoordinatorSettings>(r#"{"cluster": {"scheme": "best"}}"#);
    assert!(said.contains("hybcomm, sacp"), "{said}");
    for (part, field) in [
        (r#""resume": true"#, "member.resume"),
        (
            r#""bandwidth_bytes_per_s": 0"#,
            "member.bandwidth_bytes_per_s",
        ),
    ] {
        let member = format!(r#"{{"index": 0, "coordinator": "h:1", {part}}}"#);
        let said = refused::<ServerSettings>(&format!(r#"{{"member": {member}}}"#));
        assert!(said.starts_with(&format!("{field} ")), "{field}: {said}");
    }
    let member = r#"{"index": 0, "coordinator": "h:1"}"#;
    for (part, field) in [
        (r#""slow": {"worker": 0, "factor": 0.5}"#, "slow"),
        (r#""target_accuracy": 2"#, "target_accuracy"),
    ] {
        let text = format!(r#"{{"buffer": "b", "member": {member}, {part}}}"#);
        let said = refused::<WorkerSettings>(&text);
        assert!(said.starts_with(&format!("{field} ")), "{field}: {said}");
    }
}

#[test]
fn nodes_of_a_job_have_captures_and_faults_of_their_own() {
    let transport = TransportSettings {
        capture: Some("run.pcapng".into()),
        ..TransportSettings::default()
    };
    assert_eq!(transport.of_node(2).capture, Some("run.n2.pcapng".into()));
    assert_eq!(FaultSettings::default().of_node(2).fault_seed, 3);
}
