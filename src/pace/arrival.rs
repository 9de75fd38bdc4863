//! Arrival processes: when the i-th request of an open loop is due.
//!
//! A unit-rate process (constant, poisson, gamma) gives the i-th arrival in operations done; the rate curve turns that into
//! time by the inverse of its integral. So ramps, stages and rate series are one thing, and no due time ever depends on when
//! the one before was sent.

use rand::SeedableRng;
use rand_distr::{Distribution, Exp1, Gamma};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::data::{
    Error, Result,
    plan::{Arrival, Segment},
    units::SECOND,
};

/// A rate over time as linear pieces, the last of which goes on at its end value for ever.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    pieces: Vec<Piece>,
}

/// One linear piece, with what happened before it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    /// Start, seconds.
    at_s: f64,
    /// Length, seconds; infinite for the last.
    length_s: f64,
    /// Rate at the start, a second.
    from: f64,
    /// Change of the rate a second.
    slope: f64,
    /// Arrivals expected before the piece.
    before: f64,
    /// Arrivals expected within it.
    within: f64,
}

impl Curve {
    /// A curve from its segments.
    ///
    /// A curve that ends at 0 has no arrivals after its end.
    ///
    /// Errors: no segment, a negative or non-finite value, or no rate above 0 anywhere.
    pub fn new(segments: &[Segment]) -> Result<Self> {
        let mut pieces: Vec<Piece> = Vec::with_capacity(segments.len() + 1);
        let (mut at_s, mut before) = (0.0, 0.0);
        for s in segments {
            let sound = |rate: f64| rate.is_finite() && rate >= 0.0;
            if !sound(s.from) || !sound(s.to) {
                return Err(Error::usage(format!("rate {}..{}: expected a rate of 0 or more", s.from, s.to)));
            }
            let length_s = s.duration_ns as f64 / SECOND as f64;
            if length_s > 0.0 {
                let within = (s.from + s.to) / 2.0 * length_s;
                pieces.push(Piece { at_s, length_s, from: s.from, slope: (s.to - s.from) / length_s, before, within });
                at_s += length_s;
                before += within;
            }
        }
        let last = segments.last().map_or(0.0, |s| s.to);
        if last <= 0.0 && before <= 0.0 {
            return Err(Error::usage("the rate is 0 from the start to the end: nothing would ever be sent"));
        }
        let within = if last > 0.0 { f64::INFINITY } else { 0.0 };
        pieces.push(Piece { at_s, length_s: f64::INFINITY, from: last, slope: 0.0, before, within });
        Ok(Self { pieces })
    }

    /// The time, in nanoseconds, at which `arrivals` are expected to have come. `piece` is a cursor of the caller (0 at first)
    /// and moves forward only, so `arrivals` must not fall.
    #[inline]
    fn time_ns(&self, arrivals: f64, piece: &mut usize) -> u64 {
        while *piece + 1 < self.pieces.len() && arrivals >= self.pieces[*piece].before + self.pieces[*piece].within {
            *piece += 1;
        }
        let p = &self.pieces[*piece];
        if p.length_s.is_infinite() && p.from == 0.0 {
            return u64::MAX;
        }
        let into = arrivals - p.before;
        let s = if p.slope == 0.0 {
            into / p.from
        } else {
            // from * s + slope/2 * s^2 = into; this form of the root loses no digits when the slope is small or `from` is 0.
            2.0 * into / (p.from + (p.from * p.from + 2.0 * p.slope * into).max(0.0).sqrt())
        };
        let s = if s.is_nan() { 0.0 } else { s.min(p.length_s) };
        ((p.at_s + s) * SECOND as f64) as u64
    }

    /// How many arrivals are expected before a time, nanoseconds.
    fn expected_by(&self, at_ns: u64) -> f64 {
        let at_s = at_ns as f64 / SECOND as f64;
        let piece = self.pieces.iter().rev().find(|p| p.at_s <= at_s);
        piece.map_or(0.0, |p| {
            let s = (at_s - p.at_s).min(p.length_s);
            p.before + p.from * s + p.slope / 2.0 * s * s
        })
    }
}

