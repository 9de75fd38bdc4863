//! The words that the JSON scanner knows: member names, and values of `type`.
//!
//! A name that lies whole in one read is looked up through a small perfect hash; one that is cut by a read or written with
//! escapes is matched byte by byte against all candidates at once. Both are exact, from one list.

macro_rules! words {
    ($($name:ident = $text:literal),+ $(,)?) => {
        /// A member name that means something somewhere.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(super) enum Word { $(#[doc = $text] $name,)+ }

        const WORDS: &[(&str, Word)] = &[$(($text, Word::$name)),+];
    };
}

words! {
    Choices = "choices",
    Usage = "usage",
    UsageMetadata = "usageMetadata",
    Error = "error",
    Type = "type",
    Delta = "delta",
    Response = "response",
    Message = "message",
    StopReason = "stop_reason",
    Details = "details",
    GeneratedText = "generated_text",
    Token = "token",
    Text = "text",
    FinishReason = "finish_reason",
    Content = "content",
    ReasoningContent = "reasoning_content",
    Reasoning = "reasoning",
    ToolCalls = "tool_calls",
    FunctionCall = "function_call",
    Function = "function",
    Name = "name",
    Arguments = "arguments",
    Thinking = "thinking",
    PartialJson = "partial_json",
    PromptTokens = "prompt_tokens",
    PromptTokenCount = "promptTokenCount",
    InputTokens = "input_tokens",
    InputTokensCamel = "inputTokens",
    InputTokenCount = "input_token_count",
    CompletionTokens = "completion_tokens",
    OutputTokens = "output_tokens",
    OutputTokensCamel = "outputTokens",
    CandidatesTokenCount = "candidatesTokenCount",
    GeneratedTokenCount = "generated_token_count",
    CompletionTokensDetails = "completion_tokens_details",
    OutputTokensDetails = "output_tokens_details",
    ReasoningTokens = "reasoning_tokens",
    CacheReadInputTokens = "cache_read_input_tokens",
    CacheReadInputTokensCamel = "cacheReadInputTokens",
    CacheCreationInputTokens = "cache_creation_input_tokens",
    CacheWriteInputTokensCamel = "cacheWriteInputTokens",
    GeneratedTokens = "generated_tokens",
    Special = "special",
}

/// How many words there are; a word as a number is less.
pub(super) const COUNT: usize = WORDS.len();

/// The words in order.
pub(super) const fn at(index: usize) -> Word {
    WORDS[index].1
}

/// A place of the hash table: the first eight bytes of a word, its length, and which it is.
#[derive(Clone, Copy)]
struct Slot {
    prefix: u64,
    length: u8,
    index: u8,
}

const SLOTS: usize = 128;
const NO_LENGTH: u8 = u8::MAX;

/// The factor was found by search: with it no two words share a slot, which [`slots`] proves at compile time.
const fn slot(prefix: u64, length: usize) -> usize {
    (prefix.wrapping_add(length as u64).wrapping_mul(0x4ad5_8188_0b23_9267) >> 57) as usize % SLOTS
}

/// The first eight bytes of a name as a number; bytes that it does not have are 0.
const fn prefix(text: &[u8]) -> u64 {
    let (mut prefix, mut i) = (0, 0);
    while i < text.len() && i < 8 {
        prefix |= (text[i] as u64) << (8 * i);
        i += 1;
    }
    prefix
}

const fn slots() -> [Slot; SLOTS] {
    let mut slots = [Slot { prefix: 0, length: NO_LENGTH, index: 0 }; SLOTS];
    let mut i = 0;
    while i < WORDS.len() {
        let text = WORDS[i].0.as_bytes();
        let at = slot(prefix(text), text.len());
        assert!(slots[at].length == NO_LENGTH);
        slots[at] = Slot { prefix: prefix(text), length: text.len() as u8, index: i as u8 };
        i += 1;
    }
    slots
}

static TABLE: [Slot; SLOTS] = slots();

