//! Queue pairs for datagrams. `sys` makes them; `tx::ring` and `rx::ring` use them.
//!
//! Each half of a link has a queue pair to itself, on a device opened for itself: an error on the
//! way out (a link that is down) leaves the receiving half alone, and the two may live on
//! different threads without a lock.

pub(super) mod sys;
