//! Inputs of a decision besides the document: the flow, the accesses, the measurements.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::document::{Kind, Match, Protocol, Urgency, Used};

/// A flow, as far as it is known. An unknown property matches no condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    pub application: String,
    /// Name or address without the port.
    pub destination: Option<String>,
    pub port: Option<u16>,
    pub protocol: Protocol,
    pub urgency: Urgency,
    /// A group that the gateway is taken to be in. A gateway itself holds a document without groups
    /// (`Document::for_gateway`).
    pub group: Option<String>,
    /// The flow carries vitals of a patient with a high alert that nobody has acknowledged.
    pub raised: bool,
}

impl Flow {
    pub fn new(application: impl Into<String>, urgency: Urgency) -> Self {
        Self {
            application: application.into(),
            destination: None,
            port: None,
            protocol: Protocol::Tcp,
            urgency,
            group: None,
            raised: false,
        }
    }

    /// To `host:port`, `host`, or an address.
    pub fn to(mut self, authority: &str) -> Self {
        let bare = authority.trim_matches(['[', ']']);
        let (host, port) = match authority.rsplit_once(':') {
            _ if bare.parse::<IpAddr>().is_ok() => (bare, None),
            Some((host, port)) => match port.parse() {
                Ok(port) => (host.trim_matches(['[', ']']), Some(port)),
                Err(_) => (authority, None),
            },
            None => (authority, None),
        };
        self.destination = Some(host.to_ascii_lowercase());
        self.port = port;
        self
    }
}

/// An access of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessState {
    pub name: String,
    /// Its interface is up and a path over it answers.
    pub usable: bool,
}

impl AccessState {
    pub fn usable(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            usable: true,
        }
    }
}

/// Measurements of an access; absent values fulfil every threshold.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measurement {
    pub rtt: Option<Duration>,
    /// Share of packets, 0 to 1.
    pub loss: Option<f64>,
    pub rate_bytes_per_s: Option<f64>,
    pub used: Used,
}

/// By name of the access.
pub type Measurements = BTreeMap<String, Measurement>;

impl Match {
    pub(super) fn holds(&self, flow: &Flow) -> bool {
        let any = |list: &[String], holds: &dyn Fn(&String) -> bool| {
            list.is_empty() || list.iter().any(holds)
        };
        let urgency = match flow.urgency {
            Urgency::Alert => self.urgency.contains(&Urgency::Alert),
            urgency => self.urgency.is_empty() || self.urgency.contains(&urgency),
        };
        let group = |wanted: &String| flow.group.as_ref() == Some(wanted);
        urgency
            && (self.protocol.is_empty() || self.protocol.contains(&flow.protocol))
            && any(&self.application, &|wanted| *wanted == flow.application)
            && any(&self.group, &group)
            && any(&self.destination, &|wanted| {
                let destination = flow.destination.as_deref();
                destination.is_some_and(|it| is_within(wanted, it))
            })
            && any(&self.port, &|wanted| {
                let range = port_range(wanted);
                flow.port.is_some_and(|port| {
                    range.is_some_and(|(first, last)| (first..=last).contains(&port))
                })
            })
    }
}

/// `443` or `8000-8099`.
pub(super) fn port_range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first > 0 && first <= last).then_some((first, last))
}

fn is_within(pattern: &str, destination: &str) -> bool {
    if let Some((network, length)) = prefix(pattern) {
        let address = destination.parse::<IpAddr>();
        return address.is_ok_and(|address| covers(network, length, address.to_canonical()));
    }
    let (pattern, destination) = (
        pattern.trim_end_matches('.'),
        destination.trim_end_matches('.'),
    );
    match pattern.strip_prefix("*.") {
        Some(domain) => {
            destination.len() > domain.len() && {
                let (host, end) = destination
                    .split_at_checked(destination.len() - domain.len())
                    .unwrap_or((destination, ""));
                host.ends_with('.') && end.eq_ignore_ascii_case(domain)
            }
        }
        None => pattern.eq_ignore_ascii_case(destination),
    }
}

/// An address, or one with the length of its prefix.
pub(super) fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length.parse::<u8>().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let length = length.unwrap_or(longest);
    (length <= longest).then_some((address, length))
}

fn covers(network: IpAddr, length: u8, address: IpAddr) -> bool {
    let differs = match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            (network.to_bits() ^ address.to_bits()).leading_zeros()
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            (network.to_bits() ^ address.to_bits()).leading_zeros()
        }
        _ => return false,
    };
    differs >= u32::from(length)
}

/// Whether an access is meant by this word of a rule: its name, or its kind.
pub(super) fn is_meant(word: &str, name: &str, kind: Option<Kind>) -> bool {
    word == name || kind.is_some_and(|kind| kind.name() == word)
}
