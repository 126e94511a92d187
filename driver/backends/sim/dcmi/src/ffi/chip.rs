//! What a chip says of itself.

use aliquot_sim_device::npu::{Chip, TemplateTable};

use super::pointer::Out;
use super::{give, give_text};
use crate::code::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::layout::{BoardInfo, ChipInfo, ChipInfoV2, HbmInfo, Label, MemoryInfo, PcieInfo, SuperPod, text};
use crate::library::{npus, phy};

/// Answers of `dcmi_get_topo_info_by_device_id`.
const TOPO_SELF: i32 = 0;
const TOPO_SYS: i32 = 1;
const TOPO_HCCS: i32 = 3;
const TOPO_SIO: i32 = 6;

/// Words of a huge page, in KiB.
const HUGE_PAGE: u64 = 2_048;

fn chip(card: i32, device: i32) -> Answer<(&'static Chip, &'static TemplateTable)> {
    Ok(npus()?.chip(phy(card, device)?)?)
}

/// Whether its memory is high-bandwidth memory: all but the 310P's.
fn has_hbm(table: &TemplateTable) -> bool {
    table.family != "ascend-310p"
}

/// Whether the library knows how two chips are wired.
fn knows_wires(table: &TemplateTable) -> bool {
    table.family.starts_with("ascend-910b") || table.family.starts_with("ascend-910c")
}

fn info(chip: &Chip, table: &TemplateTable) -> ChipInfo {
    let cores = table.totals.get("ai-core").copied().unwrap_or(0);
    ChipInfo {
        kind: text("Ascend"),
        name: text(&chip.chip),
        version: text("V1"),
        ai_cores: u32::try_from(cores).unwrap_or(0),
    }
}

/// Domain, bus, device, function of an address such as `0000:81:00.0`.
fn pci(address: &str) -> Option<[u32; 4]> {
    let parts: Vec<&str> = address.split([':', '.']).collect();
    let [domain, bus, device, function] = parts[..] else { return None };
    let number = |part: &str| u32::from_str_radix(part, 16).ok();
    Some([number(domain)?, number(bus)?, number(device)?, number(function)?])
}

fn wired(first: (&Chip, &TemplateTable), second: &Chip) -> Answer<i32> {
    if !knows_wires(first.1) {
        return Err(NOT_SUPPORTED);
    }
    let one = first.0;
    Ok(if one.card == second.card && one.device == second.device {
        TOPO_SELF
    } else if one.card == second.card {
        TOPO_SIO
    } else if one.hccs.is_some() && one.hccs == second.hccs {
        TOPO_HCCS
    } else {
        TOPO_SYS
    })
}

