//! This machine's own cards, as commands on them find them: their driver's libraries are where every program finds them.

use std::io;
use std::sync::Arc;

use aliquot_backend_nvidia::NvidiaNode;
use aliquot_core::card::Inventory;
use aliquot_core::grant::Grant;
use aliquot_core::id::{CardUuid, Vendor};

use super::cards::{Cards, Reach};

/// The NVIDIA cards of this machine.
#[derive(Clone, Debug)]
pub struct Machine(pub Arc<NvidiaNode>);

// === impl Machine ===

impl Cards for Machine {
    fn vendor(&self) -> Vendor {
        NvidiaNode::vendor()
    }

    fn reach(&self, _: &Grant, _: &CardUuid, _: &Inventory) -> io::Result<Reach> {
        Ok(Reach { libraries: None, environment: Vec::new(), meter: None })
    }

    fn no_partitions(&self) -> &[String] {
        self.0.no_partitions()
    }

    fn remove_others(&self, _: &dyn Fn(&str) -> bool) -> io::Result<()> {
        // Nothing was made.
        Ok(())
    }
}
