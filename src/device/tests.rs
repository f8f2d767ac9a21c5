//! What every device promises, checked on the host device (and, where there is one, on a GPU).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};

use super::host::HostDevice;
use super::kernels::{self, TOLD};
use super::*;
use crate::weights::WeightsView;

fn host(values: impl IntoIterator<Item = f32>) -> HostMemory {
    let values: Vec<f32> = values.into_iter().collect();
    let memory = HostMemory::zeroed(values.len()).unwrap();
    for (i, x) in values.into_iter().enumerate() {
        memory.view().word(i).store(x.to_bits(), Relaxed);
    }
    memory
}

fn values(memory: &HostMemory) -> Vec<f32> {
    (0..memory.len()).map(|i| memory.view().load(i)).collect()
}

/// A gate that host kernels wait at, so that a test decides when a stream goes on.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    const fn new() -> Self {
        Self {
            open: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    fn pass(&self) {
        let open = self.open.lock().unwrap();
        drop(self.changed.wait_while(open, |open| !*open).unwrap());
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

/// A kernel that only the host device has.
const fn kernel(name: &'static str, host: fn(&[WeightsView<'_>], &[Number])) -> Kernel {
    Kernel {
        name,
        source: "",
        plan: |_, _| Shape::of(0),
        host,
    }
}

fn goes_up_and_down<D: Device>(device: &D) {
    let stream = device.stream().unwrap();
    let memory = device.alloc(100).unwrap();
    let (from, to) = (host((0..40).map(|i| i as f32)), host([9.0; 100]));
    device.pin(&from).unwrap();
    device.pin(&to).unwrap();
    device.pin(&to).unwrap();
    stream
        .upload(from.part(10..40), memory.part(50..80))
        .unwrap();
    stream.download(memory.all(), to.all()).unwrap();
    stream.finish().unwrap();
    let want: Vec<f32> = (0..100)
        .map(|i| {
            if (50..80).contains(&i) {
                (i - 40) as f32
            } else {
                0.0
            }
        })
        .collect();
    assert_eq!(values(&to), want);
}

fn takes_a_position<D: Device>(device: &D) {
    let n = 32;
    let stream = device.stream().unwrap();
    let [w, last, pos] = [(); 3].map(|()| device.alloc(n).unwrap());
    let out = device.alloc(n + TOLD).unwrap();
    let here = host((0..n).map(|i| if i == 3 { f32::NAN } else { i as f32 * 1.5 }));
    let position = host((0..n).map(|i| 100.0 - i as f32));
    stream.upload(here.all(), w.all()).unwrap();
    stream.upload(position.all(), pos.all()).unwrap();
    let tell = |tag| {
        kernels::take_position(&stream, w.all(), last.all(), pos.all(), out.all(), tag).unwrap();
        let (now, told) = (host(vec![0.0; n]), host(vec![0.0; n + TOLD]));
        stream.download(w.all(), now.all()).unwrap();
        stream.download(out.all(), told.all()).unwrap();
        stream.finish().unwrap();
        let told_words = [0, 1].map(|i| told.view().word(i).load(Relaxed));
        (values(&now), values(&told)[TOLD..].to_vec(), told_words)
    };
    let delta = |i: usize| if i == 3 { 0.0 } else { i as f32 * 1.5 };
    let (now, deltas, told) = tell(7);
    assert_eq!(deltas, (0..n).map(delta).collect::<Vec<_>>());
    assert_eq!(
        now,
        (0..n)
            .map(|i| 100.0 - i as f32 + delta(i))
            .collect::<Vec<_>>()
    );
    assert_eq!(told, [1, 7], "one weight healed, and some moved");
    let (now, deltas, told) = tell(8);
    assert_eq!(deltas, vec![0.0; n], "nothing has moved since");
    assert_eq!(now, values(&position));
    assert_eq!(told, [1, 7]);
}

