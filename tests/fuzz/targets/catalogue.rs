//! Any text: a card model or an error that names file and field; a model that is read makes cards that work.

#![no_main]

use aliquot_core::catalogue::CardModel;
use aliquot_core::counters::binding_counters;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match CardModel::parse("fuzz.toml", text) {
        Err(error) => assert!(error.to_string().contains("fuzz.toml"), "the error names its file: {error}"),
        Ok(model) => {
            for table in model.tables() {
                for (template, placement) in table.partitions() {
                    let takes =
                        table.consumption(&template.name, &placement.name).expect("it is in the table");
                    assert!(
                        takes.first_excess(&table.totals).is_none(),
                        "{} does not fit its card",
                        template.name
                    );
                }
            }
            if let Some(table) = model.table().filter(|table| table.partitions().count() <= 12) {
                assert!(binding_counters(table).totals().first_excess(&table.totals).is_none());
            }
        }
    }
});