exports! {
    fn dcmi_get_device_type(card: i32, device: i32, kind: Out<i32>) {
        phy(card, device)?;
        give(kind, 0)
    }
    fn dcmi_get_device_chip_info(card: i32, device: i32, target: Out<ChipInfo>) {
        let (chip, table) = chip(card, device)?;
        give(target, info(chip, table))
    }
    fn dcmi_get_device_chip_info_v2(card: i32, device: i32, target: Out<ChipInfoV2>) {
        let (chip, table) = chip(card, device)?;
        give(target, ChipInfoV2 { chip: info(chip, table), npu_name: text(&chip.chip) })
    }
    fn dcmi_get_product_type(card: i32, device: i32, target: Out<u8>, size: i32) {
        let (chip, _) = chip(card, device)?;
        if chip.product.is_empty() {
            return Err(NOT_SUPPORTED);
        }
        give_text(target, size, &chip.product)
    }
    fn dcmi_get_device_board_info(card: i32, device: i32, target: Out<BoardInfo>) {
        let (chip, _) = chip(card, device)?;
        give(target, BoardInfo { board_id: chip.board_id, pcb_id: 0, bom_id: 0, slot_id: chip.card })
    }
    fn dcmi_get_device_memory_info_v3(card: i32, device: i32, target: Out<MemoryInfo>) {
        let (chip, table) = chip(card, device)?;
        if has_hbm(table) {
            return Err(NOT_SUPPORTED);
        }
        let size = chip.memory_mib;
        let huge_page = [HUGE_PAGE, size / 2, size / 2];
        give(target, MemoryInfo {
            size, available: size, frequency: 2_133, huge_page, percent: 0, reserved: [0; 60],
        })
    }
    fn dcmi_get_device_hbm_info(card: i32, device: i32, target: Out<HbmInfo>) {
        let (chip, table) = chip(card, device)?;
        if !has_hbm(table) {
            return Err(NOT_SUPPORTED);
        }
        give(target, HbmInfo { size: chip.memory_mib, frequency: 1_600, used: 0, temperature: 40, bandwidth: 0 })
    }
    fn dcmi_get_device_health(card: i32, device: i32, health: Out<u32>) {
        let phy = phy(card, device)?;
        give(health, npus()?.state()?.ailment(phy).health)
    }
    fn dcmi_get_device_errorcode_v2(card: i32, device: i32, count: Out<i32>, codes: Out<u32>, size: u32) {
        let phy = phy(card, device)?;
        let found = npus()?.state()?.ailment(phy).codes;
        let size = usize::try_from(size).map_err(|_| INVALID_VALUE)?;
        for (index, code) in found.iter().take(size).enumerate() {
            codes.set_at(index, *code)?;
        }
        give(count, i32::try_from(found.len().min(size)).map_err(|_| INVALID_VALUE)?)
    }
    fn dcmi_get_device_pcie_info_v2(card: i32, device: i32, target: Out<PcieInfo>) {
        let (chip, table) = chip(card, device)?;
        let [domain, bus, device, function] = pci(&chip.pci).ok_or(NOT_SUPPORTED)?;
        let device_id = if has_hbm(table) { 0xd802 } else { 0xd500 };
        give(target, PcieInfo {
            vendor: 0x19e5, subvendor: 0x0200, device_id, subdevice: 0x0100,
            domain: i32::try_from(domain).map_err(|_| INVALID_VALUE)?,
            bus, device, function, reserved: [0; 32],
        })
    }
    fn dcmi_get_device_die_v2(card: i32, device: i32, kind: i32, target: Out<[u32; 5]>) {
        let (chip, _) = chip(card, device)?;
        match kind {
            0 | 1 => give(target, chip.die),
            _ => Err(INVALID_VALUE),
        }
    }
    fn dcmi_get_card_elabel_v2(card: i32, target: Out<Label>) {
        let (chip, _) = chip(card, 0)?;
        let serial = format!("{:08X}{:08X}", chip.die[0], chip.die[1]);
        give(target, Label {
            product: text(&chip.product), model: text(&chip.chip), maker: text("Huawei"), made: text("2025-01-01"),
            serial: text(&serial),
        })
    }
    fn dcmi_get_device_utilization_rate(card: i32, device: i32, kind: i32, percent: Out<u32>) {
        phy(card, device)?;
        // Simulated NPUs run nothing.
        match kind {
            1..=6 | 10 | 12 => give(percent, 0),
            _ => Err(INVALID_VALUE),
        }
    }
    fn dcmi_get_affinity_cpu_info_by_device_id(card: i32, device: i32, target: Out<u8>, size: Out<i32>) {
        let (chip, _) = chip(card, device)?;
        let first = chip.numa.ok_or(NOT_SUPPORTED)? * 32;
        let cpus = format!("{first}-{}", first + 31);
        give_text(target, size.get()?, &cpus)?;
        size.set(i32::try_from(cpus.len()).map_err(|_| INVALID_VALUE)?)
    }
    fn dcmi_get_topo_info_by_device_id(card: i32, device: i32, other: i32, other_device: i32, kind: Out<i32>) {
        give(kind, wired(chip(card, device)?, chip(other, other_device)?.0)?)
    }
    fn dcmi_get_device_share_enable(card: i32, device: i32, share: Out<i32>) {
        phy(card, device)?;
        give(share, 0)
    }
}

/// Where a chip is in a super-pod: the simulated machines are in none.
pub(super) fn super_pod(target: Out<u8>, phy: usize) -> Answer {
    let id = u32::try_from(phy).map_err(|_| INVALID_VALUE)?;
    let (_, table) = npus()?.chip(phy)?;
    if !table.family.starts_with("ascend-910c") {
        return Err(NOT_SUPPORTED);
    }
    give(target.cast(), SuperPod { numbers: [id, 1, 0, 0, 0, 0], reserved: [0; 6] })
}