/// One worker's part of the arrivals: every worker walks the same process, from the same seed, and takes each `stride`-th. So
/// the union is the asked process exactly, and the same whatever the number of workers.
#[derive(Clone, Debug)]
pub(super) struct Arrivals {
    curve: Curve,
    gaps: Gaps,
    piece: usize,
    /// Index of the next arrival of the whole process.
    next: u64,
    /// Operations done at it, in units of the unit-rate process.
    position: f64,
}

#[derive(Clone, Debug)]
enum Gaps {
    Constant,
    Poisson(Xoshiro256PlusPlus),
    Gamma { rng: Xoshiro256PlusPlus, gamma: Gamma<f64> },
}

impl Arrivals {
    /// The whole process.
    ///
    /// Errors: as [`Curve::new`], or a shape that is not above 0.
    pub(super) fn new(arrival: Arrival, segments: &[Segment], seed: u64) -> Result<Self> {
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let gaps = match arrival {
            Arrival::Constant => Gaps::Constant,
            Arrival::Poisson => Gaps::Poisson(rng),
            Arrival::Gamma(shape) => {
                let gamma = (shape.is_finite() && shape > 0.0).then(|| Gamma::new(shape, 1.0 / shape).ok()).flatten();
                let gamma = gamma.ok_or_else(|| {
                    Error::usage(format!("--arrival gamma:{shape}: expected a shape above 0, such as gamma:0.5"))
                })?;
                Gaps::Gamma { rng, gamma }
            }
        };
        let mut arrivals = Self { curve: Curve::new(segments)?, gaps, piece: 0, next: 0, position: 0.0 };
        // The first arrival of a constant process is at once; that of a random one is a gap from the start.
        arrivals.position = arrivals.gaps.first();
        Ok(arrivals)
    }

    /// Index of the first arrival that is due at `at_ns` or later, by arithmetic; none for a random process, whose gaps must be
    /// drawn one by one.
    pub(super) fn first_at(&mut self, at_ns: u64) -> Option<u64> {
        if !matches!(self.gaps, Gaps::Constant) {
            return None;
        }
        let guess = self.curve.expected_by(at_ns).max(0.0) as u64;
        // The guess is off by rounding alone: the due times themselves decide.
        let mut index = guess.saturating_sub(2);
        while self.curve.time_ns(index as f64, &mut 0) < at_ns {
            index += 1;
        }
        Some(index)
    }

    /// Due time of arrival `index`, nanoseconds from the start. `index` must not fall from call to call.
    #[inline]
    pub(super) fn due_ns(&mut self, index: u64) -> u64 {
        debug_assert!(self.next <= index);
        match &mut self.gaps {
            Gaps::Constant => self.position = index as f64,
            Gaps::Poisson(rng) => {
                for _ in self.next..index {
                    let gap: f64 = Exp1.sample(rng);
                    self.position += gap;
                }
            }
            Gaps::Gamma { rng, gamma } => {
                for _ in self.next..index {
                    self.position += gamma.sample(rng);
                }
            }
        }
        self.next = index;
        self.curve.time_ns(self.position, &mut self.piece)
    }
}