/// The word that the first `length` bytes are. What is behind them is read, but does not matter: eight bytes at once are
/// faster than as many as there are.
#[inline]
pub(super) fn word(bytes: &[u8], length: usize) -> Option<Word> {
    let prefix = match bytes.first_chunk::<8>() {
        Some(eight) if length < 8 => u64::from_le_bytes(*eight) & ((1 << (8 * length)) - 1),
        Some(eight) => u64::from_le_bytes(*eight),
        None => prefix(bytes.get(..length)?),
    };
    let slot = TABLE[slot(prefix, length)];
    if slot.prefix != prefix || usize::from(slot.length) != length {
        return None;
    }
    let (text, word) = WORDS[usize::from(slot.index)];
    (length <= 8 || bytes.get(8..length)? == &text.as_bytes()[8..]).then_some(word)
}

/// A name that comes in pieces: the set of words that it may still become, and how many bytes of it there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spelling {
    candidates: u64,
    length: u8,
}

const _: () = assert!(WORDS.len() <= 64);

impl Spelling {
    pub(super) const START: Self = Self { candidates: u64::MAX >> (64 - WORDS.len()), length: 0 };

    pub(super) fn push(&mut self, byte: u8) {
        let mut left = self.candidates;
        while left != 0 {
            let i = left.trailing_zeros();
            left &= left - 1;
            if WORDS[i as usize].0.as_bytes().get(self.length as usize) != Some(&byte) {
                self.candidates &= !(1 << i);
            }
        }
        self.length = self.length.saturating_add(1);
    }

    pub(super) fn word(self) -> Option<Word> {
        let full = |&&(text, _): &&(&str, Word)| text.len() == self.length as usize;
        let candidates = (0..WORDS.len()).filter(|i| self.candidates >> i & 1 == 1);
        candidates.map(|i| &WORDS[i]).find(full).map(|&(_, id)| id)
    }
}

/// What the top-level `type` of an event says about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// None of the others, or no `type` at all.
    #[default]
    Other,
    /// `error`.
    Error,
    /// `content_block_delta` of the Messages API.
    BlockDelta,
    /// `message_stop` of the Messages API, `response.completed` and `response.incomplete` of the Responses API.
    Stop,
    /// `response.failed`.
    Failed,
    /// `response.*.delta`.
    ResponseDelta,
    /// `response.*.delta` with `reasoning` in its name.
    ResponseReasoning,
}

const KINDS: [(&[u8], Kind); 6] = [
    (b"error", Kind::Error),
    (b"content_block_delta", Kind::BlockDelta),
    (b"message_stop", Kind::Stop),
    (b"response.completed", Kind::Stop),
    (b"response.incomplete", Kind::Stop),
    (b"response.failed", Kind::Failed),
];
const PREFIX: &[u8] = b"response.";
const SUFFIX: &[u8] = b".delta";
const REASONING: &[u8] = b"reasoning";

impl Kind {
    /// The kind that a whole value is.
    pub(super) fn of(text: &[u8]) -> Self {
        if text.starts_with(PREFIX) && text.ends_with(SUFFIX) {
            let reasoning = text.windows(REASONING.len()).any(|part| part == REASONING);
            return if reasoning { Self::ResponseReasoning } else { Self::ResponseDelta };
        }
        KINDS.iter().find(|(known, _)| *known == text).map_or(Self::Other, |&(_, kind)| kind)
    }
}

/// A value of `type` that comes in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KindSpelling {
    candidates: u8,
    length: u8,
    /// Bytes of [`PREFIX`] matched, from the start.
    prefix: u8,
    /// Bytes of [`SUFFIX`] matched, up to here.
    suffix: u8,
    /// Bytes of [`REASONING`] matched, up to here; all of them once it was seen.
    reasoning: u8,
}

impl KindSpelling {
    pub(super) const START: Self = Self { candidates: 0x3f, length: 0, prefix: 0, suffix: 0, reasoning: 0 };

    pub(super) fn push(&mut self, byte: u8) {
        for (i, (known, _)) in KINDS.iter().enumerate() {
            if known.get(self.length as usize) != Some(&byte) {
                self.candidates &= !(1 << i);
            }
        }
        if self.prefix == self.length && PREFIX.get(self.prefix as usize) == Some(&byte) {
            self.prefix += 1;
        }
        self.suffix = follow(SUFFIX, self.suffix, byte);
        if (self.reasoning as usize) < REASONING.len() {
            self.reasoning = follow(REASONING, self.reasoning, byte);
        }
        self.length = self.length.saturating_add(1);
    }

