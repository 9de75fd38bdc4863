//! Request bodies written out again from the cache: no record of a run ever carries them.

use std::io::{self, Write};

use serde_json::value::RawValue;

use crate::{
    cache::View,
    data::{Error, RecordId, Result},
};

/// How bodies are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A body a line, byte for byte: `raw_payload`.
    RawPayload,
    /// `{"data":[{"session_id","payloads":[...]}]}`: `inputs_json`.
    InputsJson,
}

/// Writes the bodies of records, in their order, to `out`. Returns how many.
///
/// Errors: a body that the shape cannot carry, an entry that changed, what the writer said.
pub fn write(view: &View, records: &[RecordId], shape: Shape, out: &mut impl Write) -> Result<u64> {
    match shape {
        Shape::RawPayload => raw_payload(view, records, out),
        Shape::InputsJson => inputs_json(view, records, out),
    }
}

fn failed(e: io::Error) -> Error {
    Error::file("cannot write", std::path::Path::new("the requests"), e)
}

fn body_of(view: &View, record: RecordId, body: &mut Vec<u8>) -> Result<()> {
    body.clear();
    view.body_to(record, body).map_err(|_| {
        Error::Failed("the entry's data file was changed or truncated; run `ringload cache verify`".into())
    })
}

fn raw_payload(view: &View, records: &[RecordId], out: &mut impl Write) -> Result<u64> {
    let mut body = Vec::new();
    for &record in records {
        body_of(view, record, &mut body)?;
        if memchr::memchr2(b'\n', b'\r', &body).is_some() {
            return Err(Error::usage(format!(
                "record {record} has a line end in its body, and raw_payload has a body a line; use --format inputs_json, \
                 or ringload inspect --record {record} --body"
            )));
        }
        body.push(b'\n');
        out.write_all(&body).map_err(failed)?;
    }
    out.flush().map_err(failed)?;
    Ok(records.len() as u64)
}

fn inputs_json(view: &View, records: &[RecordId], out: &mut impl Write) -> Result<u64> {
    // Turns of a session need not stand side by side in the entry.
    let mut order: Vec<(u32, u32, RecordId)> = records.iter().map(|&r| (view.session(r), view.turn(r), r)).collect();
    order.sort_unstable_by_key(|&(session, turn, record)| (session, turn, record.0));
    let mut body = Vec::new();
    let mut session = None;
    out.write_all(b"{\"data\":[").map_err(failed)?;
    for (of, _, record) in order {
        body_of(view, record, &mut body)?;
        let payload: &RawValue = serde_json::from_slice(&body).map_err(|e| {
            Error::usage(format!(
                "record {record} is no JSON ({e}), and inputs_json holds nothing else; use --format raw_payload"
            ))
        })?;
        let begin = match session.replace(of) {
            Some(before) if before == of => ",".to_owned(),
            before => {
                let name = serde_json::to_string(&view.session_name(of)).unwrap_or_default();
                format!("{}\n{{\"session_id\":{name},\"payloads\":[", if before.is_some() { "]}," } else { "" })
            }
        };
        out.write_all(begin.as_bytes()).map_err(failed)?;
        out.write_all(payload.get().as_bytes()).map_err(failed)?;
    }
    out.write_all(if session.is_some() { b"]}\n]}\n" } else { b"]}\n" }).map_err(failed)?;
    out.flush().map_err(failed)?;
    Ok(records.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(body: &[u8], shape: Shape) -> Result<String> {
        let view = View::inline(body).unwrap();
        let records: Vec<_> = view.ids().collect();
        let mut out = Vec::new();
        write(&view, &records, shape, &mut out).map(|_| String::from_utf8(out).unwrap())
    }

    #[test]
    fn bodies_go_out_byte_for_byte() {
        let body = br#"{"id":4634343214213523454, "t":1.10}"#;
        assert_eq!(written(body, Shape::RawPayload).unwrap().as_bytes(), [&body[..], b"\n"].concat());
        let inputs = written(body, Shape::InputsJson).unwrap();
        assert_eq!(
            inputs,
            format!("{{\"data\":[\n{{\"session_id\":\"0\",\"payloads\":[{}]}}\n]}}\n", String::from_utf8_lossy(body))
        );
    }

    #[test]
    fn what_a_shape_cannot_carry_is_told_with_the_cure() {
        let why = written(b"{\"a\":\n1}", Shape::RawPayload).unwrap_err().to_string();
        assert!(why.contains("record 0") && why.contains("--format inputs_json"), "{why}");
        let why = written(b"{not json", Shape::InputsJson).unwrap_err().to_string();
        assert!(why.contains("record 0") && why.contains("--format raw_payload"), "{why}");
        assert!(written(b"{\"a\":\n1}", Shape::InputsJson).is_ok());
    }
}
