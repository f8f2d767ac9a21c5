//! The reception of a member: a connection has a short time to say whose it is.
//!
//! Touches a listening socket, and starts a thread for each stranger, so that none waits behind
//! another. Invariants: a stranger that has not sent its first message [`GREETING`] after it
//! connected is cut off, however slowly its bytes come; only time in which this process ran counts.
//! At most [`STRANGERS`] are here at once: the one that came first gives way. No member waits for a
//! stranger: its thread ends by itself, and at the latest with the reception. Who is on the way in
//! when the run fails is told why.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::link::{self, Incoming, Link, LinkError};
use super::member::LOOK_EVERY;
use super::secure::ClusterKey;
use crate::poseidon::{MemberHello, Message, MessageKind, ParseError};

/// Time in which a stranger must have sent its first message.
const GREETING: Duration = Duration::from_secs(2);
/// Strangers at once.
const STRANGERS: usize = 32;
/// Most time that counts between two looks. A process that was stopped for longer could not have
/// read what a stranger sent meanwhile.
const MOST_BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// Looks, [`LOOK_EVERY`] apart, in which those on the way in are told why the run fails.
const PARTING_LOOKS: u32 = 100;
/// Strangers that are named in the log one by one; of more, only each of so many.
const NAMED: u64 = 100;

/// Answers the first message of one that is no member; `None`: it deserves none.
pub(super) type Reply = dyn Fn(&Message) -> Option<Message> + Send + Sync;

/// A connection whose other end has said who it is.
pub(super) struct Guest {
    pub(super) link: Link,
    pub(super) incoming: Incoming,
    pub(super) hello: MemberHello,
    pub(super) from: SocketAddr,
}

/// A connection that has not said yet who it is.
struct Stranger {
    number: u64,
    from: SocketAddr,
    stream: TcpStream,
    age: Duration,
    /// Why it was cut off, if it was.
    cut: Option<LinkError>,
}

/// What became of a stranger: a guest, or nothing more to be done for it.
type Greeted = (u64, Result<Option<Guest>, LinkError>);

/// Greets those who connect to a listening socket.
pub(super) struct Reception {
    listener: TcpListener,
    key: Option<ClusterKey>,
    reply: Arc<Reply>,
    strangers: Vec<Stranger>,
    greeted: (Sender<Greeted>, Receiver<Greeted>),
    looked: Instant,
    /// Connections so far.
    came: u64,
    dropped: u64,
}

impl Reception {
    /// Greets those who connect to `listener`, which does not block. `reply` answers a first
    /// message that is no `Hello`.
    pub(super) fn new(
        listener: TcpListener,
        key: Option<ClusterKey>,
        reply: impl Fn(&Message) -> Option<Message> + Send + Sync + 'static,
    ) -> Self {
        Self {
            listener,
            key,
            reply: Arc::new(reply),
            strangers: Vec::new(),
            greeted: channel(),
            looked: Instant::now(),
            came: 0,
            dropped: 0,
        }
    }

    /// The next guest, if there is one. Does not block, and must be called often: it also lets
    /// strangers in, and cuts off those whose time is over.
    pub(super) fn next(&mut self) -> Option<Guest> {
        self.age();
        while let Some((stream, from)) = accept(&self.listener) {
            self.let_in(stream, from);
        }
        while let Ok((number, greeted)) = self.greeted.1.try_recv() {
            let at = self.strangers.iter().position(|s| s.number == number);
            let stranger = at.map(|at| self.strangers.swap_remove(at));
            match greeted {
                Ok(Some(guest)) => return Some(guest),
                Ok(None) => {}
                Err(why) => {
                    let (from, cut) = stranger.map_or((None, None), |s| (Some(s.from), s.cut));
                    self.drop_one(from, &cut.unwrap_or(why));
                }
            }
        }
        None
    }

    /// Closes the port. If the run fails, those who have connected and were not received yet are
    /// told why: they would blame this member, which closed the connection.
    pub(super) fn end(mut self, why: Option<String>) {
        let Some(why) = why else { return };
        let last = Arc::new(Message::text(MessageKind::Abort, 0, why));
        std::thread::scope(|scope| {
            let mut parting = Vec::new();
            for _ in 0..PARTING_LOOKS {
                while let Some(guest) = self.next() {
                    guest.link.send(last.clone());
                    guest.link.close();
                    let mut incoming = guest.incoming;
                    parting.push((guest.link, scope.spawn(move || incoming.drain())));
                }
                parting.retain(|(_, reads)| !reads.is_finished());
                if self.strangers.is_empty() && parting.is_empty() {
                    break;
                }
                std::thread::sleep(LOOK_EVERY);
            }
            parting.iter().for_each(|(link, _)| link.cut());
        });
    }

    /// Adds the time since the last look to the age of each stranger, and cuts off the old ones.
    fn age(&mut self) {
        let passed = self.looked.elapsed().min(MOST_BETWEEN_LOOKS);
        self.looked = Instant::now();
        for stranger in &mut self.strangers {
            stranger.age += passed;
            if stranger.age >= GREETING && stranger.cut.is_none() {
                stranger.cut_off(LinkError::NoGreeting);
            }
        }
    }

