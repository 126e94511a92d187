//! Fault events: a thread reads new ones and calls the subscribed handlers.

use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use crate::code::INVALID_VALUE;
use crate::layout::{Event, EventFilter, text};
use crate::library::{npus, phy};

/// How often the thread polls for new events.
const INTERVAL: Duration = Duration::from_millis(20);

/// A subscriber.
type Handler = extern "C" fn(*const Event);

/// Chip, first severity, newest serial number that it has, handler.
static SUBSCRIBED: Mutex<Vec<(usize, u8, u32, Handler)>> = Mutex::new(Vec::new());
static THREAD: Once = Once::new();

/// Delivers what is new.
fn deliver() {
    let Some(state) = npus().ok().and_then(|npus| npus.state().ok()) else { return };
    let mut due = Vec::new();
    for (phy, severity, newest, handler) in &mut *SUBSCRIBED.lock().unwrap_or_else(PoisonError::into_inner) {
        let new = state.events.iter().filter(|event| event.serial > *newest && event.phy == *phy);
        due.extend(new.filter(|event| event.severity >= *severity).map(|event| (*event, *handler)));
        *newest = state.serial.max(*newest);
    }
    for (event, handler) in due {
        let serial = i32::try_from(event.serial).unwrap_or(i32::MAX);
        let told = Event {
            kind: 0,
            padding: 0,
            id: event.id,
            device: u16::try_from(event.phy).unwrap_or(u16::MAX),
            node: [0; 4],
            severity: event.severity,
            assertion: event.assertion,
            serial,
            notified: serial,
            raised: 0,
            name: text(&format!("fault {:08X}", event.id)),
            more: [0; 32],
            reserved: [0; 32],
        };
        handler(&raw const told);
    }
}

exports! {
    fn dcmi_subscribe_fault_event(card: i32, device: i32, filter: EventFilter, handler: Option<Handler>) {
        let phy = phy(card, device)?;
        let handler = handler.ok_or(INVALID_VALUE)?;
        // Bit 1: the severity counts.
        let severity = if filter.flags & 2 != 0 { filter.severity } else { 0 };
        let newest = npus()?.state()?.serial;
        SUBSCRIBED.lock().unwrap_or_else(PoisonError::into_inner).push((phy, severity, newest, handler));
        THREAD.call_once(|| {
            std::thread::spawn(|| loop {
                std::thread::sleep(INTERVAL);
                deliver();
            });
        });
        Ok(())
    }
}
