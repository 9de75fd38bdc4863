//! `ringload run` over TLS, against rustls as the server. Cases 71 and 73 of the public reports are here.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use ringload::{
    cache::View,
    data::plan::{Shape, Tls},
    engine,
};
use rustls::{
    RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};

use crate::{
    alloc,
    support::{OK, Request, adds_up, ringload, run},
};

/// An authority, and what it signed: a leaf for `localhost` and 127.0.0.1.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let key = KeyPair::generate().unwrap();
        let made = params.self_signed(&key).unwrap();
        Self { pem: made.pem(), certificate: made.der().clone(), issuer: Issuer::new(params, key) }
    }

    fn sign(&self, names: &[&str]) -> (rcgen::Certificate, KeyPair) {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        (CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// A server's configuration, with one of the versions alone or both.
    fn server(&self, versions: &[&'static rustls::SupportedProtocolVersion], ask: Ask) -> Arc<ServerConfig> {
        let (leaf, key) = self.sign(&["localhost", "127.0.0.1"]);
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions).unwrap();
        let builder = match ask {
            Ask::Nothing => builder.with_no_client_auth(),
            Ask::Certificate => {
                let mut roots = RootCertStore::empty();
                roots.add(self.certificate.clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
                builder.with_client_cert_verifier(verifier)
            }
        };
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = builder.with_single_cert(vec![leaf.der().clone()], key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }
}

enum Ask {
    Nothing,
    Certificate,
}

/// One connection of the server, its handshake done.
struct Conn {
    stream: StreamOwned<ServerConnection, TcpStream>,
    buffer: Vec<u8>,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Conn {
    fn request(&mut self) -> Option<Request> {
        let mut chunk = [0u8; 65_536];
        loop {
            if let Some(request) = Request::take(&mut self.buffer) {
                self.seen.lock().unwrap().push(request.clone());
                return Some(request);
            }
            match self.stream.read(&mut chunk) {
                Ok(n) if n > 0 => self.buffer.extend_from_slice(&chunk[..n]),
                _ => return None,
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).and_then(|()| self.stream.flush());
    }

    fn close_notify(&mut self) {
        self.stream.conn.send_close_notify();
        let _ = self.stream.flush();
    }
}

/// A server whose connections each run a script; a bare TCP close ends them.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
    /// SNI of each finished handshake.
    names: Arc<Mutex<Vec<Option<String>>>>,
}

impl Server {
    fn start(config: Arc<ServerConfig>, script: impl Fn(&mut Conn) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = Self { address, seen: Arc::default(), names: Arc::default() };
        let (script, seen, names) = (Arc::new(script), server.seen.clone(), server.names.clone());
        thread::spawn(move || {
            for tcp in listener.incoming().flatten() {
                let (script, seen, names, config) = (script.clone(), seen.clone(), names.clone(), config.clone());
                tcp.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                thread::spawn(move || {
                    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), tcp);
                    while stream.conn.is_handshaking() {
                        if stream.conn.complete_io(&mut stream.sock).is_err() {
                            return;
                        }
                    }
                    names.lock().unwrap().push(stream.conn.server_name().map(str::to_owned));
                    let mut conn = Conn { stream, buffer: Vec::new(), seen };
                    script(&mut conn);
                    let _ = conn.stream.sock.shutdown(Shutdown::Both);
                });
            }
        });
        server
    }

    fn always(config: Arc<ServerConfig>) -> Self {
        Self::start(config, |conn| {
            while conn.request().is_some() {
                conn.send(OK);
            }
        })
    }

    fn url(&self, host: &str) -> String {
        format!("https://{host}:{}/v1/x", self.address.port())
    }

    fn names(&self) -> Vec<Option<String>> {
        self.names.lock().unwrap().clone()
    }
}

/// A folder with the authority's file in it.
fn folder(authority: &Authority) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("ca.pem"), &authority.pem).unwrap();
    dir
}

