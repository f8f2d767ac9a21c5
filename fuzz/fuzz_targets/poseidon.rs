//! Any bytes: parsing messages never panics, and what parses is emitted to the same bytes again.
#![no_main]

use dogwild::poseidon::{Message, Sizes};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let sizes = Sizes {
        pairs: vec![1, 33, 64],
        layers: vec![None, Some([3, 5])],
        images: 4,
    };
    let mut rest = bytes;
    while let Ok((message, behind)) = Message::parse(rest, &sizes) {
        let used = rest.len() - behind.len();
        let again = [message.header().as_slice(), message.body.bytes()].concat();
        assert_eq!(again, &rest[..used]);
        rest = behind;
    }
});
