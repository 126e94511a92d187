//! Addresses, networks and URLs of the Kubernetes `ip`, `cidr` and `url` libraries.

use std::fmt;
use std::net::IpAddr;

/// An IP address: never one of IPv4 mapped into IPv6, never with a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ip(pub(super) IpAddr);

/// A network: an address and the number of leading bits that name the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cidr {
    pub(super) address: Ip,
    pub(super) bits: u8,
}

/// The parts of an absolute URL or absolute path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) scheme: String,
    /// Host and port, as written.
    pub(super) host: String,
    pub(super) path: String,
    pub(super) query: String,
}

// === impl Ip ===

impl Ip {
    /// Reads an address.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text.parse::<IpAddr>() {
            Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => {
                Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed"))
            }
            Ok(address) => Ok(Self(address)),
            Err(_) => Err(format!("{text:?} is not an IP address")),
        }
    }

    fn is_width(self) -> u8 {
        if self.0.is_ipv4() { 32 } else { 128 }
    }

    /// The address as a number, moved to the top of 128 bits.
    fn aligned(self) -> u128 {
        match self.0 {
            IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
            IpAddr::V6(v6) => v6.to_bits(),
        }
    }

    /// Link-local multicast: 224.0.0.0/24, ff02::/16 of any flags.
    pub(super) fn is_link_local_multicast(self) -> bool {
        match self.0 {
            IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
            IpAddr::V6(v6) => v6.octets()[0] == 0xff && v6.octets()[1] & 0x0f == 0x02,
        }
    }

    /// Link-local unicast: 169.254.0.0/16, fe80::/10.
    pub(super) fn is_link_local_unicast(self) -> bool {
        match self.0 {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        }
    }

    /// Anything that is neither unspecified, loopback, multicast, link-local nor the IPv4 broadcast.
    pub(super) fn is_global_unicast(self) -> bool {
        let broadcast = matches!(self.0, IpAddr::V4(v4) if v4.is_broadcast());
        !(broadcast
            || self.0.is_unspecified()
            || self.0.is_loopback()
            || self.0.is_multicast()
            || self.is_link_local_unicast())
    }
}

// === impl Cidr ===

impl Cidr {
    /// Reads `address/bits`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let fail = || format!("{text:?} is not a network such as 10.0.0.0/8");
        let (address, bits) = text.rsplit_once('/').ok_or_else(fail)?;
        let address = Ip::parse(address)?;
        if bits.len() > 1 && bits.starts_with('0') || !bits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(fail());
        }
        match bits.parse::<u8>() {
            Ok(bits) if bits <= address.is_width() => Ok(Self { address, bits }),
            _ => Err(fail()),
        }
    }

    fn mask(self) -> u128 {
        u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0)
    }

    /// Whether an address of the same family is in the network.
    pub(super) fn contains(self, ip: Ip) -> bool {
        ip.is_width() == self.address.is_width() && (ip.aligned() ^ self.address.aligned()) & self.mask() == 0
    }

    /// Whether the whole of another network is in this one.
    pub(super) fn contains_network(self, other: Self) -> bool {
        self.bits <= other.bits && self.contains(other.address)
    }

    /// The network with the bits behind the mask cleared.
    pub(super) fn masked(self) -> Self {
        let kept = self.address.aligned() & self.mask();
        let address = match self.address.0 {
            IpAddr::V4(_) => IpAddr::V4(u32::try_from(kept >> 96).unwrap_or(0).into()),
            IpAddr::V6(_) => IpAddr::V6(kept.into()),
        };
        Self { address: Ip(address), bits: self.bits }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address.0, self.bits)
    }
}

// === impl Url ===

impl Url {
    /// Reads an absolute URL (`scheme://host/path?query`) or an absolute path. A fragment is part of the last piece.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let fail = |why: &str| Err(format!("{text:?} is not an absolute URL: {why}"));
        if text.is_empty() {
            return fail("it is empty");
        }
        if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return fail("it has a control character");
        }
        let (scheme, rest) = match text.split_once(':') {
            _ if text.starts_with('/') => ("", text),
            Some((scheme, rest)) if is_scheme(scheme) => (scheme, rest),
            _ => return fail("it has no scheme and does not begin with a slash"),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) if !scheme.is_empty() => {
                rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash))
            }
            _ => ("", rest),
        };
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        if host.contains([' ', '<', '>', '"', '^', '`', '{', '|', '}', '\\']) {
            return fail("its host has a character that hosts may not have");
        }
        let port = host.rsplit_once(':').filter(|_| !host.ends_with(']')).map_or("", |(_, port)| port);
        if !port.bytes().all(|b| b.is_ascii_digit()) {
            return fail("its port is not a number");
        }
        if !escapes_are_whole(path) {
            return fail("it has a malformed % escape");
        }
        let owned = str::to_owned;
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            host: owned(host),
            path: escaped_path(path),
            query: owned(query),
        })
    }

    /// The host without port and without the brackets of an IPv6 address.
    pub(super) fn hostname(&self) -> &str {
        let without_port = match self.host.rsplit_once(':') {
            Some((host, _)) if !self.host.ends_with(']') => host,
            _ => &self.host,
        };
        without_port.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(without_port)
    }

    /// The port, empty if none is written.
    pub(super) fn port(&self) -> &str {
        match self.host.rsplit_once(':') {
            Some((_, port)) if !self.host.ends_with(']') => port,
            _ => "",
        }
    }

    /// Query parameters in order, decoded; those with a malformed escape or a semicolon are left out.
    pub(super) fn parameters(&self) -> Vec<(String, String)> {
        let pairs = self.query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';'));
        pairs
            .filter_map(|pair| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                Some((unescape(key)?, unescape(value)?))
            })
            .collect()
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}

/// The path with what may not stand in one escaped; one that is fine is left alone.
fn escaped_path(path: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:@[]/%".contains(&b);
    if path.bytes().all(plain) {
        return path.to_owned();
    }
    let kept = |b: u8| b.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@%".contains(&b);
    path.bytes().fold(String::new(), |mut out, b| {
        if kept(b) {
            out.push(char::from(b));
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
        out
    })
}

fn escapes_are_whole(text: &str) -> bool {
    text.split('%')
        .skip(1)
        .all(|rest| rest.as_bytes().get(..2).is_some_and(|d| d.iter().all(u8::is_ascii_hexdigit)))
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &tail[2..];
            }
            other => bytes.push(*other),
        }
    }
    String::from_utf8(bytes).ok()
}
