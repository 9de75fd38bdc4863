//! The flags of connections, and what they mean for a run.

use std::net::{IpAddr, SocketAddr};

use clap::{Args, ValueEnum};

use super::{flags::OnOff, url::Url};
use crate::{
    data::{
        Error, Result, limits,
        net::{Net, SocketOptions, UrlStrategy},
        plan::{Address, Target},
        units,
    },
    sys::limit,
};

/// How connections are made.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Connections")]
pub struct NetFlags {
    /// Source addresses that connections take turns on: 10.0.0.2,10.0.0.3 or ranges 10.0.0.2-10.0.0.9, 10.0.0.2-9
    #[arg(long, value_name = "LIST", value_parser = parse_sources)]
    pub source_ip: Option<Sources>,
    /// Local ports that connections may use, a part of the system's range, as 40000-49999 [default: all of it]
    #[arg(long, value_name = "FIRST-LAST", value_parser = parse_ports)]
    pub local_ports: Option<(u16, u16)>,
    /// Connect to HOST2:PORT2 in place of HOST:PORT; the Host field, SNI and certificate check stay with the URL
    #[arg(long, value_name = "HOST:PORT:HOST2:PORT2", action = clap::ArgAction::Append)]
    pub connect_to: Vec<String>,
    /// Use ADDR, or several, for HOST:PORT in place of what the name resolves to
    #[arg(long, value_name = "HOST:PORT:ADDR[,ADDR]", action = clap::ArgAction::Append)]
    pub resolve: Vec<String>,
    /// Which of several URLs a request goes to; session keeps all turns of a session on one
    #[arg(long, value_name = "HOW", default_value = "round-robin")]
    pub url_strategy: StrategyFlag,
    /// Open connections before the clock starts; off is the same as --cold
    #[arg(long, value_name = "WHAT", conflicts_with = "cold")]
    pub preconnect: Option<OnOff>,
    /// Open connections only as requests need them, inside the measured time
    #[arg(long)]
    pub cold: bool,
    /// Send a request again, once, on a new connection, when its kept connection was closed before a byte of the response came
    #[arg(long)]
    pub resend_stale: bool,
    /// Kernel send buffer of each socket [default: left to the kernel]
    #[arg(long, value_name = "SIZE", value_parser = parse_buffer)]
    pub sndbuf: Option<u32>,
    /// Kernel receive buffer of each socket [default: left to the kernel]
    #[arg(long, value_name = "SIZE", value_parser = parse_buffer)]
    pub rcvbuf: Option<u32>,
    /// Probe idle connections after this time, and each time again [default: no probes]
    #[arg(long, value_name = "TIME", value_parser = parse_probe)]
    pub tcp_keepalive: Option<u32>,
    /// Let sockets and ring poll the network device for this long before they sleep
    #[arg(long, value_name = "TIME", value_parser = parse_poll)]
    pub busy_poll: Option<u32>,
}

/// `--source-ip`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources(pub Vec<IpAddr>);

/// `--url-strategy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum StrategyFlag {
    /// One URL after the other
    #[default]
    RoundRobin,
    /// All turns of a session to the same URL
    Session,
}