/// Work that is on streams keeps what it uses: nothing waits here until all else is gone.
fn work_keeps_what_it_uses<D: Device>(device: &D) {
    let back = host(vec![0.0; 64 * 1000]);
    // Else a copy waits for all work before it.
    device.pin(&back).unwrap();
    for i in 0..64 {
        let [up, down] = [(); 2].map(|()| device.stream().unwrap());
        let memory = device.alloc(1000).unwrap();
        let from = host(vec![i as f32; 1000]);
        device.pin(&from).unwrap();
        up.upload(from.all(), memory.all()).unwrap();
        down.wait(&up.record().unwrap()).unwrap();
        let part = i * 1000..(i + 1) * 1000;
        down.download(memory.all(), back.part(part)).unwrap();
    }
    let want = (0..64).flat_map(|i| [i as f32; 1000]);
    assert_eq!(values(&back), want.collect::<Vec<_>>());
}

/// Two users of one memory register it, and one of them goes while work of the other uses it.
fn memory_stays_pinned_for_its_last_user<D: Device>(device: &D) {
    let words = Arc::new(host(vec![1.0; 5000]));
    for _ in 0..16 {
        let [one, other] = [(); 2].map(|()| HostMemory::of(words.clone(), |words| words.view()));
        device.pin(&one).unwrap();
        device.pin(&other).unwrap();
        let (stream, memory) = (device.stream().unwrap(), device.alloc(5000).unwrap());
        stream.upload(other.all(), memory.all()).unwrap();
        drop(one);
        stream.finish().unwrap();
    }
}

/// New memory is zero for work on any stream.
fn memory_is_new<D: Device>(device: &D) {
    for _ in 0..16 {
        let (stream, back) = (device.stream().unwrap(), host([7.0; 5000]));
        let memory = device.alloc(5000).unwrap();
        stream.download(memory.all(), back.all()).unwrap();
        let event = stream.record().unwrap();
        event.wait().unwrap();
        assert!(event.is_done().unwrap());
        assert_eq!(values(&back), [0.0; 5000]);
    }
}

fn several_devices_do_not_see_each_other<D: Device>(devices: &[D]) {
    let memories: Vec<_> = devices
        .iter()
        .map(|d| (d, d.stream().unwrap(), d.alloc(16).unwrap()))
        .collect();
    for (k, (_, stream, memory)) in memories.iter().enumerate() {
        stream
            .upload(host([k as f32; 16]).all(), memory.all())
            .unwrap();
    }
    for (k, (_, stream, memory)) in memories.iter().enumerate() {
        let back = host([-1.0; 16]);
        stream.download(memory.all(), back.all()).unwrap();
        stream.finish().unwrap();
        assert_eq!(values(&back), [k as f32; 16]);
    }
}

fn keeps_promises<D: Device>(device: &D) {
    goes_up_and_down(device);
    takes_a_position(device);
    work_keeps_what_it_uses(device);
    memory_stays_pinned_for_its_last_user(device);
    memory_is_new(device);
}

#[test]
fn the_host_device_keeps_what_every_device_promises() {
    let device = HostDevice::new(0);
    keeps_promises(&device);
    several_devices_do_not_see_each_other(&[device, HostDevice::new(1), HostDevice::new(2)]);
}

#[test]
fn a_gpu_keeps_what_every_device_promises() {
    #[cfg(feature = "cuda")]
    match cuda::CudaDevice::open(0) {
        Ok(device) => {
            keeps_promises(&device);
            // Several logical devices on one GPU.
            let others = [(); 2].map(|()| cuda::CudaDevice::open(0).unwrap());
            several_devices_do_not_see_each_other(&[device, others[0].clone(), others[1].clone()]);
        }
        Err(error) => {
            assert!(matches!(error, DeviceError::Missing { .. }), "{error}");
            dogwild_lab::skip::elsewhere(
                &error.to_string(),
                "where there is a GPU (docs/guide/gpu.md)",
            );
        }
    }
}

