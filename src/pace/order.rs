//! Orders of a pass, computed and never stored: a keyed permutation of `0..n` in constant memory.

use crate::data::plan::Order;

/// The position in the dataset of step `step` of pass `pass`, for `n >= 1` positions.
///
/// `Shuffle` visits each position exactly once a pass, in another order each pass; `Random` draws with replacement.
#[inline]
pub(super) fn position(order: Order, seed: u64, n: u64, pass: u64, step: u64) -> u64 {
    debug_assert!(step < n);
    match order {
        Order::Sequential => step,
        Order::Shuffle => permute(step, n, mix(seed ^ mix(pass))),
        Order::Random => bounded(mix(seed ^ mix(pass.wrapping_mul(n).wrapping_add(step))), n),
    }
}

/// SplitMix64's finaliser: a bijection of 64 bits in which every input bit reaches every output bit
/// (Steele, Lea, Flood 2014).
#[inline]
pub(super) const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A uniform draw for one request: the same whatever the workers, and independent of the order of a pass.
#[inline]
pub fn draw(seed: u64, unit: u64, record: u32) -> u64 {
    mix(mix(seed ^ 0x6361_6e63_656c) ^ mix(unit) ^ mix(u64::from(record)).rotate_left(32))
}

/// A value below `n` from a uniform 64-bit one (multiply and shift; the bias is below n / 2^64).
#[inline]
const fn bounded(x: u64, n: u64) -> u64 {
    ((x as u128 * n as u128) >> 64) as u64
}

/// A keyed permutation of `0..n`: a four-round Feistel network over the next even number of bits, walked until it falls inside
/// (Black and Rogaway 2002). The domain is below four times `n`, so the walk takes fewer than four steps on average.
#[inline]
fn permute(x: u64, n: u64, key: u64) -> u64 {
    if n <= 1 {
        return 0;
    }
    let bits = 64 - (n - 1).leading_zeros();
    let half = bits.div_ceil(2);
    let mask = (1u64 << half) - 1;
    let mut at = x;
    loop {
        let (mut left, mut right) = (at >> half, at & mask);
        for round in 0..4u64 {
            (left, right) = (right, left ^ (mix(right ^ key.wrapping_add(round << 56)) & mask));
        }
        at = (left << half) | right;
        if at < n {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffled_pass_visits_each_record_exactly_once_and_passes_differ() {
        for n in [1u64, 2, 3, 7, 64, 65, 1000, 4097] {
            let visit = |pass| (0..n).map(|step| position(Order::Shuffle, 42, n, pass, step)).collect::<Vec<_>>();
            let (first, second) = (visit(0), visit(1));
            let mut sorted = first.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..n).collect::<Vec<_>>(), "{n}");
            if n >= 64 {
                assert_ne!(first, second);
                assert_ne!(first, sorted);
            }
        }
    }

    #[test]
    fn random_draws_stay_inside_and_repeat_with_the_seed() {
        let draw = |seed| (0..1000).map(|i| position(Order::Random, seed, 10, i / 10, i % 10)).collect::<Vec<_>>();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let mut seen = [0u32; 10];
        for at in draw(1) {
            seen[at as usize] += 1;
        }
        assert!(seen.iter().all(|&n| n > 50), "{seen:?}");
    }
}