    fn let_in(&mut self, stream: TcpStream, from: SocketAddr) {
        let Ok(copy) = stream.try_clone() else { return };
        let here = self.strangers.iter_mut().filter(|s| s.cut.is_none());
        if here.count() >= STRANGERS {
            let here = self.strangers.iter_mut().filter(|s| s.cut.is_none());
            if let Some(first) = here.min_by_key(|s| s.number) {
                first.cut_off(LinkError::GaveWay);
            }
        }
        self.came += 1;
        let (number, key, reply) = (self.came, self.key.clone(), self.reply.clone());
        let greeted = self.greeted.0.clone();
        let thread = std::thread::Builder::new().name("dogwild-greet".into());
        let spawned = thread.spawn(move || {
            // The reception may have closed meanwhile.
            let _ = greeted.send((number, greet(stream, from, key.as_ref(), &*reply)));
        });
        match spawned {
            Ok(_) => self.strangers.push(Stranger {
                number,
                from,
                stream: copy,
                age: Duration::ZERO,
                cut: None,
            }),
            Err(why) => self.drop_one(Some(from), &LinkError::Io(why)),
        }
    }

    fn drop_one(&mut self, from: Option<SocketAddr>, why: &LinkError) {
        self.dropped += 1;
        if self.dropped <= NAMED || self.dropped.is_multiple_of(NAMED) {
            let from = from.map_or("elsewhere".to_owned(), |from| from.to_string());
            let dropped = self.dropped;
            log::warn!("the connection from {from} is dropped ({dropped} so far): {why}");
        }
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        for stranger in &self.strangers {
            let _ = stranger.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Stranger {
    fn cut_off(&mut self, why: LinkError) {
        // It fails if the connection is closed already, which is as good.
        let _ = self.stream.shutdown(Shutdown::Both);
        self.cut = Some(why);
    }
}

/// A new connection, if there is one.
fn accept(listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
    let (stream, address) = listener.accept().ok()?;
    stream.set_nonblocking(false).ok()?;
    Some((stream, address))
}

/// Reads the first message of a connection. What is no `Hello` gets its answer here, and then the
/// connection ends.
fn greet(
    stream: TcpStream,
    from: SocketAddr,
    key: Option<&ClusterKey>,
    reply: &Reply,
) -> Result<Option<Guest>, LinkError> {
    let (link, mut incoming) = link::open(stream, key, false)?;
    let first = match incoming.next() {
        Ok(first) => first,
        Err(why) => {
            if let LinkError::Parse(ParseError::Version(_)) = &why {
                let last = Message::text(MessageKind::Abort, 0, why.to_string());
                part(incoming, link, last);
            }
            return Err(why);
        }
    };
    if first.kind == MessageKind::Hello {
        let hello = serde_json::from_str(first.as_text()).map_err(LinkError::Json)?;
        return Ok(Some(Guest {
            link,
            incoming,
            hello,
            from,
        }));
    }
    match reply(&first) {
        Some(answer) => {
            part(incoming, link, answer);
            Ok(None)
        }
        None => Err(LinkError::NotHello(first.kind)),
    }
}

/// Sends a last message, and waits until the other end has closed.
fn part(mut incoming: Incoming, mut link: Link, last: Message) {
    link.send(Arc::new(last));
    link.finish();
    incoming.drain();
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn reception() -> (Reception, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        (Reception::new(listener, None, |_| None), address)
    }

    /// True once the other end has closed this connection.
    fn is_closed(stream: &mut TcpStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        let read = stream.read(&mut [0]);
        read.is_ok_and(|read| read == 0)
    }

    #[test]
    fn the_first_strangers_give_way_and_none_is_forgotten() {
        let (mut reception, address) = reception();
        let mut all = Vec::new();
        for count in 1..=3 * STRANGERS {
            all.push(TcpStream::connect(address).unwrap());
            while reception.came < count as u64 {
                assert!(reception.next().is_none());
            }
            let here = reception.strangers.iter().filter(|s| s.cut.is_none());
            assert!(here.count() <= STRANGERS);
        }
        while !is_closed(&mut all[0]) || !is_closed(&mut all[2 * STRANGERS - 1]) {
            assert!(reception.next().is_none());
        }
        assert!(!is_closed(&mut all[3 * STRANGERS - 1]));
        drop(reception);
        while !is_closed(&mut all[3 * STRANGERS - 1]) {
            std::thread::yield_now();
        }
    }

    /// Who has connected when the run fails learns why, also where it was not let in yet.
    #[test]
    fn those_on_the_way_in_are_told_why_it_ends() {
        let (reception, address) = reception();
        let silent = TcpStream::connect(address).unwrap();
        let stream = TcpStream::connect(address).unwrap();
        let (link, mut incoming) = link::open(stream, None, true).unwrap();
        let hello = r#"{"member": {"role": "worker", "index": 0}, "session": 1, "fingerprint": 1,
            "recipe": "", "weights": 0, "images": 1, "address": "", "checkpoints": []}"#;
        let hello = Message::text(MessageKind::Hello, 0, hello.into());
        link.send(Arc::new(hello));
        std::thread::scope(|scope| {
            scope.spawn(|| reception.end(Some("out of pictures".into())));
            let told = incoming.next().unwrap();
            assert_eq!(told.kind, MessageKind::Abort);
            assert_eq!(told.as_text(), "out of pictures");
        });
        drop(silent);
    }

    /// Time in which this process stood still is no stranger's fault.
    #[test]
    fn only_time_between_looks_counts() {
        let (mut reception, address) = reception();
        let mut stranger = TcpStream::connect(address).unwrap();
        while reception.came < 1 {
            reception.next();
        }
        reception.looked = Instant::now() - 10 * GREETING;
        reception.next();
        assert!(reception.strangers[0].cut.is_none());
        for _ in 0..GREETING.as_millis() / MOST_BETWEEN_LOOKS.as_millis() {
            reception.looked = Instant::now() - 10 * GREETING;
            reception.next();
        }
        while !is_closed(&mut stranger) || !reception.strangers.is_empty() {
            reception.next();
        }
        assert_eq!(reception.dropped, 1);
    }
}
