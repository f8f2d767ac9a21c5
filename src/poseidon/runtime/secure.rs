//! Authenticated and encrypted connections: the Noise protocol with a key that all members share
//! (`Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`, crate `snow`).
//!
//! After the handshake each direction is a sequence of blocks: length (u16, little-endian), then so
//! many bytes of ciphertext with its tag. A block that was changed, left out, repeated or moved
//! fails: its number is the nonce.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use dogwild_net::seal::{KeyError, read_key};
use snow::StatelessTransportState;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Longest message of Noise, bytes.
const BLOCK: usize = 65_535;
/// Bytes of the tag of a block.
const TAG: usize = 16;
/// Longest message of this handshake, bytes: a public key and a tag.
const HANDSHAKE: usize = 48;

/// A secret that all members of a cluster share.
#[derive(Clone)]
pub struct ClusterKey(Arc<[u8; 32]>);

impl std::fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

impl ClusterKey {
    /// Reads a key file, as that of a seal: 32 bytes or 64 hexadecimal digits, its owner's alone.
    ///
    /// # Errors
    /// See [`KeyError`]; each message says what to do.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        Ok(Self(Arc::new(read_key(path)?)))
    }
}

/// Why two ends of a connection did not agree on a session.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    /// The other end has another key, or none. Too short a message means the same: both messages
    /// of the handshake have one length, so an end without the key closes or stays silent.
    #[error("the other end has another key, or none")]
    Key,
    /// The socket failed while sending.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Decrypts what is read from `from`.
pub(super) struct DecryptingReader<R> {
    from: R,
    state: Arc<StatelessTransportState>,
    blocks: u64,
    sealed: Vec<u8>,
    plain: Vec<u8>,
    /// Bytes of `plain` that have been read.
    read: usize,
}

/// Encrypts what is written to `to`.
pub(super) struct EncryptingWriter<W> {
    to: W,
    state: Arc<StatelessTransportState>,
    blocks: u64,
    sealed: Vec<u8>,
}

/// Agrees on a session with the other end, with two messages; `initiator` is true on the side that
/// has connected.
pub(super) fn handshake(
    from: &mut impl Read,
    to: &mut impl Write,
    key: &ClusterKey,
    initiator: bool,
) -> Result<Arc<StatelessTransportState>, HandshakeError> {
    let noise = |_: snow::Error| HandshakeError::Key;
    let params = PATTERN.parse().map_err(noise)?;
    let builder = snow::Builder::new(params).psk(0, &key.0).map_err(noise)?;
    let mut state = match initiator {
        true => builder.build_initiator(),
        false => builder.build_responder(),
    }
    .map_err(noise)?;
    for ours in [initiator, !initiator] {
        let mut message = [0; HANDSHAKE];
        if ours {
            let len = state.write_message(&[], &mut message).map_err(noise)?;
            to.write_all(&message[..len])?;
        } else {
            from.read_exact(&mut message)
                .map_err(|_| HandshakeError::Key)?;
            state.read_message(&message, &mut []).map_err(noise)?;
        }
    }
    Ok(Arc::new(
        state.into_stateless_transport_mode().map_err(noise)?,
    ))
}

/// Both ways of a connection of the program's own, once its ends have agreed; `initiator` is true
/// on the side that has connected.
///
/// # Errors
/// The other end has another key, or none, or the socket failed.
#[cfg(feature = "program")]
pub(crate) fn secured<R: Read, W: Write>(
    mut from: R,
    mut to: W,
    key: &ClusterKey,
    initiator: bool,
) -> io::Result<(impl Read + use<R, W>, impl Write + use<R, W>)> {
    let state = handshake(&mut from, &mut to, key, initiator).map_err(io::Error::other)?;
    Ok((
        DecryptingReader::new(from, state.clone()),
        EncryptingWriter::new(to, state),
    ))
}

impl<R: Read> DecryptingReader<R> {
    pub(super) fn new(from: R, state: Arc<StatelessTransportState>) -> Self {
        Self {
            from,
            state,
            blocks: 0,
            sealed: vec![0; BLOCK],
            plain: Vec::new(),
            read: 0,
        }
    }