#[test]
fn nothing_runs_before_its_turn_and_the_caller_does_not_wait() {
    static GATE: Gate = Gate::new();
    static WAIT: Kernel = kernel("wait", |_, _| GATE.pass());
    let device = HostDevice::new(0);
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let memory = device.alloc(16).unwrap();
    let (early, late) = (host([0.0; 16]), host([0.0; 16]));
    first.launch(&WAIT, &[], &[]).unwrap();
    let from = host([1.0; 16]);
    first.upload(from.all(), memory.all()).unwrap();
    let uploaded = first.record().unwrap();
    // The other stream goes on meanwhile: it sees the memory before the upload.
    second.download(memory.all(), early.all()).unwrap();
    second.finish().unwrap();
    assert!(!uploaded.is_done().unwrap());
    assert_eq!(values(&early), [0.0; 16]);
    second.wait(&uploaded).unwrap();
    second.download(memory.all(), late.all()).unwrap();
    let end = second.record().unwrap();
    assert!(!end.is_done().unwrap());
    // An upload reads its source when its turn comes, not before.
    for i in 0..16 {
        from.view().store(i, 2.0);
    }
    GATE.open();
    end.wait().unwrap();
    assert!(uploaded.is_done().unwrap() && end.is_done().unwrap());
    assert_eq!(values(&late), [2.0; 16]);
}

#[test]
fn memory_lives_as_long_as_the_work_that_uses_it() {
    static GATE: Gate = Gate::new();
    static WAIT: Kernel = kernel("wait", |_, _| GATE.pass());
    struct Owner(HostMemory, Arc<AtomicBool>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.store(true, Relaxed);
        }
    }
    let device = HostDevice::new(0);
    let stream = device.stream().unwrap();
    let dropped = Arc::new(AtomicBool::new(false));
    let memory = device.alloc(16).unwrap();
    stream.launch(&WAIT, &[], &[]).unwrap();
    {
        let owner = Arc::new(Owner(host([3.0; 16]), dropped.clone()));
        let lent = HostMemory::of(owner, |owner| owner.0.view());
        stream.upload(lent.all(), memory.all()).unwrap();
    }
    assert!(!dropped.load(Relaxed), "the queue still holds it");
    GATE.open();
    let back = host([0.0; 16]);
    stream.download(memory.all(), back.all()).unwrap();
    drop(stream);
    assert!(dropped.load(Relaxed));
    assert_eq!(
        values(&back),
        [3.0; 16],
        "a dropped stream finishes its work"
    );
}

#[test]
fn a_failure_reaches_everybody_who_waits() {
    static BAD: Kernel = kernel("bad", |_, _| panic!("on purpose"));
    let device = HostDevice::new(4);
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let memory = device.alloc(16).unwrap();
    first.launch(&BAD, &[], &[]).unwrap();
    // The queue may have failed already: then the call says so itself.
    let failed = first.record().and_then(|event| {
        second.wait(&event)?;
        event.wait()
    });
    let error = failed.unwrap_err().to_string();
    assert!(
        error.contains("host device 4") && error.contains("bad: on purpose"),
        "{error}"
    );
    let back = host([5.0; 16]);
    assert!(first.download(memory.all(), back.all()).is_err());
    assert!(matches!(first.finish(), Err(DeviceError::Failed { .. })));
}

#[test]
fn what_waits_for_a_failed_stream_fails_too() {
    static GATE: Gate = Gate::new();
    static BAD: Kernel = kernel("bad", |_, _| {
        GATE.pass();
        panic!("on purpose")
    });
    let device = HostDevice::new(0);
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    first.launch(&BAD, &[], &[]).unwrap();
    let event = first.record().unwrap();
    second.wait(&event).unwrap();
    let back = host([5.0; 16]);
    second
        .download(device.alloc(16).unwrap().all(), back.all())
        .unwrap();
    let end = second.record().unwrap();
    GATE.open();
    assert!(end.wait().is_err() && end.is_done().is_err());
    assert_eq!(values(&back), [5.0; 16]);
}

#[test]
#[should_panic(expected = "words 90..101 of 100")]
fn a_part_lies_within_its_memory() {
    HostDevice::new(0).alloc(100).unwrap().part(90..101);
}

