//! The sum is the synchronous one bit for bit, whatever the timing; who fails is named.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
use crate::device::host::HostDevice;
use crate::device::{Device, DeviceError, HostMemory, Kernel, Memory, Shape, Stream};
use crate::weights::kernels;

const ORDERS: [Order; 2] = [Order::Parts, Order::Turns];

/// Layers of these sizes, with gaps between them as tensors have.
fn layers(sizes: &[usize]) -> Vec<LayerRange> {
    let mut at = 0;
    let layers = sizes.iter().enumerate().map(|(i, len)| {
        let range = at..at + len;
        at = range.end.next_multiple_of(16);
        let name = format!("layer{i}");
        LayerRange { name, range }
    });
    layers.collect()
}

/// What `device` gives for `layer` in `round`: of all magnitudes, so that the order of addition
/// shows.
fn gradient(device: usize, layer: usize, round: u64, len: usize) -> Vec<f32> {
    let seed = round << 32 | (layer as u64) << 16 | device as u64;
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut value = || {
        let magnitude = 2.0_f32.powi(rng.random_range(-20..20));
        rng.random_range(-1.0_f32..1.0) * magnitude
    };
    (0..len).map(|_| value()).collect()
}

/// The synchronous sum: nothing, plus the first device's, plus the second's, and so on.
fn reference(
    devices: impl Iterator<Item = usize>,
    layer: usize,
    round: u64,
    len: usize,
) -> Vec<u32> {
    let mut total = vec![0.0; len];
    for device in devices {
        for (t, g) in total.iter_mut().zip(gradient(device, layer, round, len)) {
            *t += g;
        }
    }
    bits(&total)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn bits_of(memory: &HostMemory, range: &Range<usize>) -> Vec<u32> {
    let words = range.clone().map(|i| memory.view().word(i).load(Relaxed));
    words.collect()
}

/// Notes the sums of all rounds, by layer.
struct Sums<'s> {
    sum: &'s Sum,
    of: Vec<Mutex<Vec<Vec<u32>>>>,
    floats: AtomicUsize,
}

impl<'s> Sums<'s> {
    fn of(sum: &'s Sum) -> Self {
        Self {
            sum,
            of: (0..sum.layers()).map(|_| Mutex::default()).collect(),
            floats: AtomicUsize::new(0),
        }
    }
}

impl Sink for Sums<'_> {
    fn part(&self, _: usize, range: &Range<usize>) -> Result<(), AccumulateError> {
        self.floats.fetch_add(range.len(), Relaxed);
        Ok(())
    }

    fn layer(&self, layer: usize, clock: u64) -> Result<(), AccumulateError> {
        let mut of = self.of[layer].lock().unwrap();
        assert_eq!(clock, of.len() as u64 + 5);
        of.push(bits_of(self.sum.total(), self.sum.range(layer)));
        Ok(())
    }
}

/// Pauses of up to 100 microseconds, every other one nothing.
struct Pauses(Xoshiro256PlusPlus);

impl Pauses {
    fn next(&mut self) {
        let pause = self.0.random_range(0..200_u64).saturating_sub(100);
        std::thread::sleep(Duration::from_micros(pause));
    }
}

/// By layer and round, what is summed when every device gives `rounds` gradients of all layers,
/// last layer first, with random pauses. Each layer once in each round.
fn run(
    sizes: &[usize],
    devices: usize,
    rounds: u64,
    order: Order,
    seed: u64,
) -> Vec<Vec<Vec<u32>>> {
    let layers = layers(sizes);
    let sum: Sum = Sum::new(&layers, devices, order).unwrap();
    let (sum, layers, sums) = (&sum, &layers, &Sums::of(&sum));
    std::thread::scope(|scope| {
        for thread in 0..devices {
            scope.spawn(move || sum.work(thread, sums, |note| match note {}).unwrap());
        }
        let all = (0..devices).map(|device| {
            scope.spawn(move || {
                let mut pauses = Pauses(Xoshiro256PlusPlus::seed_from_u64(seed ^ device as u64));
                for round in 0..rounds {
                    for (index, layer) in layers.iter().enumerate().rev() {
                        pauses.next();
                        let given = gradient(device, index, round, layer.range.len());
                        sum.give(device, index, round + 5, &given, sums).unwrap();
                    }
                }
                sum.wait(device).unwrap();
            })
        });
        let all: Vec<_> = all.collect();
        all.into_iter().for_each(|device| device.join().unwrap());
        sum.close();
    });
    let floats = sizes.iter().sum::<usize>() * rounds as usize;
    assert_eq!(sums.floats.load(Relaxed), floats);
    let of: Vec<_> = sums
        .of
        .iter()
        .map(|of| of.lock().unwrap().clone())
        .collect();
    assert!(of.iter().all(|of| of.len() == rounds as usize));
    of
}

