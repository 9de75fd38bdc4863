//! Percentiles as exact decimals, and the statistics of a series: nearest rank, never outside what was recorded.
//!
//! Owns the one place where a histogram becomes figures. Promises: percentiles never fall, lie within the exact minimum and
//! maximum, and are none without samples; no figure is NaN or infinite.

use crate::data::metric::{Metric, Series, Unit};

/// A percentile from 0 to 100, held in millionths of a percent, so that `99.9` is 99.9 and a rank is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percentile(u32);

impl Percentile {
    const ONE: u32 = 1_000_000;

    /// What is reported without `--percentiles`.
    pub const DEFAULT: [Self; 11] = [
        Self(Self::ONE),
        Self(5 * Self::ONE),
        Self(10 * Self::ONE),
        Self(25 * Self::ONE),
        Self(50 * Self::ONE),
        Self(75 * Self::ONE),
        Self(90 * Self::ONE),
        Self(95 * Self::ONE),
        Self(99 * Self::ONE),
        Self(99_900_000),
        Self(99_990_000),
    ];
    /// What every `summary.json` has, whatever `--percentiles` says.
    pub const FIXED: [Self; 6] = [
        Self(50 * Self::ONE),
        Self(90 * Self::ONE),
        Self(95 * Self::ONE),
        Self(99 * Self::ONE),
        Self(99_900_000),
        Self(99_990_000),
    ];
    /// The median.
    pub const P50: Self = Self(50 * Self::ONE);
    /// The 99th.
    pub const P99: Self = Self(99 * Self::ONE);

    /// A percentile as it is written: `99`, `99.9`, `p99.99`. The error says what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || format!("{text:?} is no percentile: expected 0 to 100 with at most 6 decimals, as in 99.9");
        let digits = text.strip_prefix(['p', 'P']).unwrap_or(text);
        let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
        let plain = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if !plain(whole) || !plain(part) || whole.len() > 3 || part.len() > 6 {
            return Err(expected());
        }
        let whole: u32 = whole.parse().map_err(|_| expected())?;
        let part: u32 = format!("{part:0<6}").parse().map_err(|_| expected())?;
        let value = whole * Self::ONE + part;
        if value <= 100 * Self::ONE { Ok(Self(value)) } else { Err(expected()) }
    }

    /// Those that were chosen and those that are always there, ascending, each once.
    pub fn with_fixed(chosen: &[Self]) -> Vec<Self> {
        let mut all: Vec<_> = chosen.iter().chain(&Self::FIXED).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// A list as `--percentiles` takes it: `50,90,99.9`; sorted, each once.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        let mut list = text.split(',').map(|p| Self::parse(p.trim())).collect::<Result<Vec<_>, _>>()?;
        list.sort_unstable();
        list.dedup();
        Ok(list)
    }

    /// The name in `summary.json`: `p50`, `p99.9`.
    pub fn name(self) -> String {
        let (whole, part) = (self.0 / Self::ONE, self.0 % Self::ONE);
        match format!("{part:06}").trim_end_matches('0') {
            "" => format!("p{whole}"),
            decimals => format!("p{whole}.{decimals}"),
        }
    }

    /// Its share of 1, for axes and footnotes.
    pub fn share(self) -> f64 {
        f64::from(self.0) / f64::from(100 * Self::ONE)
    }

    /// The nearest rank among `count` sorted samples, from 1; 0 without samples.
    pub fn rank(self, count: u64) -> u64 {
        if count == 0 {
            return 0;
        }
        let rank = (u128::from(self.0) * u128::from(count)).div_ceil(u128::from(100 * Self::ONE));
        (rank as u64).max(1)
    }

    /// Samples above its rank: how much a tail percentile rests on.
    pub fn beyond(self, count: u64) -> u64 {
        count - self.rank(count)
    }
}

/// The statistics of one metric in its shown unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// `ms`, `us`, `tokens`, `tokens/s`.
    pub unit: String,
    /// Samples; in an `adj_` twin with the failures.
    pub count: u64,
    /// Exact mean.
    pub mean: Option<f64>,
    /// Population standard deviation.
    pub std: Option<f64>,
    /// Exact minimum.
    pub min: Option<f64>,
    /// Exact maximum.
    pub max: Option<f64>,
    /// Nearest-rank percentiles, ascending.
    pub percentiles: Vec<(Percentile, Option<f64>)>,
}

