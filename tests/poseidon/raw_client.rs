//! A client of a coordinator or server that a test controls, message by message.

use std::io::{Read, Write};
use std::net::TcpStream;

use dogwild::poseidon::{HEADER_LEN, MemberHello, Message, MessageKind, Sizes};

/// A connection on which a test sends whatever it wants.
pub(crate) struct RawClient {
    pub(crate) stream: TcpStream,
}

impl RawClient {
    pub(crate) fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("a listening socket");
        Self { stream }
    }

    pub(crate) fn send(&mut self, message: &Message) {
        // The other end may have closed the connection already.
        let _ = self.stream.write_all(&message.header());
        let _ = self.stream.write_all(message.body.bytes());
    }

    /// The next message of this kind; none if the connection ends before.
    pub(crate) fn receive(&mut self, kind: MessageKind) -> Option<Message> {
        loop {
            let mut bytes = vec![0; HEADER_LEN];
            self.stream.read_exact(&mut bytes).ok()?;
            let payload = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            bytes.resize(HEADER_LEN + payload as usize, 0);
            self.stream.read_exact(&mut bytes[HEADER_LEN..]).ok()?;
            // Weights cannot be read without the plan, and are not what is waited for.
            if let Ok((message, _)) = Message::parse(&bytes, &Sizes::default())
                && message.kind == kind
            {
                return Some(message);
            }
        }
    }

    pub(crate) fn send_hello(&mut self, hello: &MemberHello) {
        let text = serde_json::to_string(hello).expect("JSON");
        self.send(&Message::text(MessageKind::Hello, hello.member.index, text));
    }
}
