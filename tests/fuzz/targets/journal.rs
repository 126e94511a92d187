//! Any bytes: a journal or an error. The same bytes as lines of changes under right checksums, since a fuzzer seldom
//! guesses those: what is read is written and read back as the same promises, and a torn line behind it is cut.

#![no_main]

use std::path::Path;

use aliquot_driver::checkpoint::{Journal, decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let path = Path::new("journal");
    let mut journals: Vec<Journal> = decode(path, data).into_iter().map(|decoded| decoded.journal).collect();
    if let Ok(text) = std::str::from_utf8(data) {
        for version in [1, 2] {
            let framed = framed(version, text);
            let Ok(decoded) = decode(path, framed.as_bytes()) else { continue };
            // Whatever a kill leaves of one more line is cut, and nothing else is.
            let torn = framed.clone() + "402 5d3f0b77 [{\"record\"";
            let cut = decode(path, torn.as_bytes()).expect("a torn line is no damage");
            assert_eq!((cut.torn_at(), &cut.journal), (Some(framed.len()), &decoded.journal));
            assert!(decode(path, &framed.as_bytes()[..framed.len() - 1]).is_err());
            journals.push(decoded.journal);
        }
    }
    for journal in journals {
        let text = encode(path, &journal).expect("what was read is within bounds");
        assert_eq!(decode(path, text.as_bytes()).expect("what was written is read").journal, journal);
    }
});

/// Frames each line as a change, and seals them.
fn framed(version: u32, text: &str) -> String {
    let header = format!("aliquot-journal {version} min-reader 1 header ");
    let header = format!("{header}{:08x}\n", crc32c::crc32c(header.as_bytes()));
    let start = crc32c::crc32c(header.as_bytes());
    let (mut body, mut chain) = (String::new(), start);
    for json in text.lines() {
        chain = crc32c::crc32c_append(chain, json.as_bytes());
        body += &format!("{} {chain:08x} {json}\n", json.len());
    }
    let seal = format!("sealed {:020} chain {chain:08x} seal ", header.len() + 57 + body.len());
    let own = crc32c::crc32c_append(start, seal.as_bytes());
    format!("{header}{seal}{own:08x}\n{body}")
}
