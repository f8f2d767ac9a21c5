//! The coordinator's process: lets members in, opens the book, passes on how it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::error::PoseidonError;
use super::fate::{Fate, lock};
use super::link::{self, Incoming, Link, LinkError};
use super::member::{LOOK_EVERY, accept, end, listen, lost, named, write_whole};
use super::model::ModelJob;
use super::secure::Key;
use crate::poseidon::{Coordinator, Hello, Kind, Member, Message, Role, Wish};
use crate::solver::data::Source;

/// Time between two lines that say who is missing.
const MISSING_EVERY: Duration = Duration::from_secs(5);

/// What a coordinator is started with.
#[derive(Clone, Debug)]
pub struct CoordinatorJob {
    /// Where to listen.
    pub listen: SocketAddr,
    /// File for the address it listens on, for those who start members.
    pub address_file: Option<PathBuf>,
    /// Which job.
    pub session: u64,
    /// The model.
    pub model: ModelJob,
    /// Where workers' pictures are, which are looked at for their kind only; `None`: anything goes.
    pub data: Option<Source>,
    /// The cluster; its images and recipe come from the model.
    pub wish: Wish,
    /// Go on from the newest checkpoint that all members have.
    pub resume: bool,
    /// Authenticates and encrypts all connections.
    pub key: Option<Key>,
}

/// Who is connected.
struct Hall {
    core: Coordinator,
    links: BTreeMap<Member, Link>,
    opened: bool,
    /// Workers that have not yet said that they know the end.
    asked: BTreeSet<Member>,
}

