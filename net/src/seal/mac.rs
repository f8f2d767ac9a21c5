//! The MAC of `seal`: a carry-less universal hash under a pad of AES-256 (Wegman and Carter).
//!
//! Touches nothing but its arguments.
//!
//! ```text
//! H(m)          = XOR over i of (m[2i] ^ k[2i]) x (m[2i+1] ^ k[2i+1])   XOR   bytes(m) x k_len
//! tag(nonce, m) = H(m) ^ AES-256 under k_pad of nonce
//! ```
//!
//! m is the payload with its padding, as 64-bit words, little-endian, the last pair of them filled
//! up with zeros. x is the carry-less product, 64 by 64 to 127 bits. bytes(m) is the length of m in
//! bytes. nonce is link and number, 16 bytes as they are sent. The tag is sent little-endian, and
//! the block of AES is read so.
//!
//! **Keys.** Block i of purpose p is AES-256, under the 32 bytes of the key file, of `dogseal2`, p,
//! i (32 bits each, little-endian). Purpose 1, blocks 0 and 1: k_pad; 2, block 0, first word:
//! k_len; 3, block i: k\[2i\] and k\[2i+1\]; 4, block 0, first word: [`Mac::key_id`].
//!
//! **Why a tag cannot be forged.** H is CLNH of Lemire and Kaser, "Faster 64-bit universal hashing
//! using carry-less multiplications" (2016). With integers it is NH of UMAC (RFC 4418) and VMAC.
//! The pad is that of GMAC; Bernstein, "Stronger security bounds for Wegman-Carter-Shoup
//! authenticators" (2005), has the whole.
//!
//! 1. For m and m' that differ, and any c, at most one key in 2^64 has H(m) ^ H(m') = c. If their
//!    lengths differ, (bytes(m) ^ bytes(m')) x k_len must be a value that does not depend on k_len.
//!    Polynomials over a field have no divisors of zero, so at most one k_len makes it. If their
//!    lengths are the same, some word differs, zeros filled in or not: say m\[2i\] (for its
//!    neighbour change sides). Then (m\[2i\] ^ m'\[2i\]) x k\[2i+1\] must be a value that does not
//!    depend on k\[2i+1\]: at most one does. So each pair that holds a byte of m is multiplied with
//!    both of its key words, also where the second is all filled in. Pairs behind m are left out.
//! 2. Were pads random and none used twice, genuine tags would tell nothing about the keys of H. A
//!    forged frame with the nonce of a genuine one is then a guess of H(m) ^ H(m'), as in 1. With
//!    any other nonce, a guess of 128 random bits.
//!
//! So v attempts, at all receivers together, succeed with at most v x 2^-64, plus what tells
//! AES-256 from random, plus the chance that a nonce repeats. (The first term is 1.002 times as
//! large for up to 2^60 frames under one key: blocks of AES never repeat, random ones might.) Ten
//! million attempts a second for a year make less than 2^-15. The first that succeeds gives a key
//! word away, and more with it.
//!
//! **What must never happen** is two frames of one nonce: their tags give H(m) ^ H(m'), which is
//! linear in k, so that about a hundred such pairs of full frames give k. A number never repeats on
//! its link, whatever the transport does, and a link is 64 bits from the operating system each time
//! one is opened. Of L links opened under one key, two are the same with at most L^2 x 2^-65: 2^-41
//! for 4,096 of them, 2^-25 for a million. A virtual machine that goes on twice from one snapshot
//! repeats nonces: it must not do so under one key.

use aes::cipher::{BlockEncrypt, KeyInit};
use aes::{Aes256Enc, Block};

use super::clmul::{Kernel, Line};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// Bytes of the tag.
pub(super) const TAG_BYTES: usize = 16;

/// Longest message, in bytes. No IP packet is longer; where raw Ethernet has a larger MTU, a sealed
/// link has not.
pub(super) const MESSAGE_BYTES_MAX: usize = 1 << 16;

/// Bytes of a frame's nonce: link and number.
pub(super) const NONCE_BYTES: usize = 16;

/// Pads made at a time for frames in sequence.
pub(super) const PADS: usize = 8;

/// Purposes of derived keys.
const PAD: u32 = 1;
const LENGTH: u32 = 2;
const WORDS: u32 = 3;
const KEY_ID: u32 = 4;

/// A key, ready for use. Wiped when dropped, as is AES's.
pub(super) struct Mac {
    kernel: Kernel,
    length: u64,
    pad: Aes256Enc,
    words: Vec<Line>,
    key_id: u64,
}

