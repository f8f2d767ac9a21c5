//! What happens to the nodes of the simulated cluster: they stand still, are killed, start again,
//! leave, and lose their memory.

use super::World;

impl World<'_> {
    /// Stops the streamer of `node`, as SIGSTOP does: what arrives waits, up to
    /// [`INBOX_BYTES`](super::INBOX_BYTES).
    pub fn pause(&mut self, node: u16) {
        self.network.tell(format_args!("node {node} stands still"));
        self.network.pause(node);
    }

    /// Lets the streamer of `node` go on.
    pub fn go_on(&mut self, node: u16) {
        self.network.tell(format_args!("node {node} goes on"));
        self.network.go_on(node);
    }

    /// Whether the streamer of `node` stands still.
    pub fn is_paused(&self, node: u16) -> bool {
        self.network.is_paused(node)
    }

    /// Kills the streamer of `node`; its memory stays, what its adapter has not read never leaves.
    pub fn kill(&mut self, node: u16) {
        self.network.tell(format_args!("node {node} is killed"));
        self.streamers[node as usize] = None;
        self.network.kills[usize::from(node)] = None;
        self.network.unread.retain(|one| one.from != node);
    }

    /// Kills the streamer of `node` in the send of a frame, the `frames`-th from now on (1: the
    /// next): that goes, and nothing after it happens.
    ///
    /// # Panics
    /// If `frames` is 0.
    pub fn kill_in_send(&mut self, node: u16, frames: u32) {
        assert!(frames > 0, "a frame that is sent already");
        self.network.kills[usize::from(node)] = Some(frames);
    }

    /// Starts the streamer of `node` again on what it left behind.
    pub fn restart(&mut self, node: u16) {
        self.network.tell(format_args!("node {node} starts"));
        self.streamers[node as usize] = Some(self.fleet.streamer(node));
    }

    /// Tells `node` to leave ([`Streamer::leave`](super::Streamer::leave)). It is to be killed once
    /// it has.
    pub fn leave(&mut self, node: u16) {
        self.network
            .tell(format_args!("node {node} is told to leave"));
        if let Some(streamer) = &mut self.streamers[usize::from(node)] {
            streamer.leave();
        }
    }

    /// The machine of `node` loses its memory: its streamer starts again on the next one.
    ///
    /// # Panics
    /// If there is none: [`Fleet::add_life`](super::Fleet::add_life).
    pub fn lose(&mut self, node: u16) {
        self.network
            .tell(format_args!("node {node} loses its memory"));
        self.kill(node);
        self.fleet.begin_next_life(node);
        self.restart(node);
    }
}
