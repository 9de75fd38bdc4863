//! A tokenizer out of a Hugging Face `tokenizer.json`. Without the feature `tokenizers` there is none, and saying so is all that
//! is left.

use crate::data::{Error, json};

/// Encodes text.
#[derive(Debug)]
pub struct Tokenizer {
    #[cfg(feature = "tokenizers")]
    inner: tokenizers::Tokenizer,
}

#[cfg(feature = "tokenizers")]
impl Tokenizer {
    /// Reads the content of a `tokenizer.json`.
    pub fn new(content: &[u8]) -> Result<Self, Error> {
        let read = tokenizers::Tokenizer::from_bytes(content);
        let mut inner =
            read.map_err(|e| Error::usage(format!("--tokenizer is no tokenizer.json that is understood: {e}")))?;
        // A file may ask for what is right for a model's input and wrong for counting.
        let _ = inner.with_truncation(None);
        inner.with_padding(None);
        Ok(Self { inner })
    }

    /// Where each token of the text ends, in bytes, without special tokens.
    pub fn ends(&self, text: &str) -> Result<Vec<u32>, String> {
        let encoding = self.inner.encode(text, false).map_err(|e| format!("the tokenizer failed: {e}"))?;
        let mut last = 0;
        let mut rise = |end: usize| {
            last = last.max(end as u32);
            last
        };
        Ok(encoding.get_offsets().iter().map(|&(_, end)| rise(end)).collect())
    }

    /// The same for many texts, on several threads.
    pub fn ends_of_all(&self, texts: &[String], threads: usize) -> Result<Vec<Vec<u32>>, String> {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            while let Some((i, text)) =
                Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, texts.get(i)?)))
            {
                done.push((i, self.ends(text)?));
            }
            Ok::<_, String>(done)
        };
        let parts = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
            let joined = handles.into_iter().map(|h| h.join().unwrap_or_else(|_| Err("the tokenizer failed".into())));
            joined.collect::<Result<Vec<_>, String>>()
        })?;
        let mut all = vec![Vec::new(); texts.len()];
        for (i, ends) in parts.into_iter().flatten() {
            all[i] = ends;
        }
        Ok(all)
    }
}

#[cfg(not(feature = "tokenizers"))]
impl Tokenizer {
    /// Says that there is none in this build.
    pub fn new(_: &[u8]) -> Result<Self, Error> {
        Err(Error::usage(
            "this ringload was built without tokenizers; use --tokenizer approx, or build with --features tokenizers",
        ))
    }

    /// Never called: no value of this type can be had.
    pub fn ends(&self, _: &str) -> Result<Vec<u32>, String> {
        Err("no tokenizers in this build".into())
    }

    /// Never called: no value of this type can be had.
    pub fn ends_of_all(&self, _: &[String], _: usize) -> Result<Vec<Vec<u32>>, String> {
        Err("no tokenizers in this build".into())
    }
}

/// The token that AIPerf puts in front of each block: the first of `bos_token` and `eos_token` in a `tokenizer_config.json`.
pub fn separator(config: &[u8]) -> Option<String> {
    let config = json::Value::parse(config).ok()?;
    ["bos_token", "eos_token"].into_iter().find_map(|name| {
        let token = config.member(name)?;
        token.string().or_else(|| token.member("content")?.string()).map(|text| text.into_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_as_the_configs_have_them() {
        assert_eq!(separator(br#"{"eos_token":"</s>","bos_token":"<s>"}"#).as_deref(), Some("<s>"));
        assert_eq!(
            separator(br#"{"bos_token":null,"eos_token":{"content":"<e>","lstrip":false}}"#).as_deref(),
            Some("<e>")
        );
        assert_eq!(separator(b"{}"), None);
        assert_eq!(separator(b"x"), None);
    }

    #[cfg(feature = "tokenizers")]
    #[test]
    fn what_is_no_tokenizer_is_said() {
        assert!(Tokenizer::new(b"{}").unwrap_err().to_string().contains("no tokenizer.json"));
    }
}
