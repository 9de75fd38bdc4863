//! Bytes looked at eight at a time, in a plain register.

/// The byte at an index; 0, which is no part of JSON's grammar, past the end.
#[inline]
pub(super) fn at_or_zero(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

/// One in each byte of a word, and the high bit of each.
const ONES: u64 = u64::from_ne_bytes([1; 8]);
const HIGHS: u64 = ONES << 7;

/// Index of the first quote or backslash; the length when there is neither.
///
/// Most strings are shorter than a call into a search routine is worth, so the first bytes are looked at eight at a time.
#[inline(always)]
pub(super) fn string_stop(bytes: &[u8]) -> usize {
    match bytes.first_chunk::<8>().map(string_stops) {
        Some(stops) if stops != 0 => stops.trailing_zeros() as usize / 8,
        Some(_) => 8 + string_stop_far(&bytes[8..]),
        None => string_stop_far(bytes),
    }
}

/// Index of the first byte that is no digit; the length when all are.
#[inline]
pub(super) fn digits_stop(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(eight) = bytes[at..].first_chunk::<8>() {
        // A digit becomes 0 to 9, and 118 more reach the high bit from 10 on; no byte carries into the next.
        let word = u64::from_le_bytes(*eight) ^ (ONES * b'0' as u64);
        let stops = (((word & !HIGHS) + ONES * 118) | word) & HIGHS;
        if stops != 0 {
            return at + stops.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count()
}

#[inline(never)]
fn string_stop_far(bytes: &[u8]) -> usize {
    let mut at = 0;
    while at < 32
        && let Some(eight) = bytes[at..].first_chunk::<8>()
    {
        let stops = string_stops(eight);
        if stops != 0 {
            return at + stops.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    memchr::memchr2(b'"', b'\\', &bytes[at..]).map_or(bytes.len(), |n| at + n)
}

/// The high bit of the first byte that is a quote or a backslash is set, and none before it; 0 when there is neither.
#[inline(always)]
fn string_stops(eight: &[u8; 8]) -> u64 {
    let word = u64::from_le_bytes(*eight);
    let quotes = (word ^ (ONES * b'"' as u64)).wrapping_sub(ONES);
    let slashes = (word ^ (ONES * b'\\' as u64)).wrapping_sub(ONES);
    // A byte over 0x7f is neither, and a borrow can only come from a byte that is one.
    (quotes | slashes) & !word & HIGHS
}
