//! `/etc/vnpu.cfg`: the vNPUs that a boot script makes again. While it does, a chip is in recovery and
//! accepts no new claim.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use crate::ffi::{Facts, Settings, Vnpu};

/// Where it lies below the root.
pub(crate) const CONFIG: &str = "etc/vnpu.cfg";
/// Longest that is read.
const BYTES_MAX: u64 = 1 << 20;
const START: &str = "[vnpu-config start]";
const END: &str = "[vnpu-config end]";

/// A vNPU that is to be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    phy: u32,
    id: u32,
    template: String,
}

/// The lines of the file; none where there is no file, and only those that can be read.
pub(crate) fn read(path: &Path) -> Vec<Line> {
    let mut text = String::new();
    let read = fs::File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
    if read.is_err() { Vec::new() } else { lines(&text) }
}

fn lines(text: &str) -> Vec<Line> {
    let inner = text.lines().skip_while(|line| line.trim() != START).skip(1);
    inner.take_while(|line| line.trim() != END).filter_map(line).collect()
}

/// `0:101:npu-smi set -t create-vnpu -i 0 -c 0 -f vir02 -v 101 -g 0`
fn line(text: &str) -> Option<Line> {
    let mut parts = text.splitn(3, ':');
    let (phy, id, command) = (parts.next()?, parts.next()?, parts.next()?);
    let mut words = command.split_whitespace().skip_while(|word| *word != "-f").skip(1);
    let template = words.next()?.chars().filter(char::is_ascii_graphic).take(32).collect();
    Some(Line { phy: phy.trim().parse().ok()?, id: id.trim().parse().ok()?, template })
}

/// Why a chip accepts no new claim while its vNPUs come back; `None`: all of them are there, or none come back.
pub(crate) fn pending(settings: Settings, lines: &[Line], facts: &Facts, vnpus: &[Vnpu]) -> Option<String> {
    if !settings.recovers {
        return None;
    }
    let missing = |line: &&Line| line.phy == facts.phy && vnpus.iter().all(|vnpu| vnpu.id != line.id);
    let line = lines.iter().find(missing)?;
    Some(format!(
        "recovery: found no vNPU {}, expected the one of template {} that /etc/vnpu.cfg names: wait until the machine has made it \
         again, or remove it (npu-smi set -t destroy-vnpu, or its line)",
        line.id, line.template
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_lines_are_read_and_foreign_ones_left_out() {
        let text = "vnpu_config_recover:enable\n0:99:outside\n[vnpu-config start]\n\
                    0:101:npu-smi set -t create-vnpu -i 0 -c 0 -f vir02 -v 101 -g 0\n\
                    x:102:npu-smi -f vir02\n1:116\n1:117:npu-smi set -t create-vnpu -f\n\
                    [vnpu-config end]\n0:105:npu-smi set -f vir01\n";
        assert_eq!(lines(text), [Line { phy: 0, id: 101, template: "vir02".to_owned() }]);
        assert_eq!(lines("garbage"), []);
    }
}