    pub(super) fn kind(self) -> Kind {
        if self.prefix as usize == PREFIX.len() && self.suffix as usize == SUFFIX.len() {
            let reasoning = self.reasoning as usize == REASONING.len();
            return if reasoning { Kind::ResponseReasoning } else { Kind::ResponseDelta };
        }
        let full = |&(i, (known, _)): &(usize, &(&[u8], Kind))| {
            self.candidates >> i & 1 == 1 && known.len() == self.length as usize
        };
        KINDS.iter().enumerate().find(full).map_or(Kind::Other, |(_, &(_, kind))| kind)
    }
}

/// One step of a search for a pattern whose first byte is nowhere else in it: a mismatch falls back to its start.
fn follow(pattern: &[u8], matched: u8, byte: u8) -> u8 {
    if pattern.get(matched as usize) == Some(&byte) { matched + 1 } else { u8::from(pattern[0] == byte) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spelled(text: &[u8]) -> Option<Word> {
        let mut spelling = Spelling::START;
        text.iter().for_each(|&byte| spelling.push(byte));
        spelling.word()
    }

    /// Looked up with nothing behind it and with something.
    fn whole(text: &str) -> Option<Word> {
        let alone = word(text.as_bytes(), text.len());
        assert_eq!(word(format!("{text}\": \"abcdefgh").as_bytes(), text.len()), alone, "{text}");
        alone
    }

    fn kind_spelled(text: &[u8]) -> Kind {
        let mut spelling = KindSpelling::START;
        text.iter().for_each(|&byte| spelling.push(byte));
        spelling.kind()
    }

    #[test]
    fn every_word_is_found_whole_and_spelled_and_no_neighbour_is() {
        for &(text, id) in WORDS {
            assert_eq!((whole(text), spelled(text.as_bytes())), (Some(id), Some(id)), "{text}");
            for other in [&text[1..], &text[..text.len() - 1], &format!("{text}s"), &text.to_uppercase()] {
                let known = WORDS.iter().any(|(known, _)| *known == other);
                assert_eq!(whole(other).is_some(), known, "{other}");
                assert_eq!(spelled(other.as_bytes()), whole(other), "{other}");
            }
        }
        assert_eq!((whole(""), spelled(b"")), (None, None));
    }

    #[test]
    fn types_are_told_apart() {
        for (text, kind) in [
            ("error", Kind::Error),
            ("content_block_delta", Kind::BlockDelta),
            ("message_stop", Kind::Stop),
            ("message_delta", Kind::Other),
            ("response.completed", Kind::Stop),
            ("response.incomplete", Kind::Stop),
            ("response.failed", Kind::Failed),
            ("response.output_text.delta", Kind::ResponseDelta),
            ("response.function_call_arguments.delta", Kind::ResponseDelta),
            ("response.reasoning_summary_text.delta", Kind::ResponseReasoning),
            ("response.output_text.done", Kind::Other),
            ("xresponse.output_text.delta", Kind::Other),
            ("", Kind::Other),
        ] {
            assert_eq!((Kind::of(text.as_bytes()), kind_spelled(text.as_bytes())), (kind, kind), "{text}");
        }
    }

    proptest! {
        #[test]
        fn spelling_a_name_gives_what_looking_it_up_gives(
            text in "(choices|usage|error|details|content|token|input_tokens)?[a-zA-Z_]{0,5}"
        ) {
            prop_assert_eq!(spelled(text.as_bytes()), whole(&text));
        }

        #[test]
        fn spelling_a_type_gives_what_looking_it_up_gives(
            text in "(response\\.|respo|rrespone)?(\\.d|reas|reasoning|rreasoning|del|x){0,5}(\\.delta|\\.delt|delta|\\.\\.delta)?"
        ) {
            prop_assert_eq!(kind_spelled(text.as_bytes()), Kind::of(text.as_bytes()));
        }
    }
}
