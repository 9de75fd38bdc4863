//! Gzip data of one or more members (RFC 1952 §2.2), with an error for what stands behind them. Zeros there are the padding of
//! tapes and blocks, and no error.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

/// First byte of a member.
const MAGIC: u8 = 0x1f;

/// Unpacks member after member.
pub(super) struct Members<R> {
    /// None at the end.
    decoder: Option<GzDecoder<R>>,
}

impl<R: BufRead> Members<R> {
    /// Begins with the first member.
    pub(super) fn new(packed: R) -> Self {
        Self { decoder: Some(GzDecoder::new(packed)) }
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.decoder {
            let n = decoder.read(out)?;
            if n > 0 || out.is_empty() {
                return Ok(n);
            }
            let Some(mut rest) = self.decoder.take().map(GzDecoder::into_inner) else { break };
            let next = loop {
                let ahead = rest.fill_buf()?;
                let zeros = ahead.iter().take_while(|&&byte| byte == 0).count();
                match ahead.get(zeros).copied() {
                    None if ahead.is_empty() => break None,
                    Some(byte) => {
                        rest.consume(zeros);
                        break Some(byte);
                    }
                    None => rest.consume(zeros),
                }
            };
            match next {
                None => {}
                Some(MAGIC) => self.decoder = Some(GzDecoder::new(rest)),
                Some(byte) => {
                    let what = format!(
                        "bytes stand behind the gzip data that are no member of it (the first is 0x{byte:02x}): cut them off, or \
                         pipe in what `gzip -dc` makes of it with `-f -`"
                    );
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                }
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn member(text: &[u8]) -> Vec<u8> {
        let mut out = GzEncoder::new(Vec::new(), Compression::fast());
        out.write_all(text).unwrap();
        out.finish().unwrap()
    }

    fn unpacked(packed: &[u8], step: usize) -> Result<String, String> {
        let mut out = String::new();
        let buffered = io::BufReader::with_capacity(step, packed);
        Members::new(buffered).read_to_string(&mut out).map(|_| out).map_err(|e| e.to_string())
    }

    #[test]
    fn members_padding_and_rubbish_however_the_file_is_cut() {
        let two = [member(b"one "), member(b""), member(b"two")].concat();
        let padded = [&two[..], &[0; 700]].concat();
        let between = [member(b"one "), vec![0; 9], member(b"two")].concat();
        for step in [1, 2, 7, 64, 4096] {
            for good in [&two, &padded, &between] {
                assert_eq!(unpacked(good, step).unwrap(), "one two", "{step}");
            }
            let rubbish = [&two[..], b"\0rubbish"].concat();
            let says = unpacked(&rubbish, step).unwrap_err();
            assert!(says.contains("behind the gzip data") && says.contains("0x72"), "{says}");
            assert!(unpacked(&two[..two.len() - 3], step).is_err());
            assert!(unpacked(&[&two[..], b"\x1f"].concat(), step).is_err());
        }
    }
}
