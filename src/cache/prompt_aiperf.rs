//! The random numbers behind AIPerf's prompts, so that both tools can send the same text (`--derivation aiperf`).
//!
//! A component's seed is the first 8 bytes of `SHA-256("{seed}:dataset.prompt.corpus")`, a block's those of
//! `SHA-256("{component}:{trace}:{hash id}")`, both big endian; each seeds a Mersenne Twister as Python's `random.seed(int)` does,
//! and a window's start is its `randrange(corpus tokens)`.

use sha2::{Digest as _, Sha256};

/// Seed of the prompts of a run.
pub(super) fn component_seed(run_seed: u64) -> u64 {
    first_8(&Sha256::digest(format!("{run_seed}:dataset.prompt.corpus")))
}

/// Name of a trace: 16 hexadecimal digits of the SHA-256 of its file.
pub(super) fn trace_id(file_sha256: &[u8; 32]) -> String {
    file_sha256[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where the window of a block starts in a corpus of `tokens`.
pub(super) fn block_start(component: u64, trace: &str, block: u64, tokens: u32) -> u32 {
    Twister::new(first_8(&Sha256::digest(format!("{component}:{trace}:{block}")))).below(tokens)
}

fn first_8(digest: &[u8]) -> u64 {
    digest.iter().take(8).fold(0, |n, &byte| n << 8 | u64::from(byte))
}

const N: usize = 624;
const M: usize = 397;

/// MT19937 (Matsumoto and Nishimura 1998) with the seeding by array of 2002.
#[derive(Clone, Debug)]
pub(super) struct Twister {
    state: Box<[u32; N]>,
    at: usize,
}

impl Twister {
    /// Seeded with an integer's 32-bit words, the low one first, as Python does.
    pub(super) fn new(seed: u64) -> Self {
        let words = [seed as u32, (seed >> 32) as u32];
        let key = if words[1] == 0 { &words[..1] } else { &words[..] };
        let mut s = Box::new([0u32; N]);
        s[0] = 19_650_218;
        for i in 1..N {
            s[i] = (s[i - 1] ^ (s[i - 1] >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        let (mut i, mut j) = (1, 0);
        for _ in 0..N {
            let mixed = (s[i - 1] ^ (s[i - 1] >> 30)).wrapping_mul(1_664_525);
            s[i] = (s[i] ^ mixed).wrapping_add(key[j]).wrapping_add(j as u32);
            i += 1;
            j = (j + 1) % key.len();
            if i == N {
                s[0] = s[N - 1];
                i = 1;
            }
        }
        for _ in 1..N {
            let mixed = (s[i - 1] ^ (s[i - 1] >> 30)).wrapping_mul(1_566_083_941);
            s[i] = (s[i] ^ mixed).wrapping_sub(i as u32);
            i += 1;
            if i == N {
                s[0] = s[N - 1];
                i = 1;
            }
        }
        s[0] = 0x8000_0000;
        Self { state: s, at: N }
    }

    fn next(&mut self) -> u32 {
        if self.at == N {
            for i in 0..N {
                let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
                self.state[i] = self.state[(i + M) % N] ^ (y >> 1) ^ if y & 1 == 1 { 0x9908_b0df } else { 0 };
            }
            self.at = 0;
        }
        let mut y = self.state[self.at];
        self.at += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// `randrange(n)`: the top bits of a draw, drawn again until they are below `n`, which is at least 1.
    pub(super) fn below(&mut self, n: u32) -> u32 {
        let bits = u32::BITS - n.leading_zeros();
        loop {
            let draw = self.next().checked_shr(u32::BITS - bits).unwrap_or(0);
            if draw < n || n == 0 {
                return draw;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_measured_in_aiperf() {
        let component = component_seed(42);
        assert_eq!(component, 10_558_974_911_300_946_294);
        for (block, start) in [(0, 724_592), (1, 47_329), (2, 11_246), (3, 655_331), (123_456, 33_557)] {
            assert_eq!(block_start(component, "0123456789abcdef", block, 1_138_441), start, "{block}");
        }
    }

    #[test]
    fn the_twister_is_python_s() {
        // random.seed(5489); [random.getrandbits(32) for _ in range(3)].
        let mut twister = Twister::new(5489);
        let first: Vec<_> = (0..3).map(|_| twister.next()).collect();
        assert_eq!(first, PYTHON);
        let mut small = Twister::new(1 << 40);
        assert!((0..1000).all(|_| small.below(3) < 3));
        assert_eq!(Twister::new(7).below(1), 0);
    }

    const PYTHON: [u32; 3] = [3_382_763_572, 956_215_839, 417_760_592];
}
