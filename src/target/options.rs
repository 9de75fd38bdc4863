//! What the target is asked to do: the options of `builtin:?...` and of `ringload target`, one table for both.
//!
//! Owns the names, the values, the defaults and the rules about what goes together; knows nothing of sockets.

use std::path::PathBuf;

use crate::data::{
    Error, Result,
    units::{MILLISECOND, parse_count, parse_duration, parse_positive_count, parse_positive_duration, parse_size},
};

/// The largest answer of `bytes`: it is held in memory, once for all connections.
const ANSWER_BYTES_MAX: u64 = 1 << 30;

/// What a request is answered with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A fixed small JSON answer, or `bytes` of it; bodies are dropped unread.
    #[default]
    Null,
    /// The body, back.
    Echo,
    /// Compares each body with the length and digest that the client announced.
    Check,
    /// A chat completion with usage.
    Chat,
    /// A chat completion as an event stream with exact times.
    Sse,
}

impl Mode {
    /// Every mode, in the order of the help.
    pub const ALL: [Self; 5] = [Self::Null, Self::Echo, Self::Check, Self::Chat, Self::Sse];

    /// The name in options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Echo => "echo",
            Self::Check => "check",
            Self::Chat => "chat",
            Self::Sse => "sse",
        }
    }
}

/// Answers that are held back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Stall {
    /// None.
    #[default]
    None,
    /// Everything that is due in one window is handed out at its end, as by a server that stopped.
    Once {
        /// Length of the window, nanoseconds.
        for_ns: u64,
        /// Its start, nanoseconds after the first request was whole.
        after_ns: u64,
    },
    /// A share of the requests waits longer.
    Share {
        /// The share, 0 to 1.
        share: f64,
        /// How much longer, nanoseconds.
        for_ns: u64,
    },
}

/// The options of one target, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What a request is answered with.
    pub mode: Mode,
    /// From the whole request to the first content event, nanoseconds.
    pub ttft_ns: u64,
    /// From one content event to the next, nanoseconds.
    pub itl_ns: u64,
    /// Content events of a stream, words of a completion.
    pub tokens: u32,
    /// `usage.prompt_tokens`; none: a quarter of the body's bytes, rounded up.
    pub prompt_tokens: Option<u64>,
    /// Think time before an answer, nanoseconds.
    pub delay_ns: u64,
    /// Each answer or event is due up to this much later, evenly spread, nanoseconds.
    pub jitter_ns: u64,
    /// Length of the answer's body; none: the small fixed one.
    pub bytes: Option<u64>,
    /// Status of every answer.
    pub status: u16,
    /// Share of requests answered with status 500.
    pub error: f64,
    /// Share of requests that end in a reset connection.
    pub reset: f64,
    /// Share of answers that end early.
    pub truncate: f64,
    /// Share of streams that end in an error event.
    pub stream_error: f64,
    /// Every so many answers of a connection the last one closes it; 0 is never.
    pub close_every: u32,
    /// A connection without a request for so long is closed, nanoseconds; none is never.
    pub idle_close_ns: Option<u64>,
    /// Answers held back.
    pub stall: Stall,
    /// Request bytes read a second and connection; 0 is as fast as they come.
    pub slow_read: u64,
    /// Seed of everything random.
    pub seed: u64,
    /// Threads; none is one a core that was given, at least one.
    pub threads: Option<u32>,
    /// Where to write a line a request.
    pub log: Option<PathBuf>,
    given: Vec<&'static str>,
}

/// An option: its name, what its value looks like, its default and what it does. One table for help, flags and the nearest name.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Name in a query or argument.
    pub name: &'static str,
    /// Shape of the value.
    pub value: &'static str,
    /// Default, as it would be written.
    pub default: &'static str,
    /// The modes it is for; empty for all.
    pub modes: &'static [Mode],
    /// What it does.
    pub help: &'static str,
}

const fn key(
    name: &'static str,
    value: &'static str,
    default: &'static str,
    modes: &'static [Mode],
    help: &'static str,
) -> Key {
    Key { name, value, default, modes, help }
}

