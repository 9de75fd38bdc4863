//! Local files that a dataset names as images, audio or video: found and hashed before the key is made, read again when the
//! bodies are made, and held to their hash then.
//!
//! A name is a path as it stands, from the working directory, or beside the dataset. The file's bytes go out as they are: as a
//! data URL, or as `format,base64` for audio.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use crate::data::{
    Error, base64,
    error::Place,
    record::{Content, Media, Payload, Record, Sink, Turn},
};

/// The files of a dataset by the names that it uses.
#[derive(Debug, Default)]
pub struct Files {
    /// Folder of the dataset, where names are looked for too.
    pub beside: Option<PathBuf>,
    /// None: there is no such file, which the record that names it is told.
    found: BTreeMap<String, Option<Found>>,
}

#[derive(Debug)]
struct Found {
    path: PathBuf,
    sha256: [u8; 32],
}

/// What a medium is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Modality {
    Image,
    Audio,
    Video,
}

impl Modality {
    const fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Audio => "audio",
            Self::Video => "video",
        }
    }
}

/// True when a value names a local file: it is no URL, no data URL and no `format,base64`.
fn is_local(modality: Modality, value: &str) -> bool {
    let coded = |(head, _): (&str, &str)| head.len() <= 5 && head.bytes().all(|c| c.is_ascii_alphanumeric());
    let inline = modality == Modality::Audio && value.split_once(',').is_some_and(coded);
    !value.is_empty() && !value.contains("://") && !value.starts_with("data:") && !inline
}

fn each<'c, 'a>(content: &'c mut Content<'a>) -> impl Iterator<Item = (Modality, &'c mut Media<'a>)> {
    let of = |modality: Modality, list: &'c mut Vec<Media<'a>>| list.iter_mut().map(move |m| (modality, m));
    let Content { images, audios, videos, .. } = content;
    of(Modality::Image, images).chain(of(Modality::Audio, audios)).chain(of(Modality::Video, videos))
}

fn contents<'r, 'a>(payload: &'r mut Payload<'a>) -> Vec<&'r mut Content<'a>> {
    match payload {
        Payload::Content(content) => vec![content],
        Payload::Turns(turns) => turns
            .iter_mut()
            .filter_map(|turn| match turn {
                Turn::Content(content) => Some(content),
                Turn::Messages { .. } | Turn::Answer { .. } => None,
            })
            .collect(),
        Payload::Verbatim(_) | Payload::Messages { .. } | Payload::Lengths { .. } => Vec::new(),
    }
}