#[test]
fn sums_are_the_synchronous_ones_bit_for_bit() {
    // The large layer has several parts, the last one of them short.
    let sizes = [3, 1000, 300_001, 17];
    for order in ORDERS {
        for devices in [1, 2, 4] {
            let sums = run(&sizes, devices, 3, order, 7);
            for (layer, of) in sums.into_iter().enumerate() {
                for (round, found) in of.into_iter().enumerate() {
                    let expected = reference(0..devices, layer, round as u64, sizes[layer]);
                    assert!(
                        found == expected,
                        "{order:?}, {devices} devices, layer {layer}"
                    );
                }
            }
        }
    }
}

/// Every device of a host trains through streams: its gradients come from a stream of its own.
fn on_devices<D: Device>(devices: Vec<D>, sizes: &[usize], rounds: u64, order: Order, seed: u64) {
    on_devices_with(devices, sizes, rounds, order, seed, |_, _, _| Ok(()));
}

/// The same, with `work` on each device's way up, by device and layer.
fn on_devices_with<D: Device>(
    devices: Vec<D>,
    sizes: &[usize],
    rounds: u64,
    order: Order,
    seed: u64,
    work: impl Fn(usize, usize, &D::Stream) -> Result<(), DeviceError> + Send + Sync + 'static,
) {
    let count = devices.len();
    let layers = layers(sizes);
    let len = layers.last().unwrap().range.end;
    let memories = devices.iter().map(|device| device.alloc(len).unwrap());
    let memories: Vec<_> = memories.collect();
    let of = devices
        .iter()
        .cloned()
        .zip(memories.iter().cloned())
        .collect();
    let updated = Arc::new(AtomicUsize::new(0));
    let counts = updated.clone();
    let work: Work<D> = Box::new(move |device, layer, _, up| {
        counts.fetch_add(1, Relaxed);
        work(device, layer, up)
    });
    let accumulate = Accumulate::new(&layers, of, order, work).unwrap();
    let (accumulate, layers) = (&accumulate, &layers);
    std::thread::scope(|scope| {
        for thread in 0..count {
            scope.spawn(move || accumulate.work(thread));
        }
        let all = devices.into_iter().zip(memories).enumerate();
        let all = all.map(|(index, (device, memory))| {
            scope.spawn(move || {
                // Else the others would wait for one that has found a wrong sum.
                let watch = accumulate.watch(index);
                let mut pauses = Pauses(Xoshiro256PlusPlus::seed_from_u64(seed ^ index as u64));
                let compute = device.stream().unwrap();
                let host = HostMemory::zeroed(len).unwrap();
                for round in 0..rounds {
                    for (layer, LayerRange { range, .. }) in layers.iter().enumerate().rev() {
                        pauses.next();
                        let given = gradient(index, layer, round, range.len());
                        kernels::copy_in(host.view().slice(range.start, range.len()), &given);
                        let to = memory.part(range.clone());
                        compute.upload(host.part(range.clone()), to).unwrap();
                        let ready = compute.record().unwrap();
                        accumulate.give(index, layer, round, &ready).unwrap();
                    }
                    accumulate.wait(index).unwrap();
                    compute.download(memory.all(), host.all()).unwrap();
                    compute.finish().unwrap();
                    for (layer, LayerRange { range, .. }) in layers.iter().enumerate() {
                        let expected = reference(0..count, layer, round, range.len());
                        assert!(
                            bits_of(&host, range) == expected,
                            "{order:?}, layer {layer}"
                        );
                    }
                }
                watch.done();
            })
        });
        let all: Vec<_> = all.collect();
        let ended: Vec<_> = all.into_iter().map(|device| device.join()).collect();
        accumulate.close();
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    assert_eq!(updated.load(Relaxed), count * sizes.len() * rounds as usize);
}

#[test]
fn every_device_gets_the_synchronous_sum_bit_for_bit() {
    for order in ORDERS {
        for count in [1, 2, 4] {
            let devices = (0..count).map(HostDevice::new).collect();
            on_devices(devices, &[3, 300_001, 1000, 17], 3, order, 9);
        }
    }
}

/// A kernel that takes long.
static SLOW: Kernel = Kernel {
    name: "slow",
    source: "",
    plan: |_, _| Shape::of(0),
    host: |_, _| std::thread::sleep(Duration::from_millis(20)),
};

/// The last layer of a sum reaches one device long after the others: what others give of the next
/// iteration meanwhile does not get into it.
#[test]
fn a_sum_on_its_way_up_is_not_written() {
    for order in ORDERS {
        let devices = (0..3).map(HostDevice::new).collect();
        on_devices_with(
            devices,
            &[1000, 17],
            5,
            order,
            9,
            |device, layer, up| match (device, layer) {
                (1, 1) => up.launch(&SLOW, &[], &[]),
                _ => Ok(()),
            },
        );
    }
}

/// On real GPUs where there are some; several logical devices on each if they are fewer than
/// devices.
#[cfg(feature = "cuda")]
#[test]
fn every_gpu_gets_the_synchronous_sum_bit_for_bit() {
    use crate::device::cuda::{CudaDevice, gpus};
    let found = match gpus() {
        Ok(found) => found,
        Err(error) => {
            let place = "where there is a GPU (docs/reference/accumulate.md)";
            return dogwild_lab::skip::elsewhere(&error.to_string(), place);
        }
    };
    for order in ORDERS {
        for count in [1, 2, 4] {
            let open = |index| CudaDevice::open(index % found.len()).unwrap();
            let devices = (0..count).map(open).collect();
            on_devices(devices, &[3, 300_001, 1000, 17], 3, order, 9);
        }
    }
}

/// A kernel that fails.
static BROKEN: Kernel = Kernel {
    name: "broken",
    source: "",
    plan: |_, _| Shape::of(0),
    host: |_, _| std::panic::resume_unwind(Box::new("on purpose".to_owned())),
};

/// Two devices with one layer of 8 words.
fn two_devices(work: Work<HostDevice>) -> ([HostDevice; 2], Accumulate<HostDevice>) {
    let devices = [0, 1].map(HostDevice::new);
    let of = devices
        .iter()
        .map(|device| (device.clone(), device.alloc(8).unwrap()));
    let accumulate = Accumulate::new(&layers(&[8]), of.collect(), Order::Parts, work).unwrap();
    (devices, accumulate)
}

#[test]
fn a_stream_that_fails_is_told_to_everybody_with_its_device() {
    let (devices, accumulate) = two_devices(Box::new(|_, _, _, _| Ok(())));
    let accumulate = &accumulate;
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|thread| scope.spawn(move || accumulate.work(thread)));
        let [good, bad] = [0, 1].map(|i: usize| devices[i].stream().unwrap());
        accumulate.give(0, 0, 0, &good.record().unwrap()).unwrap();
        bad.launch(&BROKEN, &[], &[]).unwrap();
        // Recorded before the failure is known, or refused because it is. The failure may be known
        // on the way down too: then `give` tells.
        match bad.record() {
            Ok(ready) => drop(accumulate.give(1, 0, 0, &ready)),
            Err(error) => accumulate.fail(1, error.to_string()),
        }
        let said = accumulate.wait(0).unwrap_err().to_string();
        let all = threads.map(|thread| thread.join().unwrap().unwrap_err().to_string());
        assert!(
            said.starts_with("device 1 has failed: host device 1"),
            "{said}"
        );
        assert_eq!(all, [said.clone(), said]);
    });
}