const PLAIN: &[Mode] = &[Mode::Null, Mode::Echo, Mode::Check, Mode::Chat];
const NOT_CHECK: &[Mode] = &[Mode::Null, Mode::Echo, Mode::Chat, Mode::Sse];
const LLM: &[Mode] = &[Mode::Chat, Mode::Sse];
const SSE: &[Mode] = &[Mode::Sse];
const NULL: &[Mode] = &[Mode::Null];

/// Every option, in the order of the help.
pub const KEYS: &[Key] = &[
    key("mode", "null|echo|check|chat|sse", "null", &[], "what a request is answered with"),
    key("ttft", "TIME", "20ms", SSE, "from the whole request to the first content event"),
    key("itl", "TIME", "5ms", SSE, "from one content event to the next; event k is due at ttft + k*itl"),
    key("tokens", "N", "64", LLM, "content events of a stream, words of a completion"),
    key("prompt_tokens", "N", "body bytes / 4", LLM, "usage.prompt_tokens"),
    key("delay", "TIME", "0", PLAIN, "think time before an answer"),
    key("jitter", "TIME", "0", &[], "each answer or event is due up to this much later, evenly spread"),
    key("bytes", "SIZE", "11", NULL, "length of the answer's body, sent without copying it"),
    key("status", "CODE", "200", NOT_CHECK, "status of every answer"),
    key("error", "SHARE", "0", &[], "share of requests answered with status 500 (1% or 0.01)"),
    key("reset", "SHARE", "0", &[], "share of requests that end in a reset connection"),
    key("truncate", "SHARE", "0", &[], "share of answers that end early, by a close"),
    key("stream_error", "SHARE", "0", SSE, "share of streams that end in an error event"),
    key("close_every", "N", "never", &[], "every N-th answer of a connection closes it"),
    key("idle_close", "TIME", "never", &[], "a connection without a request for so long is closed"),
    key(
        "stall",
        "TIME@TIME|SHARE:TIME",
        "none",
        &[],
        "once, so long, so long after the first request; or a share waits longer",
    ),
    key("slow_read", "SIZE", "off", PLAIN, "request bytes read a second and connection"),
    key("seed", "N", "1", &[], "seed of everything random"),
    key("threads", "N", "a core each", &[], "threads, each with its own listener"),
    key("log", "FILE", "none", &[], "a line a request: times, connection, record, bytes, status"),
];

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: Mode::Null,
            ttft_ns: 20 * MILLISECOND,
            itl_ns: 5 * MILLISECOND,
            tokens: 64,
            prompt_tokens: None,
            delay_ns: 0,
            jitter_ns: 0,
            bytes: None,
            status: 200,
            error: 0.0,
            reset: 0.0,
            truncate: 0.0,
            stream_error: 0.0,
            close_every: 0,
            idle_close_ns: None,
            stall: Stall::None,
            slow_read: 0,
            seed: 1,
            threads: None,
            log: None,
            given: Vec::new(),
        }
    }
}

