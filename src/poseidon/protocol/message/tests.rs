//! Every message survives the way there and back; every other byte string is refused.

use proptest::prelude::*;

use super::*;

fn sizes() -> Sizes {
    Sizes {
        pairs: [(1, 1), (33, 33), (64, 20)]
            .map(|(weights, row)| PairSize { weights, row })
            .to_vec(),
        layers: vec![None, Some([3, 5])],
        rows: vec![0, 4],
    }
}

fn bytes_of(message: &Message) -> Vec<u8> {
    [message.header().as_slice(), message.body.bytes()].concat()
}

/// Messages that fit [`sizes`].
fn messages() -> impl Strategy<Value = Message> {
    let parts = (
        prop::sample::select(MessageKind::ALL),
        0..3u32,
        any::<u16>(),
        any::<u64>(),
        0..=4usize,
        any::<String>(),
        prop::collection::vec(any::<u32>(), 66),
    );
    parts.prop_map(|(kind, pair, sender, clock, images, text, words)| {
        let floats = |n: usize| {
            words
                .iter()
                .take(n)
                .map(|&w| f32::from_bits(w & !(1 << 30)))
        };
        let size = sizes().pairs[pair as usize];
        let len = size.weights;
        let (subject, body) = match kind.payload() {
            Payload::Nothing => (0, Body::Nothing),
            Payload::Text => (0, Body::Text(text)),
            Payload::Floats if kind == MessageKind::Factors => (
                1,
                Body::Floats(floats(images * 8).collect::<Vec<_>>().into()),
            ),
            Payload::Floats => (pair, Body::Floats(floats(len).collect::<Vec<_>>().into())),
            Payload::Words => (pair, Body::Words(words[..size.bits_len()].to_vec())),
        };
        Message {
            kind,
            subject,
            sender,
            clock,
            body,
        }
    })
}

proptest! {
    #[test]
    fn messages_survive_the_way(message in messages(), behind: Vec<u8>) {
        let mut bytes = bytes_of(&message);
        bytes.extend(&behind);
        let (read, rest) = Message::parse(&bytes, &sizes()).unwrap();
        prop_assert_eq!(read, message);
        prop_assert_eq!(rest, &behind);
    }

    #[test]
    fn a_message_cut_short_is_refused(message in messages(), cut: prop::sample::Index) {
        let bytes = bytes_of(&message);
        let cut = cut.index(bytes.len());
        let refused = Message::parse(&bytes[..cut], &sizes()).unwrap_err();
        prop_assert!(matches!(refused, ParseError::Short { .. }), "{refused}");
    }

    #[test]
    fn any_bytes_are_read_or_refused(mut bytes: Vec<u8>, real: bool) {
        if real && bytes.len() > 7 {
            bytes[4..7].copy_from_slice(b"DP\x02");
        }
        let _ = Message::parse(&bytes, &sizes());
    }
}

#[test]
fn what_is_too_large_is_refused_before_its_payload() {
    let refused = |kind, subject, payload_len| {
        let header = Header {
            kind,
            subject,
            sender: 0,
            clock: 0,
            payload_len,
        };
        Header::parse(&header.emit(), &sizes()).unwrap_err()
    };
    let size = |error: ParseError| match error {
        ParseError::Size { expected, .. } => expected,
        other => panic!("{other}"),
    };
    assert_eq!(size(refused(MessageKind::Gradient, 1, 34 * 4)), 33 * 4);
    assert_eq!(size(refused(MessageKind::Weights, 1, 32 * 4)), 33 * 4);
    assert_eq!(size(refused(MessageKind::Bits, 1, 5 * 4)), 4 * 4);
    assert_eq!(size(refused(MessageKind::Factors, 1, 5 * 8 * 4)), 4 * 8 * 4);
    assert_eq!(size(refused(MessageKind::Factors, 1, 9 * 4)), 4 * 8 * 4);
    assert_eq!(
        size(refused(MessageKind::Abort, 0, u32::MAX as usize)),
        MAX_TEXT
    );
    assert_eq!(size(refused(MessageKind::Bye, 0, 1)), 0);
    for (kind, subject) in [
        (MessageKind::Gradient, 3),
        (MessageKind::Factors, 0),
        (MessageKind::Factors, 9),
    ] {
        assert_eq!(
            refused(kind, subject, 4),
            ParseError::Subject { kind, subject }
        );
    }
    // Without a plan nothing but text is taken.
    let header = Message {
        body: Body::Floats(vec![1.0].into()),
        ..Message::bare(MessageKind::Gradient, 0, 0)
    };
    assert!(Header::parse(&header.header(), &Sizes::default()).is_err());
}

#[test]
fn what_is_not_ours_is_named() {
    let good = Message::bare(MessageKind::Alive, 3, 7).header();
    let with = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        Header::parse(&bytes, &sizes()).unwrap_err()
    };
    assert_eq!(with(4, b'X'), ParseError::Magic(*b"XP"));
    assert_eq!(with(6, 1), ParseError::Version(1));
    assert_eq!(with(7, 99), ParseError::UnknownKind(99));
    assert_eq!(with(14, 1), ParseError::Reserved);
}
