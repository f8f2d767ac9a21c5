//! Flags and a file give a component the same.

use clap::error::ErrorKind;

use super::*;
use crate::cli::coordinator::CoordinatorFlags;
use crate::cli::gpu::GpuFlags;
use crate::cli::server::ServerFlags;
use crate::cli::solver::SolverFlags;
use crate::cli::stream::StreamFlags;
use crate::cli::tester::TesterFlags;
use crate::cli::worker::WorkerFlags;
use crate::settings::to_json;

fn parse<A: Flags>(line: &str) -> Result<Given<A>, Error> {
    let command = <Given<A> as clap::Args>::augment_args(Command::new("dogwild"));
    let words = std::iter::once("dogwild").chain(line.split_whitespace());
    Given::from_arg_matches(&command.try_get_matches_from(words)?)
}

fn settings<A: Flags>(line: &str) -> Result<A::Settings> {
    parse::<A>(line).expect(line).settings()
}

/// The settings that the flags make, whole in a file, are the settings that the file makes.
fn same<A: Flags>(line: &str)
where
    A::Settings: PartialEq + std::fmt::Debug,
{
    let by_flags = settings::<A>(line).expect(line);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("settings.json");
    std::fs::write(&file, to_json(&by_flags).expect("UTF-8")).expect("written");
    let by_file = settings::<A>(&format!("--settings {}", file.display()));
    assert_eq!(by_file.expect("what was written"), by_flags, "{line}");
}

#[test]
fn flags_and_their_settings_in_a_file_start_the_same_component() {
    same::<StreamFlags>("--buffer b --node 1");
    same::<StreamFlags>(
        "--buffer b --node 2 --nodes 3 --transport packet_mmap --iface eth0 --mtu 9000 --port 5 \
         --no-segmentation --key-file k --pace 1Mbit --capture c --deltas fire-and-forget \
         --merge sum --masters 2 --quorum 3 --precision int8 --sparse --rate 64MB --window max --atomic \
         --loss 7% --loss-burst 0.01,0.3 --corrupt 0.1 --duplicate 0.2 --reorder 0.3 --delay 1.5 \
         --fault-seed 18446744073709551615",
    );
    same::<SolverFlags>("--buffer b");
    same::<SolverFlags>(
        "--buffer b --solver s.prototxt --data mnist:/d --index 1 --solvers 2 --shard 2/5 \
         --node 1 --nodes 3 --seed 9 --test-every 0 --test-turn 1/2 --test-images 0 \
         --target-accuracy 98.7% --pace-steps 0.1 --max-age 3 --curve c.csv",
    );
    same::<TesterFlags>("--buffer b");
    same::<TesterFlags>(
        "--buffer b --solver lenet --data digits:1,train=400,test=100 --node 1 --test-every 5 \
         --test-images 9 --target-accuracy 0.9 --curve c.csv",
    );
    same::<GpuFlags>("--buffer b --device 1");
    same::<GpuFlags>("--buffer b --device host --rate max");
    same::<GpuFlags>(
        "--buffer b --device host --index 2 --chunk 4096 --rate 1MB --atomic --ipc --solver lenet \
         --data mnist:/d --solver-index 1 --solvers 3 --node 1 --nodes 2 --seed 7",
    );
}