impl Options {
    /// From a query such as `mode=sse&ttft=20ms`, with or without its `?`. An unknown name is refused with the nearest one.
    pub fn parse(query: &str) -> Result<Self> {
        let mut options = Self::default();
        for pair in query.strip_prefix('?').unwrap_or(query).split('&').filter(|p| !p.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(Error::usage(format!("target option \"{pair}\" has no value, expected {pair}=VALUE")));
            };
            options.set(name, &percent_decoded(value))?;
        }
        options.check()?;
        Ok(options)
    }

    /// From pairs of names and values; `-` and `_` in names are the same.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self> {
        let mut options = Self::default();
        for (name, value) in pairs {
            options.set(name, value)?;
        }
        options.check()?;
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let wanted = name.replace('-', "_");
        let Some(key) = KEYS.iter().find(|k| k.name == wanted) else {
            let nearest = nearest(&wanted);
            return Err(Error::usage(format!("no target option \"{name}\"; did you mean \"{nearest}\"?")));
        };
        if self.given.contains(&key.name) {
            return Err(Error::usage(format!("target option \"{}\" is given twice", key.name)));
        }
        self.given.push(key.name);
        self.assign(key.name, value)
            .map_err(|expected| Error::usage(format!("target option {}={value}: {expected}", key.name)))
    }

    fn assign(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "mode" => self.mode = mode(value)?,
            "ttft" => self.ttft_ns = parse_duration(value)?,
            "itl" => self.itl_ns = parse_duration(value)?,
            "tokens" => self.tokens = at_most(parse_positive_count(value)?, TOKENS_MAX)? as u32,
            "prompt_tokens" => self.prompt_tokens = Some(parse_count(value)?),
            "delay" => self.delay_ns = parse_duration(value)?,
            "jitter" => self.jitter_ns = parse_duration(value)?,
            "bytes" => {
                let bytes = parse_size(value)?;
                if bytes > ANSWER_BYTES_MAX {
                    return Err(format!("bytes={value}: at most 1GiB, since the answer is held in memory"));
                }
                self.bytes = Some(bytes);
            }
            "status" => self.status = status(value)?,
            "error" => self.error = share(value)?,
            "reset" => self.reset = share(value)?,
            "truncate" => self.truncate = share(value)?,
            "stream_error" => self.stream_error = share(value)?,
            "close_every" => self.close_every = at_most(parse_positive_count(value)?, u32::MAX.into())? as u32,
            "idle_close" => self.idle_close_ns = Some(parse_positive_duration(value)?),
            "stall" => self.stall = stall(value)?,
            "slow_read" => self.slow_read = at_least_one(parse_size(value)?)?,
            "seed" => self.seed = value.parse().map_err(|_| "expected a whole number".to_owned())?,
            "threads" => self.threads = Some(at_most(parse_positive_count(value)?, THREADS_MAX)? as u32),
            _ => self.log = Some(PathBuf::from(non_empty(value)?)),
        }
        Ok(())
    }

    /// Refuses what does not go together: an option that the mode would ignore, and faults that add up to more than every request.
    fn check(&self) -> Result<()> {
        for &name in &self.given {
            let fits = KEYS.iter().any(|k| k.name == name && (k.modes.is_empty() || k.modes.contains(&self.mode)));
            if !fits {
                let instead = if name == "delay" { "; there it is ttft" } else { "" };
                return Err(Error::usage(format!(
                    "target option \"{name}\" does nothing with mode={}{instead}",
                    self.mode.name()
                )));
            }
        }
        let faults = self.error + self.reset + self.truncate + self.stream_error;
        if faults > 1.0 {
            return Err(Error::usage(format!(
                "target options error, reset, truncate and stream_error add up to {:.0}%, expected at most 100%",
                faults * 100.0
            )));
        }
        Ok(())
    }
}

/// Content events of one stream: a million of them at 1 ms are 17 minutes; more is a typing error.
const TOKENS_MAX: u64 = 10_000_000;
/// Threads of one target.
const THREADS_MAX: u64 = 1024;

fn mode(value: &str) -> Result<Mode, String> {
    Mode::ALL
        .into_iter()
        .find(|m| m.name() == value)
        .ok_or_else(|| "expected null, echo, check, chat or sse".to_owned())
}

fn status(value: &str) -> Result<u16, String> {
    match value.parse() {
        Ok(n @ 200..=599) => Ok(n),
        _ => Err("expected a status from 200 to 599".to_owned()),
    }
}

fn share(value: &str) -> Result<f64, String> {
    const EXPECTED: &str = "expected a share such as 1% or 0.01";
    let (number, scale) = value.strip_suffix('%').map_or((value, 1.0), |n| (n, 0.01));
    let share = number.trim().parse::<f64>().map_err(|_| EXPECTED.to_owned())? * scale;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(EXPECTED.to_owned()) }
}

fn stall(value: &str) -> Result<Stall, String> {
    if let Some((length, after)) = value.split_once('@') {
        return Ok(Stall::Once { for_ns: parse_positive_duration(length)?, after_ns: parse_duration(after)? });
    }
    if let Some((part, length)) = value.split_once(':') {
        return Ok(Stall::Share { share: share(part)?, for_ns: parse_positive_duration(length)? });
    }
    Err("expected 200ms@5s (once, 5 s after the first request) or 1%:200ms (a share of the requests)".to_owned())
}

fn at_most(n: u64, most: u64) -> Result<u64, String> {
    if n <= most { Ok(n) } else { Err(format!("expected at most {most}")) }
}

fn at_least_one(n: u64) -> Result<u64, String> {
    if n > 0 { Ok(n) } else { Err("expected at least 1 byte a second".to_owned()) }
}

