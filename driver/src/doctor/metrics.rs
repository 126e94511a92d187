//! The agent's metrics: they are served, under the names that dashboards have, by this version.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::{CheckVerdict, Finding, NodePaths};
use crate::agent::metrics::NAMES;

/// Longest wait for connection and answer.
const WAIT: Duration = Duration::from_secs(3);
/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 8 << 20;

/// The agent serves its metrics.
pub(super) fn served(site: &NodePaths) -> Finding {
    const CHECK: &str = "metrics";
    let Some(address) = site.metrics else {
        let remedy = "name the agent's address with --metrics-address";
        return Finding::new(CHECK, CheckVerdict::NotChecked, "no address was given", remedy);
    };
    let text = match scrape(address) {
        Ok(text) => text,
        Err(error) => {
            let remedy = "start the agent, or name the address of its Pod with --metrics-address";
            return Finding::new(
                CHECK,
                CheckVerdict::Warning,
                format!("{address} does not answer: {error}"),
                remedy,
            );
        }
    };
    let has = |name: &&&str| text.lines().any(|line| line.starts_with(&format!("# TYPE {name} ")));
    let known = NAMES.iter().filter(has).count();
    if known == 0 {
        let found = format!("{address} serves no metric of the agent");
        return Finding::new(
            CHECK,
            CheckVerdict::Warning,
            found,
            "name the agent's address with --metrics-address",
        );
    }
    let own = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    let build = text.lines().find(|line| line.starts_with("aliquot_build_info{")).unwrap_or_default();
    if !build.contains(&own) {
        let found =
            format!("the agent is of another version than this program ({})", env!("CARGO_PKG_VERSION"));
        let remedy = "take dashboards and documents of the agent's version, or update it";
        return Finding::new(CHECK, CheckVerdict::Warning, found, remedy);
    }
    Finding::ok(CHECK, format!("{known} families on {address}"))
}

fn scrape(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, WAIT)?;
    stream.set_read_timeout(Some(WAIT))?;
    stream.set_write_timeout(Some(WAIT))?;
    write!(
        stream,
        "GET /metrics HTTP/1.0\r\nHost: {address}\r\nAccept: application/openmetrics-text\r\n\r\n"
    )?;
    let mut bytes = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
