//! The end of training in the simulated cluster: nodes are told that their solvers have finished.

use super::World;

impl World<'_> {
    /// Tells `node` whether its solvers have finished (0: they work).
    pub fn finish(&mut self, node: u16, finished: u64) {
        self.network
            .tell(format_args!("node {node} has finished: {finished}"));
        if let Some(streamer) = &mut self.streamers[usize::from(node)] {
            streamer.set_finished(finished);
        }
    }
}