    fn next_block(&mut self) -> io::Result<()> {
        let mut len = [0; 2];
        self.from.read_exact(&mut len)?;
        let sealed = &mut self.sealed[..usize::from(u16::from_le_bytes(len))];
        self.from.read_exact(sealed)?;
        self.plain.resize(BLOCK, 0);
        let opened = self
            .state
            .read_message(self.blocks, sealed, &mut self.plain);
        let len = opened.map_err(|_| io::Error::other("a block was changed on its way"))?;
        self.blocks += 1;
        self.plain.truncate(len);
        self.read = 0;
        Ok(())
    }
}

impl<R: Read> Read for DecryptingReader<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.read == self.plain.len() {
            self.next_block()?;
        }
        let len = to.len().min(self.plain.len() - self.read);
        to[..len].copy_from_slice(&self.plain[self.read..][..len]);
        self.read += len;
        Ok(len)
    }
}

impl<W: Write> EncryptingWriter<W> {
    pub(super) fn new(to: W, state: Arc<StatelessTransportState>) -> Self {
        Self {
            to,
            state,
            blocks: 0,
            sealed: vec![0; 2 + BLOCK],
        }
    }
}

impl<W: Write> Write for EncryptingWriter<W> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let plain = &from[..from.len().min(BLOCK - TAG)];
        let sealed = self
            .state
            .write_message(self.blocks, plain, &mut self.sealed[2..]);
        let len = sealed.map_err(|error| io::Error::other(error.to_string()))?;
        self.blocks += 1;
        // At most BLOCK, which is the largest u16.
        self.sealed[..2].copy_from_slice(&(len as u16).to_le_bytes());
        self.to.write_all(&self.sealed[..2 + len])?;
        Ok(plain.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::net::TcpStream;

    fn key(byte: u8) -> ClusterKey {
        ClusterKey(Arc::new([byte; 32]))
    }

    /// Both ends of a connection after the handshake.
    fn pair(
        a: &ClusterKey,
        b: &ClusterKey,
    ) -> [Result<(TcpStream, Arc<StatelessTransportState>), HandshakeError>; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let called = scope.spawn(|| {
                let stream = listener.accept().unwrap().0;
                handshake(&mut &stream, &mut &stream, b, false).map(|state| (stream, state))
            });
            let stream = TcpStream::connect(address).unwrap();
            let initiator =
                handshake(&mut &stream, &mut &stream, a, true).map(|state| (stream, state));
            [initiator, called.join().unwrap()]
        })
    }

    #[test]
    fn blocks_arrive_unchanged_or_not_at_all() {
        let [Ok((_, a)), Ok((_, b))] = pair(&key(1), &key(1)) else {
            panic!("no handshake");
        };
        let sent: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        let mut wire = Vec::new();
        EncryptingWriter::new(&mut wire, a.clone())
            .write_all(&sent)
            .unwrap();
        assert!(
            !wire.windows(16).any(|part| part == &sent[..16]),
            "nothing in clear"
        );
        let mut received = vec![0; sent.len()];
        DecryptingReader::new(&*wire, b.clone())
            .read_exact(&mut received)
            .unwrap();
        assert_eq!(received, sent);
        for at in [2, 1000, wire.len() - 1] {
            let mut changed = wire.clone();
            changed[at] ^= 1;
            assert!(
                DecryptingReader::new(&*changed, b.clone())
                    .read_exact(&mut received)
                    .is_err()
            );
        }
        // A block left out.
        let first = 2 + usize::from(u16::from_le_bytes([wire[0], wire[1]]));
        assert!(
            DecryptingReader::new(&wire[first..], b)
                .read_exact(&mut [0; 10])
                .is_err()
        );
    }

    #[test]
    fn another_key_is_noticed_by_both() {
        assert!(pair(&key(1), &key(2)).iter().all(Result::is_err));
    }
}
