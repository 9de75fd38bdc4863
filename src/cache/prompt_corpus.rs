//! The text that prompts are cut from when the user gives none: generated, ASCII, the same on every machine.
//!
//! Common English words in sentences, with the numbers, names, code-like words and punctuation that bring a token to about 4.4
//! bytes for byte-pair tokenizers of 65k and 128k entries (4.50 and 4.28 measured). Nothing in it needs escaping
//! in JSON. A change of one byte here changes every prompt: it goes with a new [`super::prompt::RECIPE`].

/// Bytes of the text.
const BYTES: usize = 1 << 20;

/// Frequent words, the most frequent first.
const WORDS: &str = "the of and to a in is that it for was on are as with his they at be this from have or by one had not but what all \
were when we there can an your which their said if do will each about how up out them then she many some so these would other into has \
more her two like him see time could no make than first been its who now people my made over did down only way find use may water long \
little very after words called just where most know get through back much go good new write our used me man too any day same right look \
think also around another came come work three word must because does part even place well such here take why things help put years \
different away again off went old number great tell men say small every found still between name should home big give air line set own \
under read last never us left end along while might next sound below saw something thought both few those always looked show large often \
together asked house world going want school important until form food keep children feet land side without boy once animals life enough \
took sometimes four head above kind began almost live page got earth need far hand high year mother light parts country father let night \
following picture being study second eyes soon times story boys since white days ever paper hard near sentence better best across during \
today others however sure means knew try told young miles sun ways thing whole hear example heard several change answer room sea against \
top turned learn point city play toward five using himself usually money seen car morning given order red door ground state list hold group \
question system value result process model data file function memory server request response network message record table field index \
thread buffer signal event window store cache query user client service session token version module package program language machine \
method object string error report measure figure sample average total source target input output measure limit range level layer channel \
policy region market company customer product price growth office manager team project plan meeting review budget energy power current \
river forest mountain valley island weather season winter summer spring garden flower field stone metal glass wood engine wheel bridge road \
station train ship harbor market village castle tower window mirror shadow silver golden ancient modern simple careful quiet bright gentle \
heavy narrow broad distant hidden common special certain recent early final public private local central general human natural social legal \
medical physical chemical digital electric golden history science culture music letter poem chapter author reader teacher student doctor \
nurse lawyer farmer soldier captain driver artist writer singer player member leader partner neighbor stranger family brother sister friend \
uncle daughter husband moment minute hour week month century future past present idea reason purpose effort attempt chance choice decision \
action effect cause problem solution experience knowledge opinion belief feeling memory dream hope fear anger pleasure surprise silence \
voice noise song dance game sport match battle peace freedom justice truth beauty wisdom courage patience strength weakness health disease \
medicine hospital library museum theater church temple palace prison court council parliament government president minister officer police \
army navy treaty border colony empire kingdom nation republic citizen election campaign debate speech newspaper magazine journal article \
column editor interview camera screen button keyboard printer battery circuit sensor satellite rocket planet galaxy gravity particle atom \
molecule crystal protein cell tissue muscle nerve brain heart blood bone skin stomach finger shoulder walk run jump climb swim throw catch \
carry build break repair paint draw count weigh divide multiply compare describe explain suggest promise refuse accept remember forget \
believe imagine discover invent improve protect destroy produce deliver collect arrange prepare consider continue finish remain appear \
disappear increase reduce happen become belong depend require allow prevent support follow lead begin return leave arrive travel visit";

/// Starts and ends of longer words, which tokenizers split.
const STARTS: &str = "hydro thermo micro inter counter trans photo electro poly meta proto para retro ultra semi multi auto bio geo neuro";
const ENDS: &str =
    "genesis metric graphy lation ductivity scope vergence morphic stasis phasic trophic plexity nomics tropic lytic";

/// A generator of 64-bit numbers (SplitMix64): tiny, and the same everywhere.
pub(super) struct Mix(pub(super) u64);

impl Mix {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`, by the high half of a product.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

/// The text.
pub(super) fn built_in() -> String {
    let words: Vec<_> = WORDS.split_ascii_whitespace().collect();
    let (starts, ends): (Vec<_>, Vec<_>) = (STARTS.split(' ').collect(), ENDS.split(' ').collect());
    let mut mix = Mix(0x72696E67_6C6F6164);
    let mut text = String::with_capacity(BYTES + 64);
    while text.len() < BYTES {
        let length = 5 + mix.below(14);
        for i in 0..length {
            if i > 0 {
                text.push(' ');
            }
            match mix.below(100) {
                0..10 => text.push_str(&(mix.next() % 10u64.pow(1 + mix.below(5) as u32)).to_string()),
                10..14 => {
                    text.push_str(starts[mix.below(starts.len())]);
                    text.push_str(ends[mix.below(ends.len())]);
                }
                14..17 => {
                    text.push_str(words[mix.below(words.len())]);
                    text.push('_');
                    text.push_str(words[mix.below(words.len())]);
                }
                // The smaller of two draws: the front of the list comes more often, as in a language.
                _ => text.push_str(words[mix.below(words.len()).min(mix.below(words.len()))]),
            }
            if i + 1 < length && mix.below(8) == 0 {
                text.push(if mix.below(4) == 0 { ';' } else { ',' });
            }
        }
        text.push_str(if mix.below(8) == 0 { "? " } else { ". " });
    }
    text.truncate(BYTES);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_the_same_for_ever_and_needs_no_escaping() {
        let text = built_in();
        assert_eq!(text.len(), BYTES);
        assert!(text.bytes().all(|c| c.is_ascii() && c >= b' ' && c != b'"' && c != b'\\'));
        assert_eq!(xxhash_rust::xxh3::xxh3_64(text.as_bytes()), DIGEST, "a new text needs a new recipe number");
    }

    const DIGEST: u64 = 9_393_196_370_048_649_818;
}
