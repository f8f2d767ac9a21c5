//! The syncer: what the device does reaches the buffer once, what the buffer does reaches the
//! device, whatever else is at work and whichever process is killed. Held against a host device,
//! and against a GPU where there is one (in CI a stand-in: `tests/cuda_standin.rs`).

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
#[cfg(feature = "cuda")]
use crate::device::DeviceError;
use crate::device::host::HostDevice;
use crate::device::kernels::add_scalar;
use crate::device::{Device, HostMemory, Memory, Stream};
use crate::watch::GpuMeter;
use crate::weights::{
    BufferSpec, Created, Existing, GpuState, Manifest, Role, SharedWeights, Writes,
};

pub(super) fn buffer(path: &Path, n: usize) -> Arc<SharedWeights> {
    let spec = BufferSpec {
        session: 5,
        manifest: Manifest::new(vec![("w".to_owned(), vec![n])]).unwrap(),
        data: Default::default(),
    };
    Arc::new(
        match SharedWeights::create(path, &spec, Existing::Resume).unwrap() {
            Created::New(new) => new.ready(),
            Created::Resumed(old) => old,
        },
    )
}

fn state(shared: &SharedWeights, index: u32) -> Arc<GpuState> {
    let path = GpuState::path_beside(shared.path(), index);
    let words = slot_words(shared.used());
    Arc::new(
        GpuState::open_or_create(&path, shared.id(), shared.used(), words)
            .unwrap()
            .0,
    )
}

pub(super) fn syncer<D: Device>(
    device: &D,
    shared: &Arc<SharedWeights>,
    index: u32,
    adding: Adding,
) -> GpuSyncer<D> {
    GpuSyncer::new(device, shared, &state(shared, index), adding).unwrap()
}

/// The first GPU, if there is one.
#[cfg(feature = "cuda")]
fn a_gpu() -> Option<crate::device::cuda::CudaDevice> {
    match crate::device::cuda::CudaDevice::open(0) {
        Ok(device) => Some(device),
        Err(error) => {
            assert!(matches!(error, DeviceError::Missing { .. }), "{error}");
            let place = "where there is a GPU (docs/guide/gpu.md)";
            dogwild_lab::skip::elsewhere(&error.to_string(), place);
            None
        }
    }
}

#[test]
fn a_host_device_is_kept_in_step() {
    let open = |index| HostDevice::new(index as usize);
    both_sides_end_with_the_sum_of_what_both_did(&open(0));
    several_devices_share_one_buffer([0, 1, 2].map(open));
    weights_that_are_not_finite_heal(&open(0));
}

#[cfg(feature = "cuda")]
#[test]
fn a_gpu_is_kept_in_step() {
    let Some(device) = a_gpu() else { return };
    both_sides_end_with_the_sum_of_what_both_did(&device);
    // Several logical devices on one GPU.
    several_devices_share_one_buffer([0, 1, 2].map(|_| a_gpu().expect("the same")));
    weights_that_are_not_finite_heal(&device);
}

pub(super) const fn racy(threads: usize) -> Adding {
    let writes = Writes::Racy;
    Adding { writes, threads }
}

fn on_device<D: Device>(syncer: &GpuSyncer<D>) -> Vec<f32> {
    let back = HostMemory::zeroed(syncer.weights().len()).unwrap();
    let stream = syncer.stream();
    stream.download(syncer.weights().all(), back.all()).unwrap();
    stream.finish().unwrap();
    (0..back.len()).map(|i| back.view().load(i)).collect()
}

fn on_host(shared: &SharedWeights, n: usize) -> Vec<f32> {
    (0..n).map(|i| shared.view().load(i)).collect()
}

