//! Wrong use of the programs: each mistake has its message, and none panics or hangs.

#![cfg(feature = "program")]

mod support;

use std::path::PathBuf;
use std::process::Command;

use support::output::{assert_says, refused, succeeds};
use support::program::{DOGWILD, dogwild};
use support::shm::shm_folder;
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// A buffer of LeNet under /dev/shm, removed with its folder.
struct Buffer(TempDir);

impl Buffer {
    /// Where one is going to be.
    fn none() -> Self {
        Self(shm_folder())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("buffer")
    }

    fn make(session: &str) -> Self {
        let buffer = Self::none();
        let mut init = dogwild();
        init.args(["init", "--session", session, "--nodes", "2", "--buffer"]);
        succeeds(init.arg(buffer.path()));
        buffer
    }
}

#[test]
fn unknown_values_are_answered_with_what_there_is() {
    let said = refused(dogwild().args(["train", "--transport", "carrier-pigeon"]));
    assert_says(
        &said,
        &["carrier-pigeon", "--transport", "udp", "packet_mmap"],
    );
    let said = refused(dogwild().args(["train", "--loss", "ten"]));
    assert_says(&said, &["ten", "--loss", "10%"]);
    let said = refused(dogwild().args(["train", "--rate", "fast"]));
    assert_says(&said, &["fast", "64MB"]);
    let said = refused(dogwild().args(["train", "--data", "imagenet:/data"]));
    assert_says(&said, &["imagenet", "digits", "mnist:", "cifar10:"]);
    let said = refused(dogwild().args(["train", "--nods", "3"]));
    assert_says(&said, &["--nods", "--nodes"]);
}

#[test]
fn a_missing_data_folder_is_named() {
    let out = folder();
    let said = refused(
        dogwild()
            .args(["train", "--data", "mnist:/no/such/folder", "--out"])
            .arg(out.path()),
    );
    assert_says(&said, &["/no/such/folder"]);
    #[cfg(feature = "data-get")]
    assert_says(&said, &["dogwild data get mnist"]);
}

/// Seen: the buffers were made and the streamers started before the first of them said so, in its
/// log.
#[test]
fn a_capture_file_that_cannot_be_written_is_named_before_anything_is_made() {
    let at = folder();
    let said = refused(
        dogwild()
            .args(["train", "--data", "digits:1,train=400,test=100"])
            .args(["--iterations", "2", "--capture", "none/here/run.pcapng"])
            .current_dir(at.path()),
    );
    assert_says(
        &said,
        &["--capture none/here/run.pcapng", "mkdir -p none/here"],
    );
    assert!(
        !said.contains("node0-stream.log") && !said.contains("last words"),
        "{said}"
    );
    assert!(!at.path().join("out").exists());
}

/// Seen: the coordinator's process refused them, when buffers and an output folder had been made.
#[test]
fn a_cluster_that_cannot_be_is_refused_with_the_arguments() {
    let at = folder();
    for (args, words) in [
        (
            &["--workers", "0"][..],
            &["--workers", "0 is not in 1.."][..],
        ),
        (
            &["--servers", "0", "--scheme", "onebit"],
            &["--servers", "scheme onebit, which needs a server"],
        ),
        (
            &["--threads-per-worker", "0"],
            &["--threads-per-worker", "0 is not in 1.."],
        ),
        (
            &["--servers", "999"],
            &[
                "--servers",
                "999 servers, but only",
                "KV pairs",
                "use fewer servers",
            ],
        ),
        (
            &["--stragglers", "drop", "--quorum", "0"],
            &["--quorum: a quorum of 0", "share above 0"],
        ),
    ] {
        let mut command = dogwild();
        command.args(["train", "--sync", "poseidon", "--iterations", "2"]);
        let said = refused(command.args(args).current_dir(at.path()));
        assert_says(&said, words);
        assert!(!said.contains("coordinator"), "{said}");
        assert!(!at.path().join("out").exists(), "{args:?}");
    }
    let said = refused(dogwild().args(["coordinator", "--workers", "0"]));
    assert_says(&said, &["--workers", "0 is not in 1.."]);
}

