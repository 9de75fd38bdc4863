//! Layer 2: dataset bytes -> [`Record`]s, one file a format, and telling the formats apart.
//!
//! Readers are pure: they take bytes that were decompressed by the caller, keep nothing between calls and hand each record,
//! borrowed from the input, to a [`Sink`]. Formats of lines are parsed in pieces of whole lines, so pieces can go to several
//! threads; formats of one document are streamed. Must not import `wire`, `sys` or `cache`.

use std::io::Read;

use crate::data::{Error, error::Place, record::Sink};

mod bailian;
mod content;
mod dag_jsonl;
mod detect;
pub mod facts;
mod fields;
mod har;
mod inputs_json;
mod lines;
mod mooncake;
mod multi_turn;
mod random_pool;
mod raw_payload;
mod requests;
mod sagemaker;
mod single_turn;
mod stream;
mod table;
mod times;

pub use detect::{Input, detect};

/// The dataset formats, by the names that `--format` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// One body a line, byte for byte; a directory has a session a file.
    RawPayload,
    /// One JSON document of sessions with their payloads.
    InputsJson,
    /// Mooncake's traces: payloads, messages, prompts, or lengths with block hashes.
    MooncakeTrace,
    /// Bailian's traces: lengths and block hashes of chats.
    BailianTrace,
    /// BurstGPT's table of times and lengths.
    BurstGptTrace,
    /// Azure's tables of times and lengths.
    AzureLlmTrace,
    /// SageMaker's captured requests.
    SagemakerDataCapture,
    /// Texts and media, one turn a line.
    SingleTurn,
    /// Conversations of such turns, one a line.
    MultiTurn,
    /// Files of texts and media to draw from.
    RandomPool,
    /// Sessions that fork and spawn each other.
    DagJsonl,
    /// HTTP requests of any API.
    HttpRequests,
    /// HTTP archives of browsers and proxies.
    Har,
    /// Vegeta's JSON targets.
    Vegeta,
}

/// How a format's bytes are cut up for parsing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A record is one line: [`parse_lines`] on any pieces of whole lines.
    Lines {
        /// The first line that is not blank names the columns: [`parse_header`] before the first piece.
        header: bool,
    },
    /// One document: [`parse_document`].
    Document,
    /// All files at once: [`parse_pools`].
    Pools,
}

/// Where the bodies of a format come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bodies {
    /// Every record brings its own: no setting reaches the bytes.
    Verbatim,
    /// Records bring content that a formatter wraps.
    Formatted,
    /// Records may bring only lengths and block ids; without a setting a block is so many tokens.
    Synthesized {
        /// Tokens.
        block_size: u32,
    },
}

impl Format {
    /// Where its bodies come from.
    pub const fn bodies(self) -> Bodies {
        match self {
            Self::RawPayload
            | Self::InputsJson
            | Self::SagemakerDataCapture
            | Self::HttpRequests
            | Self::Har
            | Self::Vegeta => Bodies::Verbatim,
            Self::SingleTurn | Self::MultiTurn | Self::RandomPool | Self::DagJsonl => Bodies::Formatted,
            Self::MooncakeTrace | Self::BurstGptTrace | Self::AzureLlmTrace => Bodies::Synthesized { block_size: 512 },
            Self::BailianTrace => Bodies::Synthesized { block_size: 16 },
        }
    }

    /// Whether records may name local files of media.
    pub const fn names_files(self) -> bool {
        matches!(self, Self::SingleTurn | Self::MultiTurn | Self::RandomPool)
    }

    /// All of them, in the order in which they are listed for people.
    pub const ALL: [Self; 14] = [
        Self::RawPayload,
        Self::InputsJson,
        Self::MooncakeTrace,
        Self::BailianTrace,
        Self::BurstGptTrace,
        Self::AzureLlmTrace,
        Self::SagemakerDataCapture,
        Self::SingleTurn,
        Self::MultiTurn,
        Self::RandomPool,
        Self::DagJsonl,
        Self::HttpRequests,
        Self::Har,
        Self::Vegeta,
    ];

