//! Where a value stands and what it means there: the paths of every known API, as one table.
//!
//! A new API is a few words in `words` and a few lines here; the scanner does not change.

use crate::wire::words::{self, Word};

/// Non-empty output: `delta.content`, a tool call's name or arguments, `choices[].text`.
pub(in crate::wire) const OUTPUT: u16 = 1 << 0;
/// Non-empty reasoning: `delta.reasoning_content`, `delta.reasoning`.
pub(in crate::wire) const REASONING: u16 = 1 << 1;
/// `error`, not null, false or empty.
pub(in crate::wire) const ERROR: u16 = 1 << 2;
/// A reason for the end.
pub(in crate::wire) const FINISHED: u16 = 1 << 3;
/// `[DONE]`.
pub(in crate::wire) const DONE: u16 = 1 << 4;
/// Non-empty top-level `delta`, which is output under a `response.*.delta` type.
pub(super) const DELTA: u16 = 1 << 5;
/// Non-empty `delta.text` or `delta.partial_json`, output under `content_block_delta`.
pub(super) const BLOCK_TEXT: u16 = 1 << 6;
/// Non-empty `delta.thinking`, reasoning under `content_block_delta`.
pub(super) const BLOCK_THINKING: u16 = 1 << 7;
/// Non-empty `token.text`, output unless the token is special.
pub(super) const TOKEN_TEXT: u16 = 1 << 8;
/// `token.special`.
pub(super) const TOKEN_SPECIAL: u16 = 1 << 9;
/// There is something in `counts`.
pub(super) const COUNTED: u16 = 1 << 10;
/// The value was not JSON.
pub(in crate::wire) const MALFORMED: u16 = 1 << 11;

/// What a token count counts; the synonyms of servers fall together here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::wire) enum Count {
    /// Prompt tokens, cached ones included.
    Prompt,
    /// Prompt tokens, those read from or written to a cache apart.
    Input,
    CacheRead,
    CacheWrite,
    Output,
    Reasoning,
}

/// Token counts by [`Count`]; `u32::MAX` is none. A count that large in one answer is nonsense, and read as none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) struct Counts([u32; 6]);

impl Counts {
    pub(in crate::wire) const NONE: Self = Self([u32::MAX; 6]);

    pub(super) fn set(&mut self, count: Count, n: u64) {
        if n < u64::from(u32::MAX) {
            self.0[count as usize] = n as u32;
        }
    }

    pub(in crate::wire) fn get(&self, count: Count) -> Option<u64> {
        let n = self.0[count as usize];
        (n != u32::MAX).then_some(u64::from(n))
    }

    /// Field by field, the later ones win.
    pub(in crate::wire) fn merge(&mut self, later: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(later.0) {
            if theirs != u32::MAX {
                *mine = theirs;
            }
        }
    }
}

/// The container that the scanner stands in, where its members matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Outside of the value.
    Root,
    /// A list at the top: some servers answer with one.
    RootList,
    Top,
    Choices,
    Choice,
    /// `choices[].delta`.
    Delta,
    ToolCalls,
    ToolCall,
    Function,
    Usage,
    UsageDetails,
    /// `response` of a Responses API event, `message` of a Messages API event.
    Answer,
    /// Top-level `delta` of a Messages API event.
    BlockDelta,
    /// `details` of a generate answer.
    Details,
    /// `token` of a generate event.
    Token,
}

const PLACES: [Place; 15] = [
    Place::Root,
    Place::RootList,
    Place::Top,
    Place::Choices,
    Place::Choice,
    Place::Delta,
    Place::ToolCalls,
    Place::ToolCall,
    Place::Function,
    Place::Usage,
    Place::UsageDetails,
    Place::Answer,
    Place::BlockDelta,
    Place::Details,
    Place::Token,
];

impl Place {
    pub(super) const fn is_list(self) -> bool {
        matches!(self, Self::RootList | Self::Choices | Self::ToolCalls)
    }
}

/// What a value means by where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Skip,
    /// A container whose members matter.
    Inside(Place),
    /// The value itself.
    Root,
    /// Sets the flag with a string or container that is not empty.
    Filled(u16),
    /// Top-level `delta`: a string in one API, a container in another.
    Delta,
    /// Finished, unless null, false or an empty string.
    Finish,
    /// Finished, unless null or false.
    Ended,
    Error,
    Type,
    Special,
    Count(Count),
}