impl Gaps {
    fn first(&mut self) -> f64 {
        match self {
            Self::Constant => 0.0,
            Self::Poisson(rng) => Exp1.sample(rng),
            Self::Gamma { rng, gamma } => gamma.sample(rng),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(rate: f64) -> Vec<Segment> {
        vec![Segment { duration_ns: 0, from: rate, to: rate }]
    }

    fn dues(arrival: Arrival, curve: &[Segment], n: u64) -> Vec<u64> {
        let mut a = Arrivals::new(arrival, curve, 7).unwrap();
        (0..n).map(|i| a.due_ns(i)).collect()
    }

    #[test]
    fn constant_arrivals_never_drift() {
        for rate in [0.01, 0.5, 3.0, 7.7, 1_000.0, 333_333.0, 500_000.0] {
            let mut a = Arrivals::new(Arrival::Constant, &flat(rate), 0).unwrap();
            for i in [0, 1, 2, 1_000, 1_000_000, 100_000_000] {
                let want = i as f64 / rate * 1e9;
                let got = a.due_ns(i) as f64;
                assert!((got - want).abs() <= 1.0 + want * 1e-15, "{rate} {i} {got} {want}");
            }
        }
    }

    #[test]
    fn poisson_and_gamma_have_the_asked_rate_and_spread() {
        for (arrival, cv) in [(Arrival::Poisson, 1.0), (Arrival::Gamma(4.0), 0.5), (Arrival::Gamma(0.25), 2.0)] {
            let n = 200_000;
            let d = dues(arrival, &flat(1_000.0), n);
            let gaps: Vec<f64> = d.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let sd = (gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
            assert!((mean / 1e6 - 1.0).abs() < 0.02, "{arrival:?} {mean}");
            assert!((sd / mean / cv - 1.0).abs() < 0.03, "{arrival:?} {}", sd / mean);
        }
    }

    #[test]
    fn workers_that_stride_over_the_process_make_up_the_same_process() {
        let whole = dues(Arrival::Poisson, &flat(50.0), 1_000);
        for workers in [2u64, 3, 8] {
            let mut union = Vec::new();
            for w in 0..workers {
                let mut a = Arrivals::new(Arrival::Poisson, &flat(50.0), 7).unwrap();
                union.extend((w..1_000).step_by(workers as usize).map(|i| a.due_ns(i)));
            }
            union.sort_unstable();
            assert_eq!(union, whole);
        }
    }

    #[test]
    fn a_ramp_has_half_the_arrivals_of_its_end_rate() {
        let ramp = [Segment { duration_ns: 10 * SECOND, from: 0.0, to: 100.0 }];
        let d = dues(Arrival::Constant, &ramp, 2_000);
        let within = d.iter().filter(|&&t| t < 10 * SECOND).count();
        assert_eq!(within, 500);
        assert!((d[125] as f64 / 1e9 - 5.0).abs() < 1e-6, "a quarter of the arrivals at half the time: {}", d[125]);
        let after = d.iter().filter(|&&t| (10 * SECOND..11 * SECOND).contains(&t)).count();
        assert!((99..=101).contains(&after), "{after}");
        assert!(d.windows(2).all(|w| w[0] <= w[1]));
    }

    #[test]
    fn stages_step_from_rate_to_rate() {
        let stages = [
            Segment { duration_ns: SECOND, from: 100.0, to: 100.0 },
            Segment { duration_ns: SECOND, from: 0.0, to: 0.0 },
            Segment { duration_ns: SECOND, from: 10.0, to: 10.0 },
        ];
        let d = dues(Arrival::Constant, &stages, 120);
        let count = |from: u64, to: u64| d.iter().filter(|&&t| (from * SECOND..to * SECOND).contains(&t)).count();
        assert_eq!((count(0, 1), count(1, 2), count(2, 3)), (100, 0, 10));
    }

    #[test]
    fn arrivals_before_a_time_are_counted_as_they_would_be_walked() {
        let curve = [
            Segment { duration_ns: 3 * SECOND, from: 0.0, to: 900.0 },
            Segment { duration_ns: SECOND, from: 0.0, to: 0.0 },
            Segment { duration_ns: 2 * SECOND, from: 333.3, to: 100.0 },
        ];
        for curve in [&curve[..], &flat(7.7), &flat(100_000.0)] {
            let due = dues(Arrival::Constant, curve, 3_000);
            let mut a = Arrivals::new(Arrival::Constant, curve, 7).unwrap();
            for at_ns in (0..due[2_900]).step_by((due[2_900] / 777) as usize).chain([due[5], due[5] + 1, due[2_000]]) {
                let walked = due.iter().filter(|&&t| t < at_ns).count() as u64;
                assert_eq!(a.first_at(at_ns), Some(walked), "{at_ns}");
            }
        }
        assert_eq!(Arrivals::new(Arrival::Poisson, &flat(5.0), 7).unwrap().first_at(SECOND), None);
    }

    #[test]
    fn a_rate_that_ends_at_0_ends_and_one_that_is_always_0_is_refused() {
        let fade = [Segment { duration_ns: SECOND, from: 10.0, to: 0.0 }];
        let due = dues(Arrival::Constant, &fade, 7);
        assert!(due[4] < SECOND && due[5] == u64::MAX && due[6] == u64::MAX, "{due:?}");
        assert!(Curve::new(&[]).is_err() && Curve::new(&flat(0.0)).is_err());
        assert!(Curve::new(&flat(f64::NAN)).is_err());
        assert!(Arrivals::new(Arrival::Gamma(0.0), &flat(1.0), 0).is_err());
    }
}