impl Mac {
    pub(super) fn new(key: &[u8; KEY_BYTES]) -> Self {
        let root = Aes256Enc::new(key.into());
        let first = |purpose| block(&root, purpose, 0)[0];
        let mut pad = [0; KEY_BYTES];
        for (i, half) in pad.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let [low, high] = block(&root, PAD, i as u32);
            *half = (u128::from(low) | u128::from(high) << 64).to_le_bytes();
        }
        let mut words = vec![Line([0; 8]); MESSAGE_BYTES_MAX / size_of::<Line>()];
        let pairs = words.iter_mut().flat_map(|line| line.0.as_chunks_mut().0);
        for (i, pair) in pairs.enumerate() {
            *pair = block(&root, WORDS, i as u32);
        }
        let mac = Mac {
            kernel: Kernel::best(),
            length: first(LENGTH),
            pad: Aes256Enc::new(&pad.into()),
            words,
            key_id: first(KEY_ID),
        };
        wipe(&mut pad);
        mac
    }

    /// The tag of a message, whose nonce no other message under this key may have.
    ///
    /// # Panics
    /// If it is longer than [`MESSAGE_BYTES_MAX`]: callers check.
    #[inline]
    pub(super) fn tag(&self, nonce: &[u8; NONCE_BYTES], message: &[u8]) -> u128 {
        // First, because it takes as long as the hash: the processor does both at once.
        let pad = self.pad(nonce);
        self.tag_under(pad, message)
    }

    /// The tag of a message under the pad of its nonce.
    ///
    /// # Panics
    /// As [`tag`](Self::tag).
    #[inline]
    pub(super) fn tag_under(&self, pad: u128, message: &[u8]) -> u128 {
        pad ^ self.kernel.hash(&self.words, self.length, message)
    }

    /// The pad of a nonce.
    #[inline]
    pub(super) fn pad(&self, nonce: &[u8; NONCE_BYTES]) -> u128 {
        let mut pad = Block::from(*nonce);
        self.pad.encrypt_block(&mut pad);
        u128::from_le_bytes(pad.into())
    }

    /// The pads of a link's frame `first` and of those behind it. A round of AES waits for the one
    /// before: so many at a time take hardly longer than one.
    pub(super) fn pads(&self, link: u64, first: u64) -> [u128; PADS] {
        let nonce = |i| u128::from(link) | (u128::from(first) + i as u128) << 64;
        let mut pads: [Block; PADS] = std::array::from_fn(|i| nonce(i).to_le_bytes().into());
        self.pad.encrypt_blocks(&mut pads);
        pads.map(|pad| u128::from_le_bytes(pad.into()))
    }

    /// Tells keys apart and gives nothing of them away.
    pub(super) fn key_id(&self) -> u64 {
        self.key_id
    }
}

/// Two words of key material.
fn block(root: &Aes256Enc, purpose: u32, i: u32) -> [u64; 2] {
    let mut block = Block::default();
    block[..8].copy_from_slice(b"dogseal2");
    block[8..12].copy_from_slice(&purpose.to_le_bytes());
    block[12..].copy_from_slice(&i.to_le_bytes());
    root.encrypt_block(&mut block);
    let words = u128::from_le_bytes(block.into());
    [words as u64, (words >> 64) as u64]
}

impl Drop for Mac {
    fn drop(&mut self) {
        self.length = 0;
        self.words.fill(Line([0; 8]));
        // Keeps the compiler from leaving it out.
        std::hint::black_box((&self.length, &mut self.words));
    }
}

/// Overwrites bytes; `black_box` keeps the compiler from leaving it out.
pub(super) fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    std::hint::black_box(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac() -> Mac {
        Mac::new(&std::array::from_fn(|i| i as u8))
    }

    fn message(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 % 251) as u8).collect()
    }

    /// From `tools/seal_tag.py`, which shares nothing with this code: the format cannot change
    /// unnoticed.
    #[test]
    fn tags_are_those_of_another_implementation() {
        let mut mac = mac();
        for (len, number, wanted) in [
            (0, 0x1, "3366902b7a710f330b5e5abf00723536"),
            (1, 0x2, "c2a7847e3e999610dfc07f768dcea5d8"),
            (14, 0xd00_0000_0000_0003, "3c0a81b771356bf3a6fd0fee02856391"),
            (16, 0x4, "24368d1b2c39e1782b5034e52dd41248"),
            (24, 0x5, "dbb8b25e5071840e30675c9f01a70877"),
            (1472, 0x6, "fd348c8d8a5c2c49cc5fa6f83b76ac79"),
            (65_536, 0x7, "8f6d840715039dfbc041899330d92852"),
        ] {
            let nonce = 0x0123_4567_89ab_cdef_u64 as u128 | number << 64;
            for kernel in Kernel::available() {
                mac.kernel = kernel;
                let tag = mac.tag(&nonce.to_le_bytes(), &message(len)).to_le_bytes();
                let tag: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
                assert_eq!(tag, wanted, "{kernel:?}, {len} bytes");
            }
        }
        assert_eq!(mac.key_id(), 0x820a_2ba4_fd7d_394c);
    }

    #[test]
    fn every_bit_of_message_nonce_and_length_counts() {
        let (mac, nonce) = (mac(), [0x3C; NONCE_BYTES]);
        for len in [0, 1, 8, 15, 16, 17, 63, 64, 65, 130, 1472] {
            let message = message(len);
            let tag = mac.tag(&nonce, &message);
            let mut bad = message.clone();
            for bit in 0..len * 8 {
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(mac.tag(&nonce, &bad), tag, "bit {bit} of {len} bytes");
                bad[bit / 8] ^= 1 << (bit % 8);
            }
            for bit in 0..NONCE_BYTES * 8 {
                let mut other = nonce;
                other[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(mac.tag(&other, &message), tag, "bit {bit} of the nonce");
            }
            // Zeros behind the message are in the same words that are filled up with zeros.
            for _ in 0..70 {
                bad.push(0);
                assert_ne!(mac.tag(&nonce, &bad), tag, "{len} as {} bytes", bad.len());
            }
        }
        // And zeros cut off.
        let tags: Vec<_> = (0..200)
            .map(|len| mac.tag(&nonce, &[0; 200][..len]))
            .collect();
        let all: std::collections::HashSet<_> = tags.iter().collect();
        assert_eq!(all.len(), tags.len());
    }

    /// A bit of the message flips the hash by a key word: each has to be one of its own.
    #[test]
    fn no_word_of_the_key_comes_twice() {
        let mac = mac();
        let mut words: Vec<u64> = mac.words.iter().flat_map(|line| line.0).collect();
        words.extend([mac.length, mac.key_id]);
        let all: std::collections::HashSet<_> = words.iter().collect();
        assert_eq!(all.len(), MESSAGE_BYTES_MAX / 8 + 2);
    }
}
