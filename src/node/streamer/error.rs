//! Why a streamer ends.

use super::super::transport::TransportError;
use crate::weights::{OpenError, SlotError, StateError};

/// Why a streamer could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum StreamerError {
    /// The buffer cannot be opened.
    #[error("{0}")]
    Buffer(#[from] OpenError),
    /// The component slot cannot be claimed.
    #[error(transparent)]
    Slot(#[from] SlotError),
    /// The streamer's own state file.
    #[error("{0}")]
    State(#[from] StateError),
    /// The transport cannot be opened.
    #[error("{0}")]
    Transport(#[from] TransportError),
    /// Node, nodes and places do not fit.
    #[error(
        "node {node} of {nodes} nodes and {places} places: nodes count from 0, there are 1 to 255 places, one for each \
         node of the beginning at least"
    )]
    Node {
        /// Index that was given.
        node: u16,
        /// Number of nodes that was given.
        nodes: u16,
        /// Number of places that was given.
        places: u16,
    },
    /// More masters than nodes, or none.
    #[error("{masters} masters of {nodes} nodes: give 1 to {nodes}, the same on all nodes")]
    Masters {
        /// Number of masters that was given.
        masters: u16,
        /// Number of nodes that was given.
        nodes: u16,
    },
    /// A node that was given no number gets none.
    #[error("no node number for this host: {0}")]
    Number(#[from] crate::stream::NoNumber),
    /// The MTU holds no chunk.
    #[error("frames of {mtu} bytes are too small for one chunk: give a larger MTU")]
    Mtu {
        /// Bytes of a frame.
        mtu: usize,
    },
    /// The kernel refuses to take capabilities back.
    #[error("cannot give up capabilities: {0}")]
    Privileges(#[from] caps::errors::CapsError),
    /// The transport broke.
    #[error("the transport failed: {0}")]
    Io(#[from] std::io::Error),
}
