//! Somebody on the other end of a connection, played by a test.

use std::io::{Read, Write};
use std::net::TcpStream;

use dogwild::poseidon::{HEADER_LEN, Hello, Kind, Message, Sizes};

/// Somebody who speaks the protocol as far as the test wants.
pub(crate) struct Stranger {
    pub(crate) stream: TcpStream,
}

impl Stranger {
    pub(crate) fn call(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("somebody listens");
        Self { stream }
    }

    pub(crate) fn say(&mut self, message: &Message) {
        // The other end may have had enough already.
        let _ = self.stream.write_all(&message.header());
        let _ = self.stream.write_all(message.body.bytes());
    }

    /// The next message of this kind; none if the connection ends before.
    pub(crate) fn hear(&mut self, kind: Kind) -> Option<Message> {
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

    pub(crate) fn hello(&mut self, hello: &Hello) {
        let text = serde_json::to_string(hello).expect("JSON");
        self.say(&Message::text(Kind::Hello, hello.member.index, text));
    }
}
