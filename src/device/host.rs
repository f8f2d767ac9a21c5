//! A device of threads and memcpy: the same asynchrony as a GPU, on any machine.
//!
//! Each stream is a thread with a queue; its memory is memory of the process that only copies and
//! kernels reach. Invariant: a thread never ends before its queue is empty, and never leaves an
//! event unsignalled, so that no thread waits forever.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;

use super::{
    Device, DeviceError, Event, HostMemory, Kernel, Memory, Number, Part, SharedHandle, Stream,
};
use crate::weights::WeightsView;

/// A device on the host. Devices share nothing with each other.
#[derive(Clone, Debug)]
pub struct HostDevice {
    index: usize,
}

impl HostDevice {
    /// Host device number `index`.
    pub fn new(index: usize) -> Self {
        Self { index }
    }
}

/// Memory of a host device.
#[derive(Clone, Debug)]
pub struct DeviceMemory(HostMemory);

impl Memory for DeviceMemory {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn address(&self) -> u64 {
        self.0.address()
    }
}

impl Device for HostDevice {
    type Memory = DeviceMemory;
    type Stream = HostStream;
    type Event = HostEvent;

    fn name(&self) -> String {
        format!("host device {}", self.index)
    }

    fn alloc(&self, words: usize) -> Result<DeviceMemory, DeviceError> {
        let memory = HostMemory::zeroed(words).map_err(|error| DeviceError::NoMemory {
            device: self.name(),
            bytes: words.saturating_mul(4),
            why: error.to_string(),
        })?;
        Ok(DeviceMemory(memory))
    }

    fn stream(&self) -> Result<HostStream, DeviceError> {
        let (sender, receiver) = channel();
        let failed = Arc::new(OnceLock::new());
        let worker = Worker {
            device: self.name(),
            failed: failed.clone(),
        };
        let thread = std::thread::Builder::new()
            .name(format!("device{}", self.index))
            .spawn(move || worker.run(&receiver))
            .map_err(|error| DeviceError::NoThread {
                device: self.name(),
                why: error.to_string(),
            })?;
        Ok(HostStream {
            queue: Some(sender),
            thread: Some(thread),
            failed,
        })
    }

    fn pin(&self, _: &HostMemory) -> Result<(), DeviceError> {
        Ok(())
    }

    fn share(&self, _: &DeviceMemory) -> Result<SharedHandle, DeviceError> {
        Err(DeviceError::NotShared {
            device: self.name(),
        })
    }
}

/// Words of some memory, which live as long as this does.
struct Words {
    memory: HostMemory,
    start: usize,
    len: usize,
}

impl Words {
    fn of(memory: &HostMemory, start: usize, len: usize) -> Self {
        Self {
            memory: memory.clone(),
            start,
            len,
        }
    }

    fn view(&self) -> WeightsView<'_> {
        self.memory.view().slice(self.start, self.len)
    }
}

enum Command {
    Copy {
        from: Words,
        to: Words,
    },
    Launch {
        kernel: &'static Kernel,
        parts: Vec<Words>,
        numbers: Vec<Number>,
    },
    Signal(HostEvent),
    Wait(HostEvent),
}

/// What the thread of a stream has.
struct Worker {
    device: String,
    failed: Arc<OnceLock<DeviceError>>,
}

impl Worker {
    fn run(&self, queue: &Receiver<Command>) {
        for command in queue {
            match (command, self.failed.get()) {
                (Command::Signal(event), failed) => {
                    event.signal(failed.cloned().map_or(Ok(()), Err))
                }
                (_, Some(_)) => {}
                (Command::Wait(event), None) => {
                    if let Err(error) = event.wait() {
                        let _ = self.failed.set(error);
                    }
                }
                (command, None) => self.work(command),
            }
        }
    }