fn both_sides_end_with_the_sum_of_what_both_did<D: Device>(device: &D) {
    let folder = tempfile::tempdir().unwrap();
    // Not a multiple of the chunk, nor of a block.
    let n = 1001;
    let shared = buffer(&folder.path().join("w"), n);
    let start = |i: usize| i as f32 * 0.5;
    (0..n).for_each(|i| shared.view().store(i, start(i)));
    let chunks = [16, 48, 320, 512, 1008, 1 << 20];
    let all = chunks.map(|chunk| [1, 2, 5].map(|adders| (chunk, adders)));
    for (chunk, adders) in all.into_iter().flatten() {
        let before = on_host(&shared, n);
        // Adders of their own add while this thread does.
        let writes = match adders {
            1 => Writes::Racy,
            _ => Writes::Atomic,
        };
        let adding = Adding {
            writes,
            threads: adders,
        };
        let mut syncer = syncer(device, &shared, 0, adding);
        syncer.set_chunk(chunk).unwrap();
        syncer.cycle().unwrap();
        syncer.drain().unwrap();
        assert_eq!(syncer.counts().deltas, 0, "the first cycle only takes");
        assert_eq!(on_device(&syncer)[..n], before);
        // The last round is still on its way when the last cycle begins.
        for round in 0..6 {
            add_scalar(&**syncer.stream(), syncer.weights().part(0..n), 2.0).unwrap();
            (0..n).for_each(|i| shared.view().atomic_add(i, 1.0));
            syncer.cycle().unwrap();
            if round % 2 == 0 {
                syncer.drain().unwrap();
            }
        }
        syncer.cycle().unwrap();
        syncer.drain().unwrap();
        let want: Vec<f32> = before.iter().map(|x| x + 18.0).collect();
        assert_eq!(on_host(&shared, n), want, "{adders}, chunks of {chunk}");
        assert_eq!(on_device(&syncer)[..n], want, "{adders}, chunks of {chunk}");
        assert_eq!(shared.view().load(n), 0.0, "the tail stays zero");
        assert_eq!(syncer.counts().cycles, 8);
    }
}

fn several_devices_share_one_buffer<D: Device>(devices: [D; 3]) {
    let folder = tempfile::tempdir().unwrap();
    let n = 4096;
    let shared = buffer(&folder.path().join("w"), n);
    let mut index = 0;
    let mut syncers = devices.map(|device| {
        // Atomic: several threads add to the same weights, and not one addition may be lost.
        let (writes, threads) = (Writes::Atomic, 1 + index as usize);
        let mut syncer = syncer(&device, &shared, index, Adding { writes, threads });
        index += 1;
        syncer.set_chunk(512).unwrap();
        syncer
    });
    std::thread::scope(|scope| {
        for (k, syncer) in syncers.iter_mut().enumerate() {
            scope.spawn(move || {
                for _ in 0..200 {
                    let part = syncer.weights().part(syncer.next());
                    add_scalar(&**syncer.stream(), part, (k + 1) as f32).unwrap();
                    syncer.step().unwrap();
                }
                syncer.drain().unwrap();
            });
        }
    });
    // 200 steps of 8 chunks: each chunk 25 times.
    assert_eq!(on_host(&shared, n), vec![25.0 * 6.0; n]);
    for syncer in &mut syncers {
        syncer.cycle().unwrap();
        syncer.drain().unwrap();
        assert_eq!(on_device(syncer), vec![25.0 * 6.0; n]);
    }
}

fn weights_that_are_not_finite_heal<D: Device>(device: &D) {
    let folder = tempfile::tempdir().unwrap();
    let shared = buffer(&folder.path().join("w"), 64);
    let mut syncer = syncer(device, &shared, 0, racy(2));
    add_scalar(&**syncer.stream(), syncer.weights().part(3..5), f32::NAN).unwrap();
    add_scalar(
        &**syncer.stream(),
        syncer.weights().part(8..9),
        f32::INFINITY,
    )
    .unwrap();
    add_scalar(&**syncer.stream(), syncer.weights().part(20..21), 4.0).unwrap();
    syncer.cycle().unwrap();
    syncer.drain().unwrap();
    assert_eq!(syncer.counts().healed, 3);
    let want = |i| if i == 20 { 4.0 } else { 0.0 };
    assert_eq!(on_host(&shared, 64), (0..64).map(want).collect::<Vec<_>>());
    syncer.cycle().unwrap();
    syncer.drain().unwrap();
    assert_eq!(on_device(&syncer), on_host(&shared, 64));
    assert_eq!(syncer.counts().healed, 3);
}

