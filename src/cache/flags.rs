//! What was seen in a body at build time, as the bits that the index keeps of it.

use crate::data::record::Facts;

/// Bits of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    const STREAM: u32 = 1;
    const USAGE: u32 = 2;
    const LLM: u32 = 4;
    const MEDIA: u32 = 8;
    const BACKGROUND: u32 = 16;

    /// The bits of a body; `background` is the record's own.
    pub fn of(facts: &Facts<'_>, background: bool) -> Self {
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        Self(
            bit(facts.stream, Self::STREAM)
                | bit(facts.usage, Self::USAGE)
                | bit(facts.llm, Self::LLM)
                | bit(facts.images > 0 || facts.audios > 0 || facts.videos > 0, Self::MEDIA)
                | bit(background, Self::BACKGROUND),
        )
    }

    /// The body asks for a stream.
    pub const fn stream(self) -> bool {
        self.0 & Self::STREAM != 0
    }

    /// The body asks for usage in the stream.
    pub const fn usage(self) -> bool {
        self.0 & Self::USAGE != 0
    }

    /// The body is a request of an LLM API.
    pub const fn llm(self) -> bool {
        self.0 & Self::LLM != 0
    }

    /// The body carries an image, audio or video.
    pub const fn media(self) -> bool {
        self.0 & Self::MEDIA != 0
    }

    /// Nothing waits for this record.
    pub const fn background(self) -> bool {
        self.0 & Self::BACKGROUND != 0
    }
}
