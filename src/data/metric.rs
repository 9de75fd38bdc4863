//! The measured quantities and the series that hold them: a histogram for percentiles, exact integers for the rest.

use hdrhistogram::Histogram;

/// A quantity with one sample a request (or a gap, for [`Metric::InterChunkLatency`]), recorded by the worker.
/// Names, formulas and units are those of the metrics contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Metric {
    /// (last token, or done where there is no stream) - start.
    RequestLatency,
    /// The same - due.
    RequestLatencyFromSchedule,
    /// First byte of the final response - start.
    TimeToFirstByte,
    /// The kernel has taken the last byte of the request - start.
    SendTime,
    /// Connection established - connect begun; one sample a connection.
    ConnectTime,
    /// TLS handshake done - connection established; one sample a connection.
    TlsTime,
    /// start - due.
    ScheduleLag,
    /// First content event - start.
    TimeToFirstToken,
    /// First content event - due.
    TimeToFirstTokenFromSchedule,
    /// First content that is not reasoning - start.
    TimeToFirstOutputToken,
    /// Second content event - first.
    TimeToSecondToken,
    /// Every gap between content events, pooled.
    InterChunkLatency,
    /// (last token - first token) / (tokens - 1).
    InterTokenLatency,
    /// done - start of a stream.
    StreamEndLatency,
    /// Tokens of the answer.
    OutputSequenceLength,
    /// Tokens of the prompt.
    InputSequenceLength,
    /// Reasoning tokens of the answer.
    ReasoningTokenCount,
    /// 1 / inter-token latency of a request; recorded in thousandths of a token a second.
    OutputTokenThroughputPerUser,
}

/// How recorded integers become shown values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Recorded in nanoseconds, shown in milliseconds.
    Milliseconds,
    /// Recorded in nanoseconds, shown in microseconds.
    Microseconds,
    /// Recorded and shown as whole tokens.
    Tokens,
    /// Recorded in thousandths, shown in tokens a second.
    TokensPerSecond,
}

impl Unit {
    /// The unit's name in `summary.json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Microseconds => "us",
            Self::Tokens => "tokens",
            Self::TokensPerSecond => "tokens/s",
        }
    }

    /// Recorded units in one shown unit.
    pub const fn divisor(self) -> f64 {
        match self {
            Self::Milliseconds => 1e6,
            Self::Microseconds => 1e3,
            Self::Tokens => 1.0,
            Self::TokensPerSecond => 1e3,
        }
    }
}

impl Metric {
    /// Every metric, in report order.
    pub const ALL: [Self; 18] = [
        Self::RequestLatency,
        Self::RequestLatencyFromSchedule,
        Self::TimeToFirstByte,
        Self::SendTime,
        Self::ConnectTime,
        Self::TlsTime,
        Self::ScheduleLag,
        Self::TimeToFirstToken,
        Self::TimeToFirstTokenFromSchedule,
        Self::TimeToFirstOutputToken,
        Self::TimeToSecondToken,
        Self::InterChunkLatency,
        Self::InterTokenLatency,
        Self::StreamEndLatency,
        Self::OutputSequenceLength,
        Self::InputSequenceLength,
        Self::ReasoningTokenCount,
        Self::OutputTokenThroughputPerUser,
    ];
    /// How many there are: the length of every table by metric.
    pub const COUNT: usize = Self::ALL.len();

    /// The name in `summary.json`, thresholds and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RequestLatency => "request_latency",
            Self::RequestLatencyFromSchedule => "request_latency_from_schedule",
            Self::TimeToFirstByte => "time_to_first_byte",
            Self::SendTime => "send_time",
            Self::ConnectTime => "connect_time",
            Self::TlsTime => "tls_time",
            Self::ScheduleLag => "schedule_lag",
            Self::TimeToFirstToken => "time_to_first_token",
            Self::TimeToFirstTokenFromSchedule => "time_to_first_token_from_schedule",
            Self::TimeToFirstOutputToken => "time_to_first_output_token",
            Self::TimeToSecondToken => "time_to_second_token",
            Self::InterChunkLatency => "inter_chunk_latency",
            Self::InterTokenLatency => "inter_token_latency",
            Self::StreamEndLatency => "stream_end_latency",
            Self::OutputSequenceLength => "output_sequence_length",
            Self::InputSequenceLength => "input_sequence_length",
            Self::ReasoningTokenCount => "reasoning_token_count",
            Self::OutputTokenThroughputPerUser => "output_token_throughput_per_user",
        }
    }

    /// The metric of a full or short name (`ttft`, `itl`, ...).
    pub fn parse(name: &str) -> Option<Self> {
        let full = match name {
            "latency" | "e2el" => "request_latency",
            "ttft" => "time_to_first_token",
            "ttfo" => "time_to_first_output_token",
            "itl" => "inter_token_latency",
            "icl" => "inter_chunk_latency",
            "ttfb" => "time_to_first_byte",
            "tpot" => "inter_token_latency",
            other => other,
        };
        Self::ALL.into_iter().find(|m| m.name() == full)
    }

    /// The unit of its samples.
    pub const fn unit(self) -> Unit {
        match self {
            Self::ScheduleLag => Unit::Microseconds,
            Self::OutputSequenceLength | Self::InputSequenceLength | Self::ReasoningTokenCount => Unit::Tokens,
            Self::OutputTokenThroughputPerUser => Unit::TokensPerSecond,
            _ => Unit::Milliseconds,
        }
    }

    /// True for the metrics that every request has, whatever it answers: they are always in `summary.json`.
    pub const fn of_every_request(self) -> bool {
        matches!(
            self,
            Self::RequestLatency
                | Self::RequestLatencyFromSchedule
                | Self::TimeToFirstByte
                | Self::SendTime
                | Self::ConnectTime
                | Self::ScheduleLag
        )
    }
}

