//! One download from one mirror by HTTP, going on where it ended.
//!
//! Touches the network and the part file. What comes is not trusted: its length is bounded here,
//! its contents are checked elsewhere.

use std::fs;
use std::io::Read;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ureq::http::{Response, StatusCode, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::DataGetError;
use super::files::Part;
use super::progress::Progress;
use super::set::Download;

/// Time for a connection, or without a byte, after which a mirror is silent.
const SILENCE: Duration = Duration::from_secs(30);
/// Time before a connection that broke is made again.
const AGAIN: Duration = Duration::from_millis(500);
/// Bytes that are read at once.
const BLOCK_BYTES: usize = 1 << 16;
/// Names the file of trusted certificates, as it does for OpenSSL.
const CERTIFICATES: &str = "SSL_CERT_FILE";
/// Where distributions keep it: Debian, Fedora, SUSE, others.
const CERTIFICATE_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why a mirror did not give a file.
pub(super) enum Fault {
    /// Another one may.
    Mirror(String),
    /// None can: it is this host.
    Here(DataGetError),
}

impl From<DataGetError> for Fault {
    fn from(error: DataGetError) -> Self {
        Self::Here(error)
    }
}

/// How one request ended before the file did.
enum End {
    /// Asking again may bring more.
    Broke(String),
    Fault(Fault),
}

impl From<DataGetError> for End {
    fn from(error: DataGetError) -> Self {
        Self::Fault(Fault::Here(error))
    }
}

/// What mirrors are asked with; made for the first request.
#[derive(Default)]
pub(super) struct Client {
    agent: Option<Agent>,
}

impl Client {
    /// Downloads what is missing in `part`; whether all of it is of this call.
    ///
    /// # Errors
    /// The mirror does not have it, or breaks off twice at the same place; this host cannot write.
    pub(super) fn fetch(
        &mut self,
        url: &str,
        download: &Download,
        part: &mut Part,
        progress: &mut Progress,
    ) -> Result<bool, Fault> {
        if url.starts_with("https:") {
            check_tls()?;
        }
        let agent = self.agent.get_or_insert_with(agent);
        let mut request = Request {
            url,
            download,
            is_whole: part.len() == 0,
        };
        let mut furthest = part.len();
        loop {
            match request.send(agent, part, progress) {
                Ok(()) => return Ok(request.is_whole),
                Err(End::Fault(fault)) => return Err(fault),
                Err(End::Broke(why)) if part.len() > furthest => {
                    furthest = part.len();
                    progress.tell(&format!(
                        "{url}: broke off after {furthest} bytes ({why}): going on from there"
                    ));
                    thread::sleep(AGAIN);
                }
                Err(End::Broke(why)) => return Err(Fault::Mirror(why)),
            }
        }
    }
}

struct Request<'r> {
    url: &'r str,
    download: &'r Download,
    /// All that is in the part file came by this.
    is_whole: bool,
}

impl Request<'_> {
    fn send(&mut self, agent: &Agent, part: &mut Part, progress: &mut Progress) -> Result<(), End> {
        let mut start = part.len();
        let mut response = self.ask(agent, start)?;
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE && start > 0 {
            if total_of(&response) == Some(start) {
                return Ok(());
            }
            progress.tell(&format!(
                "{}: has another length than what is there: downloading the whole",
                self.url
            ));
            start = self.begin_anew(part)?;
            response = self.ask(agent, start)?;
        }
        let total = match response.status() {
            StatusCode::OK => {
                if start > 0 {
                    progress.tell(&format!(
                        "{}: gives no parts of a file: downloading the whole",
                        self.url
                    ));
                    start = self.begin_anew(part)?;
                }
                number(&response, header::CONTENT_LENGTH.as_str())
            }
            StatusCode::PARTIAL_CONTENT if first_of(&response) == Some(start) => {
                total_of(&response)
            }
            StatusCode::PARTIAL_CONTENT => {
                let why = "answers with another part of the file than was asked for";
                return Err(End::Fault(Fault::Mirror(why.to_owned())));
            }
            status => return Err(End::Fault(Fault::Mirror(format!("answers {status}")))),
        };
        progress.begin(
            &self.download.file,
            start,
            total.unwrap_or(self.download.bytes),
        );
        self.take(response, total, part, progress)
    }

    fn ask(&self, agent: &Agent, start: u64) -> Result<Response<Body>, End> {
        let mut request = agent.get(self.url);
        if start > 0 {
            request = request.header(header::RANGE, format!("bytes={start}-"));
        }
        request.call().map_err(|error| End::Broke(said(&error)))
    }

    fn begin_anew(&mut self, part: &mut Part) -> Result<u64, End> {
        part.clear()?;
        self.is_whole = true;
        Ok(0)
    }

    /// Appends what comes.
    fn take(
        &self,
        mut response: Response<Body>,
        total: Option<u64>,
        part: &mut Part,
        progress: &mut Progress,
    ) -> Result<(), End> {
        let bytes_max = self.download.bytes_max();
        let mut body = response.body_mut().as_reader();
        let mut block = vec![0; BLOCK_BYTES];
        loop {
            match body.read(&mut block) {
                Ok(0) => break,
                Ok(len) => part.append(&block[..len])?,
                Err(error) => {
                    let error = ureq::Error::from(error);
                    return Err(End::Broke(said(&error)));
                }
            }
            progress.at(part.len());
            if part.len() > bytes_max {
                // It is not what was asked for, and may have no end.
                part.clear()?;
                let why = format!("sends more than {bytes_max} bytes, so it is another file");
                return Err(End::Fault(Fault::Mirror(why)));
            }
        }
        match total {
            Some(total) if part.len() < total => Err(End::Broke(format!(
                "ends after {} of {total} bytes",
                part.len()
            ))),
            _ => Ok(()),
        }
    }
}

