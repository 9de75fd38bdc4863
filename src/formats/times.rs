//! Date-times of traces and captures (RFC 3339 and its relatives) as nanoseconds, to the last digit they have.

/// Nanoseconds since 1970 of `2023-11-16 18:17:03.9799600`, with `T` or a space, any fraction, and `Z`, an offset or nothing
/// (which is UTC) behind it. None for anything else, and for times before 1970.
pub(super) fn date_time_ns(text: &str) -> Option<u64> {
    let b = text.trim().as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = b.get(from..to).filter(|d| d.iter().all(u8::is_ascii_digit))?;
        Some(digits.iter().fold(0, |n, c| n * 10 + i64::from(c - b'0')))
    };
    let mark = |at: usize, any: &[u8]| b.get(at).is_some_and(|c| any.contains(c)).then_some(());
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    mark(4, b"-")?;
    mark(7, b"-")?;
    mark(10, b"T t")?;
    mark(13, b":")?;
    mark(16, b":")?;
    let days_in = [31, 28 + i64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let most = *days_in.get(usize::try_from(month).ok()?.checked_sub(1)?)?;
    // A leap second is taken for the second after it.
    if !(1..=most).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (fraction_ns, rest) = fraction(b.get(19..)?)?;
    let seconds = ((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second - offset(rest)?;
    u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?.checked_add(fraction_ns)
}

fn leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Days since 1970-01-01 in the Gregorian calendar, years counted from March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Nanoseconds of a fraction, and what comes after it.
fn fraction(text: &[u8]) -> Option<(u64, &[u8])> {
    let [b'.' | b',', digits @ ..] = text else { return Some((0, text)) };
    let count = digits.iter().take_while(|c| c.is_ascii_digit()).count();
    let (digits, rest) = digits.split_at(count);
    let ns = (0..9).fold(0u64, |n, i| n * 10 + digits.get(i).map_or(0, |c| u64::from(c - b'0')));
    (count > 0).then_some((ns, rest))
}

/// Seconds east of UTC.
fn offset(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        [] | [b'Z' | b'z'] => return Some(0),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let two = |d: &[u8]| match d {
        [a @ b'0'..=b'9', b @ b'0'..=b'9'] => Some(i64::from(a - b'0') * 10 + i64::from(b - b'0')),
        _ => None,
    };
    match digits {
        [h @ .., b':', m1, m2] if h.len() == 2 => Some(sign * (two(h)? * 3600 + two(&[*m1, *m2])? * 60)),
        [h1, h2, m1, m2] => Some(sign * (two(&[*h1, *h2])? * 3600 + two(&[*m1, *m2])? * 60)),
        [_, _] => Some(sign * two(digits)? * 3600),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_times_that_traces_have() {
        for (text, want) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2023-11-16 18:17:03.9799600", 1_700_158_623_979_960_000),
            ("2024-02-29T23:59:59.5+01:00", 1_709_247_599_500_000_000),
            ("2024-05-10 00:00:00.009930+00:00", 1_715_299_200_009_930_000),
            ("2000-03-01t12:00:00-0530", 951_931_800_000_000_000),
            ("2023-11-16T18:17:03.123456789123Z", 1_700_158_623_123_456_789),
        ] {
            assert_eq!(date_time_ns(text), Some(want), "{text}");
        }
        for text in [
            "",
            "2023",
            "2023-11-16",
            "2023-13-01 00:00:00",
            "2023-02-29 00:00:00",
            "2023-11-16 24:00:00",
            "1969-12-31 23:59:59",
            "2023-11-16 18:17:03.",
            "2023-11-16 18:17:03 PST",
            "2023-11-16X18:17:03",
            "é023-11-16 18:17:03",
            "2023-11-16 18:17:03+1",
        ] {
            assert_eq!(date_time_ns(text), None, "{text}");
        }
    }
}
