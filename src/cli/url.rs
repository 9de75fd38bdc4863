//! Target URLs: what they say, and the addresses behind them.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
};

use crate::data::{
    Error, Result, limits,
    plan::{Address, Target},
};

/// A URL as the user wrote it, taken apart. Nothing is resolved yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Url {
    /// `http://` or `https://`.
    Web {
        /// The text.
        text: String,
        /// `https`.
        tls: bool,
        /// Name or literal, an IPv6 literal without its brackets.
        host: String,
        /// Port; the scheme's own when none was given.
        port: u16,
        /// Path and query.
        path: String,
    },
    /// `unix:`.
    Unix {
        /// The text.
        text: String,
        /// The socket.
        address: Address,
        /// Path and query.
        path: String,
    },
    /// `builtin:`, with the options of the reference server.
    Builtin {
        /// Path and query of the requests.
        path: String,
        /// Options, as a query.
        options: String,
    },
}

impl Url {
    /// Takes a URL apart.
    ///
    /// Errors: what cannot be a URL, quoted, with what was expected.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::usage(format!("URL '{text}': {why}"));
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(wrong("has a blank or a control character; write %20 for a blank"));
        }
        if let Some(rest) = text.strip_prefix("builtin:") {
            let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
            let path = if path.is_empty() { "/v1/chat/completions".to_owned() } else { slash(path) };
            return Ok(Self::Builtin { path, options: options.to_owned() });
        }
        if let Some(rest) = text.strip_prefix("unix:") {
            return Self::parse_unix(text, rest);
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(wrong("expected http://host[:port]/path, https://..., unix:/socket:/path or builtin:"));
        };
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => {
                return Err(wrong(&format!(
                    "the scheme {scheme} is not spoken here; http, https, unix and builtin are"
                )));
            }
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err(wrong(
                "names and passwords are not taken from URLs; use -H 'Authorization: ...' or --bearer-env",
            ));
        }
        let (host, port) = split_port(authority, if tls { 443 } else { 80 }).map_err(wrong)?;
        let path = path.split('#').next().unwrap_or("");
        Ok(Self::Web { text: text.to_owned(), tls, host, port, path: slash(path) })
    }

    fn parse_unix(text: &str, rest: &str) -> Result<Self> {
        let wrong = |why: &str| Error::usage(format!("URL '{text}': {why}"));
        let (socket, path) = rest.rsplit_once(":/").map_or((rest, "/".to_owned()), |(s, p)| (s, format!("/{p}")));
        let address = match socket.strip_prefix('@') {
            Some("") => return Err(wrong("the name of the abstract socket is empty")),
            Some(name) if name.len() > limits::UNIX_PATH_BYTES_MAX => {
                return Err(wrong("the socket's name is too long, over 107 bytes"));
            }
            Some(name) => Address::UnixAbstract(name.as_bytes().to_vec()),
            None if socket.is_empty() => return Err(wrong("expected unix:/path/to.sock:/http/path")),
            None if socket.len() > limits::UNIX_PATH_BYTES_MAX => {
                return Err(wrong("the socket's path is too long, over 107 bytes"));
            }
            None => Address::UnixPath(PathBuf::from(socket)),
        };
        Ok(Self::Unix { text: text.to_owned(), address, path })
    }

    /// The target behind the URL, whose connections go to a host and port, resolved already or not.
    ///
    /// Errors: a host that does not resolve.
    pub fn resolve(&self, to: (&str, u16), resolved: Option<Vec<SocketAddr>>) -> Result<Target> {
        match self {
            Self::Web { text, tls, host, port, path } => {
                let addresses = match resolved {
                    Some(addresses) => addresses,
                    None => lookup(text, to.0, to.1)?,
                };
                let own_port = if *tls { 443 } else { 80 };
                let bracketed = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                Ok(Target {
                    url: text.clone(),
                    host: if *port == own_port { bracketed } else { format!("{bracketed}:{port}") },
                    path: path.clone(),
                    local: addresses.iter().all(|a| a.ip().is_loopback()),
                    addresses: addresses.into_iter().map(Address::Tcp).collect(),
                    tls: *tls,
                })
            }
            Self::Unix { text, address, path } => Ok(Target {
                url: text.clone(),
                host: "localhost".to_owned(),
                path: path.clone(),
                addresses: vec![address.clone()],
                tls: false,
                local: true,
            }),
            Self::Builtin { .. } => Err(Error::usage("builtin: has no address before it is started")),
        }
    }
}