#[test]
fn the_chunk_size_is_one_of_those_that_were_tried() {
    let folder = tempfile::tempdir().unwrap();
    let shared = buffer(&folder.path().join("w"), 100_000);
    let mut syncer = syncer(&HostDevice::new(0), &shared, 0, racy(1));
    let tried = syncer.measure().unwrap();
    let sizes: Vec<usize> = tried.iter().map(|tried| tried.0).collect();
    assert_eq!(sizes, [1 << 14, 1 << 16, 100_000]);
    let best = tried.iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    assert_eq!(syncer.chunk(), best.0);
    assert!(tried.iter().all(|tried| tried.1 > 0.0));
}

const CHILD: &str = "DOGWILD_TEST_GPU_CHILD";
const ADDERS: &str = "DOGWILD_TEST_GPU_ADDERS";
const WEIGHTS: usize = 1 << 18;
const CHUNK: usize = 1 << 15;

/// What the killed process does: each step adds 1 to the weights of the next chunk, so that each
/// delta that lands is 1 everywhere.
fn child<D: Device>(device: &D, path: &Path) {
    let shared = buffer(path, WEIGHTS);
    let state = state(&shared, 0);
    state.recover(shared.view(), Writes::Racy).unwrap();
    let adders = std::env::var(ADDERS).unwrap().parse().unwrap();
    let mut syncer = GpuSyncer::new(device, &shared, &state, racy(adders)).unwrap();
    syncer.set_chunk(CHUNK).unwrap();
    // On a line of its own: the test runner has begun one.
    println!("\nup");
    loop {
        let part = syncer.weights().part(syncer.next());
        add_scalar(&**syncer.stream(), part, 1.0).unwrap();
        syncer.step().unwrap();
    }
}

/// Time that the threads of a process have run, ns, as of their last turn or tick.
fn cpu_ns(process: &Child) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.id())).expect("it runs");
    let ran = |task: std::io::Result<std::fs::DirEntry>| -> u64 {
        let path = task.expect("a thread").path().join("schedstat");
        let text = std::fs::read_to_string(path).expect("three numbers");
        let first = text.split_whitespace().next().expect("three numbers");
        first.parse().expect("a number")
    };
    tasks.map(ran).sum()
}

#[test]
fn killed_and_started_again_it_loses_and_doubles_nothing() {
    let name = "killed_and_started_again_it_loses_and_doubles_nothing";
    survives_kills(&HostDevice::new(0), name);
}

#[cfg(feature = "cuda")]
#[test]
fn a_gpu_whose_component_is_killed_loses_and_doubles_nothing() {
    let Some(device) = a_gpu() else { return };
    let name = "a_gpu_whose_component_is_killed_loses_and_doubles_nothing";
    survives_kills(&device, name);
}

