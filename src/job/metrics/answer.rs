//! One request over a connection, and its answer.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use prometheus_client::encoding::prometheus_text::CONTENT_TYPE;

/// A client has so long to ask, and so long again to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest request, bytes.
const LONGEST: usize = 16 << 10;
/// The most header fields of a request.
const MOST_FIELDS: usize = 100;

/// A connection, and until when it may be waited for.
pub(super) struct Exchange {
    stream: TcpStream,
    until: Instant,
}

/// What is said to a client.
struct Answer {
    status: &'static str,
    kind: &'static str,
    body: String,
    /// Its head alone was asked for.
    head_only: bool,
}

impl Answer {
    fn plain(status: &'static str, body: &str) -> Self {
        Self {
            status,
            kind: "text/plain; charset=utf-8",
            body: body.to_owned(),
            head_only: false,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let (status, kind, length) = (self.status, self.kind, self.body.len());
        let body = if self.head_only { "" } else { &self.body };
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        )
        .into_bytes()
    }
}

impl Exchange {
    pub(super) fn new(stream: TcpStream) -> Self {
        let until = Instant::now() + PATIENCE;
        Self { stream, until }
    }

    /// Hears the request and answers it, with `text` if metrics are asked for. There may be none
    /// any more.
    ///
    /// # Errors
    /// The client has gone, or was too slow.
    pub(super) fn answer(mut self, text: impl FnOnce() -> Option<String>) -> Result<()> {
        let answer = self.hear(text)?;
        self.until = Instant::now() + PATIENCE;
        self.send(&answer.bytes())?;
        self.close()
    }

    fn hear(&mut self, text: impl FnOnce() -> Option<String>) -> Result<Answer> {
        let mut heard = vec![0; LONGEST];
        let mut len = 0;
        loop {
            let more = match self.receive(&mut heard[len..]) {
                Err(error) if is_late(&error) => {
                    return Ok(Answer::plain("408 Request Timeout", "no request in 5 s\n"));
                }
                more => more?,
            };
            if more == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            len += more;
            let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
            let mut request = httparse::Request::new(&mut fields);
            match request.parse(&heard[..len]) {
                Ok(httparse::Status::Complete(_)) => return Ok(answer_to(&request, text)),
                Ok(httparse::Status::Partial) if len < LONGEST => {}
                Ok(httparse::Status::Partial) => return Ok(too_long()),
                Err(httparse::Error::TooManyHeaders) => return Ok(too_long()),
                Err(why) => {
                    let why = format!("no request of HTTP/1: {why}\n");
                    return Ok(Answer::plain("400 Bad Request", &why));
                }
            }
        }
    }

    /// Lets the answer arrive: a connection that is closed with bytes unread loses it.
    fn close(&mut self) -> Result<()> {
        self.stream.shutdown(Shutdown::Write)?;
        let mut rest = [0; 4096];
        while self.receive(&mut rest)? > 0 {}
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(bytes)
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(self.left()?))?;
            let sent = self.stream.write(bytes)?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// The time left; none left is an error.
    fn left(&self) -> Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(left)
    }
}

fn is_late(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

fn too_long() -> Answer {
    Answer::plain(
        "431 Request Header Fields Too Large",
        "a request of 16 KiB and 100 fields at most\n",
    )
}

/// What to say to a request.
fn answer_to(request: &httparse::Request<'_, '_>, text: impl FnOnce() -> Option<String>) -> Answer {
    let method = request.method.unwrap_or_default();
    if !matches!(method, "GET" | "HEAD") {
        return Answer::plain("405 Method Not Allowed", "only GET\n");
    }
    let path = request.path.unwrap_or_default();
    if path.split('?').next() != Some("/metrics") {
        return Answer::plain("404 Not Found", "dogwild: see /metrics\n");
    }
    let Some(body) = text() else {
        return Answer::plain("503 Service Unavailable", "the job has ended\n");
    };
    Answer {
        status: "200 OK",
        kind: CONTENT_TYPE,
        body,
        head_only: method == "HEAD",
    }
}

/// Tells a client that there are too many.
pub(super) fn refuse(mut stream: TcpStream) {
    let answer = Answer::plain("503 Service Unavailable", "too many connections\n");
    // It fits into what a new connection holds. Waiting for a client is for those that are served.
    let _ = stream.set_nonblocking(true);
    let _ = stream.write_all(&answer.bytes());
}
