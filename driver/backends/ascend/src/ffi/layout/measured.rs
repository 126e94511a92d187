//! Compares these structures, and those of the simulated library, with a table that was measured from the vendor's header.
//! Both are written by hand, so that a misread of the header could agree with itself.

use std::collections::BTreeMap;
use std::ops::Range;

/// The source of the other hand-written copy.
#[path = "../../../../sim/dcmi/src/layout.rs"]
#[expect(dead_code, reason = "only the structures are compared here")]
mod simulated;

const MEASURED: &str = include_str!("../../../dcmi-layout.tsv");

/// A member that is a structure of the table, too, and is written flat here.
const NESTED: [(&str, &str, &str); 2] = [
    ("dcmi_vdev_query_stru", "query_info", "dcmi_vdev_query_info"),
    ("dcmi_event", "dms_event", "dcmi_dms_fault_event"),
];

/// The other member of the union of an event: the same bytes.
const UNION: (&str, &str) = ("dcmi_event", "event_t");

/// One structure as it is written here.
struct Written {
    measured: &'static str,
    size: usize,
    fields: Vec<Field>,
}

/// A field, and the first measured one in its bytes; none where it is padding.
struct Field {
    name: &'static str,
    first: Option<&'static str>,
    bytes: Range<usize>,
}

fn width<Structure, Value>(_: impl Fn(&Structure) -> &Value) -> usize {
    size_of::<Value>()
}

/// All fields of a structure: one that is missing does not compile.
macro_rules! written {
    ($measured:literal, $structure:ident: $($field:ident = $first:expr),+) => {{
        let _all = |$structure { $($field: _),+ }: $structure| ();
        let field = |name, first: &'static str, start: usize, width: usize| Field {
            name,
            first: (first != "").then_some(first),
            bytes: start..start + width,
        };
        Written {
            measured: $measured,
            size: size_of::<$structure>(),
            fields: vec![$(field(
                stringify!($field),
                $first,
                std::mem::offset_of!($structure, $field),
                width(|value: &$structure| &value.$field),
            )),+],
        }
    }};
}

/// The structures by which the back end reads and writes.
fn of_the_back_end() -> Vec<Written> {
    use super::*;
    vec![
        written!("dcmi_chip_info", ChipInfo: kind = "chip_type", name = "chip_name", version = "chip_ver", ai_cores = "aicore_cnt"),
        written!("dcmi_chip_info_v2", ChipInfoV2: chip = "chip_type", npu_name = "npu_name"),
        written!("dcmi_board_info", BoardInfo: board_id = "board_id", others = "pcb_id"),
        written!("dcmi_pcie_info_all", PcieInfo: ids = "venderid", domain = "domain", bus = "bdf_busid",
            device = "bdf_deviceid", function = "bdf_funcid", reserved = "reserve"),
        written!("dcmi_hbm_info", HbmInfo: size = "memory_size", frequency = "freq", used = "memory_usage",
            temperature = "temp", bandwidth = "bandwith_util_rate"),
        written!("dcmi_get_memory_info_stru", MemoryInfo: size = "memory_size", available = "memory_available",
            frequency = "freq", huge_pages = "hugepagesize", percent = "utiliza", reserved = "reserve"),
        written!("dcmi_computing_resource", Computing: ai_cores = "aic", vector_cores = "aiv", queues = "dsa",
            memory_mib = "memory_size", ids = "event_id", host_cpus = "topic_schedule_aicpu", ai_cpus = "device_aicpu",
            slot = "topic_ctrl_cpu_slot", busy_percent = "vdev_aicore_utilization", memory_total = "vdev_memory_total",
            memory_free = "vdev_memory_free", reserved = "reserved"),
        written!("dcmi_create_vdev_res_stru", CreateIn: id = "vdev_id", group = "vfg_id", template = "template_name",
            reserved = "reserved"),
        written!("dcmi_create_vdev_out", CreateOut: id = "vdev_id", pcie = "pcie_bus", group = "vfg_id",
            reserved = "reserved"),
        written!("dcmi_vdev_query_stru", Query: id = "vdev_id", padding = "", name = "name", status = "status",
            used = "is_container_used", function = "vfid", group = "vfg_id", container = "container_id", base = "base",
            computing = "computing", media = "media"),
        written!("dcmi_soc_total_resource", Total: count = "vdev_num", ids = "vdev_id", groups = "vfg_num",
            group_bits = "vfg_bitmap", base = "base", computing = "computing", media = "media"),
        written!("dcmi_event_filter", EventFilter: flags = "filter_flag", id = "event_id", severity = "severity",
            node_type = "node_type", reserved = "resv"),
        written!("dcmi_event", Event: kind = "type", padding = "", id = "event_id", device = "deviceid",
            node = "node_type", severity = "severity", assertion = "assertion", serial = "event_serial_num",
            notified = "notify_serial_num", raised = "alarm_raised_time", name = "event_name", more = "additional_info",
            reserved = "resv"),
    ]
}