impl NetFlags {
    /// What they mean for these targets, from whose addresses those are dropped that no source can reach.
    ///
    /// Errors: flags without use, a target that no source can reach.
    pub fn plan(&self, targets: &mut [Target], resends: bool) -> Result<Net> {
        if self.url_strategy == StrategyFlag::Session && targets.len() < 2 {
            return Err(Error::usage("--url-strategy session goes with more than one URL"));
        }
        if self.resend_stale && !resends {
            return Err(Error::usage("--resend-stale goes with --reuse keep-alive: other connections are never stale"));
        }
        if let (Some((first, last)), Some(own)) = (self.local_ports, limit::local_ports())
            && (u32::from(first) < own.0 || own.1 < u32::from(last))
        {
            return Err(Error::usage(format!(
                "--local-ports {first}-{last}: outside of {}-{}, so that the kernel would not heed it; set net.ipv4.ip_local_port_range",
                own.0, own.1
            )));
        }
        let sources = self.source_ip.clone().map(|s| s.0).unwrap_or_default();
        let options = SocketOptions {
            local_ports: self.local_ports,
            send_buffer_bytes: self.sndbuf,
            recv_buffer_bytes: self.rcvbuf,
            probe_every_s: self.tcp_keepalive,
            busy_poll_us: self.busy_poll,
        };
        let any_tcp = targets.iter().flat_map(|t| &t.addresses).any(|a| matches!(a, Address::Tcp(_)));
        if let Some(flag) = self.first_of_tcp()
            && !any_tcp
            && !targets.is_empty()
        {
            return Err(Error::usage(format!("{flag} goes with a TCP target: a unix socket has nothing of it")));
        }
        for target in targets.iter_mut().filter(|_| !sources.is_empty()) {
            let reachable = |address: &Address| match address {
                Address::Tcp(to) => sources.iter().any(|from| from.is_ipv4() == to.is_ipv4()),
                Address::UnixPath(_) | Address::UnixAbstract(_) => true,
            };
            target.addresses.retain(reachable);
            if target.addresses.is_empty() {
                return Err(Error::usage(format!(
                    "--source-ip: no source is of the address family of {}; add one that is",
                    target.url
                )));
            }
        }
        Ok(Net {
            sources,
            options,
            strategy: match self.url_strategy {
                StrategyFlag::RoundRobin => UrlStrategy::RoundRobin,
                StrategyFlag::Session => UrlStrategy::Session,
            },
            resend_stale: self.resend_stale,
        })
    }

    fn first_of_tcp(&self) -> Option<&'static str> {
        let given = [
            (self.source_ip.is_some(), "--source-ip"),
            (self.local_ports.is_some(), "--local-ports"),
            (self.sndbuf.is_some(), "--sndbuf"),
            (self.rcvbuf.is_some(), "--rcvbuf"),
            (self.tcp_keepalive.is_some(), "--tcp-keepalive"),
            (self.busy_poll.is_some(), "--busy-poll"),
        ];
        given.into_iter().find(|g| g.0).map(|g| g.1)
    }

    /// True when connections are opened before the clock starts.
    pub fn opens_ahead(&self) -> bool {
        !self.cold && self.preconnect != Some(OnOff::Off)
    }

    /// The targets behind URLs, by way of `--connect-to` and `--resolve`.
    ///
    /// Errors: as [`Url::resolve`]; an entry that cannot be, or that no URL is meant by.
    pub fn targets(&self, urls: &[Url]) -> Result<Vec<Target>> {
        let resolves = self.resolve.iter().map(|text| parse_resolve(text)).collect::<Result<Vec<_>>>()?;
        let detours = self.connect_to.iter().map(|text| parse_connect_to(text)).collect::<Result<Vec<_>>>()?;
        let mut used = vec![false; resolves.len() + detours.len()];
        let mut targets = Vec::with_capacity(urls.len());
        for url in urls {
            let (mut detour, mut resolved) = (None, None);
            if let Url::Web { host, port, .. } = url {
                if let Some(k) = detours.iter().position(|d| d.from.is(host, *port)) {
                    used[resolves.len() + k] = true;
                    detour = Some(&detours[k]);
                }
                let (host, port) = detour.map_or((host.as_str(), *port), |d| (d.host(host), d.port(*port)));
                if let Some(k) = resolves.iter().position(|r| r.0.is(host, port)) {
                    used[k] = true;
                    resolved = Some(resolves[k].1.iter().map(|ip| SocketAddr::new(*ip, port)).collect());
                }
                targets.push(url.resolve((host, port), resolved)?);
            } else {
                targets.push(url.resolve(("", 0), None)?);
            }
        }
        let texts =
            self.resolve.iter().map(|t| ("--resolve", t)).chain(self.connect_to.iter().map(|t| ("--connect-to", t)));
        match texts.zip(&used).find(|(_, used)| !**used) {
            Some(((flag, text), _)) => Err(Error::usage(format!("{flag} '{text}': no URL has this host and port"))),
            None => Ok(targets),
        }
    }
}

