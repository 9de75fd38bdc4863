//! TLS of the connections: what is trusted, and one session a slot. The only file that knows rustls.
//!
//! A session is fed bytes and gives bytes; what goes where is the worker's. Request bytes are encrypted in pieces of
//! [`limits::TLS_PIECE_BYTES`] into the slot's send area, so that memory a connection is bounded whatever the size of a body;
//! received bytes are opened into one buffer of the worker.
//!
//! rustls allocates: when a session is made, a certificate is checked, a record is written or opened. Its calls, and they alone,
//! are excepted from the quiet stretch of a worker ([`quiet::Pause`]). Sessions are resumed only when asked for, out of a cache
//! of the worker's own: else every handshake is a full one, so that their times are of one kind.
//!
//! The file is a little long, as it is the only one that may know rustls.

use std::{
    fmt::{self, Write as _},
    io::{ErrorKind, Read as _, Write as _},
    path::Path,
    sync::Arc,
};

use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, RootCertStore,
    SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, ring},
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName, UnixTime,
        pem::{self, PemObject},
    },
    server::ParsedCertificate,
};

use super::quiet;
use crate::{
    data::{
        ConnId, Error, Result, Span, limits,
        plan::{Plan, Target, Tls, TlsVersion},
    },
    sys::mem::{Changed, Map},
};

/// Bytes of rustls' words that a sample keeps.
const WORDS_BYTES_MAX: usize = 128;
/// Names that a worker keeps sessions of, at least: rustls keeps some for each, and evicts by name.
const RESUMED_NAMES_MIN: usize = 8;

/// What all sessions of a run share.
#[derive(Debug)]
pub(super) struct Settings {
    config: Arc<ClientConfig>,
    /// One a target; none for those without TLS.
    names: Vec<Option<ServerName<'static>>>,
    /// Sessions are resumed.
    resume: bool,
    /// What the user should know.
    pub notes: Vec<String>,
}

impl Settings {
    /// Reads what the plan names; none when no target has TLS.
    ///
    /// Errors: as [`check`].
    pub fn new(plan: &Plan) -> Result<Option<Self>> {
        if !plan.targets.iter().any(|t| t.tls) {
            return Ok(None);
        }
        let own = Own::read(&plan.tls, &plan.targets)?;
        let mut notes = Vec::new();
        let provider = Arc::new(ring::default_provider());
        let versions: &[_] = match plan.tls.version_min {
            TlsVersion::V1_2 => &[&rustls::version::TLS13, &rustls::version::TLS12],
            TlsVersion::V1_3 => &[&rustls::version::TLS13],
        };
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(|e| Error::usage(format!("--tls-min: {e}")))?;
        let config = if plan.tls.insecure {
            config.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked(provider)))
        } else if own.given.is_empty() {
            config.with_root_certificates(roots(own.authorities, &mut notes))
        } else {
            let roots = Arc::new(roots(own.authorities, &mut notes));
            let chains = WebPkiServerVerifier::builder_with_provider(roots, provider)
                .build()
                .map_err(|e| Error::usage(format!("--cacert {}: {e}", show(plan.tls.authorities.as_deref()))))?;
            config.dangerous().with_custom_certificate_verifier(Arc::new(Given { chains, certificates: own.given }))
        };
        let mut config = match own.identity {
            Some((chain, key)) => config
                .with_client_auth_cert(chain, key)
                .map_err(|e| Error::usage(format!("--cert {}: {e}", show(plan.tls.certificate.as_deref()))))?,
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Some(Self { config: Arc::new(config), names: own.names, resume: plan.tls.resume, notes }))
    }

    /// The configuration of one worker: a cache of sessions is its own, so that workers share no lock.
    fn of_worker(&self) -> Arc<ClientConfig> {
        if !self.resume {
            return self.config.clone();
        }
        let mut config = ClientConfig::clone(&self.config);
        config.resumption = Resumption::in_memory_sessions(self.names.len().max(RESUMED_NAMES_MIN));
        Arc::new(config)
    }
}

/// Looks at what the plan says of TLS, the files that it names included; reads nothing of the system's.
///
/// Errors: a name that no certificate can be for, a file that cannot be read or is not PEM, a key that is not the certificate's.
pub fn check(tls: &Tls, targets: &[Target]) -> Result<()> {
    let own = Own::read(tls, targets)?;
    if let Some((chain, key)) = own.identity {
        rustls::sign::CertifiedKey::from_der(chain, key, &ring::default_provider())
            .map_err(|e| Error::usage(format!("--cert {}: {e}", show(tls.certificate.as_deref()))))?;
    }
    Ok(())
}