impl Stats {
    /// The statistics of a series.
    pub fn of(series: &Series, unit: Unit, percentiles: &[Percentile]) -> Self {
        let shown = |value: f64| Some(value / unit.divisor()).filter(|v| v.is_finite());
        let some = series.count > 0;
        let values = values_at_ranks(series, &percentiles.iter().map(|p| p.rank(series.count)).collect::<Vec<_>>());
        Self {
            unit: unit.name().to_owned(),
            count: series.count,
            mean: some.then(|| mean(series)).and_then(shown),
            std: some.then(|| std_deviation(series)).and_then(shown),
            min: some.then_some(series.min as f64).and_then(shown),
            max: some.then_some(series.max as f64).and_then(shown),
            percentiles: percentiles.iter().zip(values).map(|(&p, v)| (p, v.and_then(|v| shown(v as f64)))).collect(),
        }
    }

    /// The `adj_` twin: each failure counts as a sample of infinite length, so a percentile that lands on one is none, and
    /// so are the mean, the deviation and the maximum.
    pub fn adjusted(series: &Series, failed: u64, unit: Unit, percentiles: &[Percentile]) -> Self {
        let shown = |value: u64| value as f64 / unit.divisor();
        let count = series.count + failed;
        let values = values_at_ranks(series, &percentiles.iter().map(|p| p.rank(count)).collect::<Vec<_>>());
        Self {
            unit: unit.name().to_owned(),
            count,
            mean: None,
            std: None,
            min: (series.count > 0).then(|| shown(series.min)),
            max: None,
            percentiles: percentiles.iter().zip(values).map(|(&p, v)| (p, v.map(shown))).collect(),
        }
    }

    /// One of the percentiles that were computed.
    pub fn at(&self, percentile: Percentile) -> Option<f64> {
        self.percentiles.iter().find(|(p, _)| *p == percentile).and_then(|(_, v)| *v)
    }
}

/// One percentile of a series, in recorded units.
pub fn value_at(series: &Series, percentile: Percentile) -> Option<u64> {
    values_at_ranks(series, &[percentile.rank(series.count)])[0]
}

/// Of a metric, in its shown unit.
pub fn shown_at(series: &Series, metric: Metric, percentile: Percentile) -> Option<f64> {
    value_at(series, percentile).map(|v| v as f64 / metric.unit().divisor())
}

/// The values at ascending ranks (from 1), in recorded units; none where the rank is 0 or past the last sample.
///
/// A bucket stands for its highest value, as in every HdrHistogram tool, held to the exact minimum and maximum.
pub(super) fn values_at_ranks(series: &Series, ranks: &[u64]) -> Vec<Option<u64>> {
    debug_assert!(ranks.is_sorted());
    debug_assert!(series.count == series.hist.len());
    let mut values = vec![None; ranks.len()];
    let mut next = ranks.iter().take_while(|&&r| r == 0).count();
    let mut seen = 0;
    for step in series.hist.iter_recorded() {
        seen += step.count_at_value();
        let value = series.hist.highest_equivalent(step.value_iterated_to()).clamp(series.min, series.max);
        while next < ranks.len() && ranks[next] <= seen {
            // The last sample is the exact maximum, also where the histogram saturated.
            values[next] = Some(if ranks[next] == series.count { series.max } else { value });
            next += 1;
        }
    }
    values
}

/// Exact to the last bit of a double.
pub fn mean(series: &Series) -> f64 {
    let count = u128::from(series.count.max(1));
    (series.sum / count) as f64 + (series.sum % count) as f64 / count as f64
}

