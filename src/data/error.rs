//! The errors that end a command, each with the exit status of the command-line contract.
//!
//! A failed *request* is no error of the program: it is an [`crate::data::outcome::Outcome`], counted and reported.
//! Texts are lower case, without a full stop, and say what, where, which value and what to do.

use std::{
    fmt::{self, Write as _},
    io,
    path::{Path, PathBuf},
};

/// Where in an input something is wrong: `file`, `file:line` or `file:line: field`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The file's name as the user gave it; `-` for standard input.
    pub file: String,
    /// The line, from 1; 0 when the whole file is meant.
    pub line: u64,
    /// The field within the line; empty when the whole line is meant.
    pub field: String,
}

impl Place {
    /// A whole file.
    pub fn file(name: impl Into<String>) -> Self {
        Self { file: name.into(), line: 0, field: String::new() }
    }

    /// A line of a file, from 1.
    pub fn line(name: impl Into<String>, line: u64) -> Self {
        Self { file: name.into(), line, field: String::new() }
    }

    /// The same place, narrowed to a field.
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = field.into();
        self
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        Ok(())
    }
}

/// What ends a command before or instead of its result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag, URL, threshold or config value that cannot be. Exit 2.
    #[error("{0}")]
    Usage(String),
    /// A record or file of a dataset that cannot be used. Exit 2.
    #[error("{place}: {what}")]
    Dataset {
        /// File, line and field.
        place: Place,
        /// The value seen and what was expected.
        what: String,
    },
    /// Several bad records: the first ten in full and a count. Exit 2.
    #[error("{}", list_bad(.first, *.count))]
    BadRecords {
        /// At most ten, in input order.
        first: Vec<(Place, String)>,
        /// All of them.
        count: u64,
    },
    /// An operation on a file failed. Exit 2.
    #[error("{what} {}: {source}", .path.display())]
    File {
        /// The attempt, as in `cannot open`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk is full. Exit 3.
    #[error("no space left on the device of {}; free some, or choose another folder (--cache-dir, -o)", .path.display())]
    NoSpace {
        /// The file or folder that was written to.
        path: PathBuf,
    },
    /// The kernel, a limit or the machine refuses. Exit 3.
    #[error("{call}: {what}; {cure}")]
    Environment {
        /// The call or the resource.
        call: &'static str,
        /// Errno name or the value found.
        what: String,
        /// What the user can do about it.
        cure: String,
    },
    /// SIGINT before anything could be reported. Exit 130.
    #[error("interrupted")]
    Interrupted,
    /// SIGTERM before anything could be reported. Exit 143.
    #[error("terminated")]
    Terminated,
    /// The command did what was asked and the answer is no (a damaged cache entry found by `verify`). Exit 1.
    #[error("{0}")]
    Failed(String),
}

fn list_bad(first: &[(Place, String)], count: u64) -> String {
    let mut text = String::new();
    for (i, (place, what)) in first.iter().enumerate() {
        let _ = write!(text, "{}{place}: {what}", if i > 0 { "\n" } else { "" });
    }
    let shown = first.len() as u64;
    if count > shown {
        let _ = write!(text, "\n... and {} bad records more; --skip-bad leaves them out", count - shown);
    }
    text
}

impl Error {
    /// A usage error, exit 2.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// A dataset error at a place, exit 2.
    pub fn dataset(place: Place, what: impl Into<String>) -> Self {
        Self::Dataset { place, what: what.into() }
    }

    /// A failed file operation; a full disk becomes [`Error::NoSpace`].
    pub fn file(what: &'static str, path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { path: path.to_path_buf() },
            // The limit of a file's size is the environment's, as a full disk is.
            io::ErrorKind::FileTooLarge => Self::Environment {
                call: "write",
                what: format!("{what} {}: the file would be larger than the limit of this process", path.display()),
                cure: "raise it with `ulimit -f unlimited`".into(),
            },
            _ if matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => Self::Environment {
                call: "open",
                what: format!("{what} {}: {source}", path.display()),
                cure: "raise the limit of open files with `ulimit -n`".into(),
            },
            _ => Self::File { what, path: path.to_path_buf(), source },
        }
    }

    /// The exit status of the command-line contract.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) | Self::Dataset { .. } | Self::BadRecords { .. } | Self::File { .. } => 2,
            Self::NoSpace { .. } | Self::Environment { .. } => 3,
            Self::Interrupted => 130,
            Self::Terminated => 143,
        }
    }
}

/// The result of everything that can end a command.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_names_file_line_and_field() {
        assert_eq!(Place::line("t.jsonl", 184).field("input_length").to_string(), "t.jsonl:184: input_length");
        assert_eq!(Place::file("t.jsonl").to_string(), "t.jsonl");
    }

    #[test]
    fn full_disk_is_the_environment_and_a_missing_file_is_usage() {
        let full = Error::file("cannot write", Path::new("x"), io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.exit_code(), 3);
        assert!(full.to_string().contains("no space left"));
        assert_eq!(Error::file("cannot open", Path::new("x"), io::ErrorKind::NotFound.into()).exit_code(), 2);
    }

    #[test]
    fn bad_records_show_ten_and_count_the_rest() {
        let first = (1..=10).map(|n| (Place::line("f", n), "broken".to_owned())).collect();
        let text = Error::BadRecords { first, count: 12 }.to_string();
        assert_eq!(text.lines().count(), 11);
        assert!(text.ends_with("... and 2 bad records more; --skip-bad leaves them out"));
    }
}
