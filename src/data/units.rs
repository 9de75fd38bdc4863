//! What people write for times, sizes, counts and rates, and how they are shown.
//!
//! Durations are `500ms`, `30s`, `5m`, `1h30m`, `0.5s`; a bare number is seconds. Sizes are `64KiB` (1024) and `1MB` (1000).
//! Counts and rates take `k` and `m`; a rate may end in `/s`.

use std::fmt::Write as _;

/// Nanoseconds of one second.
pub const SECOND: u64 = 1_000_000_000;
/// Nanoseconds of one millisecond.
pub const MILLISECOND: u64 = 1_000_000;
/// Nanoseconds of one microsecond.
pub const MICROSECOND: u64 = 1_000;

/// The longest duration that is accepted: ten years, so that sums with a clock never overflow.
const DURATION_MAX_S: f64 = 10.0 * 365.25 * 86_400.0;

/// Parses a duration of 0 or more into nanoseconds. The error says what was expected, without the value.
pub fn parse_duration(text: &str) -> Result<u64, String> {
    const EXPECTED: &str = "expected a duration such as 500ms, 30s, 5m or 1h30m (a bare number is seconds)";
    let text = text.trim();
    if text.is_empty() {
        return Err(EXPECTED.into());
    }
    if let Ok(seconds) = text.parse::<f64>() {
        return from_seconds(seconds).ok_or_else(|| EXPECTED.into());
    }
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let number: f64 = number.parse().map_err(|_| EXPECTED.to_owned())?;
        let scale = match unit.trim() {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(EXPECTED.into()),
        };
        total += number * scale;
        rest = tail;
    }
    from_seconds(total).ok_or_else(|| EXPECTED.into())
}

/// As [`parse_duration`], and 0 is refused.
pub fn parse_positive_duration(text: &str) -> Result<u64, String> {
    match parse_duration(text)? {
        0 => Err("expected a duration longer than 0".into()),
        ns => Ok(ns),
    }
}

fn from_seconds(seconds: f64) -> Option<u64> {
    (seconds.is_finite() && (0.0..=DURATION_MAX_S).contains(&seconds)).then(|| (seconds * 1e9).round() as u64)
}

/// Parses a size into bytes: `512`, `64KiB`, `1MB`, `1.5GiB`; `k`, `m`, `g` alone are powers of 1000.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "ki" | "kib" => 1024.0,
        "mi" | "mib" => 1024.0 * 1024.0,
        "gi" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "ti" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return Err("expected a size such as 64KiB or 1MB".into()),
    };
    match number.parse::<f64>() {
        Ok(n) if (n * scale) <= 9e18 => Ok((n * scale).round() as u64),
        _ => Err("expected a size such as 64KiB or 1MB".into()),
    }
}

/// Parses a count: `250`, `10k`, `1m`, `1.5m`, `2_000`; fractions of one are refused.
pub fn parse_count(text: &str) -> Result<u64, String> {
    const EXPECTED: &str = "expected a whole number such as 250, 10k or 1m";
    let plain: String = text.trim().chars().filter(|&c| c != '_' && c != ',').collect();
    let (number, scale) = match plain.chars().last() {
        Some('k' | 'K') => (&plain[..plain.len() - 1], 1e3),
        Some('m' | 'M') => (&plain[..plain.len() - 1], 1e6),
        Some('g' | 'G') => (&plain[..plain.len() - 1], 1e9),
        _ => return plain.parse().map_err(|_| EXPECTED.into()),
    };
    let n: f64 = number.parse::<f64>().map_err(|_| EXPECTED.to_owned())? * scale;
    if n.is_finite() && (0.0..=9e15).contains(&n) && (n - n.round()).abs() < 1e-6 {
        Ok(n.round() as u64)
    } else {
        Err(EXPECTED.into())
    }
}

/// As [`parse_count`], and 0 is refused.
pub fn parse_positive_count(text: &str) -> Result<u64, String> {
    match parse_count(text)? {
        0 => Err("expected at least 1".into()),
        n => Ok(n),
    }
}

