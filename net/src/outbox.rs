//! What a sender tells a transport: where a frame goes, and how it is written. And what it learns:
//! how many frames may go.
//!
//! Plain types without I/O, so that a state machine may name them where it may name nothing else of
//! this crate.

/// Where a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum To {
    /// Every node of the group but the sender.
    Group,
    /// The same, and wherever a node may be that is not heard: for frames that make nodes known to
    /// each other. Where there is multicast alone it is the group.
    All,
    /// One node, by its index. A transport sends to the address that it last learnt of it.
    Node(u16),
}

/// How frames to the group reach a node, where a transport can send copies of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Way {
    /// By multicast.
    Multicast,
    /// By multicast, as far as known. A frame to [`To::All`] comes as a copy too.
    #[default]
    Unsure,
    /// Each as a copy to its own address.
    Copy,
    /// Not at all, but for frames to [`To::All`]: the node was not heard for a while.
    Rest,
}

/// Writes the head of a frame, and its tail where that has to be copied instead of being read by
/// the adapter where it lies.
pub type FillLent<'a> = dyn FnMut(&mut [u8], Option<&mut [u8]>) + 'a;

/// What a rate limit allows, in frames of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Frames that may go now.
    pub now: usize,
    /// Frames that may go at once after a pause, at most.
    pub most: usize,
}
