//! Texts and media of a turn, as `single_turn`, `multi_turn` and `random_pool` write them.
//!
//! Each modality is one string (`text`, `image`, `audio`, `video`) or a list (`texts`, ...) of strings or of
//! `{"name","contents"}`. What is a path of a local file is left as it is: the builder reads it and puts it into the key.

use std::borrow::Cow;

use super::fields::{Fields, Read, Stop, keys_seen, wrong};
use crate::data::{
    json::{Kind, Value},
    record::{Content, Media},
};

/// Every field of a turn; the first nine are its content.
pub(super) const NAMES: [&str; 16] = [
    "text",
    "texts",
    "image",
    "images",
    "audio",
    "audios",
    "video",
    "videos",
    "image_uuids",
    "timestamp",
    "delay",
    "role",
    "session_id",
    "output_length",
    "extra",
    "type",
];

/// The content of a turn; what has no name of its own gets `name`.
pub(super) fn content<'a>(fields: &Fields<'a, 16>, name: &'a str, line: &[u8]) -> Read<Content<'a>> {
    let mut content = Content {
        role: fields.string("role")?,
        system: None,
        texts: media(fields, "text", "texts", name)?,
        images: media(fields, "image", "images", name)?,
        audios: media(fields, "audio", "audios", name)?,
        videos: media(fields, "video", "videos", name)?,
    };
    if let Some(uuids) = fields.array("image_uuids")? {
        put_uuids(&mut content.images, uuids, name, fields)?;
    }
    let lists = [&content.texts, &content.images, &content.audios, &content.videos];
    if lists.iter().all(|list| list.iter().all(|m| m.value.is_empty() && m.uuid.is_empty())) {
        return Err(Stop::Bad(format!("none of text, image, audio or video is there; {}", keys_seen(line))));
    }
    Ok(content)
}

fn media<'a>(fields: &Fields<'a, 16>, one: &'static str, many: &'static str, name: &'a str) -> Read<Vec<Media<'a>>> {
    let list = fields.array(many)?;
    let single = fields.string(one)?;
    match (single, list) {
        (Some(_), Some(_)) => Err(Stop::Bad(format!("{one} and {many} are there, expected one of them"))),
        (Some(value), None) => Ok(vec![Media { name: Cow::Borrowed(name), value, uuid: Cow::Borrowed("") }]),
        (None, None) => Ok(Vec::new()),
        (None, Some(list)) => {
            let mut out = Vec::new();
            for (i, item) in list.elements().enumerate() {
                match (item.kind(), item.string()) {
                    (_, Some(value)) => out.push(Media { name: Cow::Borrowed(name), value, uuid: Cow::Borrowed("") }),
                    (Kind::Object, None) => named(&format!("{many}[{i}]"), item, &mut out)?,
                    _ => return Err(wrong(&format!("{many}[{i}]"), item, "a string, or an object with contents")),
                }
            }
            Ok(out)
        }
    }
}

/// `{"name":"query","contents":["a","b"]}`, and `uuids` for images.
fn named<'a>(place: &str, item: Value<'a>, out: &mut Vec<Media<'a>>) -> Read<()> {
    let name = item.member("name").and_then(Value::string).unwrap_or_default();
    let contents = item.member("contents").filter(|v| v.kind() == Kind::Array);
    let contents = contents.ok_or_else(|| wrong(place, item, "an object with a list of contents"))?;
    let mut uuids = item.member("uuids").into_iter().flat_map(Value::elements);
    for content in contents.elements() {
        let value = content.string().ok_or_else(|| wrong(&format!("{place}.contents"), content, "a string"))?;
        let uuid = uuids.next().and_then(Value::string).unwrap_or_default();
        out.push(Media { name: name.clone(), value, uuid });
    }
    Ok(())
}

fn put_uuids<'a>(images: &mut Vec<Media<'a>>, uuids: Value<'a>, name: &'a str, fields: &Fields<'a, 16>) -> Read<()> {
    if fields.has("image") {
        return Err(Stop::bad("image_uuids is given beside image, expected it with images"));
    }
    let count = uuids.elements().count();
    if images.is_empty() {
        images.extend((0..count).map(|_| Media { name: Cow::Borrowed(name), ..Media::default() }));
    }
    if images.len() != count {
        return Err(Stop::Bad(format!("image_uuids has {count} entries, expected {} as images has", images.len())));
    }
    for (i, (image, uuid)) in images.iter_mut().zip(uuids.elements()).enumerate() {
        match uuid.string() {
            Some(text) if !text.is_empty() => image.uuid = text,
            _ => return Err(wrong(&format!("image_uuids[{i}]"), uuid, "a string with something in it")),
        }
    }
    Ok(())
}
