//! A Prometheus of its own for one test, on an address of the loopback network. The program is Debian's, or the one in PATH.

#![expect(clippy::unwrap_used, reason = "a Prometheus that cannot be asked fails the test that wants it")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::running_agent::own_address;

/// Longest wait for the first answer.
const START: Duration = Duration::from_secs(60);

/// A running Prometheus; it ends with this value.
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
    _dir: tempfile::TempDir,
}

/// One series of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Labels, the name among them.
    pub labels: BTreeMap<String, String>,
    /// Value; not a number where the server says so.
    pub value: f64,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

// === impl Prometheus ===

impl Prometheus {
    /// Scrapes these targets each second, with their own labels kept, and evaluates these rule files. `None`, with the reason
    /// printed: there is no such program here.
    #[must_use]
    pub fn start(targets: &[(&str, SocketAddr)], rules: &[PathBuf]) -> Option<Self> {
        let (dir, address) = (tempfile::tempdir().unwrap(), own_address());
        fs::write(dir.path().join("prometheus.yml"), configuration(targets, rules)).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .stdin(Stdio::null())
            .spawn();
        match child {
            Ok(child) => {
                let prometheus = Self { child, address, _dir: dir };
                let began = Instant::now();
                while TcpStream::connect(address).is_err() || prometheus.answer("1").is_err() {
                    assert!(began.elapsed() < START, "Prometheus does not answer");
                    std::thread::sleep(Duration::from_millis(50));
                }
                Some(prometheus)
            }
            Err(error) => {
                println!("stood aside: prometheus: {error}");
                None
            }
        }
    }

    /// What an expression gives now.
    #[must_use]
    pub fn query(&self, expression: &str) -> Vec<Series> {
        self.answer(expression).unwrap()
    }

    /// Waits until an expression gives something, and this holds of it.
    #[must_use]
    pub fn until(&self, expression: &str, holds: impl Fn(&[Series]) -> bool) -> Vec<Series> {
        let began = Instant::now();
        loop {
            let found = self.query(expression);
            if !found.is_empty() && holds(&found) {
                return found;
            }
            assert!(began.elapsed() < START, "{expression}: {found:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn answer(&self, expression: &str) -> Result<Vec<Series>, String> {
        let said = self.get(&format!("/api/v1/query?query={}", encoded(expression)))?;
        let value: Value = serde_json::from_str(&said).map_err(|error| format!("{error}: {said}"))?;
        if value["status"] != "success" {
            return Err(format!("{expression}: {said}"));
        }
        let data = &value["data"];
        Ok(match data["resultType"].as_str() {
            Some("scalar") => vec![Series { labels: BTreeMap::new(), value: number(&data["result"][1]) }],
            _ => data["result"].as_array().into_iter().flatten().map(series).collect(),
        })
    }

    fn get(&self, path: &str) -> Result<String, String> {
        let text = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(self.address)?;
            write!(stream, "GET {path} HTTP/1.0\r\nHost: prometheus\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = text().map_err(|error| error.to_string())?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        Ok(body.to_owned())
    }
}

fn series(result: &Value) -> Series {
    let labels = result["metric"].as_object().into_iter().flatten();
    let labels = labels.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()));
    Series { labels: labels.collect(), value: number(&result["value"][1]) }
}

fn number(value: &Value) -> f64 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

fn configuration(targets: &[(&str, SocketAddr)], rules: &[PathBuf]) -> String {
    let mut text = String::from(
        "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\nrule_files:\n",
    );
    for rule in rules {
        // Writing to a String cannot fail.
        writeln!(text, "- {}", Path::new(rule).display()).unwrap();
    }
    text.push_str("scrape_configs:\n");
    for (job, address) in targets {
        writeln!(
            text,
            "- job_name: {job}\n  honor_labels: true\n  static_configs: [{{targets: ['{address}']}}]"
        )
        .unwrap();
    }
    text
}

/// Text of a query, as a URL has it.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        write!(out, "%{byte:02X}").unwrap();
        out
    })
}