#[test]
fn a_truncated_idx_file_is_named_with_its_length() {
    let data = folder();
    let file =
        |name: &str, bytes: &[u8]| std::fs::write(data.path().join(name), bytes).expect("a file");
    // Announces 60,000 pictures and has 84 bytes of them.
    let mut images = vec![0, 0, 8, 3, 0, 0, 0xEA, 0x60, 0, 0, 0, 28, 0, 0, 0, 28];
    images.resize(100, 7);
    file("train-images-idx3-ubyte", &images);
    file("train-labels-idx1-ubyte", &[0, 0, 8, 1, 0, 0, 0, 1, 5]);
    file("t10k-images-idx3-ubyte", &images);
    file("t10k-labels-idx1-ubyte", &[0, 0, 8, 1, 0, 0, 0, 1, 5]);
    let source = format!("mnist:{}", data.path().display());
    let said = refused(
        dogwild()
            .args(["train", "--data", &source, "--out"])
            .arg(data.path().join("out")),
    );
    assert_says(&said, &["train-images-idx3-ubyte", "truncated"]);
}

#[test]
fn a_prototxt_with_an_unknown_layer_is_named() {
    let models = folder();
    let net = models.path().join("net.prototxt");
    std::fs::write(
        &net,
        r#"name: "odd"
layer { name: "data" type: "Data" top: "data" top: "label" data_param { batch_size: 8 } }
layer { name: "magic" type: "Wishful" bottom: "data" top: "magic" }
"#,
    )
    .expect("a file");
    let solver = models.path().join("solver.prototxt");
    std::fs::write(
        &solver,
        format!(
            "net: \"{}\"\nbase_lr: 0.1\nlr_policy: \"fixed\"\nmax_iter: 10\n",
            net.display()
        ),
    )
    .expect("a file");
    let said = refused(
        dogwild()
            .args(["train", "--solver"])
            .arg(&solver)
            .arg("--out")
            .arg(models.path().join("out")),
    );
    assert_says(&said, &["magic", "Wishful", "net.prototxt", "Convolution"]);
}

#[test]
fn an_interface_that_does_not_exist_is_answered_with_those_that_do() {
    let buffer = Buffer::make("wrong-use");
    for transport in ["udp", "packet_mmap", "af_xdp", "xdp_mmap"] {
        let said = refused(
            dogwild()
                .args([
                    "stream",
                    "--node",
                    "0",
                    "--transport",
                    transport,
                    "--iface",
                    "eth77",
                    "--buffer",
                ])
                .arg(buffer.path()),
        );
        assert_says(&said, &["eth77", "lo"]);
    }
}

#[test]
fn raw_sockets_without_privilege_say_what_to_do() {
    let lab = match dogwild_lab::Lab::up(&dogwild_lab::Spec::of(2)) {
        Ok(lab) => lab,
        Err(error) => {
            dogwild_lab::skip::skip(&error.to_string());
            return;
        }
    };
    let buffer = Buffer::make("wrong-use");
    // An Ethernet interface there is, but every capability is taken away.
    let said = refused(
        lab.command(0, "setpriv")
            .args(["--bounding-set=-all", "--inh-caps=-all"])
            .arg(DOGWILD)
            .args([
                "stream",
                "--node",
                "0",
                "--transport",
                "packet_mmap",
                "--iface",
                "eth0",
                "--buffer",
            ])
            .arg(buffer.path()),
    );
    // The very program that was started, not one that `which` may find.
    let program = format!("cap_net_raw+ep {DOGWILD}`");
    assert_says(&said, &["CAP_NET_RAW", "setcap", &program]);
}

#[test]
fn links_of_a_lab_belong_to_a_lab() {
    let said = |args: &[&str]| refused(dogwild().arg("train").args(args));
    assert_says(&said(&["--lab-rate", "1Mbit"]), &["--lab"]);
    let datagrams = said(&["--lab", "--lab-congestion", "cubic"]);
    assert_says(
        &datagrams,
        &["--lab-congestion means nothing", "--sync poseidon"],
    );
    let unknown = ["--sync", "poseidon", "--lab", "--lab-congestion", "slow"];
    assert_says(
        &said(&unknown),
        &["no TCP congestion control `slow`", "cubic"],
    );
}

#[test]
fn raw_ethernet_without_a_cable_points_to_the_lab() {
    let said = refused(dogwild().args(["train", "--transport", "packet_mmap"]));
    assert_says(&said, &["--lab", "--iface"]);
}

#[test]
fn verbs_without_its_library_device_or_port_says_how_to_get_one() {
    let buffer = Buffer::make("wrong-use");
    let said = refused(
        dogwild()
            .args(["stream", "--node", "0", "--transport", "verbs"])
            .args(["--iface", "eth77", "--buffer"])
            .arg(buffer.path()),
    );
    // Which of the three is missing depends on the host.
    let wanted: [&[&str]; 3] = [
        &["libibverbs.so.1", "apt-get install"],
        &["no RDMA device", "rdma link add"],
        &["`eth77`", "there are"],
    ];
    let says = |words: &&[&str]| words.iter().all(|word| said.contains(word));
    assert!(wanted.iter().any(says), "{said}");
}