#[test]
fn flags_and_their_settings_in_a_file_start_the_same_member() {
    same::<CoordinatorFlags>("--session s");
    same::<CoordinatorFlags>(
        "--listen 127.0.0.1:0 --address-file a --session s --iterations 9 --resume --key-file k \
         --solver s.prototxt --data mnist:/d --seed 3 --weights w --threads-per-worker 2 \
         --compute replay:r.json --workers 4 --servers 2 --scheme sfb --partition tensor \
         --pair-bytes 4096 --staleness 1 --reads delayed --stragglers drop \
         --quorum 60% --checkpoint-every 5",
    );
    let member = "--index 1 --coordinator h:7700 --listen 127.0.0.1:0 --checkpoints c --resume \
                  --bandwidth 10MB --key-file k --report r.json --seed 5";
    same::<ServerFlags>("--index 0 --coordinator h:7700");
    same::<ServerFlags>("--index 0 --coordinator h:7700 --compute client:m.json");
    same::<ServerFlags>(&format!("--session s {member}"));
    same::<WorkerFlags>("--buffer b --index 0 --coordinator h:7700");
    same::<WorkerFlags>(&format!(
        "--buffer b --private-data --overlap none --slow 1:2.5 --test-every 4 --test-images 0 \
         --target-accuracy 90% --curve c.csv {member}"
    ));
    // And a file that leaves out what the flags leave out.
    let coordinator: crate::settings::CoordinatorSettings = from_json("{}").expect("enough");
    let by_flags = settings::<CoordinatorFlags>("--seed 1").expect("enough");
    assert_eq!(coordinator, by_flags);
    let member = r#""member": {"index": 0, "coordinator": "h:1"}"#;
    let server: crate::settings::ServerSettings =
        from_json(&format!("{{{member}}}")).expect("enough");
    let by_flags = settings::<ServerFlags>("--index 0 --coordinator h:1").expect("enough");
    assert_eq!(server, by_flags);
    let worker: crate::settings::WorkerSettings =
        from_json(&format!(r#"{{"buffer": "b", {member}}}"#)).expect("enough");
    let line = "--buffer b --index 0 --coordinator h:1";
    assert_eq!(worker, settings::<WorkerFlags>(line).expect("enough"));
}

/// What a file leaves out is what a flag that is not given stands for.
#[test]
fn files_and_flags_have_the_same_defaults() {
    let stream: crate::settings::StreamSettings =
        from_json(r#"{"buffer": "b", "node": 1}"#).expect("enough");
    assert_eq!(
        stream,
        settings::<StreamFlags>("--buffer b --node 1").expect("enough")
    );
    let solver: crate::settings::SolverSettings = from_json(r#"{"buffer": "b"}"#).expect("enough");
    assert_eq!(
        solver,
        settings::<SolverFlags>("--buffer b").expect("enough")
    );
    let tester: crate::settings::TesterSettings = from_json(r#"{"buffer": "b"}"#).expect("enough");
    assert_eq!(
        tester,
        settings::<TesterFlags>("--buffer b").expect("enough")
    );
}

#[test]
fn a_flag_next_to_a_file_is_refused() {
    fn kind<A: Flags + std::fmt::Debug>(line: &str) -> ErrorKind {
        parse::<A>(line).expect_err(line).kind()
    }
    for more in [
        "--buffer b",
        "--node 0",
        "--nodes 2",
        "--loss 0",
        "--sparse",
        "--rate max",
    ] {
        let line = format!("--settings f {more}");
        assert_eq!(
            kind::<StreamFlags>(&line),
            ErrorKind::ArgumentConflict,
            "{line}"
        );
    }
    assert_eq!(
        kind::<SolverFlags>("--seed 1 --settings f"),
        ErrorKind::ArgumentConflict
    );
    assert_eq!(
        kind::<TesterFlags>("--node 1 --settings f"),
        ErrorKind::ArgumentConflict
    );
    // Without a file the flags are asked for as ever.
    assert_eq!(
        kind::<StreamFlags>("--node 0"),
        ErrorKind::MissingRequiredArgument
    );
    parse::<StreamFlags>("--settings f --label node 0 streamer b").expect("a label and a file");
}

#[test]
fn a_wrong_value_is_named_as_it_was_given() {
    let said = |result: Result<_>| match result {
        Ok(_) => panic!("taken"),
        Err(error) => dogwild_lab::out::told(&*error),
    };
    let text = said(settings::<SolverFlags>("--buffer b --index 1"));
    assert!(text.starts_with("--index 1 of 1 solvers"), "{text}");

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("f.json");
    std::fs::write(&file, r#"{"buffer": "b", "index": 1}"#).expect("written");
    let line = format!("--settings {}", file.display());
    let text = said(settings::<SolverFlags>(&line));
    assert!(text.contains("f.json: index 1 of 1 solvers"), "{text}");
    let text = said(settings::<SolverFlags>("--settings /no/such/file"));
    assert!(
        text.contains("cannot read the settings /no/such/file"),
        "{text}"
    );

    for (field, flag) in [
        ("stream.rate_bytes_per_s", "--rate 1"),
        ("transport.pace_bytes_per_s", "--pace 1"),
        ("faults.delay_ms", "--delay 1"),
        ("max_age", "--max-age 1"),
    ] {
        let error = SettingsError {
            field,
            what: "1".to_owned(),
        };
        assert_eq!(by_flag(&error).to_string(), flag);
    }
}
