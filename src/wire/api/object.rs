//! One JSON object being written, over whose members others are merged.

use std::borrow::Cow;

use super::{Formatted, Text, truthy};
use crate::data::json::{Kind, Value};

/// Writes members in order. One that is also among the merged is written with the merged value where it stands; the merged
/// that are left come last, as a dictionary's update has it.
pub(super) struct Object<'o, 'e> {
    pub(super) out: &'o mut Formatted,
    merged: Vec<(Cow<'e, str>, &'e [u8])>,
    used: Vec<bool>,
    any: bool,
}

/// Asks for usage in a stream: `stream_options` when the finished body asks for a stream.
#[derive(Clone, Copy)]
pub(super) struct UsageRule {
    /// Whether the body asks for a stream when nothing is merged over it.
    pub(super) stream: bool,
    /// `continuous_usage_stats` too.
    pub(super) per_chunk: bool,
}

impl<'o, 'e> Object<'o, 'e> {
    pub(super) fn new(out: &'o mut Formatted, merged: Vec<(Cow<'e, str>, &'e [u8])>) -> Self {
        out.push(b"{");
        let used = vec![false; merged.len()];
        Self { out, merged, used, any: false }
    }

    fn key(&mut self, name: &str) {
        if self.any {
            self.out.push(b",");
        }
        self.any = true;
        self.out.string(Text::Plain(name));
        self.out.push(b":");
    }

    pub(super) fn member<E>(
        &mut self,
        name: &str,
        write: impl FnOnce(&mut Formatted) -> Result<(), E>,
    ) -> Result<(), E> {
        self.key(name);
        match self.merged.iter().position(|(n, _)| n == name) {
            Some(at) => {
                self.used[at] = true;
                self.out.push(self.merged[at].1);
                Ok(())
            }
            None => write(self.out),
        }
    }

    pub(super) fn json(&mut self, name: &str, text: &[u8]) {
        let _ = self.member(name, |out| {
            out.push(text);
            Ok::<_, ()>(())
        });
    }

    pub(super) fn string(&mut self, name: &str, text: Text<'_>) {
        let _ = self.member(name, |out| {
            out.string(text);
            Ok::<_, ()>(())
        });
    }

    /// Writes what is left of the merged, and `stream_options` if the rule asks for them.
    pub(super) fn close(mut self, usage: Option<UsageRule>) {
        let merged = std::mem::take(&mut self.merged);
        let stream = |rule: &UsageRule| match merged.iter().find(|(name, _)| name == "stream") {
            Some((_, text)) => truthy(text),
            None => rule.stream,
        };
        let mut rule = usage.filter(stream);
        for ((name, text), used) in merged.iter().zip(std::mem::take(&mut self.used)) {
            if used {
                continue;
            }
            self.key(name);
            match rule.take_if(|_| name == "stream_options") {
                Some(rule) => stream_options(self.out, text, rule),
                None => self.out.push(text),
            }
        }
        if let Some(rule) = rule {
            self.key("stream_options");
            stream_options(self.out, b"null", rule);
        }
        self.out.push(b"}");
    }
}

/// The author's options with usage asked for unless they say otherwise; null counts as absent, what is no object stays.
fn stream_options(out: &mut Formatted, text: &[u8], rule: UsageRule) {
    let Ok(value) = Value::parse(text) else { return out.push(text) };
    let inner = match value.kind() {
        Kind::Null => &b""[..],
        Kind::Object => value.bytes()[1..value.bytes().len() - 1].trim_ascii(),
        _ => return out.push(text),
    };
    out.push(b"{");
    out.push(inner);
    let mut any = !inner.is_empty();
    for (name, asked) in [("include_usage", true), ("continuous_usage_stats", rule.per_chunk)] {
        if asked && value.member(name).is_none() {
            out.push(if any { b"," } else { b"" });
            out.string(Text::Plain(name));
            out.push(b":true");
            any = true;
        }
    }
    out.push(b"}");
}
