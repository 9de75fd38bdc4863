//! What the integration tests share: the program, and a server that does to it exactly what a test says.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Output},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// One request as it came off the wire.
#[derive(Clone, Debug)]
pub struct Request {
    pub head: String,
    pub body: Vec<u8>,
}

impl Request {
    /// Takes the first request out of what came, once it is whole.
    pub fn take(buffer: &mut Vec<u8>) -> Option<Self> {
        let end = buffer.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        let length = head
            .lines()
            .find_map(|l| l.to_ascii_lowercase().strip_prefix("content-length:").map(|v| v.trim().parse().unwrap()))
            .unwrap_or(0usize);
        if buffer.len() < end + length {
            return None;
        }
        let body = buffer[end..end + length].to_vec();
        buffer.drain(..end + length);
        Some(Self { head, body })
    }
}

/// One accepted connection.
pub struct Conn {
    pub stream: TcpStream,
    buffer: Vec<u8>,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Conn {
    /// The next request, or none when the client closed before one was whole.
    pub fn request(&mut self) -> Option<Request> {
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

    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }
}

/// A server whose connections each run a script in a thread of their own.
pub struct Server {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub fn start(script: impl Fn(&mut Conn) + Send + Sync + 'static) -> Self {
        Self::on("127.0.0.1:0", script)
    }

    /// Listens at an address.
    pub fn on(address: &str, script: impl Fn(&mut Conn) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (script, all) = (Arc::new(script), seen.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (script, seen) = (script.clone(), all.clone());
                stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                // Each part that a script sends is a segment of its own.
                stream.set_nodelay(true).unwrap();
                thread::spawn(move || {
                    let mut conn = Conn { stream, buffer: Vec::new(), seen };
                    script(&mut conn);
                    let _ = conn.stream.shutdown(Shutdown::Both);
                });
            }
        });
        Self { address, seen }
    }

    /// Answers every request with the same bytes and keeps the connection.
    pub fn always(response: &'static [u8]) -> Self {
        Self::start(move |conn| {
            while conn.request().is_some() {
                conn.send(response);
            }
        })
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1/x", self.address)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

/// A small answer.
pub const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"ok\":true}";

/// Runs the program to its end, with a cache of its own.
pub fn ringload(dir: &Path, args: &[&str]) -> Output {
    ringload_in(dir, &dir.join("cache"), args)
}

/// Runs the program to its end in a folder, with a cache elsewhere.
pub fn ringload_in(dir: &Path, cache: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ringload"))
        .args(args)
        .env("RINGLOAD_CACHE_DIR", cache)
        .env("NO_COLOR", "1")
        .current_dir(dir)
        .output()
        .unwrap()
}

/// Runs `ringload run URL ... --json` and reads its summary.
pub fn run(dir: &Path, url: &str, args: &[&str]) -> (i32, serde_json::Value) {
    let mut all = vec!["run", url, "--json", "--quiet"];
    if !args.contains(&"-t") {
        all.extend(["-t", "1"]);
    }
    all.extend(args);
    let out = ringload(dir, &all);
    let code = out.status.code().unwrap_or(-1);
    let summary = serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("no summary ({e}), exit {code}: {}", String::from_utf8_lossy(&out.stderr)));
    (code, summary)
}

/// The buckets add up, and so do the classes.
pub fn adds_up(summary: &serde_json::Value) {
    let r = |name: &str| summary["requests"][name].as_u64().unwrap();
    assert_eq!(r("scheduled"), r("issued") + r("missed"), "{}", summary["requests"]);
    assert_eq!(r("issued"), r("succeeded") + r("failed") + r("cut"), "{}", summary["requests"]);
    let classes: u64 = summary["errors"].as_object().unwrap().values().map(|v| v.as_u64().unwrap()).sum();
    assert_eq!(r("failed"), classes, "{}", summary["errors"]);
}
