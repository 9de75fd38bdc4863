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

/// Counts the tokens of texts that were put out, after a run.
#[derive(Debug)]
pub enum TokenCounter {
    /// So many bytes a token.
    Approx(f64),
    /// By a tokenizer.
    Exact(Box<Tokenizer>),
}

impl TokenCounter {
    /// What `--tokenizer` names: a `tokenizer.json`, its folder, or `approx[:BYTES_PER_TOKEN]`.
    ///
    /// Errors: a file that cannot be read or is no tokenizer, bytes a token that cannot be.
    pub fn open(asked: Option<&str>) -> Result<Self, Error> {
        let ratio = match asked {
            None | Some("approx") => Some(super::prompt::BYTES_PER_TOKEN),
            Some(text) => match text.strip_prefix("approx:") {
                None => None,
                Some(ratio) => match ratio.parse::<f64>() {
                    Ok(ratio) if (0.25..=64.0).contains(&ratio) => Some(ratio),
                    _ => {
                        return Err(Error::usage(format!(
                            "--tokenizer approx:{ratio}, expected bytes a token from 0.25 to 64"
                        )));
                    }
                },
            },
        };
        if let Some(ratio) = ratio {
            return Ok(Self::Approx(ratio));
        }
        let path = std::path::Path::new(asked.unwrap_or_default());
        let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_path_buf() };
        let content = std::fs::read(&file).map_err(|e| Error::file("cannot read", &file, e))?;
        Ok(Self::Exact(Box::new(Tokenizer::new(&content)?)))
    }

    /// What it is, in a word or two for reports.
    pub fn name(&self) -> String {
        match self {
            Self::Approx(ratio) => format!("approx:{ratio}"),
            Self::Exact(_) => "tokenizer".to_owned(),
        }
    }

    /// Tokens of a text; an empty one has none.
    pub fn count(&self, text: &str) -> Result<u64, String> {
        match self {
            Self::Approx(ratio) => Ok((text.len() as f64 / ratio).ceil() as u64),
            Self::Exact(tokenizer) => Ok(tokenizer.ends(text)?.len() as u64),
        }
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

    #[test]
    fn counters_are_bytes_or_files() {
        let approx = TokenCounter::open(Some("approx:2")).unwrap();
        assert_eq!((approx.count("hello"), approx.count(""), approx.name()), (Ok(3), Ok(0), "approx:2".into()));
        assert_eq!(TokenCounter::open(None).unwrap().name(), "approx:4.4");
        assert!(TokenCounter::open(Some("approx:0")).unwrap_err().to_string().contains("bytes a token"));
        assert!(TokenCounter::open(Some("/no/such/file")).unwrap_err().to_string().contains("/no/such/file"));
    }

    #[cfg(feature = "tokenizers")]
    #[test]
    fn what_is_no_tokenizer_is_said() {
        assert!(Tokenizer::new(b"{}").unwrap_err().to_string().contains("no tokenizer.json"));
    }
}