/// Parses a rate a second: `1000`, `0.5`, `3k`, `50/s`. More than 0 and at most 10 million, which is more than one machine sends.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    const EXPECTED: &str = "expected a rate a second such as 1000, 0.5, 3k or 50/s";
    let text = text.trim();
    let text = text.strip_suffix("/s").unwrap_or(text).trim();
    let (number, scale) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 1e3),
        Some('m' | 'M') => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    let rate = number.parse::<f64>().map_err(|_| EXPECTED.to_owned())? * scale;
    match rate {
        r if r > 1e7 => Err("expected at most 10 million a second, which is more than one machine sends".into()),
        r if r >= 1e-9 => Ok(r),
        r if r > 0.0 => Err("expected at least 1e-9, which is one in thirty years".into()),
        _ => Err(EXPECTED.into()),
    }
}

/// A duration for people: three significant digits and a unit, `950 ns`, `12.3 us`, `4.56 ms`, `1.20 s`, `2m 05s`.
pub fn show_duration(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        1_000_000_000..60_000_000_000 => (ns as f64 / 1e9, "s"),
        _ => {
            let s = ns / SECOND;
            return if s < 3600 {
                format!("{}m {:02}s", s / 60, s % 60)
            } else {
                format!("{}h {:02}m", s / 3600, s / 60 % 60)
            };
        }
    };
    format!("{} {unit}", three_digits(value))
}

/// A size for people: `512 B`, `1.50 KiB`, `24.0 MiB`.
pub fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// A count for people, with a thin mark every three digits: `12,031`.
pub fn show_count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        let _ = out.write_char(c);
    }
    out
}

/// A positive value with three significant digits and no exponent.
pub fn three_digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_that_people_write() {
        for (text, ns) in [
            ("1", SECOND),
            ("0.5s", SECOND / 2),
            ("500ms", SECOND / 2),
            ("1h30m", 5400 * SECOND),
            ("250us", 250_000),
            ("0", 0),
            ("2d", 172_800 * SECOND),
        ] {
            assert_eq!(parse_duration(text), Ok(ns), "{text}");
        }
        for text in ["", "-1s", "5parsecs", "abc", "1e400", "s", "1h-3m", "nan", "inf", "1..2s", "99999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert!(parse_positive_duration("0s").is_err());
    }

    #[test]
    fn sizes_counts_and_rates_that_people_write() {
        assert_eq!(parse_size("64KiB"), Ok(65_536));
        assert_eq!(parse_size("1MB"), Ok(1_000_000));
        assert_eq!(parse_size("1.5k"), Ok(1_500));
        assert!(parse_size("-1").is_err() && parse_size("1XB").is_err() && parse_size("").is_err());
        assert_eq!(parse_count("10k"), Ok(10_000));
        assert_eq!(parse_count("1m"), Ok(1_000_000));
        assert_eq!(parse_count("12_031"), Ok(12_031));
        assert!(parse_count("0.5").is_err() && parse_count("-3").is_err() && parse_count("1.0005k").is_err());
        assert_eq!(parse_rate("3k"), Ok(3000.0));
        assert_eq!(parse_rate("50/s"), Ok(50.0));
        assert_eq!(parse_rate("0.5"), Ok(0.5));
        assert!(parse_rate("20m").unwrap_err().contains("10 million"));
        assert!(
            parse_rate("0").is_err()
                && parse_rate("inf").is_err()
                && parse_rate("nan").is_err()
                && parse_rate("-2").is_err()
        );
    }

    #[test]
    fn shown_values_carry_their_unit() {
        assert_eq!(show_duration(950), "950 ns");
        assert_eq!(show_duration(12_345), "12.3 us");
        assert_eq!(show_duration(4_560_000), "4.56 ms");
        assert_eq!(show_duration(125 * SECOND), "2m 05s");
        assert_eq!(show_size(1536), "1.50 KiB");
        assert_eq!(show_size(1024 * 1024), "1.00 MiB");
        assert_eq!(show_count(12_031), "12,031");
        assert_eq!(show_count(7), "7");
    }
}
