//! An HTTP server on loopback that answers as a test says, and remembers what it was asked.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The file's name.
    pub(crate) name: String,
    /// The first byte, of a request for a part.
    pub(crate) from: Option<usize>,
}

/// How a request is answered.
#[derive(Clone)]
pub(crate) struct Answer {
    /// The whole file.
    pub(crate) file: Vec<u8>,
    /// Other than 200 and 206.
    pub(crate) status: Option<&'static str>,
    /// Parts are given.
    pub(crate) ranges: bool,
    /// Bytes of this answer after which it ends.
    pub(crate) cut: Option<usize>,
    /// It does not end there: nothing comes any more.
    pub(crate) silent: bool,
}

impl Answer {
    pub(crate) fn of(file: &[u8]) -> Self {
        Self {
            file: file.to_vec(),
            status: None,
            ranges: true,
            cut: None,
            silent: false,
        }
    }

    pub(crate) fn status(status: &'static str) -> Self {
        Self {
            status: Some(status),
            ..Self::of(b"")
        }
    }

    pub(crate) fn without_ranges(self) -> Self {
        Self {
            ranges: false,
            ..self
        }
    }

    pub(crate) fn cut(self, after: usize) -> Self {
        Self {
            cut: Some(after),
            ..self
        }
    }

    pub(crate) fn silent_after(self, after: usize) -> Self {
        Self {
            silent: true,
            ..self.cut(after)
        }
    }

    fn send(&self, to: &mut TcpStream, from: Option<usize>, stop: &AtomicBool) {
        let len = self.file.len();
        let from = from.filter(|_| self.ranges);
        let start = from.unwrap_or(0);
        let (status, range) = match (self.status, from) {
            (Some(status), _) => (status, String::new()),
            (None, None) => ("200 OK", String::new()),
            (None, Some(_)) if start >= len => (
                "416 Range Not Satisfiable",
                format!("Content-Range: bytes */{len}\r\n"),
            ),
            (None, Some(_)) => (
                "206 Partial Content",
                format!("Content-Range: bytes {start}-{}/{len}\r\n", len - 1),
            ),
        };
        let body = self.file.get(start..).unwrap_or_default();
        let sent = self.cut.map_or(body, |cut| &body[..cut.min(body.len())]);
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{range}Connection: close\r\n\r\n",
            body.len()
        );
        // A client may be killed, or go away from what it does not want.
        let _ = to
            .write_all(head.as_bytes())
            .and_then(|()| to.write_all(sent));
        while self.silent && !stop.load(Relaxed) {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Ends with the test.
pub(crate) struct Server {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// `answer` gets what is asked for, and how many requests were before.
    pub(crate) fn start(answer: impl Fn(&Asked, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (asked, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::default());
        let (all, stopped, answer) = (Arc::clone(&asked), Arc::clone(&stop), Arc::new(answer));
        let serve = move || {
            for stream in listener.incoming() {
                if AtomicBool::load(&stopped, Relaxed) {
                    return;
                }
                let (all, stopped, answer) = (all.clone(), stopped.clone(), answer.clone());
                thread::spawn(move || {
                    let mut stream = stream.expect("a connection");
                    let Some(one) = request(&stream) else { return };
                    let before = {
                        let mut all = all.lock().expect("no panic");
                        all.push(one.clone());
                        all.len() - 1
                    };
                    answer(&one, before).send(&mut stream, one.from, &stopped);
                });
            }
        };
        Self {
            address,
            asked,
            stop,
            thread: Some(thread::spawn(serve)),
        }
    }

    /// One that has `files` and nothing else.
    pub(crate) fn of(files: Vec<(String, Vec<u8>)>) -> Self {
        Self::start(move |asked, _| {
            let found = files.iter().find(|(name, _)| *name == asked.name);
            found.map_or(Answer::status("404 Not Found"), |(_, file)| {
                Answer::of(file)
            })
        })
    }

    /// The folder that files are in.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/some/folder", self.address)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no panic").clone()
    }

    /// From where files were asked for, request by request.
    pub(crate) fn froms(&self) -> Vec<Option<usize>> {
        self.asked().iter().map(|asked| asked.from).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        // Wakes it.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn request(stream: &TcpStream) -> Option<Asked> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    let path = first.split(' ').nth(1)?;
    let name = path
        .strip_prefix("/some/folder/")
        .unwrap_or(path)
        .to_owned();
    let headers = lines.take_while(|line| !line.is_empty());
    let from = headers.filter_map(|line| {
        let line = line.to_ascii_lowercase();
        let from = line.strip_prefix("range: bytes=")?.strip_suffix('-')?;
        from.parse().ok()
    });
    Some(Asked {
        name,
        from: from.last(),
    })
}
