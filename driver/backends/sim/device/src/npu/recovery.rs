//! `/etc/vnpu.cfg` as the vendor's driver keeps it: one line a vNPU, from which a boot script makes it again.

use std::fs;
use std::path::Path;

use super::{Chip, NpuError, Vnpu, store};

const START: &str = "[vnpu-config start]";
const END: &str = "[vnpu-config end]";

/// The line of a vNPU.
pub(super) fn line(chip: &Chip, vnpu: &Vnpu) -> String {
    let group = vnpu.group.map(|group| format!(" -g {group}")).unwrap_or_default();
    let Vnpu { phy, id, template, .. } = vnpu;
    let (card, device) = (chip.card, chip.device);
    format!("{phy}:{id}:npu-smi set -t create-vnpu -i {card} -c {device} -f {template} -v {id}{group}")
}

/// Adds a line.
pub(super) fn add(path: &Path, line: &str) -> Result<(), NpuError> {
    let mut lines = lines(path);
    lines.push(line.to_owned());
    write(path, &lines)
}

/// Removes the line of a vNPU, where there is one.
pub(super) fn remove(path: &Path, vnpu: &Vnpu) -> Result<(), NpuError> {
    let mut lines = lines(path);
    let before = lines.len();
    lines.retain(|line| !line.starts_with(&format!("{}:{}:", vnpu.phy, vnpu.id)));
    if lines.len() == before { Ok(()) } else { write(path, &lines) }
}

fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let inner = text.lines().skip_while(|line| *line != START).skip(1);
    inner.take_while(|line| *line != END).map(str::to_owned).collect()
}

fn write(path: &Path, lines: &[String]) -> Result<(), NpuError> {
    let mut text = format!("vnpu_config_recover:enable\n{START}\n");
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    text.push_str(END);
    text.push('\n');
    store::replace(path, &text)
}
