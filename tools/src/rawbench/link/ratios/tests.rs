//! Ratios, rounds and their table, from runs and peers made up here.

use super::*;

fn run(alone: bool, rate: f64) -> Run {
    Run {
        frame_bytes: 1000,
        alone,
        seconds: 1.0,
        sent: rate as u64,
        sent_frames_per_s: rate,
        received_frames_per_s: if alone { 0.0 } else { rate / 2.0 },
        received_bits_per_s: if alone { 0.0 } else { rate / 2.0 * 8000.0 },
        ..Run::default()
    }
}

fn peer(tool: &str, sent: f64, received: f64) -> Peer {
    Peer {
        tool: tool.to_owned(),
        sent_frames_per_s: Some(sent),
        received_frames_per_s: Some(received),
        received_bits_per_s: Some(received * 8000.0),
        ..Peer::default()
    }
}

const TRAFGEN: Way = Way::Tool(Tool::Trafgen);
const IPERF3_UDP: Way = Way::Tool(Tool::Iperf3Udp);

#[test]
fn only_what_both_count_alike_is_compared() {
    let of = |run: &Run, peer: &Peer, way| {
        let both = compare(run, peer, way)?;
        assert!((both.ours_per_s / both.theirs_per_s - both.ratio).abs() < 1e-12);
        Some((both.counted, both.ratio))
    };
    let other = peer("other", 200.0, 100.0);
    let alone = run(true, 300.0);
    assert_eq!(of(&alone, &other, TRAFGEN), Some((Counted::Sent, 1.5)));
    let by_interface = Run {
        interface_sent_frames_per_s: Some(100.0),
        ..alone.clone()
    };
    let unsealed = of(&by_interface, &other, Way::Unsealed);
    assert_eq!(unsealed, Some((Counted::Sent, 0.5)));
    assert_eq!(of(&alone, &other, IPERF3_UDP), None);

    let through = run(false, 300.0);
    for (way, counted) in [
        (TRAFGEN, Counted::ReceivedUnread),
        (IPERF3_UDP, Counted::Received),
        (Way::Unsealed, Counted::Received),
    ] {
        assert_eq!(of(&through, &other, way), Some((counted, 1.5)));
    }
    let tcp = Peer {
        received_frames_per_s: None,
        ..other
    };
    let bits = of(&through, &tcp, Way::Tool(Tool::Iperf3Tcp));
    assert_eq!(bits, Some((Counted::ReceivedBits, 1.5)));
    // One that failed, and one that sent nothing.
    assert_eq!(of(&alone, &Peer::default(), TRAFGEN), None);
    assert_eq!(of(&alone, &peer("idle", 0.0, 0.0), TRAFGEN), None);
}

fn report(run: Run) -> Report {
    let text = serde_json::json!({
        "command": "send", "lab": true,
        "machine": {"processor": "", "cores": 2, "kernel": "", "load": 0.0, "iface": "eth0", "mtu": 1500,
            "speed_mbit_per_s": null, "driver": null},
        "settings": {"transport": "udp", "mtu_payload_bytes": 1000, "seconds": 1.0, "spin": false, "arguments": ""},
        "outcome": {"send": run},
    });
    serde_json::from_value(text).expect("a report")
}

/// Rounds of ours at 300 frames/s alone against trafgen at these rates.
fn rounds(trafgen: &[Option<f64>]) -> Vec<Round> {
    let round = |(i, rate): (usize, &Option<f64>)| {
        let other = match rate {
            Some(rate) => peer("trafgen 1", *rate, 0.0),
            None => Peer::failed(TRAFGEN, &anyhow::anyhow!("sends nothing")),
        };
        let ours = (report(run(true, 300.0)), [1e9, 2e9]);
        Round::of(i % 2 == 0, &ours, &[TRAFGEN], vec![(other, [2e9, 1.5e9])]).expect("a round")
    };
    trafgen.iter().enumerate().map(round).collect()
}

#[test]
fn ratios_have_their_median_and_ends_whoever_failed() {
    let rates = [Some(100.0), None, Some(300.0), Some(150.0)];
    let summary = ratios(&[TRAFGEN], &rounds(&rates));
    let spread = summary[0].ratio.expect("ratios");
    assert_eq!(summary.len(), 1);
    assert_eq!(
        (summary[0].tool.as_str(), summary[0].counted),
        ("trafgen 1", Some(Counted::Sent))
    );
    assert_eq!(
        [spread.median, spread.lowest, spread.highest],
        [2.0, 1.0, 3.0]
    );
    assert_eq!(summary[0].best_ratio, Some(1.0));
    let theirs = summary[0].theirs_per_s.map(|theirs| theirs.median);
    assert_eq!(theirs, Some(150.0));
    let never = &ratios(&[TRAFGEN], &rounds(&[None, None]))[0];
    assert_eq!((never.tool.as_str(), never.ratio), ("trafgen", None));
}

#[test]
fn a_round_begins_and_ends_with_who_did() {
    let both = rounds(&[Some(1.0), Some(1.0)]);
    assert_eq!(both[0].core_to_core_bytes_per_s, [1e9, 1.5e9]);
    assert_eq!(both[1].core_to_core_bytes_per_s, [2e9, 2e9]);
    assert!(both.iter().all(|round| !round.mode_changed));
    let changed = vec![(peer("trafgen", 1.0, 1.0), [1e9, 2.1e9])];
    let ours = (report(run(true, 1.0)), [1e9; 2]);
    let round = Round::of(true, &ours, &[TRAFGEN], changed).expect("a round");
    assert!(round.mode_changed);
}

#[test]
fn the_table_says_every_ratio_and_why_there_is_none() {
    let rounds = rounds(&[Some(100.0), None, Some(200.0)]);
    let text = Rounds {
        frame_bytes: 1000,
        ratios: ratios(&[TRAFGEN], &rounds),
        rounds,
        missing: Vec::new(),
    }
    .table();
    for word in [
        "1.0, 1.5",
        "3.000",
        "1.500",
        "2.250",
        "150",
        "frames sent",
        "trafgen failed: sends nothing",
    ] {
        assert!(text.contains(word), "`{word}` is missing in:{text}");
    }
}