/// A host and a port that a URL may have; nothing stands for any.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    host: String,
    port: Option<u16>,
}

impl Place {
    fn is(&self, host: &str, port: u16) -> bool {
        (self.host.is_empty() || self.host.eq_ignore_ascii_case(host)) && self.port.is_none_or(|p| p == port)
    }
}

/// One `--connect-to`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Detour {
    from: Place,
    to: Place,
}

impl Detour {
    fn host<'a>(&'a self, own: &'a str) -> &'a str {
        if self.to.host.is_empty() { own } else { &self.to.host }
    }

    fn port(&self, own: u16) -> u16 {
        self.to.port.unwrap_or(own)
    }
}

/// Splits at colons outside of brackets, and takes the brackets off.
fn parts(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut inside = false;
    for c in text.chars() {
        match (c, all.last_mut()) {
            ('[', _) => inside = true,
            (']', _) => inside = false,
            (':', _) if !inside => all.push(String::new()),
            (c, Some(last)) => last.push(c),
            (_, None) => {}
        }
    }
    all
}

fn parse_connect_to(text: &str) -> Result<Detour> {
    let wrong = || {
        Error::usage(format!(
            "--connect-to '{text}': expected HOST:PORT:HOST2:PORT2, as api.test:443:127.0.0.1:8443; an empty part stands for any, or the same"
        ))
    };
    let port = |text: &str| if text.is_empty() { Ok(None) } else { text.parse::<u16>().map(Some).map_err(|_| wrong()) };
    let [from, from_port, to, to_port] = parts(text).try_into().map_err(|_| wrong())?;
    Ok(Detour { from: Place { host: from, port: port(&from_port)? }, to: Place { host: to, port: port(&to_port)? } })
}

fn parse_resolve(text: &str) -> Result<(Place, Vec<IpAddr>)> {
    let wrong = || Error::usage(format!("--resolve '{text}': expected HOST:PORT:ADDR, as api.test:8080:127.0.0.1"));
    let (host, rest) = text.split_once(':').ok_or_else(wrong)?;
    let (port, address) = rest.split_once(':').ok_or_else(wrong)?;
    let bare = |address: &str| address.trim_start_matches('[').trim_end_matches(']').parse().map_err(|_| wrong());
    let port = Some(port.parse().map_err(|_| wrong())?);
    Ok((Place { host: host.to_owned(), port }, address.split(',').map(bare).collect::<Result<_>>()?))
}

/// Addresses and ranges of them, each once.
fn parse_sources(text: &str) -> std::result::Result<Sources, String> {
    let mut all = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (first, last) = match part.split_once('-') {
            None => (parse_ip(part)?, parse_ip(part)?),
            Some((first, last)) => {
                let from = parse_ip(first)?;
                // A range's end may be the last part alone.
                let last = match (from, last.parse::<u8>()) {
                    (IpAddr::V4(v4), Ok(byte)) => {
                        let [a, b, c, _] = v4.octets();
                        IpAddr::from([a, b, c, byte])
                    }
                    _ => parse_ip(last)?,
                };
                (from, last)
            }
        };
        add_range(&mut all, first, last).map_err(|why| format!("'{part}' {why}"))?;
        if let Some((ip, why)) = all.iter().find_map(|ip| Some((ip, no_source(ip)?))) {
            return Err(format!("{ip} {why}; give addresses of this machine, as `ip addr` lists them"));
        }
    }
    Ok(Sources(all))
}

fn parse_ip(text: &str) -> std::result::Result<IpAddr, String> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    bare.parse()
        .map_err(|_| format!("'{text}' is no address; expected a list such as 10.0.0.2,10.0.0.3 or 10.0.0.2-10.0.0.9"))
}

/// Why no connection can come from an address, whatever the machine.
fn no_source(ip: &IpAddr) -> Option<&'static str> {
    if ip.is_unspecified() {
        Some("stands for any address, which is what is used without the flag")
    } else if ip.is_multicast() {
        Some("is a multicast address, from which nothing connects")
    } else if *ip == IpAddr::from([255; 4]) {
        Some("is the broadcast address, from which nothing connects")
    } else {
        None
    }
}