fn non_empty(value: &str) -> Result<&str, String> {
    if value.is_empty() { Err("expected a file".to_owned()) } else { Ok(value) }
}

/// Decodes `%25` and its like. A `%` without two hexadecimal digits behind it stays: `error=1%` is what people write.
fn percent_decoded(value: &str) -> String {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
        match tail {
            [a, b, ..] if first == b'%' && hex(*a).is_some() && hex(*b).is_some() => {
                out.push(hex(*a).unwrap_or(0) << 4 | hex(*b).unwrap_or(0));
                rest = &tail[2..];
            }
            _ => {
                out.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn nearest(name: &str) -> &'static str {
    KEYS.iter().min_by_key(|k| distance(name, k.name)).map_or("mode", |k| k.name)
}

/// Edits (Levenshtein) from one name to the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let kept = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = kept.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// The table of options for the help of `ringload target` and the README.
pub fn help() -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    for key in KEYS {
        let modes: Vec<_> = key.modes.iter().map(|m| m.name()).collect();
        let modes = if modes.is_empty() { String::new() } else { format!(" [{}]", modes.join(", ")) };
        let _ = writeln!(out, "  {:<14}{:<26}{}{modes} (default: {})", key.name, key.value, key.help, key.default);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(query: &str) -> String {
        Options::parse(query).unwrap_err().to_string()
    }

    #[test]
    fn the_query_of_the_contract_parses() {
        let o = Options::parse("mode=sse&ttft=20ms&itl=5ms&tokens=64").unwrap();
        assert_eq!((o.mode, o.ttft_ns, o.itl_ns, o.tokens), (Mode::Sse, 20_000_000, 5_000_000, 64));
        assert_eq!(Options::parse("").unwrap(), Options::default());
        assert_eq!(Options::parse("?mode=null").unwrap().mode, Mode::Null);
    }

    #[test]
    fn faults_parse_in_the_ways_people_write_them() {
        let o = Options::parse("error=1%&reset=0.5%25&stall=200ms@5s&idle_close=50ms&bytes=64KiB").unwrap();
        assert_eq!((o.error, o.reset), (0.01, 0.005));
        assert_eq!(o.stall, Stall::Once { for_ns: 200_000_000, after_ns: 5_000_000_000 });
        assert_eq!((o.idle_close_ns, o.bytes), (Some(50_000_000), Some(65_536)));
        assert_eq!(Options::parse("stall=1%:200ms").unwrap().stall, Stall::Share { share: 0.01, for_ns: 200_000_000 });
        let flags = Options::from_pairs([("close-every", "10"), ("seed", "7")]).unwrap();
        assert_eq!((flags.close_every, flags.seed), (10, 7));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        assert!(refused("tftf=1ms").contains("\"ttft\""));
        assert!(refused("eror=1%").contains("\"error\""));
        assert!(refused("mode=turbo").contains("expected null, echo"));
        assert!(refused("mode=null&ttft=1ms").contains("does nothing with mode=null"));
        assert!(refused("mode=sse&delay=1ms").contains("ttft"));
        assert!(refused("error=60%&reset=60%").contains("120%"));
        assert!(refused("seed=1&seed=2").contains("twice"));
        for bad in ["mode", "status=99", "status=abc", "error=2", "error=-1%", "stall=5s", "close_every=0", "bytes=-1"]
        {
            assert!(!refused(bad).is_empty(), "{bad}");
        }
    }

    #[test]
    fn every_option_of_the_table_can_be_set_and_is_in_the_help() {
        let help = help();
        for key in KEYS {
            let value = match key.name {
                "mode" => "echo",
                "ttft" | "itl" | "delay" | "jitter" | "idle_close" => "1ms",
                "stall" => "1ms@1s",
                "error" | "reset" | "truncate" | "stream_error" => "1%",
                "status" => "503",
                "log" => "requests.log",
                _ => "2",
            };
            let mode = key.modes.first().map_or("", |m| m.name());
            let mut pairs = vec![(key.name, value)];
            if !mode.is_empty() {
                pairs.push(("mode", mode));
            }
            assert!(Options::from_pairs(pairs).is_ok(), "{}", key.name);
            assert!(help.contains(key.name));
        }
    }
}
