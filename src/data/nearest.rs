//! The nearest right word to a wrong one, for messages that refuse a name.

/// The candidate that is fewest edits away (a swap of neighbours is one), when that is near enough to be meant: at most a
/// third of the longer word, rounded up. Ties go to the earlier candidate.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.chars().take(64).flat_map(char::to_lowercase).collect();
    let mut best: Option<(usize, &'a str)> = None;
    for candidate in candidates {
        let letters: Vec<char> = candidate.chars().flat_map(char::to_lowercase).collect();
        let edits = distance(&word, &letters);
        let near = edits <= word.len().max(letters.len()).div_ceil(3);
        if near && best.is_none_or(|(fewest, _)| edits < fewest) {
            best = Some((edits, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// `; did you mean "x"?`, or nothing when no candidate is near.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map_or_else(String::new, |c| format!("; did you mean {c:?}?"))
}

/// Optimal string alignment distance, by three rows.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_find_their_word_and_nonsense_finds_none() {
        let words = ["request_latency", "time_to_first_token", "rps", "error_rate"];
        assert_eq!(nearest("request_latncy", words), Some("request_latency"));
        assert_eq!(nearest("eror_rate", words), Some("error_rate"));
        assert_eq!(nearest("rsp", words), Some("rps"));
        assert_eq!(nearest("nonsense", words), None);
        assert_eq!(nearest("", words), None);
        assert_eq!(did_you_mean("rsp", words), "; did you mean \"rps\"?");
    }
}