/// Samples of one metric: a histogram with 3 significant digits, and exact count, sum, sum of squares, minimum and maximum.
///
/// Integers throughout, so merging is exact and its order does not matter. Invariant: `count == hist.len()`.
#[derive(Clone, Debug)]
pub struct Series {
    /// Values recorded, 1 to [`Series::MAX`]; 0 is recorded as 0, larger ones saturate (the exact maximum stays).
    pub hist: Histogram<u64>,
    /// Number of samples.
    pub count: u64,
    /// Sum of the samples.
    pub sum: u128,
    /// Sum of their squares: 2^43 ns squared times 2^40 samples still fits.
    pub sum_sq: u128,
    /// Smallest sample; `u64::MAX` without samples.
    pub min: u64,
    /// Largest sample; 0 without samples.
    pub max: u64,
}

impl Series {
    /// The highest value that a histogram tells apart: two hours in nanoseconds. Longer requests saturate in the percentiles
    /// and stay exact in the maximum and the mean.
    pub const MAX: u64 = 7_200_000_000_000;

    /// An empty series. Allocates its whole histogram.
    pub fn new() -> Self {
        let hist =
            Histogram::new_with_bounds(1, Self::MAX, 3).unwrap_or_else(|_| unreachable!("constant bounds are valid"));
        Self { hist, count: 0, sum: 0, sum_sq: 0, min: u64::MAX, max: 0 }
    }

    /// Adds one sample. Never allocates.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.hist.saturating_record(value);
        self.count += 1;
        self.sum += u128::from(value);
        self.sum_sq += u128::from(value) * u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds a sample as often as `n` says: a value that held for `n` nanoseconds.
    #[inline]
    pub fn record_n(&mut self, value: u64, n: u64) {
        if n == 0 {
            return;
        }
        self.hist.saturating_record_n(value, n);
        self.count += n;
        self.sum += u128::from(value) * u128::from(n);
        self.sum_sq += u128::from(value) * u128::from(value) * u128::from(n);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds all samples of another series.
    pub fn merge(&mut self, other: &Self) {
        self.hist.add(&other.hist).unwrap_or_else(|_| unreachable!("all series have the same bounds"));
        self.count += other.count;
        self.sum += other.sum;
        self.sum_sq += other.sum_sq;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Forgets all samples, keeping the memory.
    pub fn clear(&mut self) {
        self.hist.reset();
        self.count = 0;
        self.sum = 0;
        self.sum_sq = 0;
        self.min = u64::MAX;
        self.max = 0;
    }
}

impl Default for Series {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_is_exact_where_the_histogram_is_not() {
        let mut a = Series::new();
        let mut b = Series::new();
        a.record(1_000_001);
        b.record(3_000_007);
        b.record(Series::MAX * 3);
        a.merge(&b);
        assert_eq!((a.count, a.min, a.max), (3, 1_000_001, Series::MAX * 3));
        assert_eq!(a.sum, u128::from(1_000_001u64 + 3_000_007 + Series::MAX * 3));
        assert_eq!(a.hist.len(), 3);
        a.clear();
        assert_eq!((a.count, a.hist.len(), a.min, a.max), (0, 0, u64::MAX, 0));
    }

    #[test]
    fn metrics_are_found_by_full_and_short_name_and_indexed_in_order() {
        for (i, m) in Metric::ALL.into_iter().enumerate() {
            assert_eq!(m as usize, i);
            assert_eq!(Metric::parse(m.name()), Some(m));
        }
        assert_eq!(Metric::parse("ttft"), Some(Metric::TimeToFirstToken));
        assert_eq!(Metric::parse("nope"), None);
    }
}