impl Files {
    /// The digest of all names and contents, for the key; none when no file is named.
    pub fn digest(&self) -> Option<String> {
        if self.found.is_empty() {
            return None;
        }
        let mut all = Sha256::new();
        for (name, found) in &self.found {
            all.update((name.len() as u64).to_le_bytes());
            all.update(name.as_bytes());
            all.update(found.as_ref().map_or([0; 32], |f| f.sha256));
        }
        Some(all.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn look(&self, name: &str) -> Option<Found> {
        let beside = self.beside.as_ref().map(|folder| folder.join(name));
        let paths = [Some(PathBuf::from(name)), beside];
        paths.into_iter().flatten().find_map(|path| {
            let content = std::fs::read(&path).ok()?;
            Some(Found { sha256: Sha256::digest(&content).into(), path })
        })
    }

    /// Puts the files into a record, in place of their names.
    pub fn put(&self, record: &mut Record<'_>) -> Result<(), String> {
        for content in contents(&mut record.payload) {
            for (modality, medium) in each(content).filter(|(modality, m)| is_local(*modality, &m.value)) {
                medium.value = Cow::Owned(self.value(modality, &medium.value)?);
            }
        }
        Ok(())
    }

    fn value(&self, modality: Modality, name: &str) -> Result<String, String> {
        let what = modality.name();
        let shown: String = name.chars().take(60).collect();
        let Some(found) = self.found.get(name).and_then(Option::as_ref) else {
            return Err(format!(
                "{what} is \"{shown}\", expected a URL, a data URL or the name of a file that can be read"
            ));
        };
        let content = std::fs::read(&found.path).map_err(|e| format!("{what} {shown}: {e}"))?;
        if <[u8; 32]>::from(Sha256::digest(&content)) != found.sha256 {
            return Err(format!("{what} {shown}: the file changed while the dataset was built"));
        }
        let kind = kind(modality, &content, name);
        let kind =
            kind.ok_or_else(|| format!("{what} {shown}: no format that is known, expected {}", known(modality)))?;
        let coded = base64::encode(&content);
        Ok(match modality {
            Modality::Audio => format!("{kind},{coded}"),
            Modality::Image | Modality::Video => format!("data:{what}/{kind};base64,{coded}"),
        })
    }
}

const fn known(modality: Modality) -> &'static str {
    match modality {
        Modality::Image => "png, jpeg, gif, webp, bmp or svg",
        Modality::Audio => "wav, mp3, flac, ogg or m4a",
        Modality::Video => "mp4, webm, avi or mov",
    }
}

/// The format's name, by the file's first bytes, else by its ending.
fn kind(modality: Modality, content: &[u8], name: &str) -> Option<&'static str> {
    let at = |from: usize, mark: &[u8]| content.get(from..from + mark.len()) == Some(mark);
    let riff = |form: &[u8]| at(0, b"RIFF") && at(8, form);
    let marks: &[(&'static str, bool)] = match modality {
        Modality::Image => &[
            ("png", at(0, b"\x89PNG\r\n\x1a\n")),
            ("jpeg", at(0, b"\xff\xd8\xff")),
            ("gif", at(0, b"GIF8")),
            ("webp", riff(b"WEBP")),
            ("bmp", at(0, b"BM")),
            ("svg+xml", at(0, b"<svg") || at(0, b"<?xml")),
        ],
        Modality::Audio => &[
            ("wav", riff(b"WAVE")),
            ("flac", at(0, b"fLaC")),
            ("ogg", at(0, b"OggS")),
            ("m4a", at(4, b"ftyp")),
            ("mp3", at(0, b"ID3") || matches!(content, [0xFF, b, ..] if b & 0xE0 == 0xE0)),
        ],
        Modality::Video => &[
            ("quicktime", at(4, b"ftypqt")),
            ("mp4", at(4, b"ftyp")),
            ("webm", at(0, b"\x1a\x45\xdf\xa3")),
            ("x-msvideo", riff(b"AVI ")),
        ],
    };
    if let Some((kind, _)) = marks.iter().find(|(_, there)| *there) {
        return Some(kind);
    }
    let ending = Path::new(name).extension()?.to_str()?.to_ascii_lowercase();
    let ending = match ending.as_str() {
        "jpg" => "jpeg",
        "mov" => "quicktime",
        "avi" => "x-msvideo",
        "svg" => "svg+xml",
        other => other,
    };
    marks.iter().map(|(kind, _)| *kind).find(|kind| *kind == ending)
}

impl Sink for Files {
    fn record(&mut self, record: Record<'_>) -> Result<(), Error> {
        let mut record = record;
        for content in contents(&mut record.payload) {
            for (_, medium) in each(content).filter(|(modality, m)| is_local(*modality, &m.value)) {
                if !self.found.contains_key(medium.value.as_ref()) {
                    let found = self.look(&medium.value);
                    self.found.insert(medium.value.to_string(), found);
                }
            }
        }
        Ok(())
    }

    fn bad(&mut self, _: Place, _: String) -> Result<(), Error> {
        // Told when the records are read for good.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\nrest";

    fn record(image: &str, audio: &str) -> Record<'static> {
        let media = |value: &str| vec![Media { value: Cow::Owned(value.to_owned()), ..Media::default() }];
        let content = Content { images: media(image), audios: media(audio), ..Content::default() };
        Record::new(1, Payload::Turns(vec![Turn::Content(content)]))
    }

    #[test]
    fn files_are_put_in_and_are_part_of_the_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cat.png");
        std::fs::write(&path, PNG).unwrap();
        std::fs::write(folder.path().join("a.mp3"), b"\xff\xfbx").unwrap();
        let mut files = Files { beside: Some(folder.path().to_path_buf()), ..Files::default() };
        assert_eq!(files.digest(), None);
        files.record(record("cat.png", "a.mp3")).unwrap();
        let before = files.digest().unwrap();
        let mut made = record("cat.png", "a.mp3");
        files.put(&mut made).unwrap();
        let Payload::Turns(turns) = &made.payload else { panic!() };
        let Turn::Content(content) = &turns[0] else { panic!() };
        assert_eq!(content.images[0].value, format!("data:image/png;base64,{}", base64::encode(PNG)));
        assert_eq!(content.audios[0].value, format!("mp3,{}", base64::encode(b"\xff\xfbx")));
        std::fs::write(&path, [PNG, b"more"].concat()).unwrap();
        assert!(files.put(&mut record("cat.png", "")).unwrap_err().contains("changed while"));
        let mut files = Files { beside: files.beside, ..Files::default() };
        files.record(record("cat.png", "a.mp3")).unwrap();
        assert_ne!(files.digest().unwrap(), before);
    }

    #[test]
    fn what_is_no_file_stays_or_is_told() {
        let mut files = Files::default();
        let inline = record("http://host/cat.png", "wav,AAAA");
        files.record(inline.clone()).unwrap();
        assert_eq!(files.digest(), None);
        let mut made = inline.clone();
        files.put(&mut made).unwrap();
        assert_eq!(made, inline);
        files.record(record("nowhere.png", "")).unwrap();
        let error = files.put(&mut record("nowhere.png", "")).unwrap_err();
        assert_eq!(
            error,
            "image is \"nowhere.png\", expected a URL, a data URL or the name of a file that can be read"
        );
    }
}