fn add_range(all: &mut Vec<IpAddr>, first: IpAddr, last: IpAddr) -> std::result::Result<(), &'static str> {
    let ends = match (first, last) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(u32::from(a)), u128::from(u32::from(b))),
        (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a), u128::from(b)),
        _ => return Err("is a range from one address family to the other"),
    };
    if ends.1 < ends.0 {
        return Err("ends before it begins");
    }
    if ends.1 - ends.0 >= limits::SOURCES_MAX as u128 || all.len() + (ends.1 - ends.0) as usize >= limits::SOURCES_MAX {
        return Err("makes more than 4,096 source addresses");
    }
    for n in ends.0..=ends.1 {
        let ip = if first.is_ipv4() { IpAddr::from((n as u32).to_be_bytes()) } else { IpAddr::from(n.to_be_bytes()) };
        if !all.contains(&ip) {
            all.push(ip);
        }
    }
    Ok(())
}

fn parse_ports(text: &str) -> std::result::Result<(u16, u16), String> {
    let ends = text.split_once('-').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    match ends {
        Some((first, last)) if 0 < first && first <= last => Ok((first, last)),
        _ => Err("expected a range of ports between 1 and 65535, as 20000-59999".into()),
    }
}

fn parse_buffer(text: &str) -> std::result::Result<u32, String> {
    match units::parse_size(text)? {
        bytes @ 1..=0x4000_0000 => Ok(bytes as u32),
        _ => Err("expected a size between 1 byte and 1 GiB".into()),
    }
}

fn parse_probe(text: &str) -> std::result::Result<u32, String> {
    match units::parse_positive_duration(text)?.div_ceil(1_000_000_000) {
        // tcp(7): the kernel takes at most 32,767 seconds.
        seconds @ 1..=32_767 => Ok(seconds as u32),
        _ => Err("expected at most 32767s".into()),
    }
}

