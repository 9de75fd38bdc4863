//! How an issued request ended: exactly one [`Outcome`], and for a failed one exactly one [`ErrorClass`].

/// Why a request failed. The order is the order of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ErrorClass {
    /// Nobody listens at the address.
    ConnectRefused,
    /// No connection within `--connect-timeout`.
    ConnectTimeout,
    /// Any other failure to connect (unreachable, permission).
    ConnectFailed,
    /// EADDRNOTAVAIL or EADDRINUSE: the local ports are used up.
    NoLocalPort,
    /// The TLS handshake or a TLS record failed.
    Tls,
    /// A fresh connection was closed without a byte of response.
    NoResponse,
    /// A kept connection was closed or reset before any byte of this response.
    StaleConnection,
    /// Reset after the request began, and no response was complete.
    Reset,
    /// The connection ended inside the response.
    Truncated,
    /// Not HTTP/1.1: bad status line, length, chunk, or conflicting lengths.
    Framing,
    /// A response head over 64 KiB.
    HeadersTooLarge,
    /// A 101, which nobody asked for.
    UnexpectedUpgrade,
    /// No response byte within `--first-byte-timeout`.
    FirstByteTimeout,
    /// A gap between bytes longer than `--idle-timeout`.
    IdleTimeout,
    /// Not complete within `--timeout`.
    RequestTimeout,
    /// Complete, with a 3xx status: no redirect is followed.
    Http3xx,
    /// Complete, with a 4xx status.
    Http4xx,
    /// Complete, with a 5xx status.
    Http5xx,
    /// Complete, with any other status.
    HttpOther,
    /// An error event inside a 200 stream.
    StreamError,
    /// A stream that ended cleanly with neither `[DONE]` nor a finish reason.
    StreamIncomplete,
    /// A stream without a single event.
    StreamEmpty,
    /// The cache entry's files changed under the run.
    CacheChanged,
}

impl ErrorClass {
    /// Every class, in report order.
    pub const ALL: [Self; 23] = [
        Self::ConnectRefused,
        Self::ConnectTimeout,
        Self::ConnectFailed,
        Self::NoLocalPort,
        Self::Tls,
        Self::NoResponse,
        Self::StaleConnection,
        Self::Reset,
        Self::Truncated,
        Self::Framing,
        Self::HeadersTooLarge,
        Self::UnexpectedUpgrade,
        Self::FirstByteTimeout,
        Self::IdleTimeout,
        Self::RequestTimeout,
        Self::Http3xx,
        Self::Http4xx,
        Self::Http5xx,
        Self::HttpOther,
        Self::StreamError,
        Self::StreamIncomplete,
        Self::StreamEmpty,
        Self::CacheChanged,
    ];
    /// How many classes there are: the length of every table by class.
    pub const COUNT: usize = Self::ALL.len();

    /// The name in `summary.json` and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ConnectRefused => "connect_refused",
            Self::ConnectTimeout => "connect_timeout",
            Self::ConnectFailed => "connect_failed",
            Self::NoLocalPort => "no_local_port",
            Self::Tls => "tls",
            Self::NoResponse => "no_response",
            Self::StaleConnection => "stale_connection",
            Self::Reset => "reset",
            Self::Truncated => "truncated",
            Self::Framing => "framing",
            Self::HeadersTooLarge => "headers_too_large",
            Self::UnexpectedUpgrade => "unexpected_upgrade",
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::RequestTimeout => "request_timeout",
            Self::Http3xx => "http_3xx",
            Self::Http4xx => "http_4xx",
            Self::Http5xx => "http_5xx",
            Self::HttpOther => "http_other",
            Self::StreamError => "stream_error",
            Self::StreamIncomplete => "stream_incomplete",
            Self::StreamEmpty => "stream_empty",
            Self::CacheChanged => "cache_changed",
        }
    }

    /// What a user can do about it, for the text report; empty when the name says all.
    pub const fn hint(self) -> &'static str {
        match self {
            Self::ConnectRefused => "nobody listens there: is the server up, is the port right?",
            Self::NoLocalPort => "local ports are used up: keep connections alive, or spread over --source-ip A,B",
            Self::StaleConnection => {
                "the server closed a kept connection as the request was sent: its keep-alive time is short; --resend-stale sends \
                 such requests again"
            }
            Self::NoResponse => "the server closed without answering: look at its log",
            Self::Tls => {
                "see the sample; -k skips verification, --cacert FILE trusts an authority; CaUsedAsEndEntity: the server shows \
                 an authority's own certificate: give that very one as --cacert"
            }
            Self::Framing => "what came is not HTTP/1.1: see the sample in errors.jsonl",
            Self::Http3xx => "no redirect is followed: give the final URL",
            Self::StreamIncomplete => "--stream-end any accepts streams without [DONE] or a finish reason",
            Self::CacheChanged => "the cache entry was changed during the run: run again",
            _ => "",
        }
    }

    /// The class of a complete response by its status; none for 2xx.
    pub const fn of_status(status: u16) -> Option<Self> {
        match status {
            200..=299 => None,
            300..=399 => Some(Self::Http3xx),
            400..=499 => Some(Self::Http4xx),
            500..=599 => Some(Self::Http5xx),
            _ => Some(Self::HttpOther),
        }
    }
}

/// How an issued request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// 2xx, framing complete and, for a stream, no error in it and at least one event.
    Succeeded,
    /// Anything else that came to an end.
    Failed(ErrorClass),
    /// Still in flight when the drain ended. Not an error.
    Cut,
}

impl Outcome {
    /// One byte for result rows: 0 succeeded, 1 cut, 2 + class for failed.
    pub const fn code(self) -> u8 {
        match self {
            Self::Succeeded => 0,
            Self::Cut => 1,
            Self::Failed(class) => 2 + class as u8,
        }
    }

    /// The outcome of a row's byte; none for a byte that no outcome has.
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Succeeded),
            1 => Some(Self::Cut),
            n => ErrorClass::ALL.get(n as usize - 2).map(|&class| Self::Failed(class)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_codes_round_trip_and_classes_are_in_order() {
        for (i, class) in ErrorClass::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, i);
            assert_eq!(Outcome::from_code(Outcome::Failed(class).code()), Some(Outcome::Failed(class)));
        }
        assert_eq!(Outcome::from_code(Outcome::Cut.code()), Some(Outcome::Cut));
        assert_eq!(Outcome::from_code(Outcome::Succeeded.code()), Some(Outcome::Succeeded));
        assert_eq!(Outcome::from_code(200), None);
    }
}