#[test]
fn a_buffer_that_is_there_is_never_reused_in_silence() {
    let buffer = Buffer::make("monday");
    let init = |session: &str| {
        let mut command = dogwild();
        command
            .args(["init", "--session", session, "--buffer"])
            .arg(buffer.path());
        command
    };
    assert_says(&refused(&mut init("monday")), &["--resume", "--fresh"]);
    assert_says(&refused(init("tuesday").arg("--resume")), &["session"]);
    succeeds(init("monday").arg("--resume"));
}

#[test]
fn a_buffer_of_another_model_or_no_buffer_is_refused() {
    let buffer = Buffer::make("wrong-use");
    // LeNet has two conv and two inner-product layers; CIFAR-10 quick three and two, on other
    // pictures.
    let said = refused(
        dogwild()
            .args([
                "solver",
                "--solver",
                "cifar10_quick",
                "--data",
                "digits",
                "--nodes",
                "1",
                "--buffer",
            ])
            .arg(buffer.path()),
    );
    assert_says(&said, &["model"]);
    let file = folder().path().join("text");
    std::fs::create_dir_all(file.parent().expect("a parent")).expect("a folder");
    std::fs::write(&file, "not a buffer at all").expect("a file");
    let said = refused(
        dogwild()
            .args(["stream", "--node", "0", "--buffer"])
            .arg(&file),
    );
    assert_says(&said, &["text"]);
    let said = refused(dogwild().args([
        "stream",
        "--node",
        "0",
        "--buffer",
        "/dev/shm/dogwild-no-such",
    ]));
    assert_says(&said, &["/dev/shm/dogwild-no-such"]);
}

/// LeNet takes MNIST and the built-in digits alike: only the buffer knows which it learns.
#[test]
fn data_of_another_kind_than_the_buffers_is_named() {
    let buffer = Buffer::none();
    // `init` reads no pictures.
    let init = |data: &str| {
        let mut command = dogwild();
        // One iteration: a component that is not refused ends.
        command.args(["init", "--nodes", "1", "--iterations", "1"]);
        command
            .args(["--data", data, "--buffer"])
            .arg(buffer.path());
        command
    };
    succeeds(&mut init("mnist:/nowhere"));
    let named = ["mnist 1x28x28/10", "digits 1x28x28/10", "--data"];
    for component in [
        &["solver", "--nodes", "1"][..],
        &["gpu", "--device", "host", "--solver", "lenet"],
    ] {
        let mut command = dogwild();
        command
            .args(component)
            .args(["--data", "digits:1,train=100,test=100", "--buffer"]);
        assert_says(&refused(command.arg(buffer.path())), &named);
    }
    assert_says(&refused(init("digits").arg("--resume")), &named);
    // The kind counts, not the folder.
    succeeds(init("mnist:/elsewhere").arg("--resume"));
}

#[test]
fn a_full_shared_memory_is_said_before_anything_is_written() {
    let mount = folder();
    let script = format!(
        "mount -t tmpfs -o size=1m none {dir} && exec {bin} init --buffer {dir}/buffer",
        dir = mount.path().display(),
        bin = DOGWILD
    );
    let works = Command::new("unshare").args(["-Urm", "true"]).status();
    if !works.is_ok_and(|status| status.success()) {
        dogwild_lab::skip::skip(
            "`unshare -Urm` (util-linux, user namespaces) to mount a small tmpfs",
        );
        return;
    }
    let said = refused(Command::new("unshare").args(["-Urm", "sh", "-c", &script]));
    assert_says(&said, &["MiB", "free"]);
}

#[test]
fn indices_and_nodes_that_do_not_fit_are_refused() {
    let buffer = Buffer::make("wrong-use");
    let said = refused(
        dogwild()
            .args(["stream", "--node", "16", "--nodes", "2", "--buffer"])
            .arg(buffer.path()),
    );
    assert_says(&said, &["node 16 of 16 places"]);
    let said = refused(
        dogwild()
            .args(["solver", "--index", "1", "--solvers", "1", "--buffer"])
            .arg(buffer.path()),
    );
    assert_says(&said, &["--index 1"]);
}
