//! Any bytes as a frame: parsing never panics, and what parses is emitted to the same bytes again.

use dogwild::wire::{
    Contact, Frame, HEADER_LEN, Hello, MAGIC, Seek, VERSION, parse_chunks, parse_offer,
};

/// As they are, and once more with the first bytes of a genuine frame and a length that fits.
pub fn run(bytes: &[u8]) {
    check(bytes);
    if bytes.len() < HEADER_LEN {
        return;
    }
    let mut frame = bytes.to_vec();
    frame[..2].copy_from_slice(&MAGIC.to_le_bytes());
    frame[2] = VERSION;
    // Most frames are long enough for some acks and a payload.
    let rest = frame.len() - HEADER_LEN;
    frame[6] %= (rest / 2 + 1).min(64) as u8;
    let acks = usize::from(frame[6]).next_multiple_of(16);
    let payload = rest.saturating_sub(acks) as u32;
    if frame[40] & 7 != 0 {
        frame[40..44].copy_from_slice(&payload.to_le_bytes());
    }
    check(&frame);
}

fn check(bytes: &[u8]) {
    let Ok(frame) = Frame::parse(bytes) else {
        return;
    };
    let mut again = vec![0; frame.header.frame_len()];
    let (acks, payload) = frame.header.emit(&mut again);
    acks.copy_from_slice(frame.acks);
    payload.copy_from_slice(frame.payload);
    let second = Frame::parse(&again).expect("what was emitted parses");
    assert_eq!(second.header, frame.header);
    assert_eq!((second.acks, second.payload), (frame.acks, frame.payload));
    let _ = Hello::parse(frame.payload);
    let _ = parse_offer(frame.payload).map(<[_]>::len);
    let _ = parse_chunks(frame.payload).map(Iterator::count);
    if let Some(seek) = Seek::parse(frame.payload) {
        let mut again = [0; Seek::LEN];
        seek.emit(&mut again);
        assert_eq!(again, frame.payload);
    }
    if let Some(contacts) = Contact::parse(frame.payload) {
        let mut again = vec![0; frame.payload.len()];
        Contact::emit(&contacts, &mut again);
        assert_eq!(Contact::parse(&again), Some(contacts));
    }
}