/// What the user gave.
struct Own {
    authorities: RootCertStore,
    /// The certificates of `--cacert`, byte for byte.
    given: Vec<CertificateDer<'static>>,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    names: Vec<Option<ServerName<'static>>>,
}

impl Own {
    fn read(tls: &Tls, targets: &[Target]) -> Result<Self> {
        let Tls { authorities: ca, certificate, key, .. } = tls;
        let mut authorities = RootCertStore::empty();
        let mut given = Vec::new();
        if let Some(path) = ca {
            given = certificates("--cacert", path)?;
            for authority in &given {
                authorities
                    .add(authority.clone())
                    .map_err(|e| Error::usage(format!("--cacert {}: not an authority: {e}", path.display())))?;
            }
        }
        let identity = match certificate {
            None => None,
            Some(path) => {
                let (flag, at) = key.as_ref().map_or(("--cert", path), |key| ("--key", key));
                let key = PrivateKeyDer::from_pem_file(at).map_err(|e| refused(flag, at, "private key", &e))?;
                Some((certificates("--cert", path)?, key))
            }
        };
        let mut names = Vec::with_capacity(targets.len());
        for (index, target) in targets.iter().enumerate() {
            let name = tls.names.get(index).cloned().unwrap_or_default();
            let parsed = || {
                ServerName::try_from(name.clone()).map_err(|_| {
                    Error::usage(format!(
                        "URL '{}': no certificate can be for the name '{name}'; see --sni",
                        target.url
                    ))
                })
            };
            names.push(if target.tls { Some(parsed()?) } else { None });
        }
        Ok(Self { authorities, given, identity, names })
    }
}

/// All certificates of a PEM file, at least one.
fn certificates(flag: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let all: std::result::Result<Vec<_>, pem::Error> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match all {
        Ok(all) if all.is_empty() => Err(refused(flag, path, "certificate", &pem::Error::NoItemsFound)),
        Ok(all) => Ok(all),
        Err(error) => Err(refused(flag, path, "certificate", &error)),
    }
}

fn refused(flag: &str, path: &Path, what: &str, error: &pem::Error) -> Error {
    let why = match error {
        pem::Error::Io(e) => format!("cannot be read: {e}"),
        pem::Error::NoItemsFound => format!("has no {what} in PEM form (-----BEGIN ...)"),
        other => format!("is not PEM: {other:?}"),
    };
    Error::usage(format!("{flag} {}: {why}", path.display()))
}

fn show(path: Option<&Path>) -> String {
    path.map(|p| p.display().to_string()).unwrap_or_default()
}

/// The user's authorities, and the system's beside them.
fn roots(mut own: RootCertStore, notes: &mut Vec<String>) -> RootCertStore {
    let given = own.len();
    let found = rustls_native_certs::load_native_certs();
    own.add_parsable_certificates(found.certs);
    if own.is_empty() {
        notes.push("this system names no certificate authority: no server can be verified; see --cacert".into());
    } else if own.len() == given && !found.errors.is_empty() {
        notes.push("the system's certificate authorities cannot be read: those of --cacert alone are trusted".into());
    }
    own
}