const ONE: [&str; 8] = ["-b", "{}", "-c", "1", "-n", "1", "--timeout", "10s"];

fn one(dir: &Path, url: &str, more: &[&str]) -> (i32, serde_json::Value) {
    let (code, summary) = run(dir, url, &[&ONE[..], more].concat());
    adds_up(&summary);
    (code, summary)
}

#[test]
fn bodies_go_out_byte_for_byte_to_a_server_that_is_verified() {
    let authority = Authority::new();
    let dir = folder(&authority);
    // One piece of plaintext exactly, one byte beside it, and several pieces.
    let lines: Vec<String> = [20, 32_000, 32_768, 32_769, 300_000]
        .iter()
        .map(|n| {
            format!(r#"{{"n":{n},"x":"{}"}}"#, (0..*n).map(|i| char::from(b'a' + (i % 23) as u8)).collect::<String>())
        })
        .collect();
    std::fs::write(dir.path().join("d.jsonl"), lines.join("\n")).unwrap();
    for versions in [&[&rustls::version::TLS13], &[&rustls::version::TLS12]] {
        let server = Server::always(authority.server(versions, Ask::Nothing));
        let args = ["-f", "d.jsonl", "-c", "1", "--cacert", "ca.pem"];
        let (code, summary) = run(dir.path(), &server.url("localhost"), &args);
        assert_eq!((code, &summary["requests"]["succeeded"]), (0, &5.into()), "{summary}");
        let sent: Vec<_> =
            server.seen.lock().unwrap().iter().map(|r| String::from_utf8(r.body.clone()).unwrap()).collect();
        assert!(sent == lines, "a body differs");
        let host = format!("Host: localhost:{}\r\n", server.address.port());
        assert!(server.seen.lock().unwrap().iter().all(|r| r.head.contains(&host)));
        let bytes = &summary["bytes"];
        let bodies: usize = lines.iter().map(String::len).sum();
        assert_eq!(bytes["bodies"], bodies);
        assert!(bytes["sent"].as_u64().unwrap() > bodies as u64 + 5 * 22, "records have heads and tags: {bytes}");
        assert_eq!(summary["connections"]["opened"], 1);
        assert_eq!(summary["metrics"]["tls_time"]["count"], 1);
        assert_eq!(server.names(), [Some("localhost".to_owned())]);
        adds_up(&summary);
    }
}

#[test]
fn case_73_a_server_that_cannot_be_verified_is_class_tls_with_the_reason_and_k_takes_it() {
    let authority = Authority::new();
    let dir = folder(&authority);
    let server = Server::always(authority.server(rustls::ALL_VERSIONS, Ask::Nothing));
    let (code, summary) = run(dir.path(), &server.url("127.0.0.1"), &["-b", "{}", "-c", "2", "-n", "50"]);
    assert_eq!((code, &summary["errors"]), (1, &serde_json::json!({ "tls": 50 })), "{summary}");
    assert_eq!(summary["connections"]["opened"], 0);
    let args = ["run", &server.url("127.0.0.1"), "-t", "1", "-b", "{}", "-c", "2", "-n", "500"];
    let out = ringload(dir.path(), &args);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!((1..=3).contains(&text.matches("UnknownIssuer").count()), "a few samples, however many fail: {text}");
    assert!(!String::from_utf8_lossy(&out.stderr).contains("UnknownIssuer"), "nothing is told while it runs");
    assert!(server.seen.lock().unwrap().is_empty(), "nothing is sent to a server that is not verified");
    let (code, summary) = one(dir.path(), &server.url("127.0.0.1"), &["-k"]);
    assert_eq!(code, 0, "{summary}");
    let (code, summary) = one(dir.path(), &server.url("127.0.0.1"), &["--cacert", "ca.pem"]);
    assert_eq!(code, 0, "{summary}");
    let (code, summary) = one(dir.path(), &server.url("127.0.0.1"), &["--cacert", "ca.pem", "--sni", "other.test"]);
    assert_eq!((code, &summary["errors"]["tls"]), (1, &1.into()), "the certificate is held to the name: {summary}");
}

/// A certificate that its own key signed as an authority's (CA:TRUE), good for names until a year.
fn own_authority(names: &[&str], until: i32) -> (rcgen::Certificate, KeyPair) {
    let mut params = CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "own");
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = rcgen::date_time_ymd(until, 1, 1);
    let key = KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap(), key)
}