/// What a member means by its name and the object that it is in.
const fn role(place: Place, word: Word) -> Role {
    match (place, word) {
        (Place::Top, word) => top_role(word),
        (Place::Choice, Word::Delta) => Role::Inside(Place::Delta),
        (Place::Choice, Word::Text) => Role::Filled(OUTPUT),
        (Place::Choice | Place::Details, Word::FinishReason) => Role::Finish,
        (Place::Delta, Word::Content) => Role::Filled(OUTPUT),
        (Place::Delta, Word::ReasoningContent | Word::Reasoning) => Role::Filled(REASONING),
        (Place::Delta, Word::ToolCalls) => Role::Inside(Place::ToolCalls),
        (Place::Delta, Word::FunctionCall) | (Place::ToolCall, Word::Function) => Role::Inside(Place::Function),
        (Place::Function, Word::Name | Word::Arguments) => Role::Filled(OUTPUT),
        (Place::Usage, word) => usage_role(word),
        (Place::UsageDetails, Word::ReasoningTokens) => Role::Count(Count::Reasoning),
        (Place::Answer, Word::Usage) => Role::Inside(Place::Usage),
        (Place::BlockDelta, Word::Text | Word::PartialJson) => Role::Filled(BLOCK_TEXT),
        (Place::BlockDelta, Word::Thinking) => Role::Filled(BLOCK_THINKING),
        (Place::BlockDelta, Word::StopReason) => Role::Finish,
        (Place::Details, Word::GeneratedTokens) => Role::Count(Count::Output),
        (Place::Token, Word::Text) => Role::Filled(TOKEN_TEXT),
        (Place::Token, Word::Special) => Role::Special,
        _ => Role::Skip,
    }
}

/// [`role`] by word and place, as a table: a load in place of a chain of comparisons.
static ROLES: [[Role; PLACES.len()]; words::COUNT] = roles();

const fn roles() -> [[Role; PLACES.len()]; words::COUNT] {
    let mut roles = [[Role::Skip; PLACES.len()]; words::COUNT];
    let mut word = 0;
    while word < words::COUNT {
        let mut place = 0;
        while place < PLACES.len() {
            roles[words::at(word) as usize][PLACES[place] as usize] = role(PLACES[place], words::at(word));
            place += 1;
        }
        word += 1;
    }
    roles
}

#[inline]
pub(super) fn role_of(place: Place, word: Option<Word>) -> Role {
    word.map_or(Role::Skip, |word| ROLES[word as usize][place as usize])
}

const fn top_role(word: Word) -> Role {
    match word {
        Word::Choices => Role::Inside(Place::Choices),
        Word::Usage | Word::UsageMetadata => Role::Inside(Place::Usage),
        Word::Error => Role::Error,
        Word::Type => Role::Type,
        Word::Delta => Role::Delta,
        Word::Response | Word::Message => Role::Inside(Place::Answer),
        Word::StopReason => Role::Finish,
        Word::Details => Role::Inside(Place::Details),
        Word::GeneratedText => Role::Ended,
        Word::Token => Role::Inside(Place::Token),
        _ => Role::Skip,
    }
}

const fn usage_role(word: Word) -> Role {
    match word {
        Word::PromptTokens | Word::PromptTokenCount => Role::Count(Count::Prompt),
        Word::InputTokens | Word::InputTokensCamel | Word::InputTokenCount => Role::Count(Count::Input),
        Word::CacheReadInputTokens | Word::CacheReadInputTokensCamel => Role::Count(Count::CacheRead),
        Word::CacheCreationInputTokens | Word::CacheWriteInputTokensCamel => Role::Count(Count::CacheWrite),
        Word::CompletionTokens
        | Word::OutputTokens
        | Word::OutputTokensCamel
        | Word::CandidatesTokenCount
        | Word::GeneratedTokenCount => Role::Count(Count::Output),
        Word::ReasoningTokens => Role::Count(Count::Reasoning),
        Word::CompletionTokensDetails | Word::OutputTokensDetails => Role::Inside(Place::UsageDetails),
        _ => Role::Skip,
    }
}

/// What the elements of a list mean.
pub(super) const fn element_role(place: Place) -> Role {
    match place {
        Place::RootList => Role::Inside(Place::Top),
        Place::Choices => Role::Inside(Place::Choice),
        Place::ToolCalls => Role::Inside(Place::ToolCall),
        _ => Role::Skip,
    }
}