/// What `work` put on a stream fails later, when only the device itself looks at that stream.
#[test]
fn an_update_that_fails_is_told_to_everybody() {
    let (devices, accumulate) = two_devices(Box::new(|device, _, _, up| match device {
        1 => up.launch(&BROKEN, &[], &[]),
        _ => Ok(()),
    }));
    let accumulate = &accumulate;
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|thread| scope.spawn(move || accumulate.work(thread)));
        let streams = [0, 1].map(|i: usize| devices[i].stream().unwrap());
        let gives = |device: usize, clock| {
            let ready = streams[device].record().unwrap();
            accumulate.give(device, 0, clock, &ready)
        };
        let first = [gives(0, 0), gives(1, 0)];
        let waited = accumulate.wait(1);
        let next = gives(0, 1);
        accumulate.close();
        let ended = threads.map(|thread| thread.join().unwrap());
        assert!(first.iter().all(Result::is_ok), "{first:?}");
        let said = waited.unwrap_err().to_string();
        assert!(said.starts_with("device 1 has failed"), "{said}");
        assert_eq!(next.unwrap_err().to_string(), said);
        for end in ended {
            assert_eq!(end.unwrap_err().to_string(), said);
        }
    });
}

#[test]
fn another_order_of_devices_gives_other_bits() {
    let [forward, backward] = [
        reference(0..4, 0, 0, 1000),
        reference((0..4).rev(), 0, 0, 1000),
    ];
    assert_ne!(
        forward, backward,
        "else the other tests would prove nothing"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn timing_changes_nothing(
        sizes in prop::collection::vec(1_usize..5000, 1..6),
        devices in 1_usize..6,
        turns in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let order = ORDERS[usize::from(turns)];
        for (layer, of) in run(&sizes, devices, 2, order, seed).into_iter().enumerate() {
            for (round, found) in of.into_iter().enumerate() {
                let expected = reference(0..devices, layer, round as u64, sizes[layer]);
                prop_assert!(found == expected, "layer {layer}");
            }
        }
    }
}

#[test]
fn who_fails_is_named_to_everybody() {
    for order in ORDERS {
        let layers = layers(&[10, 10]);
        let sum: Sum = Sum::new(&layers, 3, order).unwrap();
        let sum = &sum;
        let sums = &Sums::of(sum);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3)
                .map(|thread| scope.spawn(move || sum.work(thread, sums, |note| match note {})))
                .collect();
            let waiting = scope.spawn(move || {
                sum.give(0, 1, 5, &[1.0; 10], sums)?;
                sum.wait(0)
            });
            // Device 1 gives nothing and panics; device 2 is not heard of at all.
            let panics = scope.spawn(move || {
                let _watch = sum.watch(1);
                std::panic::resume_unwind(Box::new("on purpose"));
            });
            assert!(panics.join().is_err());
            let expected = AccumulateError::Device {
                device: 1,
                why: "its thread panicked".into(),
            };
            assert_eq!(waiting.join().unwrap(), Err(expected.clone()));
            for worker in workers {
                assert_eq!(worker.join().unwrap(), Err(expected.clone()));
            }
            assert_eq!(sum.give(2, 1, 5, &[1.0; 10], sums), Err(expected));
        });
    }
}