/// Shows a certificate, whether or not its key goes with it.
#[derive(Debug)]
struct Shows(Arc<rustls::sign::CertifiedKey>);

impl rustls::server::ResolvesServerCert for Shows {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(self.0.clone())
    }
}

fn shows(
    certificate: &rcgen::Certificate,
    key: &KeyPair,
    version: &'static rustls::SupportedProtocolVersion,
) -> Server {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let key = ring::sign::any_supported_type(&key).unwrap();
    let shown = rustls::sign::CertifiedKey::new(vec![certificate.der().clone()], key);
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(&[version]).unwrap().with_no_client_auth();
    Server::always(Arc::new(builder.with_cert_resolver(Arc::new(Shows(Arc::new(shown))))))
}

#[test]
fn a_certificate_that_signed_itself_as_an_authority_is_taken_when_cacert_is_that_very_one() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["localhost", "127.0.0.1"];
    let (given, key) = own_authority(&names, 2200);
    let (twin, twin_key) = own_authority(&names, 2200);
    let (expired, expired_key) = own_authority(&names, 2001);
    std::fs::write(dir.path().join("given.pem"), given.pem()).unwrap();
    std::fs::write(dir.path().join("expired.pem"), expired.pem()).unwrap();
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let good = shows(&given, &key, version);
        for host in ["localhost", "127.0.0.1"] {
            let (code, summary) = one(dir.path(), &good.url(host), &["--cacert", "given.pem"]);
            assert_eq!(code, 0, "{host}: {summary}");
        }
        for (server, more, why) in [
            (&good, &["--cacert", "given.pem", "--sni", "other.test"][..], "another name"),
            (&good, &["--cacert", "expired.pem"], "a file with another certificate"),
            (&good, &[], "no file"),
            (&shows(&twin, &twin_key, version), &["--cacert", "given.pem"], "another certificate of the same names"),
            (&shows(&given, &twin_key, version), &["--cacert", "given.pem"], "a key that is not the certificate's"),
            (&shows(&expired, &expired_key, version), &["--cacert", "expired.pem"], "past its last day"),
        ] {
            let (code, summary) = one(dir.path(), &server.url("localhost"), more);
            assert_eq!((code, &summary["errors"]), (1, &serde_json::json!({ "tls": 1 })), "{why}: {summary}");
            assert!(server.seen.lock().unwrap().len() <= 2, "{why}: nothing more was sent");
        }
    }
}

#[test]
fn kernel_tls_is_refused_when_it_must_be_and_noted_when_it_may_be() {
    let authority = Authority::new();
    let dir = folder(&authority);
    let server = Server::always(authority.server(rustls::ALL_VERSIONS, Ask::Nothing));
    let url = server.url("localhost");
    for (ktls, code, said) in [("on", 3, "encrypts in user space"), ("auto", 0, "user space"), ("off", 0, "")] {
        let out = ringload(dir.path(), &[&["run", &url, "-t", "1", "--ktls", ktls, "-k"], &ONE[..]].concat());
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{text}");
        assert!(text.contains(said) && text.contains("--ktls") != said.is_empty(), "{ktls}: {text}");
    }
}

