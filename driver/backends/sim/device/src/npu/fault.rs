//! Planned faults of NPUs: `npu-faults.toml` of the directory.
//!
//! ```toml
//! [[fault]]
//! symbol = "dcmi_create_vdevice"
//! call = 1                    # the n-th call over all processes, from 1; absent: every call
//! action = { error = -8005 }  # { error = code } | { slow_millis = n } | "garbage" | "vanish" | "lose_answer" | "kill"
//! ```

use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;

use super::{NpuError, store};

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NpuAction {
    /// It does nothing and answers this code.
    Error(i32),
    /// It takes this much longer.
    SlowMillis(u64),
    /// It answers success with bytes of 0xff.
    Garbage,
    /// Every vNPU of every chip disappears first.
    Vanish,
    /// It does its work and answers -8006.
    LoseAnswer,
    /// The process is killed before the call does anything.
    Kill,
}

/// One planned fault.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NpuFault {
    /// The export.
    pub symbol: String,
    /// Which call of it; `None`: every one.
    pub call: Option<u64>,
    /// What happens.
    pub action: NpuAction,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NpuFaultPlan {
    #[serde(default, rename = "fault")]
    faults: Vec<NpuFault>,
}

impl NpuFault {
    pub(super) fn hits(&self, symbol: &str, count: u64) -> bool {
        self.symbol == symbol && self.call.is_none_or(|call| call == count)
    }
}

pub(super) fn read(dir: &Path) -> Result<Vec<NpuFault>, NpuError> {
    let path = dir.join("npu-faults.toml");
    match fs::read_to_string(&path) {
        Ok(text) => {
            let plan: Result<NpuFaultPlan, _> = toml::from_str(&text);
            Ok(plan.map_err(|error| store::file(&path, io::Error::other(error)))?.faults)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(store::file(&path, error)),
    }
}
