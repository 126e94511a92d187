//! The kubelet's own record of claims, `dra_manager_state` in its directory: those that it prepares or has prepared, and has not
//! given back. It is written before a prepare and after an unprepare.
//!
//! What cannot be read in full says nothing of any claim.

use std::collections::BTreeSet;
use std::io::{self, Read};

use serde::Deserialize;

/// Name of the file in the kubelet's directory.
pub const FILE: &str = "dra_manager_state";
/// Longest file that is read: a claim takes about a kilobyte, and a node has a few hundred.
const BYTES_MAX: u64 = 8 << 20;
/// The one kind and version of its content, since Kubernetes 1.32.
const KIND: (&str, &str) = ("DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1");

/// Why the record says nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClaimStateError {
    /// It cannot be read.
    #[error("cannot be read")]
    Read(#[from] io::Error),
    /// It is longer than what is read of it.
    #[error("found more than {BYTES_MAX} bytes, expected fewer")]
    TooLong,
    /// It is no JSON, or lacks a field.
    #[error("found another content ({0}), expected a checkpoint of claims")]
    Content(#[from] serde_json::Error),
    /// Its checksum is another one.
    #[error("Checksum: found {found}, expected {expected}; the file is damaged")]
    Checksum {
        /// As written there.
        found: u32,
        /// Of the data there.
        expected: u32,
    },
    /// It is of another kind or version.
    #[error("found kind `{kind}` of `{version}`, expected `{}` of `{}`", KIND.0, KIND.1)]
    Kind {
        /// As written there.
        kind: String,
        /// As written there.
        version: String,
    },
    /// An entry has no UID.
    #[error("Entries[{0}].ClaimUID: found an empty text, expected a UID")]
    NoUid(usize),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    data: String,
    checksum: u32,
}

#[derive(Deserialize)]
struct Data {
    #[serde(default)]
    kind: String,
    #[serde(default, rename = "apiVersion")]
    version: String,
    /// `null` without claims. An absent list is another format.
    #[serde(rename = "Entries", deserialize_with = "Option::deserialize")]
    entries: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "ClaimUID")]
    uid: String,
}

/// The UIDs of all claims of the record.
///
/// # Errors
/// [`ClaimStateError`]: nothing is known.
pub fn read(file: impl Read) -> Result<BTreeSet<String>, ClaimStateError> {
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > BYTES_MAX {
        return Err(ClaimStateError::TooLong);
    }
    let Checkpoint { data, checksum: found } = serde_json::from_slice(&bytes)?;
    let expected = checksum(data.as_bytes());
    if found != expected {
        return Err(ClaimStateError::Checksum { found, expected });
    }
    let Data { kind, version, entries } = serde_json::from_str(&data)?;
    if (kind.as_str(), version.as_str()) != KIND {
        return Err(ClaimStateError::Kind { kind, version });
    }
    let uids: Vec<String> = entries.into_iter().flatten().map(|entry| entry.uid).collect();
    match uids.iter().position(String::is_empty) {
        Some(place) => Err(ClaimStateError::NoUid(place)),
        None => Ok(uids.into_iter().collect()),
    }
}

/// CRC-32 as IEEE 802.3 has it.
fn checksum(bytes: &[u8]) -> u32 {
    let fold = |sum: u32, _| if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
    !bytes.iter().fold(u32::MAX, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), fold))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a kubelet of 1.36 wrote it.
    const RECORD: &str = r#"{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"Entries\":[{\"ClaimUID\":\"067798be-454e-4be4-9047-1aa06aea63f7\",\"ClaimName\":\"example\",\"Namespace\":\"default\",\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}},\"DriverState\":{\"test-driver.cdi.k8s.io\":{\"Devices\":[{\"PoolName\":\"worker-1\",\"DeviceName\":\"dev-1\",\"RequestNames\":[\"test request\"],\"CDIDeviceIDs\":[\"example.com/example=cdi-example\"]}]}}}]}","Checksum":1597924435}"#;

    fn record(data: &str) -> String {
        serde_json::json!({"Data": data, "Checksum": checksum(data.as_bytes())}).to_string()
    }

    fn refusal(text: &str) -> String {
        read(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn record_of_a_kubelet_names_its_claims() {
        let found = read(RECORD.as_bytes()).unwrap();
        assert_eq!(found, BTreeSet::from(["067798be-454e-4be4-9047-1aa06aea63f7".to_owned()]));
        let head = r#""kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1""#;
        for entries in ["null", "[]"] {
            let empty = record(&format!("{{{head},\"Entries\":{entries}}}"));
            assert!(read(empty.as_bytes()).unwrap().is_empty());
        }
    }

    #[test]
    fn record_that_is_torn_or_of_another_kind_says_nothing() {
        for end in 0..RECORD.len() {
            read(RECORD.as_bytes().get(..end).unwrap_or_default()).unwrap_err();
        }
        let wrong = RECORD.replace("067798be", "167798be");
        assert!(refusal(&wrong).starts_with("Checksum: found 1597924435, expected "), "{}", refusal(&wrong));
        let head = r#""kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1""#;
        for (data, expected) in [
            (format!("{{{head}}}"), "missing field `Entries`"),
            (format!("{{{head},\"Entries\":[{{}}]}}"), "missing field `ClaimUID`"),
            (
                format!("{{{head},\"Entries\":[{{\"ClaimUID\":\"\"}}]}}"),
                "Entries[0].ClaimUID: found an empty",
            ),
            (format!("{{{head},\"Entries\":{{}}}}"), "expected a sequence"),
            (
                r#"{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v2","Entries":null}"#
                    .to_owned(),
                "/v2`, expected",
            ),
            (r#"{"Entries":null}"#.to_owned(), "found kind `` of ``"),
            ("[]".to_owned(), "expected"),
        ] {
            let text = refusal(&record(&data));
            assert!(text.contains(expected), "{data}: {text}");
        }
        // The form before 1.32.
        assert!(refusal(r#"{"version":"v1","entries":[],"checksum":1}"#).contains("missing field `Data`"));
    }

    #[test]
    fn endless_record_is_refused() {
        assert!(matches!(read(io::repeat(b' ')), Err(ClaimStateError::TooLong)));
    }
}