#[test]
fn case_71_sni_is_the_host_without_its_port_none_for_an_address_and_what_sni_says() {
    let authority = Authority::new();
    let dir = folder(&authority);
    let server = Server::always(authority.server(rustls::ALL_VERSIONS, Ask::Nothing));
    for (host, more) in [("localhost", &["-k"][..]), ("127.0.0.1", &["-k"]), ("127.0.0.1", &["-k", "--sni", "o.test"])]
    {
        assert_eq!(one(dir.path(), &server.url(host), more).0, 0);
    }
    assert_eq!(server.names(), [Some("localhost".to_owned()), None, Some("o.test".to_owned())]);
}

#[test]
fn an_end_without_close_notify_is_truncated_only_where_the_close_is_the_framing() {
    let authority = Authority::new();
    let dir = folder(&authority);
    const LENGTH: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
    const CHUNKED: &[u8] =
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    const CLOSE: &[u8] = b"HTTP/1.1 200 OK\r\n\r\nok";
    for (answer, notify, want) in [
        (LENGTH, false, serde_json::json!({})),
        (CHUNKED, false, serde_json::json!({})),
        (CLOSE, true, serde_json::json!({})),
        (CLOSE, false, serde_json::json!({ "truncated": 2 })),
        (&LENGTH[..LENGTH.len() - 1], true, serde_json::json!({ "truncated": 2 })),
        (b"", true, serde_json::json!({ "no_response": 2 })),
        (b"", false, serde_json::json!({ "no_response": 2 })),
    ] {
        let server = Server::start(authority.server(rustls::ALL_VERSIONS, Ask::Nothing), move |conn| {
            if conn.request().is_some() {
                conn.send(answer);
                if notify {
                    conn.close_notify();
                }
            }
        });
        let args = ["-b", "{}", "-c", "1", "-n", "2", "-k", "--timeout", "10s"];
        let (_, summary) = run(dir.path(), &server.url("127.0.0.1"), &args);
        assert_eq!(summary["errors"], want, "notify {notify}: {}", String::from_utf8_lossy(answer));
        adds_up(&summary);
    }
}