    /// The name on the command line, in manifests and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RawPayload => "raw_payload",
            Self::InputsJson => "inputs_json",
            Self::MooncakeTrace => "mooncake_trace",
            Self::BailianTrace => "bailian_trace",
            Self::BurstGptTrace => "burst_gpt_trace",
            Self::AzureLlmTrace => "azure_llm_trace",
            Self::SagemakerDataCapture => "sagemaker_data_capture",
            Self::SingleTurn => "single_turn",
            Self::MultiTurn => "multi_turn",
            Self::RandomPool => "random_pool",
            Self::DagJsonl => "dag_jsonl",
            Self::HttpRequests => "http_requests",
            Self::Har => "har",
            Self::Vegeta => "vegeta",
        }
    }

    /// The format of that name; the error lists all names, and the nearest one first.
    pub fn parse(name: &str) -> Result<Self, Error> {
        let plain = name.trim().to_ascii_lowercase().replace('-', "_");
        if let Some(&format) = Self::ALL.iter().find(|f| f.name() == plain) {
            return Ok(format);
        }
        let near =
            Self::ALL.iter().filter(|f| plain.len() > 2 && (f.name().contains(&plain) || plain.contains(f.name())));
        let hint = near.map(|f| format!("; did you mean {}?", f.name())).next().unwrap_or_default();
        let names: Vec<_> = Self::ALL.iter().map(|f| f.name()).collect();
        Err(Error::usage(format!("no dataset format is called \"{name}\"{hint} (auto, {})", names.join(", "))))
    }
}

/// How the format's bytes are cut up.
pub const fn shape(format: Format) -> Shape {
    match format {
        Format::BurstGptTrace | Format::AzureLlmTrace => Shape::Lines { header: true },
        Format::InputsJson | Format::MultiTurn | Format::DagJsonl | Format::Har => Shape::Document,
        Format::RandomPool => Shape::Pools,
        Format::RawPayload
        | Format::MooncakeTrace
        | Format::BailianTrace
        | Format::SagemakerDataCapture
        | Format::SingleTurn
        | Format::HttpRequests
        | Format::Vegeta => Shape::Lines { header: false },
    }
}

/// What a reader is told beside the bytes. All of it reaches what is read, so all of it belongs into the cache key where the
/// format looks at it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// `raw_payload` takes any bytes as a body, JSON or not.
    pub verbatim_lines: bool,
    /// `sagemaker_data_capture` keeps only messages and tools, as AIPerf does.
    pub reformat: bool,
    /// Conversations get a synthesized answer after each turn.
    pub synthesized_answers: bool,
    /// Requests that `random_pool` draws; none is 100.
    pub entries: Option<u64>,
    /// Seed of those draws.
    pub seed: u64,
    /// Session of every record of this file: a directory of `raw_payload` files, each a session named by its stem.
    pub session: Option<String>,
    /// The columns that [`parse_header`] found.
    pub columns: Columns,
}

/// Where the columns of a format with a header line stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns(Vec<usize>);

/// Parses the header line of a [`Shape::Lines`] format that has one.
pub fn parse_header(format: Format, file: &str, line: &[u8], number: u64) -> Result<Columns, Error> {
    table::header(format, file, line, number)
}