fn parse_poll(text: &str) -> std::result::Result<u32, String> {
    match units::parse_positive_duration(text)?.div_ceil(1_000) {
        micros @ 1..=1_000_000 => Ok(micros as u32),
        _ => Err("expected at most 1s, as 50us".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(text: &str) -> Vec<String> {
        parse_sources(text).unwrap().0.iter().map(IpAddr::to_string).collect()
    }

    #[test]
    fn sources_are_lists_and_ranges() {
        assert_eq!(sources("127.0.0.2,127.0.0.3"), ["127.0.0.2", "127.0.0.3"]);
        assert_eq!(sources("127.0.0.2-127.0.0.4, 127.0.0.3"), ["127.0.0.2", "127.0.0.3", "127.0.0.4"]);
        assert_eq!(sources("10.0.0.254-10.0.1.1").len(), 4);
        assert_eq!(sources("127.0.0.2-5").len(), 4);
        assert_eq!(sources("::2-::3,[::9]"), ["::2", "::3", "::9"]);
        for (text, said) in [
            ("x", "'x'"),
            ("", "no address"),
            ("127.0.0.5-127.0.0.2", "ends before"),
            ("127.0.0.1-::1", "family"),
            ("10.0.0.0-10.1.0.0", "4,096"),
            ("::-ffff::", "4,096"),
            ("0.0.0.0", "any address"),
            ("::", "any address"),
            ("127.0.0.1,224.0.0.1", "multicast"),
            ("223.255.255.255-224.0.0.1", "224.0.0.0 is a multicast"),
            ("ff02::1", "multicast"),
            ("255.255.255.255", "broadcast"),
        ] {
            let error = parse_sources(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    fn addresses(flags: &NetFlags, text: &str) -> Vec<Address> {
        flags.targets(&[url(text)]).unwrap().remove(0).addresses
    }

    #[test]
    fn a_detour_changes_where_is_connected_to_and_nothing_else() {
        let flags = NetFlags { connect_to: vec!["a.test:80:127.0.0.1:8080".into()], ..NetFlags::default() };
        let target = flags.targets(&[url("http://a.test/x")]).unwrap().remove(0);
        assert_eq!(target.addresses, [Address::Tcp(([127, 0, 0, 1], 8080).into())]);
        assert_eq!((target.host.as_str(), target.url.as_str()), ("a.test", "http://a.test/x"));
        let flags = NetFlags { connect_to: vec!["::[::1]:".into()], ..NetFlags::default() };
        assert_eq!(addresses(&flags, "http://a.test:81/"), [Address::Tcp("[::1]:81".parse().unwrap())]);
        let flags = NetFlags {
            connect_to: vec!["a.test::b.test:9".into()],
            resolve: vec!["B.test:9:127.0.0.7".into()],
            ..NetFlags::default()
        };
        assert_eq!(addresses(&flags, "http://a.test/"), [Address::Tcp(([127, 0, 0, 7], 9).into())]);
    }

    #[test]
    fn entries_that_no_url_is_meant_by_are_refused() {
        for (connect_to, resolve, said) in [
            (Some("b.test:80:127.0.0.1:8080"), None, "no URL has"),
            (None, Some("127.0.0.1:81:127.0.0.2"), "no URL has"),
            (Some("a.test:80:127.0.0.1"), None, "HOST2:PORT2"),
            (Some("a.test:x:127.0.0.1:80"), None, "HOST2:PORT2"),
            (None, Some("127.0.0.1:x:127.0.0.2"), "HOST:PORT:ADDR"),
        ] {
            let flags = NetFlags {
                connect_to: connect_to.into_iter().map(Into::into).collect(),
                resolve: resolve.into_iter().map(Into::into).collect(),
                ..NetFlags::default()
            };
            let error = flags.targets(&[url("http://127.0.0.1/")]).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains(connect_to.or(resolve).unwrap()), "{error}");
        }
    }

    #[test]
    fn sources_reach_addresses_of_their_family_alone() {
        let both = || Target {
            url: "http://b.test/".into(),
            host: String::new(),
            path: "/".into(),
            addresses: vec![Address::Tcp("[::1]:80".parse().unwrap()), Address::Tcp(([127, 0, 0, 1], 80).into())],
            tls: false,
            local: true,
        };
        let flags = NetFlags { source_ip: Some(parse_sources("127.0.0.2").unwrap()), ..NetFlags::default() };
        let mut targets = [both()];
        assert_eq!(flags.plan(&mut targets, true).unwrap().sources.len(), 1);
        assert_eq!(targets[0].addresses, [Address::Tcp(([127, 0, 0, 1], 80).into())]);
        let flags = NetFlags { source_ip: Some(parse_sources("10.0.0.1").unwrap()), ..NetFlags::default() };
        let mut six = Target { addresses: vec![Address::Tcp("[::1]:80".parse().unwrap())], ..both() };
        let error = flags.plan(std::slice::from_mut(&mut six), true).unwrap_err().to_string();
        assert!(error.contains("b.test"), "{error}");
        six.addresses = vec![Address::UnixPath("/s".into())];
        let error = flags.plan(std::slice::from_mut(&mut six), true).unwrap_err().to_string();
        assert!(error.contains("--source-ip goes with a TCP target"), "{error}");
    }

    #[test]
    fn flags_without_use_are_refused_and_values_have_bounds() {
        let flags = NetFlags { url_strategy: StrategyFlag::Session, ..NetFlags::default() };
        assert!(flags.plan(&mut [], true).unwrap_err().to_string().contains("more than one URL"));
        let flags = NetFlags { resend_stale: true, ..NetFlags::default() };
        assert!(flags.plan(&mut [], false).unwrap_err().to_string().contains("--reuse"));
        assert_eq!(parse_ports("100-200"), Ok((100, 200)));
        assert!(["0-5", "9-5", "x", "1-70000"].iter().all(|text| parse_ports(text).is_err()));
        assert_eq!((parse_buffer("64KiB"), parse_probe("1500ms"), parse_poll("50us")), (Ok(65_536), Ok(2), Ok(50)));
        assert!(parse_buffer("0").is_err() && parse_buffer("2GiB").is_err());
        assert!(parse_probe("10h").is_err() && parse_poll("2s").is_err());
    }
}