/// Runs until everybody has said goodbye, or the first error.
pub fn run_coordinator(job: &CoordinatorJob, stop: &AtomicBool) -> Result<(), PoseidonError> {
    let model = job.model.open()?;
    let plan = job.model.plan(&model, &job.wish)?;
    for layer in &plan.layers {
        log::info!("{}: {}", layer.name, layer.scheme);
    }
    let core = Coordinator::new(job.session, model.manifest.fingerprint(), plan, job.resume)?;
    let data = job.data.as_ref().and_then(|data| job.model.data(data));
    let core = core.with_data(data.map_or(String::new(), |kind| kind.to_string()));
    let listener = listen(job.listen)?;
    let address = listener.local_addr().map_err(|why| PoseidonError::System {
        what: "learn the own address",
        why,
    })?;
    log::info!("listening on {address}");
    if let Some(file) = &job.address_file {
        write_whole(file, &address.to_string())?;
    }
    let hall = Mutex::new(Hall {
        core,
        links: BTreeMap::new(),
        opened: false,
        asked: BTreeSet::new(),
    });
    let (fate, readers) = (Fate::new(stop), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let mut say = Instant::now() + MISSING_EVERY;
        let done = || lock(&hall).core.finished() && readers.load(Relaxed) == 0;
        while !fate.over() && !done() {
            if let Some((stream, from)) = accept(&listener) {
                readers.fetch_add(1, Relaxed);
                let (hall, fate, readers) = (&hall, &fate, &readers);
                scope.spawn(move || {
                    serve(hall, fate, stream, from, job.key.as_ref());
                    readers.fetch_sub(1, Relaxed);
                });
                continue;
            }
            if Instant::now() >= say {
                say = Instant::now() + MISSING_EVERY;
                say_who_is_missing(&lock(&hall));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let links = std::mem::take(&mut lock(&hall).links).into_values();
        end(links.collect(), &fate, || readers.load(Relaxed));
    });
    fate.result()
}

fn say_who_is_missing(hall: &Hall) {
    let missing = hall.core.missing();
    if !missing.is_empty() {
        let names: Vec<String> = missing.iter().map(Member::to_string).collect();
        log::info!("waiting for {}", names.join(", "));
    }
}

/// One connection, from greeting to goodbye.
fn serve(
    hall: &Mutex<Hall>,
    fate: &Fate<'_>,
    stream: TcpStream,
    from: SocketAddr,
    key: Option<&Key>,
) {
    let opened = link::open(stream, key, false);
    let first = opened.and_then(|(link, mut incoming)| {
        let first = incoming.next()?;
        match first.kind {
            Kind::Query => {
                link.send(Arc::new(answer(&lock(hall).core, first.as_text())));
                Ok(None)
            }
            Kind::Hello => {
                let hello = serde_json::from_str(first.as_text()).map_err(LinkError::Hello)?;
                Ok(Some((link, incoming, hello)))
            }
            other => Err(LinkError::NoHello(other)),
        }
    });
    match first {
        Ok(Some((link, incoming, hello))) => {
            let hello: Hello = hello;
            let who = named(hello.member, &from.to_string());
            let member = hello.member;
            if admit(hall, link, hello, &who) {
                attend(hall, fate, incoming, member, &who);
            }
        }
        Ok(None) => {}
        Err(why) => log::warn!("somebody at {from} is dropped: {why}"),
    }
}

/// Lets a member in, or tells it why not. Opens the book when it was the last.
fn admit(hall: &Mutex<Hall>, link: Link, hello: Hello, who: &str) -> bool {
    let mut hall = lock(hall);
    let member = hello.member;
    if let Err(refusal) = hall.core.join(hello) {
        log::warn!("{who} is refused: {refusal}");
        let text = refusal.to_string();
        link.send(Arc::new(Message::text(Kind::Abort, 0, text)));
        return false;
    }
    log::info!("{who} is here");
    hall.links.insert(member, link);
    if let Some(book) = hall.core.book() {
        hall.opened = true;
        log::info!("all are here; beginning after {} steps", book.start);
        let text = serde_json::to_string(&book).unwrap_or_default();
        let message = Arc::new(Message::text(Kind::Book, 0, text));
        hall.links
            .values()
            .for_each(|link| link.send(message.clone()));
    }
    true
}

/// Listens to a member until it says goodbye or fails.
fn attend(hall: &Mutex<Hall>, fate: &Fate<'_>, mut incoming: Incoming, member: Member, who: &str) {
    loop {
        let message = match incoming.next() {
            Ok(message) => message,
            Err(why) => {
                let mut hall = lock(hall);
                if hall.opened {
                    fate.fail(lost(who, why));
                } else {
                    log::warn!("{who} went away before the start: {why}");
                    hall.core.free(member);
                    hall.links.remove(&member);
                }
                return;
            }
        };
        let mut hall = lock(hall);
        match message.kind {
            Kind::Bye => {
                hall.core.leave(member);
                if hall.core.finished() {
                    let bye = Arc::new(Message::bare(Kind::Bye, 0, 0));
                    hall.links.values().for_each(|link| link.send(bye.clone()));
                }
                return;
            }
            Kind::Query => {
                let answer = Arc::new(answer(&hall.core, message.as_text()));
                hall.links[&member].send(answer);
            }
            Kind::Finish => hall.announce_end(message),
            Kind::FinishKnown => hall.end_is_known_to(member),
            Kind::Abort => {
                let (who, why) = (who.to_owned(), message.as_text().to_owned());
                fate.fail(PoseidonError::Told { who, why });
                return;
            }
            _ => {}
        }
    }
}

impl Hall {
    fn workers(&self) -> impl Iterator<Item = (&Member, &Link)> {
        let members = self.links.iter();
        members.filter(|(member, _)| member.role == Role::Worker)
    }

    /// Tells all workers at which clock to end.
    fn announce_end(&mut self, message: Message) {
        let message = Arc::new(message);
        self.workers()
            .for_each(|(_, link)| link.send(message.clone()));
        self.asked = self.workers().map(|(member, _)| *member).collect();
    }

    /// When all know the end, so does the one that asked for it.
    fn end_is_known_to(&mut self, member: Member) {
        if self.asked.remove(&member) && self.asked.is_empty() {
            let message = Arc::new(Message::bare(Kind::FinishKnown, 0, 0));
            self.workers()
                .for_each(|(_, link)| link.send(message.clone()));
        }
    }
}

fn answer(core: &Coordinator, key: &str) -> Message {
    match core.query(key) {
        Ok(value) => Message::text(Kind::Answer, 0, value.to_string()),
        Err(refusal) => Message::text(Kind::Abort, 0, refusal.to_string()),
    }
}