/// Parses whole lines; `first_line` is the number of the first one in its file, from 1. Lines that cannot be are told to the
/// sink and left out; an error ends the parse.
pub fn parse_lines(
    format: Format,
    options: &ReadOptions,
    file: &str,
    chunk: &[u8],
    first_line: u64,
    sink: &mut dyn Sink,
) -> Result<(), Error> {
    lines::each(chunk, first_line, |number, line| {
        let read = match format {
            Format::RawPayload => raw_payload::line(options, number, line, sink),
            Format::MooncakeTrace => mooncake::line(options, number, line, sink),
            Format::BailianTrace => bailian::line(number, line, sink),
            Format::BurstGptTrace | Format::AzureLlmTrace => table::line(format, options, number, line, sink),
            Format::SagemakerDataCapture => sagemaker::line(options, number, line, sink),
            Format::SingleTurn => single_turn::line(options, number, line, sink),
            Format::HttpRequests => requests::line(options, number, line, sink),
            Format::Vegeta => requests::vegeta_line(number, line, sink),
            Format::InputsJson | Format::MultiTurn | Format::RandomPool | Format::DagJsonl | Format::Har => {
                return Err(misread(format, file));
            }
        };
        match read {
            Ok(()) => Ok(()),
            Err(fields::Stop::Bad(what)) => sink.bad(Place::line(file, number), what),
            Err(fields::Stop::End(error)) => Err(error),
        }
    })
}

/// Parses one document from a stream, never holding more of it than one entry (all of it for `dag_jsonl`, whose entries refer
/// to each other).
pub fn parse_document(
    format: Format,
    options: &ReadOptions,
    file: &str,
    input: &mut dyn Read,
    sink: &mut dyn Sink,
) -> Result<(), Error> {
    match format {
        Format::InputsJson => inputs_json::document(options, file, input, sink),
        Format::MultiTurn => multi_turn::document(options, file, input, sink),
        Format::DagJsonl => dag_jsonl::document(options, file, input, sink),
        Format::Har => har::document(file, input, sink),
        _ => Err(misread(format, file)),
    }
}

/// Reads all files of a [`Shape::Pools`] format, by name, and draws requests from them.
pub fn parse_pools(
    format: Format,
    options: &ReadOptions,
    files: &mut [(&str, &mut dyn Read)],
    sink: &mut dyn Sink,
) -> Result<(), Error> {
    match format {
        Format::RandomPool => random_pool::pools(options, files, sink),
        _ => Err(misread(format, files.first().map_or("", |(name, _)| name))),
    }
}

/// The name that [`parse_pools`] gives the pool of a file.
pub fn pool_name(file: &str) -> &str {
    random_pool::stem(file)
}

/// A caller that does not look at [`shape`].
fn misread(format: Format, file: &str) -> Error {
    Error::dataset(Place::file(file), format!("{} is not read in this way", format.name()))
}

#[cfg(test)]
pub(crate) mod testing {
    //! A sink that keeps what it is given.

    use super::*;
    use crate::data::record::Record;

    /// Owned copies of records, and bad ones as text.
    #[derive(Debug, Default)]
    pub(crate) struct Kept {
        pub(crate) records: Vec<Record<'static>>,
        pub(crate) bad: Vec<String>,
    }

    impl Sink for Kept {
        fn record(&mut self, record: Record<'_>) -> Result<(), Error> {
            self.records.push(record.into_owned());
            Ok(())
        }

        fn bad(&mut self, place: Place, what: String) -> Result<(), Error> {
            self.bad.push(format!("{place}: {what}"));
            Ok(())
        }
    }

    pub(crate) fn lines(format: Format, text: &[u8]) -> Kept {
        let mut kept = Kept::default();
        parse_lines(format, &ReadOptions::default(), "f", text, 1, &mut kept).unwrap();
        kept
    }

    pub(crate) fn document(format: Format, text: &[u8]) -> Result<Kept, Error> {
        let mut kept = Kept::default();
        parse_document(format, &ReadOptions::default(), "f", &mut &text[..], &mut kept).map(|()| kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_their_own_inverse_and_a_wrong_one_is_answered() {
        for format in Format::ALL {
            assert_eq!(Format::parse(format.name()).unwrap(), format);
        }
        assert_eq!(Format::parse("Raw-Payload").unwrap(), Format::RawPayload);
        let text = Format::parse("mooncake").unwrap_err().to_string();
        assert!(text.contains("did you mean mooncake_trace?") && text.contains("inputs_json"), "{text}");
    }
}