/// Verifies chains, and takes a server's own certificate where `--cacert` has that very one, byte for byte, though it is an
/// authority's: what a server that signed its own certificate with CA:TRUE shows. Its dates, its name and the handshake's
/// signature are held to all the same.
#[derive(Debug)]
struct Given {
    chains: Arc<WebPkiServerVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

/// True for the one refusal that a certificate which the user gave is excused from. The dates were good by then: they are
/// looked at first.
fn is_authority_as_server(error: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

impl ServerCertVerifier for Given {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        match self.chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(error) if is_authority_as_server(&error) && self.certificates.contains(end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// Takes any certificate (`-k`).
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// What received bytes came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opened {
    /// All were taken, and nothing is left to read.
    All,
    /// So many bytes of plaintext, in [`Sessions::plaintext`]. There may be more.
    Plaintext(usize),
    /// The peer said close_notify: nothing comes any more.
    End,
    /// The session is broken; [`Sessions::words`] says why.
    Broken,
}

/// Why no more of a request can be encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// The cache entry's files changed under the run.
    Changed,
    /// The session is broken; [`Sessions::words`] says why.
    Broken,
}

impl From<Changed> for Stopped {
    fn from(_: Changed) -> Self {
        Self::Changed
    }
}

/// One slot's session.
#[derive(Debug, Default)]
struct Slot {
    session: Option<ClientConnection>,
    /// The part of the send area that is still to be sent.
    from: usize,
    to: usize,
    /// Plaintext bytes of the request that rustls has; 0 before the first request.
    fed: u64,
    /// Wire bytes that the kernel took for the request.
    wire: u64,
    broken: bool,
    /// The peer said close_notify.
    ended: bool,
}

/// The sessions of a worker; without slots where no target has TLS.
#[derive(Debug)]
pub(super) struct Sessions {
    /// None where no target has TLS.
    config: Option<Arc<ClientConfig>>,
    slots: Box<[Slot]>,
    /// Where a request's next piece is put together.
    piece: Box<[u8]>,
    /// Where received plaintext is put.
    read: Box<[u8]>,
    /// Why a session broke last.
    words: String,
}

impl Sessions {
    /// Takes the memory for `connections` slots; nothing without settings.
    pub fn new(settings: Option<&Settings>, connections: usize) -> Self {
        let bytes = |n: usize| if settings.is_some() { vec![0; n].into() } else { Box::default() };
        Self {
            config: settings.map(Settings::of_worker),
            slots: (0..settings.map_or(0, |_| connections)).map(|_| Slot::default()).collect(),
            piece: bytes(limits::TLS_PIECE_BYTES),
            read: bytes(limits::TLS_READ_BYTES),
            words: String::with_capacity(WORDS_BYTES_MAX),
        }
    }

    /// True when a slot's connection has a session.
    #[inline]
    pub fn on(&self, conn: ConnId) -> bool {
        self.slots.get(conn.index()).is_some_and(|s| s.session.is_some())
    }

    /// Makes a session for a connection that was just opened to a target; false when the target has no TLS.
    pub fn open(
        &mut self,
        conn: ConnId,
        settings: Option<&Settings>,
        target: u16,
    ) -> std::result::Result<bool, Stopped> {
        let name = settings.and_then(|s| s.names.get(target as usize)?.as_ref());
        let (Some(name), Some(config)) = (name, &self.config) else { return Ok(false) };
        let _pause = quiet::Pause::begin();
        match ClientConnection::new(config.clone(), name.clone()) {
            Ok(mut session) => {
                // Bounded by the pieces that are fed: a piece that was cut here would be lost.
                session.set_buffer_limit(None);
                self.slots[conn.index()] = Slot { session: Some(session), ..Slot::default() };
                Ok(true)
            }
            Err(error) => {
                say(&mut self.words, &error);
                Err(Stopped::Broken)
            }
        }
    }

    /// True when a finished handshake took up an earlier session.
    pub fn is_resumed(&self, conn: ConnId) -> bool {
        self.session(conn).is_some_and(|s| s.handshake_kind() == Some(HandshakeKind::Resumed))
    }

    /// Our close_notify, to be the last bytes of a connection; none where a handshake is not over, the session is broken, or a
    /// part of a record is still to be sent.
    pub fn farewell(&mut self, conn: ConnId) -> Option<&[u8]> {
        let slot = self.slots.get_mut(conn.index())?;
        let session = slot.session.as_mut()?;
        if session.is_handshaking() || slot.broken || slot.from != slot.to || session.wants_write() {
            return None;
        }
        let _pause = quiet::Pause::begin();
        session.send_close_notify();
        let mut at = 0;
        while session.wants_write() && at < self.piece.len() {
            match session.write_tls(&mut &mut self.piece[at..]) {
                Ok(n @ 1..) => at += n,
                Ok(0) | Err(_) => return None,
            }
        }
        Some(&self.piece[..at])
    }

    /// Forgets a slot's session.
    pub fn close(&mut self, conn: ConnId) {
        if let Some(slot) = self.slots.get_mut(conn.index()) {
            let _pause = quiet::Pause::begin();
            *slot = Slot::default();
        }
    }

    /// True until both sides have finished the handshake.
    pub fn is_handshaking(&self, conn: ConnId) -> bool {
        self.session(conn).is_some_and(|s| s.is_handshaking())
    }

    /// True when rustls has something to say.
    pub fn wants_write(&self, conn: ConnId) -> bool {
        self.session(conn).is_some_and(|s| s.wants_write())
    }

    /// True when all that rustls said was taken by the kernel.
    pub fn is_flushed(&self, conn: ConnId) -> bool {
        self.slots.get(conn.index()).is_some_and(|s| s.from == s.to) && !self.wants_write(conn)
    }

    /// True when the peer ended the session in order: what it sent is all there was.
    pub fn ended(&self, conn: ConnId) -> bool {
        self.slots.get(conn.index()).is_some_and(|s| s.ended)
    }

    /// Why a session broke last, in rustls' own words.
    pub fn words(&self) -> &str {
        &self.words
    }

    /// Plaintext that came.
    pub fn plaintext(&self, bytes: usize) -> &[u8] {
        &self.read[..bytes]
    }

    /// Where the head of a request is to be written before the first [`Sessions::feed`].
    pub fn piece_mut(&mut self) -> &mut [u8] {
        &mut self.piece
    }

    /// A slot's next request begins.
    pub fn begin(&mut self, conn: ConnId) {
        let slot = &mut self.slots[conn.index()];
        (slot.fed, slot.wire) = (0, 0);
    }

    /// Plaintext bytes of the request that rustls has.
    pub fn fed(&self, conn: ConnId) -> u64 {
        self.slots[conn.index()].fed
    }

    /// Wire bytes that the kernel took for the request; none without a session.
    #[inline]
    pub fn wire(&self, conn: ConnId) -> Option<u64> {
        self.slots.get(conn.index()).filter(|s| s.session.is_some()).map(|s| s.wire)
    }

    /// Takes received bytes, and opens what is whole. Returns how many were taken; call it again until it gives
    /// [`Opened::All`].
    pub fn open_bytes(&mut self, conn: ConnId, wire: &[u8]) -> (usize, Opened) {
        let slot = &mut self.slots[conn.index()];
        let Some(session) = &mut slot.session else { return (0, Opened::All) };
        let _pause = quiet::Pause::begin();
        let mut left = wire;
        loop {
            // First what is open already: a record's plaintext counts though the next one is broken.
            let opened = match session.reader().read(&mut self.read) {
                Ok(0) => Some(Opened::End),
                Ok(n) => Some(Opened::Plaintext(n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => None,
                Err(e) => {
                    slot.broken = true;
                    say(&mut self.words, &e);
                    None
                }
            };
            let opened = match opened {
                None if slot.broken => Some(Opened::Broken),
                None if left.is_empty() => Some(Opened::All),
                other => other,
            };
            if let Some(opened) = opened {
                slot.ended |= opened == Opened::End;
                return (wire.len() - left.len(), opened);
            }
            match session.read_tls(&mut left) {
                // Bytes behind a close_notify: nobody reads them.
                Ok(0) => left = &[],
                Ok(_) => {
                    if let Err(error) = session.process_new_packets() {
                        slot.broken = true;
                        say(&mut self.words, &error);
                    }
                }
                Err(error) => {
                    slot.broken = true;
                    say(&mut self.words, &error);
                }
            }
        }
    }

    /// Encrypts the next piece of a request: the first `head` bytes of [`Sessions::piece_mut`], and body bytes behind the first
    /// `skip` of its spans.
    ///
    /// Errors: the map changed under the run, or the session is broken.
    pub fn feed(
        &mut self,
        conn: ConnId,
        head: usize,
        map: &Map,
        spans: &[Span],
        skip: u64,
    ) -> std::result::Result<(), Stopped> {
        let (mut at, mut skip) = (head, skip);
        for span in spans {
            if at == self.piece.len() {
                break;
            }
            if skip >= span.bytes {
                skip -= span.bytes;
                continue;
            }
            let n = (span.bytes - skip).min((self.piece.len() - at) as u64) as usize;
            map.copy_to(span.offset.saturating_add(skip), &mut self.piece[at..at + n])?;
            (at, skip) = (at + n, 0);
        }
        let slot = &mut self.slots[conn.index()];
        let Some(session) = &mut slot.session else { return Err(Stopped::Broken) };
        let _pause = quiet::Pause::begin();
        if let Err(error) = session.writer().write_all(&self.piece[..at]) {
            say(&mut self.words, &error);
            return Err(Stopped::Broken);
        }
        slot.fed += at as u64;
        Ok(())
    }

    /// Writes what rustls has to say into the send area. Returns what part of it is to be sent, what a short send left over
    /// first; none when there is nothing.
    pub fn write(&mut self, conn: ConnId, area: &mut [u8]) -> Option<(usize, usize)> {
        let slot = &mut self.slots[conn.index()];
        if slot.from == slot.to {
            let session = slot.session.as_mut()?;
            let _pause = quiet::Pause::begin();
            let mut at = 0;
            while session.wants_write() && at < area.len() {
                match session.write_tls(&mut &mut area[at..]) {
                    Ok(n @ 1..) => at += n,
                    Ok(0) | Err(_) => break,
                }
            }
            (slot.from, slot.to) = (0, at);
        }
        (slot.from < slot.to).then_some((slot.from, slot.to))
    }

    /// The kernel took `n` bytes of the send area. Returns the plaintext bytes of the request that are out by that, none while a
    /// part of a piece is not: which bytes of a record are whose cannot be told.
    pub fn sent(&mut self, conn: ConnId, n: u64) -> Option<u64> {
        let slot = &mut self.slots[conn.index()];
        slot.from = slot.to.min(slot.from + n as usize);
        if slot.fed > 0 {
            slot.wire += n;
        }
        let more = slot.session.as_ref().is_some_and(|s| s.wants_write());
        (slot.from == slot.to && !more).then_some(slot.fed)
    }

    fn session(&self, conn: ConnId) -> Option<&ClientConnection> {
        self.slots.get(conn.index())?.session.as_ref()
    }
}

/// Writes an error's words, as many as fit.
fn say(words: &mut String, error: &dyn fmt::Display) {
    struct Fit<'a>(&'a mut String);
    impl fmt::Write for Fit<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = WORDS_BYTES_MAX.saturating_sub(self.0.len());
            self.0.push_str(&text[..text.floor_char_boundary(room)]);
            Ok(())
        }
    }
    words.clear();
    let _ = write!(Fit(words), "{error}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONN: ConnId = ConnId(0);

    fn settings() -> Settings {
        let target = Target {
            url: "https://a.test/".into(),
            host: "a.test".into(),
            path: "/".into(),
            addresses: Vec::new(),
            tls: true,
            local: true,
        };
        let tls = Tls { insecure: true, names: vec!["a.test".into()], ..Tls::default() };
        Settings::new(&Plan { targets: vec![target], tls, ..Plan::for_tests() }).unwrap().unwrap()
    }

    #[test]
    fn a_body_is_fed_in_pieces_and_one_whose_file_was_cut_short_is_told_and_not_sent() {
        let (settings, bytes) = (settings(), 200_000);
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        let map = Map::file(file.try_clone().unwrap(), bytes).unwrap();
        let spans = [Span { offset: 0, bytes: 5 }, Span { offset: 5, bytes: bytes - 5 }];
        let mut sessions = Sessions::new(Some(&settings), 1);
        assert_eq!(sessions.open(CONN, Some(&settings), 0), Ok(true));
        sessions.begin(CONN);
        assert_eq!(sessions.feed(CONN, 100, &map, &spans, 0), Ok(()));
        let piece = limits::TLS_PIECE_BYTES as u64;
        assert_eq!(sessions.fed(CONN), piece);
        file.set_len(4096).unwrap();
        assert_eq!(sessions.feed(CONN, 0, &map, &spans, piece - 100), Err(Stopped::Changed));
        assert_eq!(sessions.fed(CONN), piece, "nothing of it went to rustls");
    }

    #[test]
    fn bytes_that_are_no_tls_break_a_session_with_words_and_a_closed_slot_has_none() {
        let settings = settings();
        let mut sessions = Sessions::new(Some(&settings), 1);
        assert_eq!(sessions.open(CONN, Some(&settings), 0), Ok(true));
        let mut area = [0; 4096];
        let (from, to) = sessions.write(CONN, &mut area).unwrap();
        assert_eq!((from, area[0]), (0, 22), "a handshake record");
        assert_eq!(sessions.sent(CONN, 3), None, "a part of it is still to be sent");
        assert_eq!(sessions.write(CONN, &mut area), Some((3, to)));
        assert_eq!(sessions.sent(CONN, to as u64 - 3), Some(0));
        assert_eq!(sessions.open_bytes(CONN, b"HTTP/1.1 400 Bad Request\r\n").1, Opened::Broken);
        assert!(sessions.words().contains("corrupt message"), "{}", sessions.words());
        sessions.close(CONN);
        assert!(!sessions.on(CONN) && sessions.wire(CONN).is_none());
    }

    #[test]
    fn words_are_cut_where_they_no_longer_fit() {
        let mut words = String::new();
        say(&mut words, &"\u{e9}".repeat(WORDS_BYTES_MAX));
        assert_eq!(words.len(), WORDS_BYTES_MAX);
    }
}
