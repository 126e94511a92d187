//! The machine: versions, cards, settings.

use aliquot_sim_device::npu::{Recover, VnpuMode};

use super::pointer::Out;
use super::{give, give_text};
use crate::code::{Answer, INVALID_VALUE, NOT_THERE};
use crate::library::{init, npus, phy};

/// Cards, each once, in order.
fn cards() -> Answer<Vec<u32>> {
    let mut cards: Vec<u32> = npus()?.machine().chips.iter().map(|chip| chip.card).collect();
    cards.sort_unstable();
    cards.dedup();
    Ok(cards)
}

fn chips_of(card: i32) -> Answer<i32> {
    let card = u32::try_from(card).map_err(|_| NOT_THERE)?;
    let count = npus()?.machine().chips.iter().filter(|chip| chip.card == card).count();
    if count == 0 { Err(NOT_THERE) } else { i32::try_from(count).map_err(|_| INVALID_VALUE) }
}

fn logic(number: u32) -> Answer<usize> {
    let index = usize::try_from(number).map_err(|_| NOT_THERE)?;
    npus()?.chip(index)?;
    Ok(index)
}

fn list(count: Out<i32>, target: Out<i32>, size: i32) -> Answer {
    let cards = cards()?;
    let size = usize::try_from(size).map_err(|_| INVALID_VALUE)?;
    for (index, card) in cards.iter().take(size).enumerate() {
        target.set_at(index, i32::try_from(*card).map_err(|_| INVALID_VALUE)?)?;
    }
    give(count, i32::try_from(cards.len()).map_err(|_| INVALID_VALUE)?)
}

exports! {
    fn dcmi_init() { init() }
    fn dcmi_get_dcmi_version(text: Out<u8>, size: u32) {
        give_text(text, i32::try_from(size).map_err(|_| INVALID_VALUE)?, &npus()?.machine().library)
    }
    fn dcmi_get_driver_version(text: Out<u8>, size: u32) {
        give_text(text, i32::try_from(size).map_err(|_| INVALID_VALUE)?, &npus()?.machine().driver)
    }
    fn dcmi_get_card_list(count: Out<i32>, cards: Out<i32>, size: i32) { list(count, cards, size) }
    fn dcmi_get_card_num_list(count: Out<i32>, cards: Out<i32>, size: i32) { list(count, cards, size) }
    fn dcmi_get_device_num_in_card(card: i32, count: Out<i32>) { give(count, chips_of(card)?) }
    fn dcmi_get_device_id_in_card(card: i32, chips: Out<i32>, mcu: Out<i32>, cpu: Out<i32>) {
        give(chips, chips_of(card)?)?;
        mcu.set(-1)?;
        cpu.set(-1)
    }
    fn dcmi_get_device_logic_id(logic: Out<i32>, card: i32, device: i32) {
        give(logic, i32::try_from(phy(card, device)?).map_err(|_| INVALID_VALUE)?)
    }
    fn dcmi_get_card_id_device_id_from_logicid(card: Out<i32>, device: Out<i32>, number: u32) {
        let (chip, _) = npus()?.chip(logic(number)?)?;
        card.set(i32::try_from(chip.card).map_err(|_| INVALID_VALUE)?)?;
        device.set(i32::try_from(chip.device).map_err(|_| INVALID_VALUE)?)
    }
    fn dcmi_get_device_phyid_from_logicid(number: u32, physical: Out<u32>) {
        logic(number)?;
        give(physical, number)
    }
    fn dcmi_get_device_logicid_from_phyid(number: u32, found: Out<u32>) {
        logic(number)?;
        give(found, number)
    }
    fn dcmi_get_npu_work_mode(card: i32, mode: Out<u8>) {
        chips_of(card)?;
        // AMP: SMP cannot be split.
        mode.set(0)
    }
    fn dcmi_get_vdevice_mode(mode: Out<i32>) {
        give(mode, match npus()?.machine().mode { VnpuMode::Docker => 0, VnpuMode::Vm => 1 })
    }
    fn dcmi_get_vnpu_config_recover_mode(mode: Out<u32>) {
        give(mode, match npus()?.machine().recover { Recover::Disabled => 0, Recover::Enabled => 1 })
    }
}