    fn work(&self, command: Command) {
        // A panic in a kernel is a bug. The stream reports it as its error, so that threads that
        // wait do not wait forever.
        let done = catch_unwind(AssertUnwindSafe(|| match &command {
            Command::Copy { from, to } => copy(from.view(), to.view()),
            Command::Launch {
                kernel,
                parts,
                numbers,
            } => {
                let views: Vec<WeightsView<'_>> = parts.iter().map(Words::view).collect();
                (kernel.host)(&views, numbers);
            }
            Command::Signal(_) | Command::Wait(_) => {}
        }));
        if let Err(panic) = done {
            let what = match &command {
                Command::Launch { kernel, .. } => kernel.name,
                _ => "a copy",
            };
            let _ = self.failed.set(DeviceError::Failed {
                device: self.device.clone(),
                why: format!("{what}: {}", message(&*panic)),
            });
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panicked")
}

/// Copies words as a device does, by the byte engine of the machine.
fn copy(from: WeightsView<'_>, to: WeightsView<'_>) {
    assert_eq!(from.len(), to.len(), "a copy has two sides of one length");
    // SAFETY: both views are valid for their length. memmove is foreign code that stands for a
    // relaxed loop over the words: a racing writer decides which value of a word is read.
    unsafe { libc::memmove(to.as_ptr().cast(), from.as_ptr().cast(), from.len() * 4) };
}

/// A thread with a queue.
pub struct HostStream {
    /// None only while it is dropped.
    queue: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    failed: Arc<OnceLock<DeviceError>>,
}

impl HostStream {
    fn put(&self, command: Command) -> Result<(), DeviceError> {
        if let Some(error) = self.failed.get() {
            return Err(error.clone());
        }
        let queue = self.queue.as_ref().expect("only a drop takes it");
        queue.send(command).expect("the thread outlives the queue");
        Ok(())
    }
}

impl Stream for HostStream {
    type Memory = DeviceMemory;
    type Event = HostEvent;

    fn upload(
        &self,
        from: Part<'_, HostMemory>,
        to: Part<'_, DeviceMemory>,
    ) -> Result<(), DeviceError> {
        assert_eq!(
            from.len(),
            to.len(),
            "an upload has two sides of one length"
        );
        self.put(Command::Copy {
            from: Words::of(from.memory(), from.start(), from.len()),
            to: Words::of(&to.memory().0, to.start(), to.len()),
        })
    }

    fn download(
        &self,
        from: Part<'_, DeviceMemory>,
        to: Part<'_, HostMemory>,
    ) -> Result<(), DeviceError> {
        assert_eq!(
            from.len(),
            to.len(),
            "a download has two sides of one length"
        );
        self.put(Command::Copy {
            from: Words::of(&from.memory().0, from.start(), from.len()),
            to: Words::of(to.memory(), to.start(), to.len()),
        })
    }

    fn launch(
        &self,
        kernel: &'static Kernel,
        parts: &[Part<'_, DeviceMemory>],
        numbers: &[Number],
    ) -> Result<(), DeviceError> {
        let lens: Vec<usize> = parts.iter().map(Part::len).collect();
        (kernel.plan)(&lens, numbers);
        let words =
            |part: &Part<'_, DeviceMemory>| Words::of(&part.memory().0, part.start(), part.len());
        self.put(Command::Launch {
            kernel,
            parts: parts.iter().map(words).collect(),
            numbers: numbers.to_vec(),
        })
    }

    fn record(&self) -> Result<HostEvent, DeviceError> {
        let event = HostEvent::default();
        self.put(Command::Signal(event.clone()))?;
        Ok(event)
    }

    fn wait(&self, event: &HostEvent) -> Result<(), DeviceError> {
        self.put(Command::Wait(event.clone()))
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // It catches what its work panics at.
            let _ = thread.join();
        }
    }
}

/// A moment in a queue.
#[derive(Clone, Default)]
pub struct HostEvent(Arc<Moment>);

#[derive(Default)]
struct Moment {
    done: Mutex<Option<Result<(), DeviceError>>>,
    changed: Condvar,
}

impl HostEvent {
    fn lock(&self) -> MutexGuard<'_, Option<Result<(), DeviceError>>> {
        self.0.done.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn signal(&self, result: Result<(), DeviceError>) {
        *self.lock() = Some(result);
        self.0.changed.notify_all();
    }
}

impl Event for HostEvent {
    fn wait(&self) -> Result<(), DeviceError> {
        let mut done = self.lock();
        loop {
            if let Some(result) = &*done {
                return result.clone();
            }
            done = self.0.changed.wait(done).unwrap_or_else(|e| e.into_inner());
        }
    }

    fn is_done(&self) -> Result<bool, DeviceError> {
        match &*self.lock() {
            None => Ok(false),
            Some(result) => result.clone().map(|()| true),
        }
    }
}