/// Population standard deviation: from integers where they fit, so that equal samples give exactly 0.
pub fn std_deviation(series: &Series) -> f64 {
    let n = u128::from(series.count);
    if n == 0 {
        return 0.0;
    }
    match (series.sum_sq.checked_mul(n), series.sum.checked_mul(series.sum)) {
        (Some(a), Some(b)) => (a.saturating_sub(b) as f64).sqrt() / n as f64,
        _ => (series.sum_sq as f64 / n as f64 - mean(series).powi(2)).max(0.0).sqrt(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn series(values: &[u64]) -> Series {
        let mut s = Series::new();
        for &v in values {
            s.record(v);
        }
        s
    }

    fn p(text: &str) -> Percentile {
        Percentile::parse(text).unwrap()
    }

    #[test]
    fn percentiles_are_read_and_named_as_written() {
        for text in ["50", "99.9", "99.99", "0", "100", "99.999999", "0.1"] {
            assert_eq!(p(text).name(), format!("p{text}"));
        }
        assert_eq!(p("p99"), p("99.0"));
        for bad in ["", "p", "98765", "100.1", "-1", "99.", ".5", "nan", "1e1", "99.9999999", "9 9"] {
            assert!(Percentile::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(Percentile::parse_list("99.9, 50,50").unwrap(), [p("50"), p("99.9")]);
        assert!(Percentile::parse_list("50,,90").is_err());
    }

    #[test]
    fn ranks_are_exact_where_floats_are_not() {
        // 0.999 * 1000 is 999.0000000000001 in doubles of some orders of evaluation.
        assert_eq!(p("99.9").rank(1000), 999);
        assert_eq!(p("99").rank(100), 99);
        assert_eq!((p("0").rank(5), p("100").rank(5), p("50").rank(0)), (1, 5, 0));
        assert_eq!(p("99").beyond(8), 0);
        assert_eq!(p("99").beyond(1000), 10);
    }

    #[test]
    fn eight_samples_give_seen_values_and_an_exact_maximum() {
        let s = series(&[10, 20, 30, 40, 50, 60, 70, 300].map(|ms| ms * 1_000_000));
        let stats = Stats::of(&s, Unit::Milliseconds, &Percentile::DEFAULT);
        assert_eq!((stats.max, stats.at(Percentile::P99)), (Some(300.0), Some(300.0)));
        let p50 = stats.at(Percentile::P50).unwrap();
        assert!((40.0..40.1).contains(&p50), "{p50}");
        assert_eq!(stats.mean, Some(72.5));
    }

    #[test]
    fn no_samples_is_none_everywhere() {
        let stats = Stats::of(&Series::new(), Unit::Milliseconds, &Percentile::DEFAULT);
        assert_eq!((stats.count, stats.mean, stats.std, stats.min, stats.max), (0, None, None, None, None));
        assert!(stats.percentiles.iter().all(|(_, v)| v.is_none()));
    }

    #[test]
    fn a_failing_server_does_not_look_fast() {
        let s = series(&[100_000_000; 9]);
        let stats = Stats::adjusted(&s, 1, Unit::Milliseconds, &Percentile::DEFAULT);
        assert_eq!(stats.count, 10);
        assert_eq!(stats.at(p("90")), Some(100.0));
        assert_eq!((stats.at(p("95")), stats.at(p("99")), stats.max, stats.mean), (None, None, None, None));
    }

    #[test]
    fn deviation_of_equal_samples_is_exactly_zero() {
        assert_eq!(std_deviation(&series(&[123_456_789; 1000])), 0.0);
        assert_eq!(std_deviation(&series(&[2, 4, 4, 4, 5, 5, 7, 9])), 2.0);
        // Products that do not fit fall back to doubles and stay finite.
        let mut big = series(&[Series::MAX; 3]);
        big.sum = u128::MAX / 2;
        assert!(std_deviation(&big).is_finite());
    }

    proptest! {
        #[test]
        fn percentiles_never_fall_and_stay_inside(values in prop::collection::vec(0u64..2 * Series::MAX, 1..300)) {
            let s = series(&values);
            let stats = Stats::of(&s, Unit::Tokens, &Percentile::DEFAULT);
            let line: Vec<f64> = std::iter::once(stats.min.unwrap())
                .chain(stats.percentiles.iter().map(|(_, v)| v.unwrap()))
                .chain([stats.max.unwrap()])
                .collect();
            prop_assert!(line.is_sorted(), "{line:?}");
            let mut sorted = values.clone();
            sorted.sort_unstable();
            for (p, v) in &stats.percentiles {
                let exact = sorted[p.rank(s.count) as usize - 1].min(s.max) as f64;
                if exact < Series::MAX as f64 {
                    prop_assert!((v.unwrap() - exact).abs() <= exact * 1e-3 + 1.0, "{p:?} {v:?} {exact}");
                }
            }
        }
    }
}
