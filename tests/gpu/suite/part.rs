//! An instance of a card in MIG mode by the older of its two names. The whole page is about it by its UUID; here the same checks,
//! fewer of them, find it held by its card's UUID and its numbers as well.

use crate::card::Bench;
use crate::check::{Page, Side};
use crate::program::Trouble;
use crate::{memory, share};
use aliquot_tests::preload::Tenant;

/// Whether the name leads to the instance; why not.
fn leads_here(bench: &Bench) -> Result<(), Trouble> {
    let found = bench.probe(Side::Bare, &Tenant::new(), &["facts"])?.word("uuid");
    match found {
        Some(uuid) if uuid == bench.facts.uuid => Ok(()),
        other => {
            let other = other.unwrap_or_else(|| "nothing".to_owned());
            Err(Trouble::Aside(format!("the driver shows {other} under this name, without the shim")))
        }
    }
}

/// Limit, reporting and share by that name.
pub(crate) fn held(bench: &Bench, page: &mut Page) {
    let Some(path) = &bench.path else {
        return page.aside("all of it", "NVML does not tell the numbers of the instance");
    };
    bench.by_name(path, || match leads_here(bench) {
        Err(trouble) => page.trouble("all of it", &trouble),
        Ok(()) => page.under("as MIG-GPU-…/…/…", |page| {
            memory::held_in_short(bench, page);
            memory::agreed(bench, page);
            share::alone_in_short(bench, page);
        }),
    });
}
