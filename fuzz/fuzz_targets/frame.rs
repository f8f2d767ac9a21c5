//! Any bytes: parsing never panics, and what parses is emitted to the same bytes again.
#![no_main]

use dogwild::wire::{Frame, Hello};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(frame) = Frame::parse(bytes) {
        let mut again = vec![0; frame.header.frame_len()];
        let (acks, payload) = frame.header.emit(&mut again);
        acks.copy_from_slice(frame.acks);
        payload.copy_from_slice(frame.payload);
        let second = Frame::parse(&again).expect("what was emitted parses");
        assert_eq!(second.header, frame.header);
        assert_eq!((second.acks, second.payload), (frame.acks, frame.payload));
        let _ = Hello::parse(frame.payload);
    }
});
