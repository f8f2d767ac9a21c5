//! The loops that join a module to a transport and a clock, one file per component.
//!
//! Each attaches to a buffer, runs at its own pace until it is told to stop, and can be killed and
//! started again alone.

mod clock;
mod contacts;
mod group;
mod pace;
mod port;
mod positions;
mod stream_loop;

pub use clock::{Clock, cpu_ns};
pub use group::job_group;
pub use positions::Positions;
pub use stream_loop::{Step, StreamLoop};

// A solver and a tester, which train and measure in this process.
cfg_if::cfg_if! {
    if #[cfg(feature = "caffe")] {
        mod gpu;
        mod line;
        mod model;
        mod only_tests;
        mod ready;
        mod repeat;
        mod solver;
        mod solver_error;
        mod tester;
        mod testing;
        mod train_clock;
        mod turn;

        pub use gpu::{
            ADDERS_MAX, Adding, Claimed, Counts, GpuSyncer, HOST_RATE_BYTES_PER_S, InStep, OnDevice, SyncError, SyncJob,
            slot_words, usual_adders,
        };
        pub use model::{NetError, bound_net, data_kind, train_batch};
        pub use only_tests::{TesterJob, run_tester};
        pub use solver::{SolverJob, run_solver};
        pub use solver_error::SolverError;
        pub use tester::{TEST_IMAGES, TestResult, Tester, Transforms};
    }
}

// What is a process of its own: opens transports and devices, gives up privileges, obeys signals.
cfg_if::cfg_if! {
    if #[cfg(feature = "program")] {
        mod budget;
        pub mod doctor;
        mod health;
        mod privileges;
        mod seeds;
        mod stop;
        mod streamer;
        mod transport;

        pub use gpu::{DeviceSolverJob, GpuError, GpuJob, ipc_beside, run_gpu};
        pub(crate) use health::{SMALLER_MTU, SolverWatch, What, since_unix};
        pub(crate) use line::LINE_EVERY_ENV;
        #[cfg(feature = "metrics")]
        pub(crate) use privileges::drop_privileges;
        pub use privileges::{drop_privileges_after_opening, drop_privileges_before_opening};
        pub use seeds::JoinError;
        pub use stop::{Interrupted, Stop, is_code_of_signal, signal_name, stop_at_eof, stop_on_signals};
        pub use streamer::{StreamJob, StreamerError, run_streamer};
        pub use transport::{Transport, TransportError, TransportSpec, Wrappers, open_link};
    }
}