/// Those by which the simulated library answers.
fn of_the_simulated_library() -> Vec<Written> {
    use simulated::*;
    vec![
        written!("dcmi_chip_info", ChipInfo: kind = "chip_type", name = "chip_name", version = "chip_ver", ai_cores = "aicore_cnt"),
        written!("dcmi_chip_info_v2", ChipInfoV2: chip = "chip_type", npu_name = "npu_name"),
        written!("dcmi_board_info", BoardInfo: board_id = "board_id", pcb_id = "pcb_id", bom_id = "bom_id", slot_id = "slot_id"),
        written!("dcmi_pcie_info_all", PcieInfo: vendor = "venderid", subvendor = "subvenderid", device_id = "deviceid",
            subdevice = "subdeviceid", domain = "domain", bus = "bdf_busid", device = "bdf_deviceid",
            function = "bdf_funcid", reserved = "reserve"),
        written!("dcmi_hbm_info", HbmInfo: size = "memory_size", frequency = "freq", used = "memory_usage",
            temperature = "temp", bandwidth = "bandwith_util_rate"),
        written!("dcmi_get_memory_info_stru", MemoryInfo: size = "memory_size", available = "memory_available",
            frequency = "freq", huge_page = "hugepagesize", percent = "utiliza", reserved = "reserve"),
        written!("dcmi_base_resource", Base: token = "token", token_max = "token_max", timeout = "task_timeout",
            group = "vfg_id", vip = "vip_mode", reserved = "reserved"),
        written!("dcmi_computing_resource", Computing: ai_cores = "aic", vector_cores = "aiv", queues = "dsa",
            memory_mib = "memory_size", ids = "event_id", host_cpus = "topic_schedule_aicpu", ai_cpus = "device_aicpu",
            slot = "topic_ctrl_cpu_slot", busy_percent = "vdev_aicore_utilization", memory_total = "vdev_memory_total",
            memory_free = "vdev_memory_free", reserved = "reserved"),
        written!("dcmi_media_resource", Media: jpegd = "jpegd", jpege = "jpege", vpc = "vpc", vdec = "vdec", pngd = "pngd",
            venc = "venc", reserved = "reserved"),
        written!("dcmi_create_vdev_res_stru", CreateIn: id = "vdev_id", group = "vfg_id", template = "template_name",
            reserved = "reserved"),
        written!("dcmi_create_vdev_out", CreateOut: id = "vdev_id", pcie_bus = "pcie_bus", pcie_device = "pcie_device",
            pcie_function = "pcie_func", group = "vfg_id", reserved = "reserved"),
        written!("dcmi_vdev_query_stru", Query: id = "vdev_id", padding = "", name = "name", status = "status",
            used = "is_container_used", function = "vfid", group = "vfg_id", container = "container_id", base = "base",
            computing = "computing", media = "media"),
        written!("dcmi_soc_total_resource", Total: count = "vdev_num", ids = "vdev_id", groups = "vfg_num",
            group_bits = "vfg_bitmap", base = "base", computing = "computing", media = "media"),
        written!("dcmi_soc_free_resource", Free: groups = "vfg_num", group_bits = "vfg_bitmap", base = "base",
            computing = "computing", media = "media"),
        written!("dcmi_spod_info", SuperPod: numbers = "sdid", reserved = "reserve"),
        written!("dcmi_elabel_info", Label: product = "product_name", model = "model", maker = "manufacturer",
            made = "manufacturer_date", serial = "serial_number"),
        written!("dcmi_event_filter", EventFilter: flags = "filter_flag", id = "event_id", severity = "severity",
            node_type = "node_type", reserved = "resv"),
        written!("dcmi_event", Event: kind = "type", padding = "", id = "event_id", device = "deviceid",
            node = "node_type", severity = "severity", assertion = "assertion", serial = "event_serial_num",
            notified = "notify_serial_num", raised = "alarm_raised_time", name = "event_name", more = "additional_info",
            reserved = "resv"),
    ]
}