#[test]
fn a_handshake_that_hangs_ends_at_the_connect_time_out_and_one_that_is_cut_is_class_tls() {
    let dir = tempfile::tempdir().unwrap();
    // The first connection hangs, the second is closed, the third is answered by what is no TLS.
    let number = AtomicUsize::new(0);
    let server = crate::support::Server::start(move |conn| match number.fetch_add(1, Ordering::Relaxed) {
        0 => drop(conn.stream.read_to_end(&mut Vec::new())),
        1 => drop(conn.stream.read(&mut [0; 100])),
        _ => conn.send(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    });
    let url = format!("https://{}/", server.address);
    let began = Instant::now();
    for (class, more) in [("connect_timeout", &["--connect-timeout", "300ms"][..]), ("tls", &[]), ("tls", &[])] {
        let (_, summary) = one(dir.path(), &url, &[&["-k", "--cold"], more].concat());
        assert_eq!(summary["errors"], serde_json::json!({ class: 1 }), "{summary}");
    }
    assert!(began.elapsed() < Duration::from_secs(8));
}

#[test]
fn keys_that_the_server_updates_and_large_answers_are_followed() {
    let authority = Authority::new();
    let dir = folder(&authority);
    let body: Vec<u8> = (0..200_000u32).map(|i| b'a' + (i % 19) as u8).collect();
    let answer = [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes(), body].concat();
    let server = Server::start(authority.server(&[&rustls::version::TLS13], Ask::Nothing), move |conn| {
        while conn.request().is_some() {
            conn.stream.conn.refresh_traffic_keys().unwrap();
            for part in answer.chunks(50_001) {
                conn.send(part);
            }
        }
    });
    let args = ["-b", "{}", "-c", "2", "-n", "40", "-k"];
    let (code, summary) = run(dir.path(), &server.url("127.0.0.1"), &args);
    assert_eq!((code, &summary["requests"]["succeeded"]), (0, &40.into()), "{summary}");
    assert_eq!(summary["connections"]["opened"], 2);
    assert!(summary["bytes"]["received"].as_u64().unwrap() > 40 * 200_000);
}

#[test]
fn an_early_answer_while_the_body_goes_out_is_classed_by_its_status() {
    let authority = Authority::new();
    let dir = folder(&authority);
    std::fs::write(dir.path().join("big"), vec![b'x'; 8 << 20]).unwrap();
    let server = Server::start(authority.server(rustls::ALL_VERSIONS, Ask::Nothing), |conn| {
        let _ = conn.stream.read(&mut [0; 1000]);
        conn.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        // What was sent is read until the client gives up: a reset would overtake the answer.
        let _ = std::io::copy(&mut conn.stream.sock, &mut std::io::sink());
    });
    let args = ["-B", "big", "-c", "1", "-n", "2", "-k", "--timeout", "10s"];
    let (_, summary) = run(dir.path(), &server.url("127.0.0.1"), &args);
    assert_eq!(summary["errors"], serde_json::json!({ "http_4xx": 2 }), "{summary}");
}

#[test]
fn a_certificate_is_shown_to_a_server_that_asks() {
    let authority = Authority::new();
    let dir = folder(&authority);
    let (certificate, key) = authority.sign(&["client.test"]);
    std::fs::write(dir.path().join("c.pem"), certificate.pem()).unwrap();
    std::fs::write(dir.path().join("k.pem"), key.serialize_pem()).unwrap();
    std::fs::write(dir.path().join("both.pem"), certificate.pem() + &key.serialize_pem()).unwrap();
    for versions in [&[&rustls::version::TLS13], &[&rustls::version::TLS12]] {
        let server = Server::always(authority.server(versions, Ask::Certificate));
        let url = server.url("localhost");
        for more in [&["--cert", "c.pem", "--key", "k.pem"][..], &["--cert", "both.pem"]] {
            let (code, summary) = one(dir.path(), &url, &[&["--cacert", "ca.pem"], more].concat());
            assert_eq!(code, 0, "{summary}");
        }
        let (_, summary) = one(dir.path(), &url, &["--cacert", "ca.pem"]);
        assert_eq!(summary["errors"], serde_json::json!({ "tls": 1 }), "{summary}");
    }
    let server = Server::always(authority.server(&[&rustls::version::TLS12], Ask::Nothing));
    let (_, summary) = one(dir.path(), &server.url("localhost"), &["-k", "--tls-min", "1.3"]);
    assert_eq!(summary["errors"], serde_json::json!({ "tls": 1 }), "{summary}");
}

#[test]
fn files_and_flags_that_cannot_be_are_refused_before_anything_is_sent() {
    let authority = Authority::new();
    let dir = folder(&authority);
    let (certificate, _) = authority.sign(&["a.test"]);
    let (_, other_key) = authority.sign(&["b.test"]);
    std::fs::write(dir.path().join("c.pem"), certificate.pem()).unwrap();
    std::fs::write(dir.path().join("k.pem"), other_key.serialize_pem()).unwrap();
    std::fs::write(dir.path().join("bad.pem"), "no PEM at all").unwrap();
    let server = Server::always(authority.server(rustls::ALL_VERSIONS, Ask::Nothing));
    let url = server.url("127.0.0.1");
    for (more, said) in [
        (&["--cacert", "missing.pem"][..], "missing.pem"),
        (&["--cacert", "bad.pem"], "bad.pem"),
        (&["--cert", "bad.pem", "--key", "k.pem"], "bad.pem"),
        (&["--cert", "c.pem", "--key", "bad.pem"], "--key bad.pem"),
        (&["--cert", "c.pem"], "private key"),
        (&["--cert", "c.pem", "--key", "k.pem"], "--cert c.pem"),
        (&["--key", "k.pem"], "--cert"),
        (&["-k", "--cacert", "ca.pem"], "--cacert"),
        (&["--sni", "127.0.0.1"], "--sni"),
        (&["--sni", "a b"], "a b"),
    ] {
        let out = ringload(dir.path(), &[&["run", &url], &ONE[..], more].concat());
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{more:?}: {text}");
        assert!(text.contains(said) && !text.contains("panicked"), "{more:?}: {text}");
    }
    assert!(server.names().is_empty());
}

#[test]
fn a_connection_ends_with_our_close_notify() {
    let authority = Authority::new();
    let dir = folder(&authority);
    for versions in [&[&rustls::version::TLS13], &[&rustls::version::TLS12]] {
        let ends = Arc::new(Mutex::new(Vec::new()));
        let seen = ends.clone();
        let server = Server::start(authority.server(versions, Ask::Nothing), move |conn| {
            if conn.request().is_some() {
                conn.send(OK);
                // A TCP close without it is an error of the read.
                seen.lock().unwrap().push(conn.stream.read(&mut [0; 10]).map_err(|e| e.kind()));
            }
        });
        for more in [&[][..], &["--reuse", "never"]] {
            let args = [&["-b", "{}", "-c", "2", "-n", "2", "-k"], more].concat();
            let (code, summary) = run(dir.path(), &server.url("127.0.0.1"), &args);
            assert_eq!(code, 0, "{summary}");
        }
        let until = Instant::now() + Duration::from_secs(5);
        while ends.lock().unwrap().len() < 4 && Instant::now() < until {
            thread::yield_now();
        }
        assert_eq!(*ends.lock().unwrap(), [Ok(0); 4]);
    }
}

#[test]
fn sessions_are_resumed_only_when_asked_for() {
    let authority = Authority::new();
    let dir = folder(&authority);
    for versions in [&[&rustls::version::TLS13], &[&rustls::version::TLS12]] {
        let server = Server::always(authority.server(versions, Ask::Nothing));
        for (resume, resumed) in [("off", 0), ("on", 5)] {
            let args = ["-b", "{}", "-c", "1", "-n", "6", "-k", "--reuse", "never", "--tls-resume", resume];
            let (code, summary) = run(dir.path(), &server.url("127.0.0.1"), &args);
            assert_eq!((code, &summary["connections"]["resumed"]), (0, &resumed.into()), "{summary}");
        }
    }
}

#[test]
fn a_stale_session_is_resent_on_a_new_one() {
    let authority = Authority::new();
    let dir = folder(&authority);
    let server = Server::start(authority.server(rustls::ALL_VERSIONS, Ask::Nothing), |conn| {
        if conn.request().is_some() {
            conn.send(OK);
            conn.request();
        }
    });
    let args = ["-b", "{}", "-c", "1", "-n", "6", "-k", "--resend-stale"];
    let (code, summary) = run(dir.path(), &server.url("127.0.0.1"), &args);
    assert_eq!((code, &summary["connections"]["resent"]), (0, &5.into()), "{summary}");
    assert_eq!(server.seen.lock().unwrap().len(), 11);
}

#[test]
fn beside_rustls_a_worker_allocates_nothing_over_tls() {
    let authority = Authority::new();
    let server = Server::start(authority.server(rustls::ALL_VERSIONS, Ask::Nothing), |conn| {
        // Each connection carries a few requests, so that some open and close under load.
        for _ in 0..10 {
            if conn.request().is_none() {
                return;
            }
            conn.send(OK);
        }
    });
    let mut plan = alloc::plan(server.address, Shape::Closed);
    plan.targets[0].tls = true;
    plan.tls = Tls { insecure: true, names: vec!["127.0.0.1".into()], ..Tls::default() };
    plan.stop.requests = Some(1_000);
    let view = Arc::new(View::inline(&vec![b'x'; 50_000]).unwrap());
    let before = alloc::while_quiet();
    let result = engine::run(plan, view, None, &mut |_| {}).unwrap();
    assert_eq!(alloc::while_quiet(), before);
    assert_eq!(result.workers[0].buckets.issued, 1_000);
    assert!(result.workers[0].connections.opened > 64, "{:?}", result.workers[0].connections);
}
