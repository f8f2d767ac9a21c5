//! The loops that join a module to a transport and a clock, one file per component.
//!
//! Each attaches to a buffer, runs at its own pace until it is told to stop, and can be killed and
//! started again alone.

mod budget;
mod clock;
pub mod doctor;
mod gpu;
mod health;
mod line;
mod model;
mod only_tests;
mod pace;
mod port;
mod positions;
mod privileges;
mod ready;
mod repeat;
mod solver;
mod solver_error;
mod stop;
mod stream_loop;
mod streamer;
mod tester;
mod testing;
mod transport;
mod turn;

pub use clock::{Clock, cpu_ns};
pub use gpu::{
    Counts, DeviceSolverJob, GpuError, GpuJob, GpuSyncer, ipc_beside, run_gpu, slot_words,
};
pub(crate) use health::{SolverWatch, What, since_unix};
pub use model::{NetError, bound_net, data_kind, train_batch};
pub use only_tests::{TesterJob, run_tester};
pub use positions::Positions;
pub use privileges::{drop_privileges_after_opening, drop_privileges_before_opening};
pub use solver::{SolverJob, run_solver};
pub use solver_error::SolverError;
pub use stop::{Interrupted, Stop, is_code_of_signal, signal_name, stop_on_signals};
pub use stream_loop::{Step, StreamLoop};
pub(crate) use streamer::{LINE_EVERY_ENV, line_every};
pub use streamer::{StreamJob, StreamerError, run_streamer};
pub use tester::{TEST_IMAGES, TestResult, Tester, Transforms};
pub use transport::{Transport, TransportError, TransportSpec, Wrappers, job_group, open_link};
