//! vNPUs: what there are, creation, destruction.

use aliquot_sim_device::npu::{Amounts, GROUPS, TemplateTable, Vnpu, VnpuRequest, first_id};

use super::pointer::{In, Out};
use super::{chip, give};
use crate::code::{Answer, INVALID_VALUE, NOT_SUPPORTED, NOT_THERE};
use crate::layout::{Base, Computing, CreateIn, CreateOut, Free, Media, Query, Total, text, words};
use crate::library::{npus, phy};

/// The library chooses.
const AUTOMATIC: u32 = u32::MAX;
/// Every vNPU of the chip.
const ALL: u32 = 0xffff;
/// Commands of `dcmi_get_device_info`: the chip's place, and its vNPUs.
const CHIP: i32 = 12;
const VNPUS: i32 = 52;

fn amount(amounts: &Amounts, name: &str) -> u64 {
    amounts.get(name).copied().unwrap_or(0)
}

fn short(amount: u64) -> u16 {
    u16::try_from(amount).unwrap_or(u16::MAX)
}

fn base(group: Option<u32>) -> Base {
    let group = group.unwrap_or(0);
    Base { token: 0, token_max: 0, timeout: 0, group, vip: 0, reserved: [0; 31] }
}

fn computing(amounts: &Amounts, ai_cpus: u64) -> Computing {
    let memory = amount(amounts, "memory");
    Computing {
        ai_cores: f32::from(short(amount(amounts, "ai-core"))),
        vector_cores: f32::from(short(amount(amounts, "ai-core"))),
        queues: [0; 8],
        memory_mib: memory,
        ids: [0; 4],
        host_cpus: [0; 3],
        ai_cpus: short(ai_cpus),
        slot: 0,
        busy_percent: 0,
        memory_total: memory,
        memory_free: memory,
        reserved: [0; 12],
    }
}

fn media(amounts: &Amounts) -> Media {
    let engines = |name| f32::from(short(amount(amounts, name)));
    Media {
        jpegd: engines("jpegd"),
        jpege: engines("jpege"),
        vpc: engines("vpc"),
        vdec: engines("vdec"),
        pngd: 0.0,
        venc: engines("venc"),
        reserved: [0; 32],
    }
}

/// AI CPUs of a chip: a 910B has one more while it is split.
fn ai_cpus(table: &TemplateTable, split: usize) -> u64 {
    let all = amount(&table.totals, "ai-cpu");
    if table.family.starts_with("ascend-910b") && split == 0 { all.saturating_sub(1) } else { all }
}

/// Groups with a free half, a bit each.
fn group_bits(table: &TemplateTable, there: &[&Vnpu]) -> u32 {
    let halves = table.free_halves(there);
    halves.iter().zip(0..GROUPS).filter(|(free, _)| **free > 0).fold(0, |bits, (_, group)| bits | 1 << group)
}

fn total(phy: usize) -> Answer<Total> {
    let (_, table) = npus()?.chip(phy)?;
    let state = npus()?.state()?;
    let there: Vec<&Vnpu> = state.on(phy).collect();
    let mut ids = [0; 32];
    for (place, vnpu) in ids.iter_mut().zip(&there) {
        *place = vnpu.id;
    }
    Ok(Total {
        count: u32::try_from(there.len()).map_err(|_| INVALID_VALUE)?,
        ids,
        groups: if table.grouped { GROUPS } else { 0 },
        group_bits: group_bits(table, &there),
        base: base(None),
        computing: computing(&table.totals, ai_cpus(table, there.len())),
        media: media(&table.totals),
    })
}

fn free(phy: usize) -> Answer<Free> {
    let (_, table) = npus()?.chip(phy)?;
    let state = npus()?.state()?;
    let there: Vec<&Vnpu> = state.on(phy).collect();
    let taken = table.taken(&there);
    let left: Amounts =
        table.totals.iter().map(|(name, all)| (name.clone(), all - amount(&taken, name).min(*all))).collect();
    let cpus = ai_cpus(table, there.len()).saturating_sub(amount(&taken, "ai-cpu"));
    Ok(Free {
        groups: u32::try_from(table.free_halves(&there).iter().filter(|free| **free > 0).count())
            .unwrap_or(0),
        group_bits: group_bits(table, &there),
        base: base(None),
        computing: computing(&left, cpus),
        media: media(&left),
    })
}

fn one(phy: usize, id: u32) -> Answer<Query> {
    let (_, table) = npus()?.chip(phy)?;
    let state = npus()?.state()?;
    let vnpu = state.on(phy).find(|vnpu| vnpu.id == id).ok_or(NOT_THERE)?;
    let consumes = table.template(&vnpu.template).map(|found| found.consumes.clone()).unwrap_or_default();
    Ok(Query {
        id,
        padding: 0,
        name: text(&vnpu.template),
        status: 0,
        used: u32::from(vnpu.used),
        function: id - first_id(phy) + 1,
        group: vnpu.group.unwrap_or(0),
        container: vnpu.container,
        base: base(vnpu.group),
        computing: computing(&consumes, amount(&consumes, "ai-cpu")),
        media: media(&consumes),
    })
}

/// Fails where the caller's buffer is too small for the answer.
fn room<T>(size: Out<u32>) -> Answer {
    let enough = usize::try_from(size.get()?).is_ok_and(|size| size >= size_of::<T>());
    if enough { Ok(()) } else { Err(INVALID_VALUE) }
}

exports! {
    fn dcmi_get_device_info(card: i32, device: i32, command: i32, detail: u32, target: Out<u8>, size: Out<u32>) {
        let phy = phy(card, device)?;
        match (command, detail) {
            (CHIP, 1) => chip::super_pod(target, phy),
            (VNPUS, 0) => {
                room::<Query>(size)?;
                let id: u32 = target.cast().get()?;
                give(target.cast(), one(phy, id)?)
            }
            (VNPUS, 1) => {
                room::<Total>(size)?;
                give(target.cast(), total(phy)?)
            }
            (VNPUS, 2) => {
                room::<Free>(size)?;
                give(target.cast(), free(phy)?)
            }
            _ => Err(NOT_SUPPORTED),
        }
    }
    fn dcmi_create_vdevice(card: i32, device: i32, wanted: In<CreateIn>, made: Out<CreateOut>) {
        let phy = phy(card, device)?;
        let wanted = wanted.get()?;
        made.check()?;
        let number = |number: u32| (number != AUTOMATIC).then_some(number);
        let request = VnpuRequest {
            template: words(&wanted.template), id: number(wanted.id), group: number(wanted.group),
        };
        let vnpu = npus()?.create(phy, &request)?;
        let function = vnpu.id - first_id(phy) + 1;
        give(made, CreateOut {
            id: vnpu.id, pcie_bus: 0, pcie_device: 0, pcie_function: function,
            group: vnpu.group.unwrap_or(0), reserved: [0; 32],
        })
    }
    fn dcmi_set_destroy_vdevice(card: i32, device: i32, id: u32) {
        let phy = phy(card, device)?;
        Ok(npus()?.destroy(phy, (id != ALL).then_some(id))?)
    }
}