/// Fields and size of a measured structure.
#[derive(Default)]
struct Measured {
    fields: Vec<(String, Range<usize>)>,
    size: usize,
}

fn table() -> BTreeMap<String, Measured> {
    let mut table = BTreeMap::<String, Measured>::new();
    for line in MEASURED.lines().filter(|line| !line.starts_with('#')).skip(1) {
        let [structure, field, offset, size] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("dcmi-layout.tsv: {line:?} has not four columns")
        };
        let (offset, size): (usize, usize) = (offset.parse().unwrap(), size.parse().unwrap());
        let measured = table.entry(structure.to_owned()).or_default();
        match field {
            "(size)" => measured.size = size,
            _ if (structure, field) == UNION => {}
            _ => measured.fields.push((field.to_owned(), offset..offset + size)),
        }
    }
    for (outer, member, inner) in NESTED {
        let inner: Vec<_> = table[inner].fields.clone();
        let outer = table.get_mut(outer).unwrap();
        let place = outer.fields.iter().position(|(name, _)| name == member).unwrap();
        let (_, at) = outer.fields.remove(place);
        let moved =
            inner.into_iter().map(|(name, bytes)| (name, bytes.start + at.start..bytes.end + at.start));
        outer.fields.splice(place..place, moved);
    }
    table
}

/// Differences between a structure and what was measured.
fn differences(written: &Written, measured: &Measured) -> Vec<String> {
    let mut found = Vec::new();
    let mut seen = 0;
    if written.size != measured.size {
        found.push(format!("{}: {} bytes, measured {}", written.measured, written.size, measured.size));
    }
    for field in &written.fields {
        let inside: Vec<_> =
            measured.fields.iter().filter(|(_, bytes)| overlap(bytes, &field.bytes)).collect();
        seen += inside.len();
        let first = inside.first().map(|(name, _)| name.as_str());
        let start = inside.first().map_or(field.bytes.start, |(_, bytes)| bytes.start);
        let end = inside.last().map_or(field.bytes.end, |(_, bytes)| bytes.end);
        if first != field.first || (start..end) != field.bytes {
            let (name, bytes) = (field.name, &field.bytes);
            let text = format!("{}.{name} has bytes {bytes:?} from {:?}", written.measured, field.first);
            found.push(format!("{text}, measured {first:?} in {:?}", start..end));
        }
    }
    if seen != measured.fields.len() {
        found.push(format!("{}: {seen} of {} fields are written", written.measured, measured.fields.len()));
    }
    found
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

fn compare(written: &[Written]) {
    let table = table();
    let found: Vec<_> = written.iter().flat_map(|one| differences(one, &table[one.measured])).collect();
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn structures_of_the_back_end_are_as_measured() {
    compare(&of_the_back_end());
}

#[test]
fn structures_of_the_simulated_library_are_as_measured() {
    compare(&of_the_simulated_library());
}

#[test]
fn swapped_and_narrow_fields_are_differences() {
    let table = table();
    let field = |name, first, bytes| Field { name, first: Some(first), bytes };
    let hbm = |used, temperature, width: usize| Written {
        measured: "dcmi_hbm_info",
        size: 32,
        fields: vec![
            field("size", "memory_size", 0..8),
            field("frequency", "freq", 8..12),
            field("used", used, 16..16 + width),
            field("temperature", temperature, 24..28),
            field("bandwidth", "bandwith_util_rate", 28..32),
        ],
    };
    let found = |written| differences(&written, &table["dcmi_hbm_info"]).len();
    assert_eq!(found(hbm("memory_usage", "temp", 8)), 0);
    assert_eq!(found(hbm("temp", "memory_usage", 8)), 2);
    assert_eq!(found(hbm("memory_usage", "temp", 4)), 1);
}