/// In words for those who gave a URL.
fn said(error: &ureq::Error) -> String {
    match error {
        ureq::Error::HostNotFound => "there is no such host (or no DNS)".to_owned(),
        ureq::Error::Timeout(_) => format!("is silent for {} s", SILENCE.as_secs()),
        ureq::Error::Io(error) => error.to_string(),
        error => error.to_string(),
    }
}

fn text<'r>(response: &'r Response<Body>, name: &str) -> Option<&'r str> {
    response.headers().get(name)?.to_str().ok()
}

fn number(response: &Response<Body>, name: &str) -> Option<u64> {
    text(response, name)?.trim().parse().ok()
}

/// The length of the whole file: of `bytes 7-99/100` and `bytes */100`.
fn total_of(response: &Response<Body>) -> Option<u64> {
    let (_, total) = text(response, header::CONTENT_RANGE.as_str())?.rsplit_once('/')?;
    total.trim().parse().ok()
}

/// Where the part begins: of `bytes 7-99/100`.
fn first_of(response: &Response<Body>) -> Option<u64> {
    let range = text(response, header::CONTENT_RANGE.as_str())?.strip_prefix("bytes ")?;
    range.split_once('-')?.0.trim().parse().ok()
}

fn agent() -> Agent {
    let tls = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls_graviola::default_provider()))
        .root_certs(RootCerts::from(certificates().unwrap_or_default()))
        .build();
    let mut config = Agent::config_builder()
        .tls_config(tls)
        .user_agent(concat!("dogwild/", env!("CARGO_PKG_VERSION")))
        .http_status_as_error(false)
        .timeout_connect(Some(SILENCE))
        .timeout_per_read(Some(SILENCE))
        .timeout_per_write(Some(SILENCE));
    if missing_of_processor().is_some() {
        // A mirror that sends on to https would end the program.
        config = config.max_redirects(0).max_redirects_will_error(false);
    }
    config.build().new_agent()
}

/// The trusted certificates of this host.
fn certificates() -> Option<Vec<ureq::tls::Certificate<'static>>> {
    let pem = match std::env::var_os(CERTIFICATES) {
        Some(path) => fs::read(path).ok()?,
        None => CERTIFICATE_FILES
            .iter()
            .find_map(|path| fs::read(path).ok())?,
    };
    let items = parse_pem(&pem).flatten().filter_map(|item| match item {
        PemItem::Certificate(certificate) => Some(certificate),
        _ => None,
    });
    let found: Vec<_> = items.collect();
    (!found.is_empty()).then_some(found)
}

/// Whether this host can speak https at all.
fn check_tls() -> Result<(), Fault> {
    if let Some(missing) = missing_of_processor() {
        return Err(Fault::Mirror(format!(
            "this processor lacks {missing}, which https takes here: name an http:// mirror \
             (checksums are checked all the same)"
        )));
    }
    if certificates().is_none() {
        return Err(Fault::Mirror(format!(
            "this host has no certificates that https could trust: install ca-certificates, or name \
             their file in {CERTIFICATES}"
        )));
    }
    Ok(())
}

/// What the implementation of TLS needs of a processor and this one does not have.
fn missing_of_processor() -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let has = [
        ("aes", is_x86_feature_detected!("aes")),
        ("pclmulqdq", is_x86_feature_detected!("pclmulqdq")),
        ("bmi1", is_x86_feature_detected!("bmi1")),
        ("adx", is_x86_feature_detected!("adx")),
        ("avx", is_x86_feature_detected!("avx")),
        ("avx2", is_x86_feature_detected!("avx2")),
    ];
    #[cfg(target_arch = "aarch64")]
    let has = [
        ("aes", std::arch::is_aarch64_feature_detected!("aes")),
        ("pmull", std::arch::is_aarch64_feature_detected!("pmull")),
        ("sha2", std::arch::is_aarch64_feature_detected!("sha2")),
    ];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has = [];
    let has: &[(&'static str, bool)] = &has;
    has.iter().find(|(_, has)| !has).map(|(name, _)| *name)
}