/// Kills children, each of which runs the test `test` with this device.
fn survives_kills<D: Device>(device: &D, test: &str) {
    if let Some(path) = std::env::var_os(CHILD) {
        return child(device, Path::new(&path));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    let seed = 20_261_121;
    println!("seed {seed}");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let (mut recovered, mut landed) = (0, 0);
    let (_, name) = module_path!().split_once("::").unwrap();
    for kills in 1.. {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = format!("{name}::{test}");
        command.args(["--exact", &test, "--nocapture", "--test-threads", "1"]);
        command
            .env(CHILD, &path)
            .env(ADDERS, [1, 3][kills % 2].to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        dogwild_lab::process::die_with_parent(&mut command);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "up"));
        // Any moment will do: the test asserts nothing about how far it has come. On a busy machine
        // the child waits most of the time, always at the same places: what counts is how long it
        // has run.
        let run_for = random.random_range(0..10_000_000);
        let (begun, patience) = (cpu_ns(&child), Instant::now() + Duration::from_secs(1));
        std::thread::sleep(Duration::from_nanos(run_for));
        while cpu_ns(&child) - begun < run_for && Instant::now() < patience {
            std::thread::sleep(Duration::from_micros(50));
        }
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        let shared = buffer(&path, WEIGHTS);
        let state = state(&shared, 0);
        recovered += state.recover(shared.view(), Writes::Racy).unwrap();
        let w = on_host(&shared, WEIGHTS);
        let chunks: Vec<&[f32]> = w.chunks(CHUNK).collect();
        for chunk in &chunks {
            assert!(
                chunk.iter().all(|x| x == &chunk[0]),
                "a chunk was added in part"
            );
        }
        let sum: f32 = chunks.iter().map(|chunk| chunk[0]).sum();
        assert_eq!(
            sum as u64,
            state.landed(),
            "each landed delta is there once"
        );
        assert!(state.landed() >= landed);
        landed = state.landed();
        // Until some kills have met a delta between landing and the end of its addition.
        if kills >= 100 && recovered >= 5 {
            println!("{kills} kills, {landed} deltas, {recovered} of them recovered");
            break;
        }
        assert!(kills < 3000, "no kill meets a delta that has landed");
    }
}

#[test]
fn the_component_sends_everything_before_it_stops_and_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    let shared = buffer(&path, 5000);
    (0..5000).for_each(|i| shared.view().store(i, i as f32));
    let sync = SyncJob {
        buffer: path.clone(),
        index: 2,
        adding: racy(2),
        chunk_weights: Some(1024),
        rate_bytes_per_s: Some(50e6),
    };
    let job = GpuJob {
        sync,
        ipc: false,
        solver: None,
    };
    // Left by a killed one: has landed, was not added.
    let left = state(&shared, 2);
    (0..LANDED).for_each(|i| left.landing().store(crate::weights::LANDING_HEAD + i, 0.5));
    left.land(0, 512, LANDED);
    drop(left);
    let file = GpuState::path_beside(&path, 2);
    let pages = || std::fs::metadata(&file).unwrap().ino();
    let (before, now) = (std::fs::File::open(&file).unwrap(), pages());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| run_gpu(&HostDevice::new(0), &job, &stop));
        let done = || {
            let slots = shared.slots();
            let slot = slots.iter().find(|slot| slot.role == Role::Gpu);
            slot.map_or(0, |slot| GpuMeter::Cycles.of(&slot.meters))
        };
        while done() < 3 && !running.is_finished() {
            std::thread::yield_now();
        }
        let second = run_gpu(&HostDevice::new(1), &job, &stop)
            .unwrap_err()
            .to_string();
        assert!(
            second.contains("in use") || second.contains("held"),
            "{second}"
        );
        stop.store(true, Relaxed);
        running.join().unwrap().unwrap();
    });
    assert_ne!(
        pages(),
        now,
        "what may still be written to by a killed one's device"
    );
    drop(before);
    let want = |i: usize| {
        i as f32
            + if (512..512 + LANDED).contains(&i) {
                0.5
            } else {
                0.0
            }
    };
    assert_eq!(
        on_host(&shared, 5000),
        (0..5000).map(want).collect::<Vec<_>>()
    );
    let slots = shared.slots();
    let slot = slots.iter().find(|slot| slot.role == Role::Gpu).unwrap();
    assert_eq!((slot.index, slot.pid), (2, 0));
    assert_eq!(GpuMeter::DeltasRecovered.of(&slot.meters), 1);
    assert_eq!(GpuMeter::ChunkWeights.of(&slot.meters), 1024);
}

const LANDED: usize = 256;
