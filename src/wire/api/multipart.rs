//! The APIs that take a form with a file (RFC 7578): encoded here once, with a fixed boundary, so that they too are plain bytes.

use super::{Formatted, Request, Settings, Text, Turn, images, merged, only, simple};
use crate::data::{base64, json::Value};

/// Content type of these bodies, with their boundary.
pub(super) const CONTENT_TYPE: &str = "multipart/form-data; boundary=ringload-form-f3b1c9a07d52e846";
const BOUNDARY: &[u8] = b"ringload-form-f3b1c9a07d52e846";

type Written = Result<(), String>;

/// Starts of base64 of the image formats that a server takes, with type and file name.
const IMAGES: [(&str, &str, &str); 6] = [
    ("iVBORw0KGgo", "image/png", "image.png"),
    ("/9j/", "image/jpeg", "image.jpg"),
    ("R0lGODlh", "image/gif", "image.gif"),
    ("R0lGODdh", "image/gif", "image.gif"),
    ("UklGR", "image/webp", "image.webp"),
    ("Qk", "image/bmp", "image.bmp"),
];

pub(super) fn image_edit(settings: &Settings, request: &Request<'_>, out: &mut Formatted) -> Written {
    let Text::Plain(prompt) = simple::prompt(request, "image_edit")? else {
        return Err("a synthesized prompt has no image, which image_edit needs".into());
    };
    let turn = only(request, "image_edit")?;
    let image = images(turn).next().ok_or("there is no image, which image_edit needs")?.value.as_ref();
    let mut form = Form { out };
    form.field("prompt", prompt.as_bytes())?;
    form.field("model", request.model.as_bytes())?;
    let extra = merged(settings, request);
    for (name, value) in [("response_format", &br#""b64_json""#[..]), ("n", b"1")] {
        let value = extra.iter().find(|(n, _)| n == name).map_or(value, |&(_, v)| v);
        form.json(name, value)?;
    }
    if image.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("http")) {
        form.field("url", image.as_bytes())?;
    } else {
        let (kind, name, data) = image_file(image)?;
        form.file("image", &name, &kind, &base64::decode(data)?)?;
    }
    let taken = ["prompt", "model", "response_format", "n", "url", "image", "mask"];
    for (name, value) in extra.iter().filter(|(name, _)| !taken.contains(&name.as_ref())) {
        form.json(name, value)?;
    }
    form.end();
    Ok(())
}

pub(super) fn audio_transcription(settings: &Settings, request: &Request<'_>, out: &mut Formatted) -> Written {
    let audio = match only(request, "audio_transcription")? {
        Turn::Content(content) => content.audios.iter().find(|m| !m.value.is_empty()),
        _ => None,
    };
    let audio = audio.ok_or("there is no audio, which audio_transcription needs")?.value.as_ref();
    let (header, data) = audio.split_once(',').ok_or("audio has no comma, expected wav,BASE64 or a data URL")?;
    let format = header.strip_prefix("data:audio/").map_or(header, |rest| rest.split(';').next().unwrap_or(rest));
    let kind = match format {
        "mp3" | "mpga" | "mpeg" => "audio/mpeg".to_owned(),
        "m4a" | "mp4" => "audio/mp4".to_owned(),
        other => format!("audio/{other}"),
    };
    let mut form = Form { out };
    form.file("file", &format!("audio.{format}"), &kind, &base64::decode(data)?)?;
    form.field("model", request.model.as_bytes())?;
    for (name, value) in merged(settings, request).iter().filter(|(name, _)| name != "file" && name != "model") {
        form.json(name, value)?;
    }
    form.end();
    Ok(())
}

/// Type, file name and base64 of an image given as a data URL or as bare base64.
fn image_file(value: &str) -> Result<(String, String, &str), String> {
    let (claimed, data) = match value.strip_prefix("data:").and_then(|rest| rest.split_once(',')) {
        Some((header, data)) => (header.split(';').next().filter(|kind| kind.starts_with("image/")), data),
        None => (None, value),
    };
    let seen = IMAGES.iter().find(|(start, ..)| data.starts_with(start));
    match (claimed, seen) {
        (Some(kind), seen) => {
            let plain = kind.trim_start_matches("image/").split('+').next().unwrap_or("png");
            let name = seen.filter(|s| s.1 == kind).map_or_else(|| format!("image.{plain}"), |s| s.2.to_owned());
            Ok((kind.to_owned(), name, data))
        }
        (None, Some(&(_, kind, name))) => Ok((kind.to_owned(), name.to_owned(), data)),
        (None, None) => {
            Err("the image is in no format that is known, expected PNG, JPEG, WebP, GIF or BMP as a data URL".into())
        }
    }
}

/// A form being written.
struct Form<'o> {
    out: &'o mut Formatted,
}

impl Form<'_> {
    fn head(&mut self, name: &str, more: &str) {
        self.out.push(b"--");
        self.out.push(BOUNDARY);
        self.out.push(b"\r\nContent-Disposition: form-data; name=\"");
        // RFC 7578 §4.2 and the URL standard: quotes and line ends are percent-encoded.
        self.out.push(name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A").as_bytes());
        self.out.push(b"\"");
        self.out.push(more.as_bytes());
        self.out.push(b"\r\n\r\n");
    }

    fn field(&mut self, name: &str, value: &[u8]) -> Written {
        self.head(name, "");
        self.value(value)
    }

    /// A merged member: a string's text, anything else as it is written.
    fn json(&mut self, name: &str, value: &[u8]) -> Written {
        match Value::parse(value).ok().and_then(Value::string) {
            Some(text) => self.field(name, text.as_bytes()),
            None => self.field(name, value),
        }
    }

    fn file(&mut self, name: &str, file: &str, kind: &str, bytes: &[u8]) -> Written {
        self.head(name, &format!("; filename=\"{file}\"\r\nContent-Type: {kind}"));
        self.value(bytes)
    }

    fn value(&mut self, bytes: &[u8]) -> Written {
        if memchr::memmem::find(bytes, BOUNDARY).is_some() {
            return Err("a field holds the boundary of the form".into());
        }
        self.out.push(bytes);
        self.out.push(b"\r\n");
        Ok(())
    }

    fn end(self) {
        self.out.push(b"--");
        self.out.push(BOUNDARY);
        self.out.push(b"--\r\n");
    }
}