/// The addresses of a host, each once, in the system's order.
fn lookup(text: &str, host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    match (host, port).to_socket_addrs() {
        Ok(found) => {
            for address in found {
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        Err(error) => {
            return Err(Error::usage(format!("URL '{text}': the host {host} does not resolve: {error}")));
        }
    }
    if addresses.is_empty() {
        return Err(Error::usage(format!("URL '{text}': the host {host} has no address")));
    }
    Ok(addresses)
}

/// Host and port of an authority.
fn split_port(authority: &str, default: u16) -> Result<(String, u16), &'static str> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once(']').ok_or("the IPv6 address has no closing bracket")?;
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err("what is in brackets is no IPv6 address");
        }
        (
            host,
            port.strip_prefix(':')
                .or(if port.is_empty() { Some("") } else { None })
                .ok_or("expected a port after the bracket")?,
        )
    } else {
        match authority.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("an IPv6 address stands in brackets: http://[::1]:8080/");
            }
            Some((host, port)) => (host, port),
            None => (authority, ""),
        }
    };
    if host.is_empty() {
        return Err("has no host");
    }
    let port = match port {
        "" => default,
        digits => match digits.parse::<u16>() {
            Ok(0) | Err(_) => return Err("the port is not between 1 and 65535"),
            Ok(port) => port,
        },
    };
    Ok((host.to_owned(), port))
}

fn slash(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web(text: &str) -> (bool, String, u16, String) {
        match Url::parse(text).unwrap() {
            Url::Web { tls, host, port, path, .. } => (tls, host, port, path),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn urls_that_people_write() {
        assert_eq!(web("http://h/x?y=1#z"), (false, "h".into(), 80, "/x?y=1".into()));
        assert_eq!(web("HTTPS://h"), (true, "h".into(), 443, "/".into()));
        assert_eq!(web("http://h:8080?q"), (false, "h".into(), 8080, "/?q".into()));
        assert_eq!(web("http://[::1]:9/x"), (false, "::1".into(), 9, "/x".into()));
        let Url::Unix { address, path, .. } = Url::parse("unix:/tmp/s.sock:/v1/x").unwrap() else { panic!() };
        assert_eq!((address, path.as_str()), (Address::UnixPath("/tmp/s.sock".into()), "/v1/x"));
        let Url::Unix { address, path, .. } = Url::parse("unix:@name:/v1").unwrap() else { panic!() };
        assert_eq!((address, path.as_str()), (Address::UnixAbstract(b"name".to_vec()), "/v1"));
        let Url::Builtin { path, options } = Url::parse("builtin:?mode=sse&ttft=5ms").unwrap() else { panic!() };
        assert_eq!((path.as_str(), options.as_str()), ("/v1/chat/completions", "mode=sse&ttft=5ms"));
    }

    #[test]
    fn urls_that_cannot_be_are_quoted_with_the_reason() {
        for (text, said) in [
            ("ftp://127.0.0.1/x", "ftp"),
            ("http://", "no host"),
            ("http://127.0.0.1:99999/", "99999"),
            ("127.0.0.1:80/x y", "127.0.0.1:80/x y"),
            ("localhost:8080/", "expected http://"),
            ("http://::1/", "brackets"),
            ("http://[::1/", "bracket"),
            ("http://u:p@h/", "--bearer-env"),
            ("http://h:0/", "port"),
            ("unix:", "unix:/path"),
        ] {
            let error = Url::parse(text).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains(text), "{text}: {error}");
        }
        assert!(Url::parse(&format!("unix:/{}:/x", "a".repeat(107))).unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn the_host_field_has_brackets_and_a_port_that_is_not_the_schemes_own() {
        let address = vec![SocketAddr::from(([127, 0, 0, 1], 1))];
        let host = |text: &str| Url::parse(text).unwrap().resolve(("", 0), Some(address.clone())).unwrap().host;
        assert_eq!(host("http://[::1]:8080/"), "[::1]:8080");
        assert_eq!(host("http://a.test/"), "a.test");
        assert_eq!(host("https://a.test:443/"), "a.test");
        assert_eq!(host("https://a.test:80/"), "a.test:80");
    }
}
