//! Links the library under the vendor's name.

#[expect(dead_code, reason = "one source for all simulated libraries; here the name is all that is needed")]
#[path = "../exports.rs"]
mod exports;

fn main() {
    exports::link_as("libdcmi.so");
}