#[test]
#[should_panic(expected = "take_position of 32 weights")]
fn a_kernel_refuses_parts_that_do_not_fit() {
    let device = HostDevice::new(0);
    let stream = device.stream().unwrap();
    let memory = device.alloc(32).unwrap();
    let all = || memory.all();
    // `out` lacks the words before the deltas.
    let _ = kernels::take_position(&stream, all(), all(), all(), all(), 1);
}

/// Products of all kinds, of parts of memories, against sums in f64.
/// `tolerance`: of each term.
fn multiplies<D: Device>(device: &D, tolerance: f32) {
    let stream = device.stream().unwrap();
    let up = |values: &[f32]| {
        // Behind a word that is no part of it.
        let host = HostMemory::zeroed(values.len() + 1).unwrap();
        for (at, &value) in values.iter().enumerate() {
            host.view().store(at + 1, value);
        }
        let memory = device.alloc(host.len()).unwrap();
        stream.upload(host.all(), memory.all()).unwrap();
        stream.finish().unwrap();
        memory
    };
    let values = |len: usize, seed: usize| -> Vec<f32> {
        let value = |at: usize| ((at * 37 + seed * 11) % 101) as f32 / 50.0 - 1.0;
        (0..len).map(value).collect()
    };
    for [rows, columns, inner] in [[5, 7, 3], [1, 9, 40], [33, 1, 17], [20, 18, 16]] {
        for case in 0..8 {
            let [turned_left, turned_right, keep] = [1, 2, 4].map(|bit| case & bit != 0);
            let left = values(rows * inner, 1);
            let right = values(inner * columns, 2);
            let before = values(rows * columns, 3);
            let memories = [&left, &right, &before].map(|values| up(values));
            let [a, b, to] = memories
                .each_ref()
                .map(|memory| memory.part(1..memory.len()));
            let sizes = [rows, columns, inner];
            kernels::product(
                &stream,
                [a, b, to],
                sizes,
                [turned_left, turned_right],
                keep,
            )
            .unwrap();
            let back = HostMemory::zeroed(rows * columns + 1).unwrap();
            stream.download(memories[2].all(), back.all()).unwrap();
            stream.finish().unwrap();
            assert_eq!(back.view().load(0), 0.0);
            let of = |from: &[f32], turned: bool, [row, column]: [usize; 2], [m, n]: [usize; 2]| {
                f64::from(
                    from[if turned {
                        column * m + row
                    } else {
                        row * n + column
                    }],
                )
            };
            for row in 0..rows {
                for column in 0..columns {
                    let at = row * columns + column;
                    let terms = (0..inner).map(|i| {
                        of(&left, turned_left, [row, i], [rows, inner])
                            * of(&right, turned_right, [i, column], [inner, columns])
                    });
                    let kept = if keep { f64::from(before[at]) } else { 0.0 };
                    let (found, sum) = (
                        f64::from(back.view().load(at + 1)),
                        kept + terms.sum::<f64>(),
                    );
                    let sizes = [rows, columns, inner];
                    assert!(
                        (found - sum).abs() < f64::from(tolerance) * inner as f64,
                        "{sizes:?}, {case}: {found}, not {sum}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_host_device_multiplies() {
    multiplies(&HostDevice::new(0), 1e-5);
}

/// By cuBLAS where that is here, and by the own kernel.
#[cfg(feature = "cuda")]
#[test]
fn a_gpu_multiplies() {
    use cuda::Products;
    for products in [Products::F32, Products::Tf32, Products::Bf16, Products::Own] {
        match cuda::CudaDevice::open_with(0, products) {
            Ok(device) => multiplies(&device, products.tolerance()),
            Err(error) => {
                assert!(matches!(error, DeviceError::Missing { .. }), "{error}");
                let place = "where there is a GPU (docs/guide/gpu.md)";
                return dogwild_lab::skip::elsewhere(&error.to_string(), place);
            }
        }
    }
}