#[test]
fn a_thread_that_returns_early_has_failed_and_one_that_is_done_has_not() {
    let sum: Sum = Sum::new(&layers(&[1]), 2, Order::Parts).unwrap();
    sum.watch(0).done();
    assert_eq!(sum.error(), None);
    drop(sum.watch(1));
    let said = sum.error().unwrap().to_string();
    assert_eq!(said, "device 1 has failed: its thread ended too early");
}

#[test]
fn an_error_of_the_sink_ends_it() {
    struct Fails;
    impl Sink for Fails {
        fn part(&self, _: usize, _: &Range<usize>) -> Result<(), AccumulateError> {
            let why = "out of memory".into();
            Err(AccumulateError::Device { device: 1, why })
        }
        fn layer(&self, _: usize, _: u64) -> Result<(), AccumulateError> {
            Ok(())
        }
    }
    let sum: Sum = Sum::new(&layers(&[1]), 1, Order::Parts).unwrap();
    sum.give(0, 0, 5, &[1.0], &Fails).unwrap();
    let ended = sum.work(0, &Fails, |note| match note {}).unwrap_err();
    assert!(
        ended
            .to_string()
            .contains("device 1 has failed: out of memory")
    );
    assert_eq!(sum.wait(0), Err(ended));
}

#[test]
fn waits_say_for_whom() {
    let sum: Sum = Sum::new(&layers(&[1, 1]), 3, Order::Parts).unwrap();
    sum.give(1, 0, 5, &[1.0], &Sums::of(&sum)).unwrap();
    assert_eq!(sum.missing(0), "devices 0, 2 have not given theirs");
    sum.give(0, 0, 5, &[1.0], &Sums::of(&sum)).unwrap();
    assert_eq!(sum.missing(0), "device 2 has not given its gradient");
    sum.close();
    let said = sum.wait(0).unwrap_err().to_string();
    assert_eq!(
        said,
        "ended while device 0 was waiting for the sum of layer layer0"
    );
}

#[test]
fn what_cannot_be_added_is_refused() {
    let refused =
        |layers: &[LayerRange], devices| Sum::<()>::new(layers, devices, Order::Parts).err();
    assert_eq!(refused(&layers(&[1]), 0), Some(AccumulateError::NoDevices));
    assert_eq!(refused(&[], 1), Some(AccumulateError::NoLayers));
    let layer = |name: &str, range| LayerRange {
        name: name.into(),
        range,
    };
    let empty = refused(&[layer("a", 3..3)], 1);
    assert_eq!(empty, Some(AccumulateError::Empty("a".into())));
    let overlap = refused(&[layer("a", 4..9), layer("b", 0..5)], 1);
    assert_eq!(
        overlap,
        Some(AccumulateError::Overlap("b".into(), "a".into()))
    );
}
